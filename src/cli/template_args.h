/* The arguments that shape text and labels, shared by the commands that render conversations. */
#ifndef DT_CLI_TEMPLATE_ARGS_H
#define DT_CLI_TEMPLATE_ARGS_H

#include "cli/args.h"
#include "text/template.h"

/* The group {system, loss_scale, enable_thinking, preserve_thinking, add_non_thinking_prefix,
 * disable_ignore_empty_think}. */
extern const dt_arg_group dtp_template_arguments;

/* Strings stay owned by the arguments. Errors: DT_E_ARG (an unknown loss_scale). */
dt_status dtp_template_options(dt_template_options *out, const dt_args *args, dt_err *err);

#endif
