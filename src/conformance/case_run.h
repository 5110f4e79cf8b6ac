/* Running a case on a provider, through the ordinary call path, with NaN around every buffer. */
#ifndef DT_CONFORMANCE_CASE_RUN_H
#define DT_CONFORMANCE_CASE_RUN_H

#include "conformance/case.h"

typedef struct dt_case_setup {
    const char *provider; /* NULL = whoever the slot chooses */
    dt_dtype activation;  /* DT_F32 or DT_BF16 */
    int64_t extra_rows;   /* capacity beyond T: filled with 1 in inputs, must come out 0 */
    int64_t row_pad;      /* elements (NaN) between the rows of activation tensors: strided views */
    int64_t extra_seqs;   /* capacity of the boundary list beyond n_seq */
    /* As in a recorded step: what changes from step to step is in device memory only - dt_step_values, the boundaries -
     * and the host's copies are wrong. Devices that can record do so; there the call is replayed with other contents
     * first. */
    bool recorded;
} dt_case_setup;

/* What a run gave: a computed copy of every output and gradient of the case. */
typedef struct dt_case_outcome {
    float *values[DT_CASE_MAX_TENSORS]; /* by index of the case's tensors; NULL for given ones */
    const char *provider;               /* who ran it; NULL when the call was refused */
    dt_status status;                   /* of the call */
    char fault[DT_ERR_TEXT];            /* "" or what went wrong apart from numbers: an error status, a written guard,
                                           rows beyond T that are not 0 */
} dt_case_outcome;

/* The provider's failure is the outcome's fault; the status is for the check itself (memory, an unknown provider). */
dt_status dtp_case_run(dt_exec *exec, const dt_case *c, const dt_case_setup *setup, dt_case_outcome *out, dt_err *err);
/* Makes `provider` (NULL: automatic) serve the operator from now on. */
dt_status dtp_case_choose(dt_exec *exec, dt_op op, const char *provider, dt_err *err);
void dtp_case_outcome_free(dt_case_outcome *out);

#endif
