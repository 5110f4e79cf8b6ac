/* Command-line arguments: one declarative table per command, from which parsing, --help, the argument file,
 * args.json and docs/training.md are made.
 *
 *     static const dt_arg_spec specs[] = {
 *         {"max_length", DT_ARG_INT, NULL, NULL, "Longest sample in tokens (default: the model's maximum)."},
 *         {"packing", DT_ARG_BOOL, "false", NULL, "Join samples into rows of packing_length tokens."},
 *     };
 *     static const dt_arg_group group = DT_ARG_GROUP("Data", specs);
 *
 * Syntax: --name value, --name=value, lists space separated, booleans true/false (a bare --name means true),
 * --config FILE.json|FILE.yaml (also as the first operand) for values that the command line then overrides, unless the
 * command's own table has an argument of that name.
 * Not for: what an argument means (train/config.h). */
#ifndef DT_CLI_ARGS_H
#define DT_CLI_ARGS_H

#include <deltune/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum dt_arg_type {
    DT_ARG_BOOL,
    DT_ARG_INT,
    DT_ARG_FLOAT,
    DT_ARG_STRING,
    DT_ARG_LIST, /* of strings */
    DT_ARG_JSON  /* an object: JSON text on the command line, an object in an argument file */
} dt_arg_type;

typedef struct dt_arg_spec {
    const char *name;
    dt_arg_type type;
    const char *value; /* default as it would be written on the command line; NULL = none (null in args.json) */
    /* "a|b|c": the values a string (or the elements of a list) may have; NULL = any. A boolean with choices takes
     * these words beside true and false ("true|false|auto") and has the string as its value then. */
    const char *choices;
    const char *help; /* a sentence; the default is appended by --help */
} dt_arg_spec;

typedef struct dt_arg_group {
    const char *title;
    const dt_arg_spec *specs;
    size_t count;
} dt_arg_group;
#define DT_ARG_GROUP(title, specs)                                                                                     \
    {                                                                                                                  \
        title, specs, sizeof(specs) / sizeof((specs)[0])                                                               \
    }

/* The groups of a command, ended by NULL. */
typedef const dt_arg_group *const *dt_arg_table;

/* Parsed arguments of one command. Every argument of the table has a value (its default when not given). */
typedef struct dt_args dt_args;

/* Parses argv[0..argc). `command` prefixes nothing: errors name the argument. `incumbent` lets names of the reference
 * trainer through as its rules say (cli/incumbent.h). `operands_allowed`: bare words before the first --name, or
 * after a "--", are kept for dt_args_operand.
 * Errors: DT_E_ARG for usage; DT_E_IO and DT_E_FORMAT for the argument file. */
dt_status dtp_args_parse(dt_args **out, dt_arg_table table, bool incumbent, bool operands_allowed, int argc,
                         char **argv, dt_err *err);
void dtp_args_free(dt_args *args); /* accepts NULL */

/* Typed access. The name must be in the table with that type (checked by assert). Strings are borrowed. */
bool dtp_args_bool(const dt_args *args, const char *name);
int64_t dtp_args_int(const dt_args *args, const char *name, int64_t when_absent);
double dtp_args_float(const dt_args *args, const char *name, double when_absent);
const char *dtp_args_string(const dt_args *args, const char *name); /* NULL when absent */
size_t dtp_args_list_count(const dt_args *args, const char *name);
const char *dtp_args_list_at(const dt_args *args, const char *name, size_t i);
/* The argument was written by the user (command line or file), even if with its default value. */
bool dtp_args_given(const dt_args *args, const char *name);
size_t dtp_args_operand_count(const dt_args *args);
const char *dtp_args_operand(const dt_args *args, size_t i);

/* All values in table order; null where an argument has none. Borrowed: what args.json is made of. */
const json_t *dtp_args_values(const dt_args *args);
/* Object whose keys are the names the user wrote. Borrowed. */
const json_t *dtp_args_given_names(const dt_args *args);

/* --help for a terminal (at most 60 columns) and the same table as Markdown for docs/. */
void dtp_args_print_help(FILE *to, dt_arg_table table);
/* A paragraph in the same width, each line indented. */
void dtp_args_print_text(FILE *to, const char *text, size_t indent);
void dtp_args_print_markdown(FILE *to, dt_arg_table table);

#endif
