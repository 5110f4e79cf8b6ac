/* Jansson with our errors: parse with file and line, typed field access with the field's path. */
#ifndef DT_CORE_JSON_H
#define DT_CORE_JSON_H

#include <deltune/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* `where` names the source in errors: "FILE:line: text". Duplicate keys are refused, depth is limited. */
dt_status dtp_json_parse(json_t **out, const char *text, size_t length, const char *where, dt_err *err);
dt_status dtp_json_load(json_t **out, const char *path, size_t maximum, dt_err *err);

/* Optional fields: absent or null leaves *out as it was. A wrong type is DT_E_FORMAT "WHERE: FIELD is ..., expected
 * ...". */
dt_status dtp_json_get_int(const json_t *object, const char *field, const char *where, int64_t *out, dt_err *err);
dt_status dtp_json_get_double(const json_t *object, const char *field, const char *where, double *out, dt_err *err);
dt_status dtp_json_get_bool(const json_t *object, const char *field, const char *where, bool *out, dt_err *err);
/* Borrowed from the object. */
dt_status dtp_json_get_string(const json_t *object, const char *field, const char *where, const char **out,
                              dt_err *err);

#endif
