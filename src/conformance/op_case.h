/* Reference cases of single operators, run on any provider.
 *
 * A case is a safetensors file: __metadata__ `op` and `params` (JSON), inputs by name, expected outputs, upstream
 * gradients and expected gradients. It is run through the ordinary call path with guard zones of NaN around every
 * buffer; the guards must be untouched afterwards and must not reach a result. Then it is run with capacity beyond its
 * samples, twice: equally good results, zeros in the rows of no sample, and the same bits again. */
#ifndef DT_CONFORMANCE_OP_CASE_H
#define DT_CONFORMANCE_OP_CASE_H

#include "conformance/case.h"

enum { DT_CASE_MAX_RESULTS = 16 };

typedef struct dt_case_result {
    const char *tensor; /* name in the case: "o", "dq", ... */
    dt_comparison comparison;
    double tolerance, slice_tolerance;
} dt_case_result;

typedef struct dt_case_report {
    char name[96]; /* file name without folder and ending */
    dt_op op;
    const char *provider; /* who ran it; NULL when the call was refused */
    int n_results;
    dt_case_result result[DT_CASE_MAX_RESULTS];
    bool passed;
    char fault[DT_ERR_TEXT]; /* "" or why the case failed apart from the numbers: an error status, a written guard */
} dt_case_report;

typedef struct dt_case_options {
    const char *provider; /* NULL = whoever the slot chooses */
    dt_dtype activation;  /* DT_F32 or DT_BF16 */
} dt_case_options;

/* Compares two results for the case's i-th tensor, slice by slice. */
dt_comparison dtp_case_compare(const dt_case *c, int i, const float *got, const float *expected,
                               const dt_comparison_rule *rule);

/* The operator a case file is for. Errors as below. */
dt_status dtp_op_of_case(const char *path, dt_op *op_out, dt_err *err);

/* Runs one file. A case that fails is DT_OK with report->passed == false; errors are for files that are no case:
 * DT_E_IO, DT_E_FORMAT (with file and tensor), DT_E_UNSUPPORTED for an unknown operator. */
dt_status dtp_run_op_case(dt_exec *exec, const char *path, const dt_case_options *options, dt_case_report *report,
                          dt_err *err);

#endif
