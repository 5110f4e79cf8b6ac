#include "providers/cpu/common.h"
#include <deltune/op/optimizer.h>
#include <math.h>

/* Fixed blocks of each segment are summed in parallel, their sums in block order. */
enum { BLOCK = 16384 };

static int64_t blocks_of(const dt_param_segment *segment)
{
    return (segment->count + BLOCK - 1) / BLOCK;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    const dt_grad_norm_args *a = args;
    int64_t most = 0;
    for (int64_t s = 0; s < a->n_segments; s++)
        most = blocks_of(&a->segments[s]) > most ? blocks_of(&a->segments[s]) : most;
    return (size_t)most * sizeof(double);
}

static bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_grad_norm_args *a = args;
    const dt_row_kernels *kernels = dtp_row_kernels();
    const float *grad = a->grad.data;
    double *partial = workspace;
    dt_grad_norm_result result = {0, -1};
    for (int64_t s = 0; s < a->n_segments; s++) {
        const dt_param_segment *segment = &a->segments[s];
        const float *begin = grad + segment->offset;
        int64_t blocks = blocks_of(segment);
#pragma omp parallel for num_threads(dtp_threads_for(exec, segment->count)) schedule(static)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t left = segment->count - i * BLOCK;
            partial[i] = kernels->sum_of_squares(begin + i * BLOCK, left < BLOCK ? left : BLOCK);
        }
        double sum = 0;
        for (int64_t i = 0; i < blocks; i++)
            sum += partial[i];
        /* Squares of finite fp32 numbers cannot overflow a double: a sum that is not finite has a cause here. */
        if (result.first_nonfinite < 0 && !isfinite(sum) && !all_finite(begin, segment->count))
            result.first_nonfinite = s;
        result.sum_of_squares += sum;
    }
    *(a->result_device ? a->result_device : a->result) = result;
    return DT_OK;
}

const dt_op_set dtp_cpu_grad_norm = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GRAD_NORM,
    .caps = DT_CAP_DETERMINISTIC,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
};
