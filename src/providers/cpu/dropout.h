/* The dropout of LoRA inputs on the CPU: the mask of core/philox.h, applied to pieces of rows. */
#ifndef DT_CPU_DROPOUT_H
#define DT_CPU_DROPOUT_H

#include "core/philox.h"
#include <deltune/op/linear.h>

typedef struct dt_dropout {
    dt_dropout_key key;
    uint32_t threshold;
    float factor;  /* of kept elements: 1 / (1 - p) */
    int64_t width; /* elements of a whole row */
} dt_dropout;

static inline dt_dropout dtp_dropout_of(const dt_linear_args *a)
{
    const dt_step_values *v = a->values;
    return (dt_dropout){v ? (dt_dropout_key){v->seed, v->step, v->micro, a->input}
                          : (dt_dropout_key){a->seed, a->step, a->micro, a->input},
                        dt_dropout_threshold(a->dropout), 1.0f / (1.0f - a->dropout), a->x.shape[1]};
}

/* out[i] = mask * in[i] for elements column .. column+n of row `row`; `out` may be `in`. */
void dtp_dropout_apply(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, float *out);
/* out[i] = base[i] + mask * in[i]; base NULL = 0; `out` may be `base`. */
void dtp_dropout_add(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, const float *base,
                     float *out);

#endif
