/* The table of the cpu provider. One line per operator, in the order of dt_op. */
#include "providers/builtin.h"
#include "providers/cpu/cpu.h"

static const dt_op_set *const operators[] = {
    &dtp_cpu_embedding,     &dtp_cpu_rms_norm,           &dtp_cpu_rms_norm_gated, &dtp_cpu_linear,
    &dtp_cpu_rope,          &dtp_cpu_attention,          &dtp_cpu_sigmoid_gate,   &dtp_cpu_swiglu,
    &dtp_cpu_causal_conv1d, &dtp_cpu_causal_conv1d_step, &dtp_cpu_gdn_gates,      &dtp_cpu_gdn,
    &dtp_cpu_gdn_step,      &dtp_cpu_cross_entropy,      &dtp_cpu_adamw,          &dtp_cpu_grad_norm,
};

const dt_provider dtp_provider_cpu = {
    .abi = DT_PROVIDER_ABI,
    .struct_size = sizeof(dt_provider),
    .name = "cpu",
    .version = "0.1.0",
    .build_id = "built in",
    .device = DT_DEVICE_CPU,
    .priority = 100,
    .device_ops = &dtp_cpu_device_ops,
    .ops = operators,
    .n_ops = sizeof operators / sizeof *operators,
};
