#include "data/rows.h"

#include "data/reader.h"
#include "data/report.h"
#include "data/row_format.h"
#include "data/source.h"

#include <stdlib.h>

struct dt_rows {
    dt_source source;
    dt_row_format format;
    dt_report report;
    dt_reader *reader; /* of files[file], NULL between files */
    size_t file;
};

void dtp_row_free(dt_row *row)
{
    dtp_conversation_free(&row->conversation);
    dtp_buf_free(&row->text);
    dtp_ids_free(&row->ids);
    dtp_ids_free(&row->labels);
    *row = (dt_row){0};
}

dt_status dtp_rows_open(dt_rows **out, const char *argument, const dt_row_options *options, dt_err *err)
{
    dt_rows *rows = dtp_calloc(1, sizeof *rows);
    if (!rows)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", argument);
    rows->report.strict = options->strict;
    dt_status status = dtp_row_format_open(&rows->format, options, err);
    if (status == DT_OK)
        status = dtp_source_open(&rows->source, argument, err);
    if (status != DT_OK) {
        dtp_rows_close(rows);
        return status;
    }
    rows->format.is_alpaca_zh = rows->source.is_alpaca_zh;
    *out = rows;
    return DT_OK;
}

/* The next record of any file. */
static dt_status next_record(dt_rows *rows, dt_record *record, bool *more, dt_err *err)
{
    for (*more = false; rows->file < rows->source.n_files; rows->file++) {
        dt_status status = DT_OK;
        if (!rows->reader)
            status = dtp_reader_open(&rows->reader, rows->source.files[rows->file], err);
        if (status == DT_OK)
            status = dtp_reader_next(rows->reader, record, more, err);
        if (status != DT_OK || *more)
            return status;
        dtp_reader_close(rows->reader);
        rows->reader = NULL;
    }
    return DT_OK;
}

dt_status dtp_rows_next(dt_rows *rows, dt_row *row, bool *more, dt_err *err)
{
    dt_record record;
    char why[400];
    for (;;) {
        dt_status status = next_record(rows, &record, more, err);
        if (status != DT_OK || !*more)
            return status;
        json_t *json = dtp_reader_parse(rows->reader, &record, why, sizeof why);
        bool good = json && dtp_row_read(row, &rows->format, json, why, sizeof why);
        json_decref(json);
        row->file = rows->source.files[rows->file];
        row->line = record.line;
        if (good)
            return DT_OK;
        status = dtp_report_row(&rows->report, row->file, row->line, why, err);
        if (status != DT_OK)
            return status;
    }
}

int64_t dtp_rows_bad(const dt_rows *rows)
{
    return rows->report.count;
}

void dtp_rows_close(dt_rows *rows)
{
    if (!rows)
        return;
    dtp_report_end(&rows->report);
    dtp_reader_close(rows->reader);
    dtp_source_close(&rows->source);
    dtp_row_format_close(&rows->format);
    free(rows);
}
