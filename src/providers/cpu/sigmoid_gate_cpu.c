#include "providers/cpu/gates_cpu.h"

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    gate_forward(exec, args, dtp_row_kernels()->sigmoid_gate);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    gate_backward(exec, args, dtp_row_kernels()->sigmoid_gate_backward);
    return DT_OK;
}

const dt_op_set dtp_cpu_sigmoid_gate = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_SIGMOID_GATE,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = gate_verify,
    .forward = forward,
    .backward = backward,
};
