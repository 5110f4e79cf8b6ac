/* Runs reference cases through a provider's own table: no dispatch, no other part of the program. */
#ifndef DT_CUDA_CHECK_CASES_H
#define DT_CUDA_CHECK_CASES_H
#include <deltune/provider.h>

#include "providers/cuda/check/golden.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One checked tensor. ratio = RMS(x - ref) / (RMS(ref) + 1e-8); slice = the worst slice's RMS(x - ref) over
 * 2.5 limit max(RMS(slice), 0.25 RMS(tensor)): above 1 it fails. */
typedef struct case_result {
    const char *tensor;
    double ratio, limit, slice;
    bool pass;
} case_result;

typedef struct case_report {
    case_result results[16];
    int count;
    bool pass, identical; /* a second run gave the same bits */
} case_report;

typedef struct case_options {
    dt_dtype dtype; /* of activations: DT_BF16 or DT_F32 */
    int extra_rows; /* T_cap - T */
    int extra_seqs; /* n_seq_cap - n_seq */
} case_options;

const dt_op_set *case_find_op(const dt_provider *provider, dt_op op);
dt_status case_run(case_report *report, const dt_provider *provider, dt_exec *exec, const golden *g,
                   const case_options *options, dt_err *err);

#ifdef __cplusplus
}
#endif
#endif
