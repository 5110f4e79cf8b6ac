#include "conformance/guarded.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096 }; /* bytes; wider than any vector access or prefetch that strays */

dt_status dtp_guarded_create(dt_guarded *out, dt_exec *exec, dt_dtype dtype, int rank, const int64_t *shape,
                             dt_err *err)
{
    dt_guarded g = {.tensor = {.dtype = dtype, .rank = rank, .shape = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}}};
    int64_t count = 1;
    for (int i = rank - 1; i >= 0; i--) {
        g.tensor.shape[i] = shape[i];
        g.tensor.stride[i] = count;
        count *= shape[i];
    }
    g.bytes = (size_t)count * dt_dtype_size(dtype);
    size_t whole = g.bytes + 2 * GUARD;
    unsigned char *image = malloc(whole);
    if (!image)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes for a check", whole);
    memset(image, 0xFF, whole); /* NaN in F32 and BF16; -1 in I32 */
    dt_status status = dt_exec_alloc(exec, &g.block, whole, err);
    if (status == DT_OK)
        status = dt_exec_upload(exec, g.block, image, whole, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(exec, err);
    free(image);
    if (status != DT_OK) {
        dt_exec_release(exec, g.block);
        return status;
    }
    g.tensor.data = (char *)g.block + GUARD;
    *out = g;
    return DT_OK;
}

void dtp_guarded_free(dt_guarded *g, dt_exec *exec)
{
    dt_exec_release(exec, g->block);
    *g = (dt_guarded){0};
}

dt_status dtp_guarded_write(dt_guarded *g, dt_exec *exec, const float *values, dt_err *err)
{
    int64_t count = dt_tensor_numel(&g->tensor);
    void *image = malloc(g->bytes ? g->bytes : 1);
    if (!image)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes for a check", g->bytes);
    for (int64_t i = 0; i < count; i++) {
        if (g->tensor.dtype == DT_BF16)
            ((uint16_t *)image)[i] = dt_f32_to_bf16(values[i]);
        else if (g->tensor.dtype == DT_I32)
            ((int32_t *)image)[i] = (int32_t)values[i];
        else
            ((float *)image)[i] = values[i];
    }
    dt_status status = dt_exec_upload(exec, g->tensor.data, image, g->bytes, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(exec, err);
    free(image);
    return status;
}

dt_status dtp_guarded_read(const dt_guarded *g, dt_exec *exec, float *values, dt_err *err)
{
    int64_t count = dt_tensor_numel(&g->tensor);
    void *image = malloc(g->bytes ? g->bytes : 1);
    if (!image)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes for a check", g->bytes);
    dt_status status = dt_exec_download(exec, image, g->tensor.data, g->bytes, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(exec, err);
    for (int64_t i = 0; status == DT_OK && i < count; i++)
        values[i] = g->tensor.dtype == DT_BF16 ? dt_bf16_to_f32(((uint16_t *)image)[i]) : ((float *)image)[i];
    free(image);
    return status;
}

dt_status dtp_guarded_verify(const dt_guarded *g, dt_exec *exec, const char *name, dt_err *err)
{
    unsigned char guard[GUARD];
    for (int side = 0; side < 2; side++) {
        const char *at = (const char *)g->block + (side ? GUARD + g->bytes : 0);
        dt_status status = dt_exec_download(exec, guard, at, GUARD, err);
        if (status == DT_OK)
            status = dt_exec_synchronize(exec, err);
        if (status != DT_OK)
            return status;
        int touched = 0;
        for (int i = 0; i < GUARD; i++)
            touched += guard[i] != 0xFF;
        if (touched)
            return dt_fail(err, DT_E_INTERNAL, "%d bytes %s %s were written", touched, side ? "behind" : "before",
                           name);
    }
    return DT_OK;
}
