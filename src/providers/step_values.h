/* Recorded steps on devices whose memory the host reads: the arguments of a call with the values of this very step in
 * their by-value fields. Providers of such devices begin with these, so that both ways of calling are one. */
#ifndef DT_PROVIDERS_STEP_VALUES_H
#define DT_PROVIDERS_STEP_VALUES_H

#include <deltune/op/cross_entropy.h>
#include <deltune/op/linear.h>
#include <deltune/op/optimizer.h>
#include <math.h>

static inline float dtp_grad_scale_now(const dt_cross_entropy_args *a)
{
    return a->values ? a->values->grad_scale : a->grad_scale;
}

/* False: a gradient is not finite, and the call changes nothing. */
static inline bool dtp_adamw_now(dt_adamw_args *a)
{
    if (a->values) {
        a->lr = a->values->lr;
        a->step = a->values->update;
    }
    if (!a->norm)
        return true;
    const double most = a->values->max_grad_norm, norm = sqrt(a->norm->sum_of_squares);
    a->grad_scale = most > 0 ? (float)fmin(1, most / (norm + 1e-6)) : 1;
    return a->norm->first_nonfinite < 0;
}

#endif
