/* One operator call with everything known about it: inputs, upstream gradients, and expected results. In memory, and as
 * a safetensors file: __metadata__ `op` and `params` (JSON), tensors by name. */
#ifndef DT_CONFORMANCE_CASE_H
#define DT_CONFORMANCE_CASE_H

#include "conformance/bindings.h"

enum { DT_CASE_MAX_TENSORS = 24, DT_CASE_ARGS = 4096 };

typedef struct dt_case_tensor {
    const dt_binding *binding;
    float *values; /* given, or expected */
    int64_t count, shape[DT_MAX_RANK];
    int rank;
} dt_case_tensor;

struct dt_case {
    char name[96]; /* file name without folder and ending, or what a generator calls it */
    const dt_op_binding *op;
    int n;
    dt_case_tensor tensor[DT_CASE_MAX_TENSORS];
    int64_t rows;        /* T */
    int32_t *cu_seqlens; /* NULL when the operator takes none */
    int64_t n_seq;
    char *params;                                  /* JSON text */
    _Alignas(64) unsigned char args[DT_CASE_ARGS]; /* the argument struct with its scalars set */
};

/* Errors: DT_E_IO, DT_E_FORMAT (with file and tensor), DT_E_UNSUPPORTED for an operator without cases. */
dt_status dtp_case_open(dt_case *out, const char *path, dt_err *err);
/* An empty case of an operator; `params` as in files. */
dt_status dtp_case_create(dt_case *out, dt_op op, const char *name, const char *params, dt_err *err);
/* Adds a tensor of the operator's bindings, zeroed; NULL when the name is unknown or memory is out. */
dt_case_tensor *dtp_case_add(dt_case *c, const char *name, int rank, const int64_t *shape);
dt_status dtp_case_set_boundaries(dt_case *c, const int32_t *cu_seqlens, int64_t n_seq, dt_err *err);
const dt_case_tensor *dtp_case_find(const dt_case *c, const char *name); /* NULL when absent */
dt_status dtp_case_save(const dt_case *c, const char *path, dt_err *err);
void dtp_case_free(dt_case *c); /* accepts a zeroed one */

#endif
