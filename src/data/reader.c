#include "data/reader.h"

#include "data/csv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };
#define RECORD_MAX ((size_t)256 << 20)

struct dt_reader {
    char *path;
    int fd; /* -1: all bytes are in the buffer */
    dt_file_kind kind;
    char *buffer; /* bytes begin..end are read and not consumed */
    size_t begin, end, capacity;
    bool owns_buffer, at_end; /* at_end: nothing left to read into the buffer */
    int64_t line, bytes;
    size_t held;        /* bytes of the record handed out, consumed by the next call */
    bool after_element; /* array: an element stands before begin */
    bool done;
    dt_csv_header header;
};

/* ---- The buffer ---- */

/* Reads more bytes behind `end`; *grew is false at the end of the file. Bytes keep their distance from begin. */
static dt_status fill(dt_reader *r, bool *grew, dt_err *err)
{
    *grew = false;
    if (r->at_end)
        return DT_OK;
    if (r->end - r->begin >= RECORD_MAX)
        return dt_fail(err, DT_E_FORMAT, "%s:%lld: a row of more than %zu MiB", r->path, (long long)r->line,
                       RECORD_MAX >> 20);
    if (r->begin > 0) {
        memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (!dtp_grow((void **)&r->buffer, &r->capacity, r->end + CHUNK, 1))
        return dt_fail(err, DT_E_NOMEM, "%s:%lld: out of memory for a long row", r->path, (long long)r->line);
    ssize_t n;
    do
        n = read(r->fd, r->buffer + r->end, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return dt_fail(err, DT_E_IO, "%s: read: %s", r->path, strerror(errno));
    r->at_end = n == 0;
    r->end += (size_t)n;
    r->bytes += n;
    *grew = n > 0;
    return DT_OK;
}

static void consume(dt_reader *r, size_t n)
{
    const char *p = r->buffer + r->begin, *end = p + n;
    while ((p = memchr(p, '\n', (size_t)(end - p)))) {
        r->line++;
        p++;
    }
    r->begin += n;
}

/* Position of the first byte that is not JSON white space, reading as needed; *end is true when there is none. */
static dt_status skip_space(dt_reader *r, bool *end, dt_err *err)
{
    for (bool grew = true;;) {
        size_t n = 0;
        while (r->begin + n < r->end && strchr(" \t\r\n", r->buffer[r->begin + n]) && r->buffer[r->begin + n])
            n++;
        consume(r, n);
        *end = r->begin == r->end;
        if (!*end)
            return DT_OK;
        dt_status status = fill(r, &grew, err);
        if (status != DT_OK || !grew)
            return status;
    }
}

/* ---- Opening ---- */

static const char *ending_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? dot + 1 : "";
}

static dt_status start(dt_reader *r, const char *ending, dt_err *err)
{
    bool is_json = !strcmp(ending, "json") || !strcmp(ending, "jsonl"), grew = true, end;
    if (!is_json && strcmp(ending, "csv") && strcmp(ending, "txt"))
        return dt_fail(err, DT_E_UNSUPPORTED,
                       "%s: files ending in \".%s\" are not read; convert it to .jsonl, .json, .csv or .txt", r->path,
                       ending);
    dt_status status = DT_OK;
    while (status == DT_OK && grew && r->end - r->begin < 3)
        status = fill(r, &grew, err);
    if (status != DT_OK)
        return status;
    if (r->end - r->begin >= 3 && !memcmp(r->buffer + r->begin, "\xef\xbb\xbf", 3))
        r->begin += 3;
    if (is_json) {
        status = skip_space(r, &end, err);
        r->kind = status == DT_OK && !end && r->buffer[r->begin] == '[' ? DT_FILE_ARRAY : DT_FILE_LINES;
        if (status == DT_OK && r->kind == DT_FILE_ARRAY)
            consume(r, 1);
        return status;
    }
    r->kind = !strcmp(ending, "csv") ? DT_FILE_CSV : DT_FILE_TEXT;
    if (r->kind == DT_FILE_TEXT)
        return DT_OK;
    dt_record record;
    bool more;
    char why[200];
    status = dtp_reader_next(r, &record, &more, err);
    if (status == DT_OK && more && !dtp_csv_header(&r->header, record.data, record.length, why, sizeof why))
        return dt_fail(err, DT_E_FORMAT, "%s:%lld: header: %s", r->path, (long long)record.line, why);
    return status;
}

static dt_status finish_open(dt_reader **out, dt_reader *r, const char *ending, dt_err *err)
{
    dt_status status = start(r, ending, err);
    if (status != DT_OK) {
        dtp_reader_close(r);
        return status;
    }
    *out = r;
    return DT_OK;
}

dt_status dtp_reader_open(dt_reader **out, const char *path, dt_err *err)
{
    dt_reader *r = dtp_calloc(1, sizeof *r);
    if (r)
        *r = (dt_reader){.path = dtp_strdup(path), .fd = -1, .line = 1, .owns_buffer = true};
    if (!r || !r->path) {
        dtp_reader_close(r);
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    }
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (r->fd < 0 || fstat(r->fd, &info) < 0 || S_ISDIR(info.st_mode)) {
        int cause = r->fd < 0 ? errno : EISDIR;
        dtp_reader_close(r);
        return dt_fail(err, DT_E_IO, "%s: open: %s", path, strerror(cause));
    }
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return finish_open(out, r, ending_of(path), err);
}

dt_status dtp_reader_open_memory(dt_reader **out, const char *bytes, size_t n, const char *ending, dt_err *err)
{
    dt_reader *r = dtp_calloc(1, sizeof *r);
    if (r)
        *r = (dt_reader){.path = dtp_format("memory.%s", ending),
                         .fd = -1,
                         .line = 1,
                         .buffer = (char *)(uintptr_t)bytes,
                         .end = n,
                         .capacity = n,
                         .at_end = true,
                         .bytes = (int64_t)n};
    if (!r || !r->path) {
        dtp_reader_close(r);
        return dt_fail(err, DT_E_NOMEM, "reader: out of memory");
    }
    return finish_open(out, r, ending, err);
}

void dtp_reader_close(dt_reader *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    if (r->owns_buffer)
        free(r->buffer);
    dtp_csv_header_free(&r->header);
    free(r->path);
    free(r);
}

dt_file_kind dtp_reader_kind(const dt_reader *r)
{
    return r->kind;
}

int64_t dtp_reader_bytes(const dt_reader *r)
{
    return r->bytes;
}

/* ---- Lines ---- */

/* The rest of the current line without its end, in record; `held` covers the end too. */
static dt_status next_line(dt_reader *r, dt_record *record, bool *more, dt_err *err)
{
    size_t seen = 0;
    for (bool grew = true;;) {
        const char *data = r->buffer + r->begin, *newline = NULL;
        size_t n = r->end - r->begin;
        if (n > seen)
            newline = memchr(data + seen, '\n', n - seen);
        if (newline || !grew) {
            size_t length = newline ? (size_t)(newline - data) : n;
            *more = newline || n > 0;
            r->held = length + (newline ? 1 : 0);
            *record = (dt_record){
                .data = data, .length = length > 0 && data[length - 1] == '\r' ? length - 1 : length, .line = r->line};
            return DT_OK;
        }
        seen = n;
        dt_status status = fill(r, &grew, err);
        if (status != DT_OK)
            return status;
    }
}

/* ---- Elements of a JSON array ---- */

/* Finds the end of one JSON value by its brackets and strings; resumable when more bytes arrive. */
typedef struct value_scan {
    size_t at; /* bytes looked at */
    int64_t depth;
    bool in_string, escaped, ended;
} value_scan;

static void scan_value(value_scan *s, const char *data, size_t n)
{
    for (; s->at < n && !s->ended; s->at++) {
        char c = data[s->at];
        if (s->in_string) {
            if (s->escaped)
                s->escaped = false;
            else if (c == '\\')
                s->escaped = true;
            else if (c == '"')
                s->in_string = false;
            continue;
        }
        switch (c) {
        case '"': s->in_string = true; break;
        case '{':
        case '[': s->depth++; break;
        case '}':
        case ']':
            if (s->depth == 0) { /* the array's own end: the value ends before it */
                s->ended = true;
                return;
            }
            if (--s->depth == 0) {
                s->at++;
                s->ended = true;
                return;
            }
            break;
        case ',':
            if (s->depth == 0) {
                s->ended = true;
                return;
            }
            break;
        default: break;
        }
    }
}

static dt_status broken_array(const dt_reader *r, const char *what, dt_err *err)
{
    return dt_fail(err, DT_E_FORMAT, "%s:%lld: %s", r->path, (long long)r->line, what);
}

/* After '[' or an element: skips to the next element, or to the end of the array. */
static dt_status before_element(dt_reader *r, bool *more, dt_err *err)
{
    bool end;
    dt_status status = skip_space(r, &end, err);
    if (status != DT_OK)
        return status;
    if (end)
        return broken_array(r, "the file ends inside its JSON array (is it cut off?)", err);
    char c = r->buffer[r->begin];
    if (c == ']' || (r->after_element && c != ',')) {
        if (c != ']')
            return broken_array(r, "expected ',' or ']' after an element of the JSON array", err);
        consume(r, 1);
        *more = false;
        r->done = true;
        status = skip_space(r, &end, err);
        return status == DT_OK && !end ? broken_array(r, "there is text after the JSON array", err) : status;
    }
    if (c == ',') {
        if (!r->after_element)
            return broken_array(r, "expected an element of the JSON array before ','", err);
        consume(r, 1);
        status = skip_space(r, &end, err);
        if (status == DT_OK && end)
            return broken_array(r, "the file ends inside its JSON array (is it cut off?)", err);
    }
    *more = true;
    return status;
}

static dt_status next_element(dt_reader *r, dt_record *record, bool *more, dt_err *err)
{
    dt_status status = before_element(r, more, err);
    if (status != DT_OK || !*more)
        return status;
    value_scan scan = {0};
    for (bool grew = true;;) {
        scan_value(&scan, r->buffer + r->begin, r->end - r->begin);
        if (scan.ended)
            break;
        if (!grew)
            return broken_array(r, "the file ends inside its JSON array, in the row that starts here", err);
        status = fill(r, &grew, err);
        if (status != DT_OK)
            return status;
    }
    if (scan.at == 0)
        return broken_array(r, "expected an element of the JSON array", err);
    *record = (dt_record){.data = r->buffer + r->begin, .length = scan.at, .line = r->line};
    r->held = scan.at;
    r->after_element = true;
    return DT_OK;
}

/* ---- CSV records ---- */

static dt_status next_csv(dt_reader *r, dt_record *record, bool *more, dt_err *err)
{
    dt_csv_scan scan = {0};
    for (bool grew = true;;) {
        bool ended = dtp_csv_scan_record(&scan, r->buffer + r->begin, r->end - r->begin);
        if (!ended && !grew && scan.quoted) /* it would swallow the rest of the file as one cell */
            return dt_fail(err, DT_E_FORMAT,
                           "%s:%lld: the file ends inside a quoted field of this record (a quote is missing)", r->path,
                           (long long)r->line);
        if (ended || !grew) {
            *more = r->end > r->begin;
            r->held = ended ? scan.at : r->end - r->begin;
            *record = (dt_record){.data = r->buffer + r->begin, .length = r->held, .line = r->line};
            return DT_OK;
        }
        dt_status status = fill(r, &grew, err);
        if (status != DT_OK)
            return status;
    }
}

/* ---- All kinds ---- */

static bool is_blank(const dt_record *record)
{
    for (size_t i = 0; i < record->length; i++)
        if (!strchr(" \t\r\n", record->data[i]) || !record->data[i])
            return false;
    return true;
}

dt_status dtp_reader_next(dt_reader *r, dt_record *record, bool *more, dt_err *err)
{
    do {
        consume(r, r->held);
        r->held = 0;
        *more = false;
        if (r->done)
            return DT_OK;
        dt_status status = r->kind == DT_FILE_ARRAY ? next_element(r, record, more, err)
                           : r->kind == DT_FILE_CSV ? next_csv(r, record, more, err)
                                                    : next_line(r, record, more, err);
        if (status != DT_OK || !*more)
            return status;
    } while (r->kind != DT_FILE_TEXT && is_blank(record));
    return DT_OK;
}

/* ---- Parsing ---- */

static json_t *parse_json(const dt_record *record, char *why, size_t n_why)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_error_t fault;
    json_t *value = json_loadb(record->data, record->length, flags, &fault);
    if (!value &&
        json_error_code(&fault) == json_error_numeric_overflow) /* a huge integer in some field: read it as real */
        value = json_loadb(record->data, record->length, flags | JSON_DECODE_INT_AS_REAL, &fault);
    if (!value)
        snprintf(why, n_why, "not valid JSON: %s (column %d)", fault.text, fault.column);
    return value;
}

static json_t *parse_text(const dt_record *record, char *why, size_t n_why)
{
    json_t *text = json_stringn(record->data, record->length), *row = text ? json_pack("{s:o}", "text", text) : NULL;
    if (!row)
        snprintf(why, n_why, "not valid UTF-8");
    return row;
}

json_t *dtp_reader_parse(const dt_reader *r, const dt_record *record, char *why, size_t n_why)
{
    switch (r->kind) {
    case DT_FILE_CSV: return dtp_csv_parse(&r->header, record->data, record->length, why, n_why);
    case DT_FILE_TEXT: return parse_text(record, why, n_why);
    case DT_FILE_LINES:
    case DT_FILE_ARRAY: break;
    }
    return parse_json(record, why, n_why);
}
