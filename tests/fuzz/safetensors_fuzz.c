/* Fuzz target: bytes as a safetensors file. Every byte of every accepted tensor is read. */
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    dt_err err = {0};
    dt_st *st;
    if (dtp_st_open_memory(&st, bytes, length, "fuzz", &err) != DT_OK)
        return 0;
    volatile unsigned sum = 0;
    for (size_t i = 0; i < dtp_st_count(st); i++) {
        const dt_st_tensor *t = dtp_st_at(st, i);
        dt_tensor view;
        if (dtp_st_find(st, t->name) != t)
            __builtin_trap();
        if (dtp_st_view(st, t, &view, &err) == DT_OK &&
            (size_t)dt_tensor_numel(&view) * dt_dtype_size(view.dtype) != t->bytes)
            __builtin_trap();
        for (size_t k = 0; k < t->bytes; k++)
            sum += ((const unsigned char *)t->data)[k];
    }
    dtp_st_close(st);
    return 0;
}
