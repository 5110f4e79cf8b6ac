/* The execution context's private side: the workspace of the running call. */
#ifndef DT_OPERATORS_EXEC_H
#define DT_OPERATORS_EXEC_H

#include <deltune/exec.h>

/* At least `bytes` of 64-byte aligned device memory, valid until the next operator call on this context. */
dt_status dtp_exec_workspace(dt_exec *exec, size_t bytes, void **out, dt_err *err);

#endif
