/* The contracts of include/deltune/op as code: every call is checked here before a provider sees it.
 *
 * A contract looks at shapes, dtypes, strides, presence and the boundary list. It never reads tensor data, except
 * host-side boundaries and host-side token ids. It also says which capabilities the call needs, and which rows of
 * which tensors are samples (for the conformance kit). */
#ifndef DT_OPERATORS_CONTRACT_H
#define DT_OPERATORS_CONTRACT_H

#include <deltune/operators.h>

typedef enum dt_phase {
    DT_PHASE_SIZE,    /* sizes only: tensor data may be absent everywhere */
    DT_PHASE_FORWARD, /* inputs and outputs must be present */
    DT_PHASE_BACKWARD /* and upstream gradients and gradients too */
} dt_phase;

typedef struct dt_contract {
    const char *name;    /* dt_op_name */
    size_t args_size;    /* sizeof the argument struct */
    bool differentiable; /* has backward */
    bool has_samples;    /* takes a boundary list */
    /* DT_OK, or the exact fault. `needs_out` gets DT_CAP_* bits. */
    dt_status (*check)(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err);
} dt_contract;

const dt_contract *dtp_contract(dt_op op);

#endif
