/* Reads a reference case (a safetensors file with one operator call) for the stand-alone checks of this plug-in.
 * Every tensor becomes float (integers: int32). Not for models: see model/safetensors.h. */
#ifndef DT_CUDA_CHECK_GOLDEN_H
#define DT_CUDA_CHECK_GOLDEN_H
#include <deltune/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct golden_tensor {
    char name[48];
    int rank;
    int64_t shape[4], count;
    float *values;     /* NULL for integers */
    int32_t *integers; /* NULL for floats */
} golden_tensor;

typedef struct golden {
    char name[96], op[48];
    double scale, eps;
    bool l2norm, silu, zero_centered;
    golden_tensor tensors[32];
    int count;
} golden;

dt_status golden_load(golden *out, const char *path, dt_err *err);
void golden_free(golden *g);
/* NULL when the case has none of that name. */
const golden_tensor *golden_find(const golden *g, const char *name);
#endif
