#include "providers/reference/reference.h"
#include "providers/step_values.h"

static void update_segment(const dt_adamw_args *a, const dt_param_segment *segment)
{
    float *param = a->param.data, *m = a->m.data, *v = a->v.data;
    const float *grad = a->grad.data;
    double b1 = a->beta1, b2 = a->beta2;
    double correction1 = 1 - pow(b1, (double)a->step), correction2 = 1 - pow(b2, (double)a->step);
    for (int64_t i = segment->offset; i < segment->offset + segment->count; i++) {
        double g = (double)grad[i] * a->grad_scale;
        double p = param[i] * (1 - (double)a->lr * segment->weight_decay);
        double first = b1 * m[i] + (1 - b1) * g, second = b2 * v[i] + (1 - b2) * g * g;
        m[i] = (float)first;
        v[i] = (float)second;
        param[i] = (float)(p - a->lr / correction1 * first / (sqrt(second) / sqrt(correction2) + a->eps));
    }
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    dt_adamw_args a = *(const dt_adamw_args *)args;
    if (!dtp_adamw_now(&a))
        return DT_OK;
    for (int64_t s = 0; s < a.n_segments; s++)
        update_segment(&a, &a.segments[s]);
    return DT_OK;
}

const dt_op_set dtp_ref_adamw = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ADAMW,
    .caps = DT_CAP_DETERMINISTIC,
    .forward = forward,
};
