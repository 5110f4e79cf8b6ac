#include "providers/reference/reference.h"
#include <deltune/op/optimizer.h>

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_grad_norm_args *a = args;
    const float *grad = a->grad.data;
    dt_grad_norm_result result = {0, -1};
    for (int64_t s = 0; s < a->n_segments; s++) {
        const dt_param_segment *segment = &a->segments[s];
        for (int64_t i = segment->offset; i < segment->offset + segment->count; i++) {
            result.sum_of_squares += (double)grad[i] * grad[i];
            if (result.first_nonfinite < 0 && !isfinite(grad[i]))
                result.first_nonfinite = s;
        }
    }
    *(a->result_device ? a->result_device : a->result) = result;
    return DT_OK;
}

const dt_op_set dtp_ref_grad_norm = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GRAD_NORM,
    .caps = DT_CAP_DETERMINISTIC,
    .forward = forward,
};
