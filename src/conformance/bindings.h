/* How the tensors of a case map to the fields of an operator's argument struct. */
#ifndef DT_CONFORMANCE_BINDINGS_H
#define DT_CONFORMANCE_BINDINGS_H

#include "conformance/compare.h"
#include <deltune/op/optimizer.h>
#include <deltune/operators.h>
#include <jansson.h>

typedef enum dt_role {
    DT_ROLE_INPUT,    /* given */
    DT_ROLE_OUTPUT,   /* written by forward, compared */
    DT_ROLE_UPSTREAM, /* gradient of an output, given to backward */
    DT_ROLE_GRADIENT  /* written (or added to) by backward, compared */
} dt_role;

typedef enum dt_storage {
    DT_STORE_ACT, /* the activation dtype of the run; weights too */
    DT_STORE_F32,
    DT_STORE_I32,
    DT_STORE_RESULT_F64, /* a number of the operator's result struct */
    DT_STORE_RESULT_I64,
    DT_STORE_SEGMENT /* [n_segments]: a field of the operator's dt_param_segment list */
} dt_storage;

/* What the tensor's first dimension is. */
typedef enum dt_place {
    DT_PLACE_ROWS,  /* tokens */
    DT_PLACE_STATE, /* samples */
    DT_PLACE_PARAM  /* neither: a weight; its gradient is added to */
} dt_place;

typedef struct dt_binding {
    const char *name; /* in the case */
    size_t offset;    /* of the dt_tensor in the argument struct; of a number in the result struct */
    dt_role role;
    dt_storage storage;
    dt_place place;
    dt_slicing slicing;      /* of results */
    bool loose;              /* dg, dbeta: differences of large sums, ten times the gradient tolerance */
    const char *apart_input; /* rows where this input is all zero form a slice of their own */
    const char *updates;     /* the result is what becomes of this input, in the input's own memory */
    /* How often values on the way to this result are rounded to bf16 in a bf16 run, the result itself included (see
     * tolerances.h); 0 = never. */
    int roundings;
} dt_binding;

/* What a recorded step reads from device memory. */
typedef struct dt_recorded {
    dt_step_values values;
    dt_grad_norm_result norm;
} dt_recorded;

typedef struct dt_case dt_case;

typedef struct dt_op_binding {
    dt_op op;
    size_t args_size;
    const dt_binding *tensors;
    size_t n;
    size_t seqs_offset; /* of the dt_seqs, or 0 */
    size_t T_offset;    /* of int64 T, or 0 */
    /* Scalars of `params` into the arguments. */
    dt_status (*params)(void *args, const json_t *params, const char *where, dt_err *err);
    /* Arguments that are no tensors; offsets are 0 where the operator has none. */
    size_t result, result_device, result_bytes;
    size_t segments, n_segments, segments_device;
    size_t values, norm;
    /* Moves what a recorded step reads from `values` and `norm` there, and leaves wrong values behind. */
    void (*record)(void *args, const dt_case *c, dt_recorded *recorded);
} dt_op_binding;

static inline bool dtp_binding_is_given(const dt_binding *b)
{
    return b->role == DT_ROLE_INPUT || b->role == DT_ROLE_UPSTREAM;
}

/* It has memory of its own on the device. */
static inline bool dtp_binding_has_buffer(const dt_binding *b)
{
    return b->storage <= DT_STORE_I32 && !b->updates;
}

/* NULL when single-operator cases of this operator are not defined. */
const dt_op_binding *dtp_op_binding(dt_op op);

#endif
