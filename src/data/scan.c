#include "data/scan.h"

#include "core/threads.h"
#include "data/encode.h"
#include "data/report.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Records are read by one thread into a batch and encoded by all: large enough to keep threads busy, small beside the
 * limit on memory. */
enum { BATCH_BYTES = 4 << 20, BATCH_RECORDS = 4096, STORE_MEMORY = 64 << 20 };

typedef struct batch_slot {
    dt_record record; /* data is an offset into the batch's text until the batch is full */
    size_t at, row;
    int worker;
    dt_encode_result result;
} batch_slot;

struct dt_scanner {
    dt_table *table;
    const dt_dataset_options *options;
    dt_row_format format;
    dt_report report;
    dt_encode_worker *workers;
    int n_workers;
    batch_slot *slots;
    size_t n_slots;
    dt_buf text;
    int64_t bytes_before; /* of files that are done */
};

/* ---- Tables ---- */

void dtp_table_close(dt_table *table)
{
    for (size_t i = 0; i < table->n_files; i++)
        free(table->file[i]);
    free(table->file);
    free(table->file_row);
    free(table->row_line);
    free(table->row_sample);
    free(table->outcome);
    free(table->place);
    free(table->sample);
    free(table->sample_row);
    dtp_token_store_close(table->store);
    *table = (dt_table){0};
}

void dtp_scanned_close(dt_scanned *set)
{
    dtp_source_close(&set->source);
    free(set->is_bad);
    *set = (dt_scanned){0};
}

static dt_status no_memory(dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "data set: out of memory for its table of rows");
}

static dt_status add_row(dt_table *t, int64_t line, dt_err *err)
{
    if (t->n_rows >= UINT32_MAX - 1)
        return dt_fail(err, DT_E_ARG, "data set: more than %u rows", UINT32_MAX - 1);
    size_t n = t->n_rows + 1;
    if (!dtp_grow((void **)&t->row_line, &t->line_capacity, n, sizeof *t->row_line) ||
        !dtp_grow((void **)&t->row_sample, &t->sample_of_capacity, n, sizeof *t->row_sample) ||
        !dtp_grow((void **)&t->outcome, &t->outcome_capacity, n, 1))
        return no_memory(err);
    t->row_line[t->n_rows] = line < UINT32_MAX ? (uint32_t)line : UINT32_MAX;
    t->row_sample[t->n_rows] = DT_NO_SAMPLE;
    t->outcome[t->n_rows++] = DT_ROW_UNUSED;
    return DT_OK;
}

static dt_status add_file(dt_table *t, const char *path, dt_err *err)
{
    if (!dtp_grow((void **)&t->file, &t->file_capacity, t->n_files + 1, sizeof *t->file) ||
        !dtp_grow((void **)&t->file_row, &t->file_row_capacity, t->n_files + 1, sizeof *t->file_row) ||
        !(t->file[t->n_files] = dtp_strdup(path)))
        return no_memory(err);
    t->file_row[t->n_files++] = t->n_rows;
    return DT_OK;
}

static dt_status add_sample(dt_table *t, size_t row, const dt_sample *sample, const uint32_t *words, dt_err *err)
{
    if (t->n_samples >= UINT32_MAX - 1)
        return dt_fail(err, DT_E_ARG, "data set: more than %u samples", UINT32_MAX - 1);
    size_t n = t->n_samples + 1;
    if (!dtp_grow((void **)&t->place, &t->place_capacity, n / DT_PLACE_STEP + 1, sizeof *t->place) ||
        !dtp_grow((void **)&t->sample, &t->sample_capacity, n, sizeof *t->sample) ||
        !dtp_grow((void **)&t->sample_row, &t->sample_row_capacity, n, sizeof *t->sample_row))
        return no_memory(err);
    uint64_t place;
    dt_status status = dtp_token_store_append(t->store, words, dtp_sample_words(sample), &place, err);
    if (status != DT_OK)
        return status;
    if (t->n_samples % DT_PLACE_STEP == 0)
        t->place[t->n_samples / DT_PLACE_STEP] = place;
    if (t->row_sample[row] == DT_NO_SAMPLE)
        t->row_sample[row] = (uint32_t)t->n_samples;
    t->sample[t->n_samples] = *sample;
    t->sample_row[t->n_samples++] = (uint32_t)row;
    return DT_OK;
}

uint64_t dtp_table_place(const dt_table *t, size_t sample)
{
    size_t known = sample / DT_PLACE_STEP * DT_PLACE_STEP;
    uint64_t place = t->place[sample / DT_PLACE_STEP];
    for (; known < sample; known++)
        place += dtp_sample_words(&t->sample[known]);
    return place;
}

/* ---- The scanner ---- */

dt_status dtp_scanner_open(dt_scanner **out, dt_table *table, const dt_dataset_options *options, dt_err *err)
{
    dt_scanner *s = dtp_calloc(1, sizeof *s);
    if (!s)
        return no_memory(err);
    *s = (dt_scanner){.table = table,
                      .options = options,
                      .report.strict = options->rows.strict,
                      .n_workers = options->threads > 0 ? options->threads : dtp_available_threads()};
    dt_row_options rows = options->rows;
    rows.plain_text = rows.prompts = false;
    dt_status status = dtp_row_format_open(&s->format, &rows, err);
    s->workers = dtp_calloc((size_t)s->n_workers, sizeof *s->workers);
    s->slots = dtp_calloc(BATCH_RECORDS, sizeof *s->slots);
    if (status == DT_OK && (!s->workers || !s->slots))
        status = no_memory(err);
    for (int i = 0; status == DT_OK && i < s->n_workers; i++)
        status = dtp_encode_worker_open(&s->workers[i], options, err);
    if (status == DT_OK && !table->store)
        status = dtp_token_store_create(&table->store, options->spill_folder, STORE_MEMORY, err);
    if (status != DT_OK) {
        dtp_scanner_close(s);
        return status;
    }
    *out = s;
    return DT_OK;
}

void dtp_scanner_close(dt_scanner *s)
{
    if (!s)
        return;
    dtp_report_end(&s->report);
    for (int i = 0; s->workers && i < s->n_workers; i++)
        dtp_encode_worker_close(&s->workers[i]);
    for (size_t i = 0; i < s->n_slots; i++)
        free(s->slots[i].result.reason);
    free(s->workers);
    free(s->slots);
    dtp_buf_free(&s->text);
    dtp_row_format_close(&s->format);
    free(s);
}

/* ---- Batches ---- */

static void clear_batch(dt_scanner *s)
{
    for (size_t i = 0; i < s->n_slots; i++)
        free(s->slots[i].result.reason);
    for (int i = 0; i < s->n_workers; i++)
        dtp_buf_clear(&s->workers[i].out);
    s->n_slots = 0;
    dtp_buf_clear(&s->text);
}

static bool batch_is_full(const dt_scanner *s)
{
    return s->n_slots == BATCH_RECORDS || s->text.length >= BATCH_BYTES;
}

static dt_status add_record(dt_scanner *s, const dt_record *record, size_t row, dt_err *err)
{
    s->slots[s->n_slots++] = (batch_slot){.record = *record, .at = s->text.length, .row = row};
    dtp_buf_append(&s->text, record->data, record->length);
    return dtp_buf_status(&s->text, "a batch of rows", err);
}

static void run_batch(dt_scanner *s, const dt_reader *reader, bool encode)
{
    for (size_t i = 0; i < s->n_slots; i++)
        s->slots[i].record.data = s->text.data ? s->text.data + s->slots[i].at : "";
#pragma omp parallel for num_threads(s->n_workers) schedule(dynamic, 8)
    for (size_t i = 0; i < s->n_slots; i++) {
        batch_slot *slot = &s->slots[i];
        slot->worker = omp_get_thread_num();
        dtp_encode_record(&s->workers[slot->worker], reader, &slot->record, &s->format, s->options, encode,
                          &slot->result);
    }
}

/* Reports a row that was dropped; DT_OK when the preparation goes on. */
static dt_status report(dt_scanner *s, const batch_slot *slot, const char *file, dt_err *err)
{
    const dt_encode_result *result = &slot->result;
    const char *reason = result->reason ? result->reason : "out of memory";
    if (result->fatal != DT_OK)
        return dt_fail(err, result->fatal, "%s:%lld: %s", file, (long long)slot->record.line, reason);
    if (!result->reason || ((result->outcome & DT_OUTCOME_MASK) == DT_ROW_TOO_LONG && !s->report.strict))
        return DT_OK; /* too long: counted, one line for all */
    return dtp_report_row(&s->report, file, slot->record.line, reason, err);
}

/* Moves the samples of one record into the table. */
static dt_status keep_samples(dt_scanner *s, const batch_slot *slot, size_t row, dt_err *err)
{
    const char *data = s->workers[slot->worker].out.data;
    size_t at = slot->result.out_at;
    dt_status status = DT_OK;
    s->table->outcome[row] = slot->result.outcome;
    for (uint32_t i = 0; status == DT_OK && i < slot->result.n_samples; i++) {
        dt_sample sample;
        memcpy(&sample, data + at, sizeof sample);
        at += sizeof sample;
        status = add_sample(s->table, row, &sample, (const uint32_t *)(const void *)(data + at), err);
        at += dtp_sample_words(&sample) * sizeof(uint32_t);
    }
    return status;
}

/* Moves the results of a batch into the table in order. `set` gains rows in the first pass; NULL in the second. */
static dt_status commit_batch(dt_scanner *s, dt_scanned *set, const char *file, dt_err *err)
{
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < s->n_slots; i++) {
        batch_slot *slot = &s->slots[i];
        status = report(s, slot, file, err);
        if (status == DT_OK && set && set->source.sample >= 0) {
            if (!dtp_grow((void **)&set->is_bad, &set->record_capacity, set->n_records + 1, 1))
                status = no_memory(err);
            else
                set->is_bad[set->n_records++] = !slot->result.usable;
        }
        if (status == DT_OK && !slot->result.usable) {
            s->table->bad++;
            continue;
        }
        if (status == DT_OK && set) {
            slot->row = s->table->n_rows;
            s->table->dropped_keys += slot->result.dropped_keys;
            status = add_row(s->table, slot->record.line, err);
        }
        if (status == DT_OK)
            status = keep_samples(s, slot, slot->row, err);
    }
    clear_batch(s);
    return status;
}

static void tell_progress(const dt_scanner *s, const dt_reader *reader)
{
    if (s->options->progress)
        s->options->progress(s->options->progress_user, "Prepare", s->bytes_before + dtp_reader_bytes(reader), 0);
}

/* ---- First pass ---- */

static dt_status scan_file(dt_scanner *s, dt_scanned *set, const char *file, dt_err *err)
{
    dt_reader *reader = NULL;
    dt_record record;
    bool more = true;
    dt_status status = dtp_reader_open(&reader, file, err);
    while (status == DT_OK && more) {
        status = dtp_reader_next(reader, &record, &more, err);
        if (status == DT_OK && more)
            status = add_record(s, &record, 0, err);
        if (status == DT_OK && (!more || batch_is_full(s))) {
            run_batch(s, reader, set->source.sample < 0);
            status = commit_batch(s, set, file, err);
            tell_progress(s, reader);
        }
    }
    s->bytes_before += reader ? dtp_reader_bytes(reader) : 0;
    dtp_reader_close(reader);
    clear_batch(s);
    return status;
}

dt_status dtp_scan(dt_scanner *s, dt_scanned *set, dt_err *err)
{
    dt_status status = DT_OK;
    s->format.is_alpaca_zh = set->source.is_alpaca_zh;
    set->first_row = s->table->n_rows;
    set->first_file = s->table->n_files;
    for (size_t i = 0; status == DT_OK && i < set->source.n_files; i++) {
        status = add_file(s->table, set->source.files[i], err);
        if (status == DT_OK)
            status = scan_file(s, set, set->source.files[i], err);
    }
    set->n_rows = s->table->n_rows - set->first_row;
    return status;
}

/* ---- Second pass ---- */

/* Walks the records of a source again, row numbers known from the first pass. */
typedef struct walk {
    const dt_scanned *set;
    const uint8_t *wanted;
    size_t record, row;
} walk;

/* Is the record just read a row that is wanted? Its number is walk->row - 1. */
static bool step(walk *w)
{
    size_t record = w->record++;
    if (record >= w->set->n_records || w->set->is_bad[record])
        return false; /* a file that grew since is read as it was */
    return w->wanted[w->row++] != 0;
}

static dt_status encode_file(dt_scanner *s, walk *w, const char *file, dt_err *err)
{
    dt_reader *reader = NULL;
    dt_record record;
    bool more = true;
    dt_status status = dtp_reader_open(&reader, file, err);
    while (status == DT_OK && more) {
        status = dtp_reader_next(reader, &record, &more, err);
        if (status == DT_OK && more && step(w))
            status = add_record(s, &record, w->set->first_row + w->row - 1, err);
        if (status == DT_OK && (!more || batch_is_full(s))) {
            run_batch(s, reader, true);
            status = commit_batch(s, NULL, file, err);
            tell_progress(s, reader);
        }
    }
    dtp_reader_close(reader);
    clear_batch(s);
    return status;
}

dt_status dtp_scan_wanted(dt_scanner *s, const dt_scanned *set, const uint8_t *wanted, dt_err *err)
{
    walk w = {.set = set, .wanted = wanted};
    dt_status status = DT_OK;
    s->format.is_alpaca_zh = set->source.is_alpaca_zh;
    for (size_t i = 0; status == DT_OK && i < set->source.n_files; i++)
        status = encode_file(s, &w, set->source.files[i], err);
    return status;
}

/* ---- Visiting rows ---- */

static dt_status visit_file(walk *w, const char *file, const dt_row_format *format, dt_row *row, dt_row_visitor visit,
                            void *user, dt_err *err)
{
    dt_reader *reader = NULL;
    dt_record record;
    bool more = true;
    char why[400];
    dt_status status = dtp_reader_open(&reader, file, err);
    while (status == DT_OK && more) {
        status = dtp_reader_next(reader, &record, &more, err);
        if (status != DT_OK || !more)
            break;
        json_t *json = dtp_reader_parse(reader, &record, why, sizeof why);
        bool usable = json && dtp_row_read(row, format, json, why, sizeof why);
        json_decref(json);
        if (!usable)
            continue;
        row->file = file;
        row->line = record.line;
        if (w->row < w->set->n_rows && w->wanted[w->row])
            status = visit(user, w->row, row, err);
        w->row++;
    }
    dtp_reader_close(reader);
    return status;
}

dt_status dtp_scan_visit(const dt_scanned *set, const dt_dataset_options *options, const uint8_t *wanted,
                         dt_row_visitor visit, void *user, dt_err *err)
{
    walk w = {.set = set, .wanted = wanted};
    dt_row row = {0};
    dt_row_format format;
    dt_row_options rows = options->rows;
    rows.plain_text = rows.prompts = false;
    dt_status status = dtp_row_format_open(&format, &rows, err);
    if (status != DT_OK)
        return status;
    format.is_alpaca_zh = set->source.is_alpaca_zh;
    for (size_t i = 0; status == DT_OK && i < set->source.n_files; i++)
        status = visit_file(&w, set->source.files[i], &format, &row, visit, user, err);
    dtp_row_format_close(&format);
    dtp_row_free(&row);
    return status;
}
