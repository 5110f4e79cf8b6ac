/* The operator sets of the cpu provider. Each picks the kernels of the best instruction set when called. */
#ifndef DT_PROVIDERS_CPU_CPU_H
#define DT_PROVIDERS_CPU_CPU_H

#include <deltune/provider.h>

extern const dt_op_set dtp_cpu_embedding;
extern const dt_op_set dtp_cpu_rms_norm;
extern const dt_op_set dtp_cpu_rms_norm_gated;
extern const dt_op_set dtp_cpu_linear;
extern const dt_op_set dtp_cpu_rope;
extern const dt_op_set dtp_cpu_attention;
extern const dt_op_set dtp_cpu_sigmoid_gate;
extern const dt_op_set dtp_cpu_swiglu;
extern const dt_op_set dtp_cpu_causal_conv1d;
extern const dt_op_set dtp_cpu_causal_conv1d_step;
extern const dt_op_set dtp_cpu_gdn_gates;
extern const dt_op_set dtp_cpu_gdn;
extern const dt_op_set dtp_cpu_gdn_step;
extern const dt_op_set dtp_cpu_cross_entropy;
extern const dt_op_set dtp_cpu_adamw;
extern const dt_op_set dtp_cpu_grad_norm;

/* Host memory as a device. */
extern const dt_device_ops dtp_cpu_device_ops;

#endif
