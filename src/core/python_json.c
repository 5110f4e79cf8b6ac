#include "core/python_json.h"

#include "core/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Digits and exponent of the shortest decimal that reads back as x (finite, not 0): 0.d1d2... x 10^*exponent. */
static int shortest_digits(char digits[20], int *exponent, double x)
{
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    int n = 0;
    const char *at = text;
    for (; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9')
            digits[n++] = *at;
    *exponent = atoi(at + 1) + 1;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return n;
}

void dtp_float_repr(char out[40], double x)
{
    if (isnan(x) || isinf(x)) {
        strcpy(out, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    if (x == 0) {
        strcpy(out, signbit(x) ? "-0.0" : "0.0");
        return;
    }
    char digits[20];
    int point, n = shortest_digits(digits, &point, fabs(x));
    char *to = out;
    if (x < 0)
        *to++ = '-';
    if (point > 16 || point < -3) { /* Python's rule: exponent form below 1e-4 and from 1e16 */
        to += sprintf(to, "%c%s%s", digits[0], n > 1 ? "." : "", digits + 1);
        sprintf(to, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
    } else if (point <= 0) {
        sprintf(to, "0.%.*s%s", -point, "0000", digits);
    } else if (n <= point) {
        sprintf(to, "%s%.*s.0", digits, point - n, "0000000000000000");
    } else {
        sprintf(to, "%.*s.%s", point, digits, digits + point);
    }
}

double dtp_python_round(double x, int digits)
{
    char text[400];
    if (!isfinite(x))
        return x;
    /* glibc prints the exact binary value, correctly rounded: the same definition as Python's */
    snprintf(text, sizeof text, "%.*f", digits, x);
    return strtod(text, NULL);
}

static void write_string(dt_buf *to, const char *text, size_t length, bool repr)
{
    char quote = repr ? (memchr(text, '\'', length) && !memchr(text, '"', length) ? '"' : '\'') : '"';
    dtp_buf_putc(to, quote);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == (unsigned char)quote || c == '\\') {
            dtp_buf_putc(to, '\\');
            dtp_buf_putc(to, (char)c);
        } else if (c == '\n')
            dtp_buf_puts(to, "\\n");
        else if (c == '\r')
            dtp_buf_puts(to, "\\r");
        else if (c == '\t')
            dtp_buf_puts(to, "\\t");
        else if (c < 0x20)
            dtp_buf_printf(to, repr ? "\\x%02x" : "\\u%04x", c);
        else
            dtp_buf_putc(to, (char)c);
    }
    dtp_buf_putc(to, quote);
}

static void new_line(dt_buf *to, int depth)
{
    dtp_buf_putc(to, '\n');
    for (int i = 0; i < depth; i++)
        dtp_buf_puts(to, "  ");
}

static void write_value(dt_buf *to, const json_t *value, dt_python_style style, int depth);

/* The separator before element i, and the line it starts on. */
static void open_element(dt_buf *to, size_t i, dt_python_style style, int depth)
{
    bool lines = style == DT_PYTHON_JSON_INDENT;
    if (i)
        dtp_buf_puts(to, lines ? "," : ", ");
    if (lines)
        new_line(to, depth);
}

static void write_array(dt_buf *to, const json_t *value, dt_python_style style, int depth)
{
    size_t n = json_array_size(value);
    dtp_buf_putc(to, '[');
    for (size_t i = 0; i < n; i++) {
        open_element(to, i, style, depth + 1);
        write_value(to, json_array_get(value, i), style, depth + 1);
    }
    if (n && style == DT_PYTHON_JSON_INDENT)
        new_line(to, depth);
    dtp_buf_putc(to, ']');
}

static void write_object(dt_buf *to, const json_t *value, dt_python_style style, int depth)
{
    json_t *object = (json_t *)(uintptr_t)value; /* iterators take a mutable object and do not change it */
    size_t i = 0;
    dtp_buf_putc(to, '{');
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at), i++) {
        const char *key = json_object_iter_key(at);
        open_element(to, i, style, depth + 1);
        write_string(to, key, strlen(key), style == DT_PYTHON_REPR);
        dtp_buf_puts(to, ": ");
        write_value(to, json_object_iter_value(at), style, depth + 1);
    }
    if (i && style == DT_PYTHON_JSON_INDENT)
        new_line(to, depth);
    dtp_buf_putc(to, '}');
}

static void write_real(dt_buf *to, double x, bool repr)
{
    char text[40];
    dtp_float_repr(text, x);
    if (!repr && !isfinite(x))
        strcpy(text, isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
    dtp_buf_puts(to, text);
}

static void write_value(dt_buf *to, const json_t *value, dt_python_style style, int depth)
{
    bool repr = style == DT_PYTHON_REPR;
    switch (json_typeof(value)) {
    case JSON_OBJECT: write_object(to, value, style, depth); break;
    case JSON_ARRAY: write_array(to, value, style, depth); break;
    case JSON_STRING: write_string(to, json_string_value(value), json_string_length(value), repr); break;
    case JSON_INTEGER: dtp_buf_printf(to, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: write_real(to, json_real_value(value), repr); break;
    case JSON_TRUE: dtp_buf_puts(to, repr ? "True" : "true"); break;
    case JSON_FALSE: dtp_buf_puts(to, repr ? "False" : "false"); break;
    case JSON_NULL: dtp_buf_puts(to, repr ? "None" : "null"); break;
    }
}

void dtp_python_write(dt_buf *to, const json_t *value, dt_python_style style)
{
    write_value(to, value, style, 0);
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* A shallow copy whose keys are in order (nested objects keep theirs: the files written here are flat). */
static json_t *sorted_copy(const json_t *object)
{
    size_t n = json_object_size(object), i = 0;
    const char **names = dtp_calloc(n ? n : 1, sizeof *names);
    json_t *copy = names ? json_object() : NULL;
    json_t *source = (json_t *)(uintptr_t)object;
    for (void *at = json_object_iter(source); copy && at; at = json_object_iter_next(source, at))
        names[i++] = json_object_iter_key(at);
    if (copy) {
        qsort(names, n, sizeof *names, by_name);
        for (i = 0; i < n; i++)
            json_object_set(copy, names[i], json_object_get(object, names[i]));
    }
    free(names);
    return copy;
}

dt_status dtp_python_save(const json_t *value, const char *path, bool sort_keys, dt_err *err)
{
    dt_buf text = {0};
    json_t *sorted = sort_keys && json_is_object(value) ? sorted_copy(value) : NULL;
    dtp_python_write(&text, sorted ? sorted : value, DT_PYTHON_JSON_INDENT);
    dtp_buf_putc(&text, '\n');
    json_decref(sorted);
    dt_status st = dtp_buf_status(&text, path, err);
    if (st == DT_OK)
        st = dtp_write_file(path, text.data, text.length, err);
    dtp_buf_free(&text);
    return st;
}
