/* Gradients of reference operators against central differences, on F64 tensors so that there is no rounding noise.
 * For tests only, included by one file each. */
#ifndef DT_REFERENCE_DIFFERENCES_TESTING_H
#define DT_REFERENCE_DIFFERENCES_TESTING_H

#include "providers/op_testing.h"

/* loss = sum of outputs times fixed weights, unless `loss` reads it from the arguments after a forward call. */
typedef struct {
    const dt_op_set *set;
    const void *args;
    ot_call call;
    const dt_tensor *output[2], *upstream[2];
    double (*loss)(const void *args);
} problem;

static MAYBE_UNUSED double loss_of(problem *p)
{
    double loss = 0.0;
    ot_call scratch = ot_begin(1);
    ot_forward(&scratch, p->set, p->args, false);
    ot_finish(&scratch.pool);
    if (p->loss)
        return p->loss(p->args);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; p->output[k] && i < dt_tensor_numel(p->output[k]); i++)
            loss +=
                ot_get(p->output[k], ot_offset(p->output[k], i)) * ot_get(p->upstream[k], ot_offset(p->upstream[k], i));
    return loss;
}

/* Every `step`-th element of an input against its gradient; 1e-6 of the gradient's size, far above the noise of
 * double arithmetic and the h^2 error, far below any wrong term. */
static MAYBE_UNUSED void check_differences(problem *p, const char *name, const dt_tensor *x, const dt_tensor *dx,
                                           int64_t step)
{
    const double h = 1e-4;
    double size = 0.0;
    for (int64_t i = 0; i < dt_tensor_numel(dx); i++)
        size = fmax(size, fabs(ot_get(dx, ot_offset(dx, i))));
    assert_true(size > 0.0);
    for (int64_t i = 0; i < dt_tensor_numel(x); i += step) {
        int64_t at = ot_offset(x, i);
        double was = ot_get(x, at);
        ot_set(x, at, was + h);
        double up = loss_of(p);
        ot_set(x, at, was - h);
        double down = loss_of(p);
        ot_set(x, at, was);
        double expected = (up - down) / (2.0 * h), got = ot_get(dx, ot_offset(dx, i));
        if (!(fabs(got - expected) <= 1e-6 * size))
            fail_msg("d%s[%lld] is %.10g, central difference %.10g", name, (long long)i, got, expected);
    }
}

static MAYBE_UNUSED dt_tensor random_f64(ot_pool *pool, uint64_t *seed, double scale, int rank, const int64_t *shape)
{
    dt_tensor t = ot_tensor(pool, DT_F64, rank, shape, 0);
    ot_fill_normal(&t, seed, scale);
    return t;
}
#define RANDOM(scale, rank, ...) random_f64(pool, &seed, scale, rank, (const int64_t[]){__VA_ARGS__})
#define EMPTY(rank, ...)         ot_tensor(pool, DT_F64, rank, (const int64_t[]){__VA_ARGS__}, 0)

#endif
