/* The part of deltune check that compares a whole model (--model-case). */
#ifndef DT_CLI_CHECK_MODEL_H
#define DT_CLI_CHECK_MODEL_H

#include "cli/args.h"
#include <deltune/exec.h>

/* Prints the table or JSON; *passed_out says whether everything was within tolerance. */
dt_status dtp_check_model(dt_exec *exec, const dt_args *args, bool *passed_out, dt_err *err);

#endif
