/* Argument files: an object of name: value, as JSON, or as YAML when the build has libyaml. */
#ifndef DT_CLI_ARGS_FILE_H
#define DT_CLI_ARGS_FILE_H

#include <deltune/status.h>
#include <jansson.h>
#include <stdbool.h>

/* Errors: DT_E_IO, DT_E_FORMAT (with the line), DT_E_UNSUPPORTED for YAML in a build without libyaml. */
dt_status dtp_args_file_load(json_t **out, const char *path, dt_err *err);
/* The same from memory: what the fuzz target calls. `yaml` selects the format. */
dt_status dtp_args_file_parse(json_t **out, const char *text, size_t length, bool yaml, const char *where, dt_err *err);

#endif
