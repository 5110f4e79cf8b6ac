/* What a call takes besides tensors: boundaries, lists of parameter segments, results that are numbers, and the values
 * of a recorded step. */
#ifndef DT_CONFORMANCE_CASE_EXTRAS_H
#define DT_CONFORMANCE_CASE_EXTRAS_H

#include "conformance/case_run.h"

typedef struct dt_case_extras {
    const dt_case *c;
    dt_recorded recorded;        /* the right values */
    int64_t n_boundaries;        /* n_seq_cap + 1 */
    int32_t *boundaries, *wrong; /* on the host, entries after n_seq repeat T; another list */
    dt_param_segment *segments;
    void *result; /* host */
    void *boundaries_device, *segments_device, *result_device, *recorded_device;
} dt_case_extras;

/* Sets the fields of `args`. Zero-initialised `out`; free it in any case. */
dt_status dtp_case_extras_create(dt_case_extras *out, dt_exec *exec, const dt_case *c, const dt_case_setup *setup,
                                 unsigned char *args, dt_err *err);
/* Recorded calls: what lies in device memory becomes `wrong`, or right. */
dt_status dtp_case_extras_upload(dt_case_extras *e, dt_exec *exec, bool wrong, dt_err *err);
/* A number of the result struct, after the call has run. */
dt_status dtp_case_extras_result(dt_case_extras *e, dt_exec *exec, const dt_binding *b, float *value_out, dt_err *err);
void dtp_case_extras_free(dt_case_extras *e, dt_exec *exec);

#endif
