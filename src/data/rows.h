/* Rows of training data, one at a time, from .jsonl, .json, .csv and .txt files or a folder of them.
 *
 * A row becomes a conversation, or token ids, or (on request) plain text; docs/data-formats.md lists every accepted
 * form. Files are streamed: memory is one read buffer and the row in hand, whatever the size of the file. Not for:
 * sampling, shuffling and encoding (data/dataset.h). */
#ifndef DT_DATA_ROWS_H
#define DT_DATA_ROWS_H

#include "text/template.h"

typedef struct dt_row_options {
    const char *columns; /* --columns: a JSON object {"old": "new"}; NULL or "" = none */
    bool strict;         /* the first bad row is an error instead of a counted warning */
    bool plain_text;     /* a row with a string `text` and no message, query or alpaca column is DT_ROW_TEXT */
    bool prompts;        /* a conversation may end without a response (inference) */
} dt_row_options;

typedef enum dt_row_kind { DT_ROW_CONVERSATION, DT_ROW_TOKENS, DT_ROW_TEXT } dt_row_kind;

/* Zero-initialise; a row is reused by the next call, which replaces everything but keeps the memory. */
typedef struct dt_row {
    dt_row_kind kind;
    const char *file;             /* borrowed from the reader */
    int64_t line;                 /* 1-based line on which the row starts */
    dt_conversation conversation; /* kind CONVERSATION */
    dt_buf text;                  /* kind TEXT */
    dt_ids ids, labels;           /* kind TOKENS; labels as the row has them, equal to ids where it has none */
    int64_t dropped_keys;         /* unknown message keys that were ignored */
} dt_row;

void dtp_row_free(dt_row *row); /* leaves a zeroed row */

/* Reads the rows of one --dataset argument in file order: "[hf::|ms::]PATH[:SUBSET][#N]" (N is ignored here). Bad rows
 * are reported as "FILE:LINE: reason" (the first 10 in full) and skipped, or end reading with DT_E_FORMAT under strict.
 */
typedef struct dt_rows dt_rows;
dt_status dtp_rows_open(dt_rows **out, const char *argument, const dt_row_options *options, dt_err *err);
/* *more is false at the end, and *row is not a row then. */
dt_status dtp_rows_next(dt_rows *rows, dt_row *row, bool *more, dt_err *err);
int64_t dtp_rows_bad(const dt_rows *rows); /* rows skipped so far */
void dtp_rows_close(dt_rows *rows);        /* accepts NULL; reports how many bad rows there were beyond the first 10 */

#endif
