/* A short conformance check of the very device a run will use (P-26): one generated call of every operator against the
 * reference on the CPU, with gradients, packed and apart, bit for bit again. */
#ifndef DT_CLI_SELF_TEST_H
#define DT_CLI_SELF_TEST_H

#include <deltune/operators.h>

/* Providers that a user chose stay chosen. Prints one line. Errors: DT_E_INTERNAL with operator, provider and fault. */
dt_status dtp_self_test(const dt_exec *exec, dt_dtype activation, dt_err *err);

#endif
