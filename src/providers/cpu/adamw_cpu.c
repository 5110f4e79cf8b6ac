#include "providers/cpu/common.h"
#include "providers/step_values.h"

/* Elements one thread updates at a time. */
enum { BLOCK = 16384 };

static dt_adamw_scalars scalars(const dt_adamw_args *a, float weight_decay)
{
    double beta1 = a->beta1, beta2 = a->beta2;
    return (dt_adamw_scalars){
        .decay = (float)(1 - (double)a->lr * weight_decay),
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .rest1 = (float)(1 - beta1),
        .rest2 = (float)(1 - beta2),
        .step_size = (float)(a->lr / (1 - pow(beta1, (double)a->step))),
        .root_scale = (float)(1 / sqrt(1 - pow(beta2, (double)a->step))),
        .eps = a->eps,
        .grad_scale = a->grad_scale,
    };
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    dt_adamw_args a = *(const dt_adamw_args *)args;
    if (!dtp_adamw_now(&a))
        return DT_OK;
    const dt_row_kernels *kernels = dtp_row_kernels();
    float *param = a.param.data, *m = a.m.data, *v = a.v.data;
    const float *grad = a.grad.data;
    for (int64_t s = 0; s < a.n_segments; s++) {
        int64_t begin = a.segments[s].offset, end = begin + a.segments[s].count;
        dt_adamw_scalars scalar = scalars(&a, a.segments[s].weight_decay);
#pragma omp parallel for num_threads(dtp_threads_for(exec, end - begin)) schedule(static)
        for (int64_t i = begin; i < end; i += BLOCK)
            kernels->adamw(param + i, m + i, v + i, grad + i, &scalar, end - i < BLOCK ? end - i : BLOCK);
    }
    return DT_OK;
}

const dt_op_set dtp_cpu_adamw = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ADAMW,
    .caps = DT_CAP_DETERMINISTIC,
    .forward = forward,
};
