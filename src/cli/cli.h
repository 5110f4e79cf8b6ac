/* The command table of the program. A command is one file src/cli/NAME.c that defines `const dt_command
 * dtp_command_NAME` and one line in commands.c. main.c parses, prints help, runs, prints the error, and turns the
 * result into an exit code.
 *
 * Exit codes (docs/training.md): 0 success; 1 the command failed; 2 wrong usage (unknown argument, bad value, missing
 * operand); 130 and 143 stopped by SIGINT and SIGTERM after finishing the step and saving. */
#ifndef DT_CLI_CLI_H
#define DT_CLI_CLI_H

#include "cli/args.h"

typedef struct dt_command {
    const char *name;
    const char *summary;  /* one line for `deltune --help` */
    const char *operands; /* "FILE..." when the command takes bare words, else NULL */
    const char *about;    /* optional paragraph of --help */
    dt_arg_table table;
    bool incumbent; /* names of the reference trainer get their own answers (cli/incumbent.h) */
    /* DT_OK, a negative dt_status with the text in err (printed by main, once), or a positive exit code after the
     * command has said all there is to say. */
    int (*run)(const dt_args *args, dt_err *err);
} dt_command;

extern const dt_command *const dtp_commands[]; /* ended by NULL */

/* stdout is a terminal: colour and a moving progress bar are welcome. NO_COLOR is honoured. */
bool dtp_stdout_is_terminal(void);
/* Width to wrap lines at: the terminal's up to 120, 60 when it does not say, 120 where stdout is no terminal. */
int dtp_stdout_columns(void);

#endif
