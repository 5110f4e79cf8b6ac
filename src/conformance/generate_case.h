/* Random calls of an operator, in growing size. */
#ifndef DT_CONFORMANCE_GENERATE_CASE_H
#define DT_CONFORMANCE_GENERATE_CASE_H

#include "conformance/case.h"

bool dtp_can_generate(dt_op op);
/* The index-th of `total` calls: index 0 is the smallest. Inputs and upstream gradients are random and exact in bf16;
 * results are there, zero. The same seed gives the same call on any machine. */
dt_status dtp_generate_case(dt_case *out, dt_op op, uint64_t seed, int index, int total, dt_err *err);

#endif
