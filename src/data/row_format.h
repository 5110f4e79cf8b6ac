/* What a row means: which columns make a conversation, token ids or text (docs/data-formats.md lists the rules).
 * Not for: files and records (data/reader.h), reporting (data/rows.h). */
#ifndef DT_DATA_ROW_FORMAT_H
#define DT_DATA_ROW_FORMAT_H

#include "data/rows.h"
#include <jansson.h>

typedef struct dt_row_format {
    json_t *renames;   /* --columns: object of strings, or NULL */
    bool is_alpaca_zh; /* remove the leading marker of `input` */
    bool plain_text, prompts;
} dt_row_format;

/* Takes the options of the caller; DT_E_ARG when `columns` is not a JSON object of strings. */
dt_status dtp_row_format_open(dt_row_format *out, const dt_row_options *options, dt_err *err);
void dtp_row_format_close(dt_row_format *format);

/* Fills kind, conversation, text, ids, labels, dropped_keys of `row`. False when the row is bad, with the reason in
 * `why` (one line, no file and line). Thread-safe for different rows. */
bool dtp_row_read(dt_row *row, const dt_row_format *format, const json_t *json, char *why, size_t n_why);

#endif
