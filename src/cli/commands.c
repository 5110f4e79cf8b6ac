/* The table of commands: one line each, in the order of `deltune --help`. */
#include "cli/cli.h"

extern const dt_command dtp_command_check;
extern const dt_command dtp_command_compare;
extern const dt_command dtp_command_encode;
extern const dt_command dtp_command_infer;
extern const dt_command dtp_command_export;
extern const dt_command dtp_command_init;
extern const dt_command dtp_command_ops;
extern const dt_command dtp_command_sft;

const dt_command *const dtp_commands[] = {
    &dtp_command_sft,    &dtp_command_infer,   &dtp_command_export,
    &dtp_command_init,   &dtp_command_compare, &dtp_command_check,
    &dtp_command_encode, &dtp_command_ops,     NULL,
};
