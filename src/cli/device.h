/* The arguments every command shares that runs operators, and what they open. */
#ifndef DT_CLI_DEVICE_H
#define DT_CLI_DEVICE_H

#include "cli/args.h"
#include <deltune/operators.h>
#include <stdio.h>

/* The group {device, threads, provider, plugin}. */
extern const dt_arg_group dtp_device_arguments;

/* A context and an execution context as the arguments ask; device auto takes the best that is there. The plug-in of a
 * device, libdeltune-DEVICE.so, is found beside the program and in the installation's plug-in folder; which file it
 * was, or why device auto is not the device it is for, is said on stderr. Free with dt_exec_free, then dt_ctx_free.
 * Errors: DT_E_ARG, DT_E_UNAVAILABLE with each candidate's reason. */
dt_status dtp_open_device(dt_ctx **ctx_out, dt_exec **exec_out, const dt_args *args, dt_err *err);

/* One line per operator: name, provider, version, file it came from. */
dt_status dtp_print_operators(FILE *to, dt_ctx *ctx, dt_device_kind device, dt_err *err);

#endif
