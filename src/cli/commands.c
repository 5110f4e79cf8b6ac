/* The table of commands: one line each, in the order of `deltune --help`. */
#include "cli/cli.h"

const dt_command *const dtp_commands[] = {
    NULL,
};
