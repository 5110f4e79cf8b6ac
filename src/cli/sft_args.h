/* The argument table of `deltune sft`, shared with the tests of the settings. */
#ifndef DT_CLI_SFT_ARGS_H
#define DT_CLI_SFT_ARGS_H

#include "cli/args.h"

extern const dt_arg_group *const dtp_sft_table[]; /* ended by NULL */

#endif
