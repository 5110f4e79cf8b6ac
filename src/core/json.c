#include "core/json.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>

/* DISABLE_EOF_CHECK stays off: text after the value is an error too. */
enum { PARSE_FLAGS = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL };

dt_status dtp_json_parse(json_t **out, const char *text, size_t length, const char *where, dt_err *err)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* some editors begin UTF-8 files with it */
    json_error_t fault;
    if (length >= 3 && memcmp(text, byte_order_mark, 3) == 0) {
        text += 3;
        length -= 3;
    }
    json_t *value = json_loadb(text, length, PARSE_FLAGS, &fault);
    if (!value && json_error_code(&fault) == json_error_out_of_memory)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory while reading JSON", where);
    if (!value)
        return dt_fail(err, DT_E_FORMAT, "%s:%d: not valid JSON: %s (column %d)", where, fault.line, fault.text,
                       fault.column);
    *out = value;
    return DT_OK;
}

dt_status dtp_json_load(json_t **out, const char *path, size_t maximum, dt_err *err)
{
    char *text;
    size_t length;
    dt_status status = dtp_read_file(path, maximum, &text, &length, err);
    if (status != DT_OK)
        return status;
    status = dtp_json_parse(out, text, length, path, err);
    free(text);
    return status;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

/* The field's value, or NULL when it is absent or null. */
static const json_t *present(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return value && !json_is_null(value) ? value : NULL;
}

static dt_status wrong_type(const json_t *value, const char *field, const char *where, const char *expected,
                            dt_err *err)
{
    return dt_fail(err, DT_E_FORMAT, "%s: %s is %s, expected %s", where, field, type_name(value), expected);
}

dt_status dtp_json_get_int(const json_t *object, const char *field, const char *where, int64_t *out, dt_err *err)
{
    const json_t *value = present(object, field);
    if (!value)
        return DT_OK;
    if (!json_is_integer(value))
        return wrong_type(value, field, where, "an integer", err);
    *out = json_integer_value(value);
    return DT_OK;
}

dt_status dtp_json_get_double(const json_t *object, const char *field, const char *where, double *out, dt_err *err)
{
    const json_t *value = present(object, field);
    if (!value)
        return DT_OK;
    if (!json_is_number(value))
        return wrong_type(value, field, where, "a number", err);
    *out = json_number_value(value);
    return DT_OK;
}

dt_status dtp_json_get_bool(const json_t *object, const char *field, const char *where, bool *out, dt_err *err)
{
    const json_t *value = present(object, field);
    if (!value)
        return DT_OK;
    if (!json_is_boolean(value))
        return wrong_type(value, field, where, "true or false", err);
    *out = json_is_true(value);
    return DT_OK;
}

dt_status dtp_json_get_string(const json_t *object, const char *field, const char *where, const char **out, dt_err *err)
{
    const json_t *value = present(object, field);
    if (!value)
        return DT_OK;
    if (!json_is_string(value))
        return wrong_type(value, field, where, "a string", err);
    *out = json_string_value(value);
    return DT_OK;
}
