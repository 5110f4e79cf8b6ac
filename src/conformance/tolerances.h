/* What passes: the one place that holds the limits of results against float64 references (docs/numerics.md).
 *
 * F32 runs: what rounding of fp32 arithmetic allows.
 * BF16 runs, the gated delta rule: the error of flash-linear-attention in bf16, for each case as a whole; where a case
 * is harder than those it was measured on, the error of a faithful emulation of its rounding points on that case. BF16
 * runs, other operators: inputs and upstream gradients of cases are exact in bf16, products of them are exact in fp32,
 * and sums are fp32. So a result is off by its own rounding to bf16 (2.0e-3 bounds the RMS of the relative error of
 * values spread over many powers of two: 1.7e-3 measured) and by those of the intermediate values that have to be bf16
 * to enter a matrix product. Errors of single terms do not add up relative to a sum: error and sum both grow with the
 * root of the number of terms. Independent roundings add as squares: n of them give sqrt(n) * 2.0e-3. A slice (sample x
 * head) may be off by 2.5 times that, relative to the larger of its RMS and a quarter of the tensor's. */
#ifndef DT_CONFORMANCE_TOLERANCES_H
#define DT_CONFORMANCE_TOLERANCES_H

#include "conformance/case.h"

/* For the i-th tensor of the case, a result. */
void dtp_case_tolerances(const dt_case *c, int i, dt_dtype activation, dt_comparison_rule *rule_out);

#endif
