/* A safetensors file: whatever the bytes, opening refuses or every tensor lies inside them. */
#include "model/safetensors.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static volatile unsigned char sink;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    dt_st *st = NULL;
    dt_err err = {0};
    if (dtp_st_open_memory(&st, bytes, length, "input", &err) != DT_OK)
        return 0;
    for (size_t i = 0; i < dtp_st_count(st); i++) {
        const dt_st_tensor *tensor = dtp_st_at(st, i);
        const unsigned char *data = tensor->data;
        if (tensor->bytes > 0)
            sink = (unsigned char)(data[0] ^ data[tensor->bytes - 1]);
        if (dtp_st_find(st, tensor->name) != tensor)
            __builtin_trap();
        dt_tensor view;
        (void)dtp_st_view(st, tensor, &view, &err);
    }
    (void)dtp_st_metadata(st, "format");
    dtp_st_close(st);
    return 0;
}
