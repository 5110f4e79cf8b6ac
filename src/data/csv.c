#include "data/csv.h"

#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dtp_csv_scan_record(dt_csv_scan *s, const char *data, size_t n)
{
    for (; s->at < n; s->at++) {
        char c = data[s->at];
        if (s->quoted) { /* a quote may end the quoted part or, doubled, stand for itself */
            if (c == '"') {
                s->quoted = false;
                s->after_quote = true;
            }
        } else if (c == '\n') {
            s->at++;
            return true;
        } else if (c == '"' && (s->after_quote || !s->in_field)) {
            s->quoted = s->in_field = true;
            s->after_quote = false;
        } else {
            s->in_field = c != ',';
            s->after_quote = false;
        }
    }
    return false;
}

/* Reads one field at *at into `field`; *last is true when the record ends with it. */
static void read_field(const char *data, size_t n, size_t *at, dt_buf *field, bool *last)
{
    size_t i = *at;
    bool quoted = false;
    dtp_buf_clear(field);
    if (i < n && data[i] == '"') {
        quoted = true;
        i++;
    }
    for (; i < n; i++) {
        if (quoted && data[i] == '"') {
            if (i + 1 < n && data[i + 1] == '"')
                i++;
            else {
                quoted = false;
                continue;
            }
        } else if (!quoted && data[i] == ',')
            break;
        dtp_buf_putc(field, data[i]);
    }
    *last = i >= n;
    *at = i + 1;
}

/* Length without the line end. */
static size_t trimmed(const char *data, size_t n)
{
    if (n > 0 && data[n - 1] == '\n')
        n--;
    if (n > 0 && data[n - 1] == '\r')
        n--;
    return n;
}

static json_t *field_string(const dt_buf *field)
{
    return field->failed ? NULL : json_stringn(field->data ? field->data : "", field->length);
}

static bool add_name(dt_csv_header *header, size_t *capacity, const dt_buf *field, char *why, size_t n_why)
{
    json_t *checked = field_string(field);
    const char *name = json_string_value(checked), *fault = NULL;
    if (!name || strlen(name) != field->length)
        fault = "a column name is not valid UTF-8";
    else if (!*name)
        fault = "a column has no name";
    for (size_t i = 0; !fault && i < header->count; i++)
        if (!strcmp(header->names[i], name))
            fault = "two columns have the same name";
    if (!fault && !dtp_grow((void **)&header->names, capacity, header->count + 1, sizeof *header->names))
        fault = "out of memory";
    if (!fault && !(header->names[header->count] = dtp_strdup(name)))
        fault = "out of memory";
    if (fault)
        snprintf(why, n_why, "%s (column %zu)", fault, header->count + 1);
    else
        header->count++;
    json_decref(checked);
    return !fault;
}

bool dtp_csv_header(dt_csv_header *out, const char *data, size_t n, char *why, size_t n_why)
{
    dt_buf field = {0};
    size_t at = 0, capacity = 0;
    bool last = false, good = true;
    n = trimmed(data, n);
    while (good && !last) {
        read_field(data, n, &at, &field, &last);
        good = add_name(out, &capacity, &field, why, n_why);
    }
    dtp_buf_free(&field);
    if (!good)
        dtp_csv_header_free(out);
    return good;
}

void dtp_csv_header_free(dt_csv_header *header)
{
    for (size_t i = 0; i < header->count; i++)
        free(header->names[i]);
    free(header->names);
    *header = (dt_csv_header){0};
}

json_t *dtp_csv_parse(const dt_csv_header *header, const char *data, size_t n, char *why, size_t n_why)
{
    dt_buf field = {0};
    json_t *row = json_object();
    size_t at = 0, count = 0;
    bool last = false, good = row != NULL;
    n = trimmed(data, n);
    for (; good && !last && count < header->count; count++) {
        read_field(data, n, &at, &field, &last);
        json_t *value = field_string(&field);
        if (!value)
            snprintf(why, n_why, "column \"%s\" is not valid UTF-8", header->names[count]);
        good = value && json_object_set_new_nocheck(row, header->names[count], value) == 0;
    }
    if (good && !last) {
        snprintf(why, n_why, "more than the %zu fields of the header", header->count);
        good = false;
    }
    for (; good && count < header->count; count++)
        good = json_object_set_new_nocheck(row, header->names[count], json_null()) == 0;
    dtp_buf_free(&field);
    if (good)
        return row;
    json_decref(row);
    return NULL;
}
