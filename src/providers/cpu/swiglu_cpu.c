#include "providers/cpu/gates_cpu.h"

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    gate_forward(exec, args, dtp_row_kernels()->swiglu);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)workspace, (void)err;
    gate_backward(exec, args, dtp_row_kernels()->swiglu_backward);
    return DT_OK;
}

const dt_op_set dtp_cpu_swiglu = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_SWIGLU,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = gate_verify,
    .forward = forward,
    .backward = backward,
};
