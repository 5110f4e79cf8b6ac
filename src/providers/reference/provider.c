/* The table of the reference provider. One line per operator, in the order of dt_op. */
#include "providers/builtin.h"
#include "providers/reference/reference.h"

static const dt_op_set *const operators[] = {
    &dtp_ref_embedding,     &dtp_ref_rms_norm,           &dtp_ref_rms_norm_gated, &dtp_ref_linear,
    &dtp_ref_rope,          &dtp_ref_attention,          &dtp_ref_sigmoid_gate,   &dtp_ref_swiglu,
    &dtp_ref_causal_conv1d, &dtp_ref_causal_conv1d_step, &dtp_ref_gdn_gates,      &dtp_ref_gdn,
    &dtp_ref_gdn_step,      &dtp_ref_cross_entropy,      &dtp_ref_adamw,          &dtp_ref_grad_norm,
};

const dt_provider dtp_provider_reference = {
    .abi = DT_PROVIDER_ABI,
    .struct_size = sizeof(dt_provider),
    .name = "reference",
    .version = "0.1.0",
    .build_id = "built in",
    .device = DT_DEVICE_CPU,
    .priority = 0,
    .ops = operators,
    .n_ops = sizeof operators / sizeof *operators,
};
