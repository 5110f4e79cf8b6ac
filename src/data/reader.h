/* Cuts one file into records without knowing what they mean: lines, elements of a JSON array, CSV records.
 * Memory is one buffer that holds the longest record.
 * Not for: what a record says (data/rows.h). */
#ifndef DT_DATA_READER_H
#define DT_DATA_READER_H

#include "core/memory.h"
#include <jansson.h>

typedef enum dt_file_kind {
    DT_FILE_LINES, /* JSON, one value a line (.jsonl, or .json that does not begin with '[') */
    DT_FILE_ARRAY, /* JSON, one array */
    DT_FILE_CSV,
    DT_FILE_TEXT, /* one row a line */
} dt_file_kind;

/* A record; data is borrowed until the next call. */
typedef struct dt_record {
    const char *data;
    size_t length;
    int64_t line; /* 1-based line on which it starts */
} dt_record;

typedef struct dt_reader dt_reader;

/* The kind follows from the name's ending (.jsonl, .json, .csv, .txt; others DT_E_UNSUPPORTED) and the first byte. A
 * CSV header is read at once. A byte order mark is skipped. */
dt_status dtp_reader_open(dt_reader **out, const char *path, dt_err *err);
/* The same over bytes; `kind` as found for a file with that ending ("jsonl", ...). The bytes must outlive the reader.
 */
dt_status dtp_reader_open_memory(dt_reader **out, const char *bytes, size_t n, const char *ending, dt_err *err);
void dtp_reader_close(dt_reader *reader); /* accepts NULL */

/* *more is false at the end. Blank lines of JSON and CSV are no records. Errors: DT_E_IO, DT_E_FORMAT (an array that is
 * broken or cut off, a record over 256 MiB), DT_E_NOMEM. */
dt_status dtp_reader_next(dt_reader *reader, dt_record *record, bool *more, dt_err *err);

/* A record as a new JSON value: CSV and text rows become objects of strings. NULL when it is no value, with the reason
 * (one line, without file and line) in `why`. Thread-safe, and callable with any record of this reader, also a copy. */
json_t *dtp_reader_parse(const dt_reader *reader, const dt_record *record, char *why, size_t n_why);

dt_file_kind dtp_reader_kind(const dt_reader *reader);
int64_t dtp_reader_bytes(const dt_reader *reader); /* read so far */

#endif
