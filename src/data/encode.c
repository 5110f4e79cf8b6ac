#include "data/encode.h"

#include <stdio.h>
#include <string.h>

dt_status dtp_encode_worker_open(dt_encode_worker *worker, const dt_dataset_options *options, dt_err *err)
{
    return options->chat ? dtp_encoder_create(&worker->encoder, options->tokenizer, err) : DT_OK;
}

void dtp_encode_worker_close(dt_encode_worker *worker)
{
    dtp_encoder_free(worker->encoder);
    dtp_row_free(&worker->row);
    dtp_encoded_free(&worker->encoded);
    dtp_buf_free(&worker->out);
}

static void fail_all(dt_encode_result *result, dt_status status, const char *reason)
{
    result->fatal = status;
    result->reason = dtp_strdup(reason);
}

static void drop(dt_encode_result *result, dt_outcome outcome, const char *reason)
{
    result->outcome = (uint8_t)outcome;
    result->reason = dtp_strdup(reason);
    if (!result->reason)
        fail_all(result, DT_E_NOMEM, "out of memory");
}

/* Tokens and labels of a row, borrowed from it or from the worker. */
typedef struct tokens {
    const int32_t *ids, *labels;
    const float *weights;
    size_t n;
} tokens;

/* False when the row was dropped, or all of the preparation fails. */
static bool encode_conversation(dt_encode_worker *worker, const dt_dataset_options *options, tokens *out,
                                dt_encode_result *result)
{
    dt_encoded *encoded = &worker->encoded;
    dt_err err = {0};
    if (!worker->encoder) {
        fail_all(result, DT_E_ARG,
                 "this row is text, and there is no tokenizer to encode it (rows with input_ids need none)");
        return false;
    }
    dt_status status = dtp_template_encode(options->chat, worker->encoder, &worker->row.conversation, DT_TEMPLATE_TRAIN,
                                           encoded, &err);
    if (status != DT_OK) {
        if (status == DT_E_NOMEM)
            fail_all(result, status, err.text);
        else
            drop(result, DT_ROW_FAILED, err.text);
        return false;
    }
    *out = (tokens){.ids = encoded->ids.data,
                    .labels = encoded->labels.data,
                    .n = encoded->ids.length,
                    .weights = encoded->has_weights ? encoded->weights : NULL};
    result->outcome |=
        (encoded->added_user ? DT_ROW_ASSISTANT_FIRST : 0) | (encoded->n_control ? DT_ROW_CONTROL_TEXT : 0);
    return true;
}

/* Every id below vocab_size, every label an id or "ignored". */
static bool check_ids(const tokens *t, int64_t vocab_size, char *why, size_t n_why)
{
    int64_t end = vocab_size > 0 ? vocab_size : (int64_t)INT32_MAX + 1;
    for (size_t i = 0; i < t->n; i++) {
        bool bad_id = t->ids[i] < 0 || t->ids[i] >= end;
        if (bad_id || (t->labels[i] != DT_LABEL_IGNORE && (t->labels[i] < 0 || t->labels[i] >= end))) {
            snprintf(why, n_why, "%s %d at position %zu is outside the vocabulary of %lld",
                     bad_id ? "token id" : "label", (int)(bad_id ? t->ids[i] : t->labels[i]), i, (long long)vocab_size);
            return false;
        }
    }
    return true;
}

static void pack_pieces(dt_encode_worker *worker, const dt_dataset_options *options, const tokens *t,
                        dt_encode_result *result)
{
    size_t first, length;
    dt_buf *out = &worker->out;
    result->out_at = out->length;
    for (size_t i = 0; dtp_sample_piece(options->truncation, t->n, (size_t)options->max_length, i, &first, &length);
         i++) {
        size_t header = out->length;
        dt_sample sample = {0};
        dtp_buf_append(out, &sample, sizeof sample);
        if (!dtp_sample_pack(out, t->ids + first, t->labels + first, t->weights ? t->weights + first : NULL, length,
                             &sample)) {
            fail_all(result, DT_E_NOMEM, "out of memory for the tokens of a row");
            return;
        }
        memcpy(out->data + header, &sample, sizeof sample);
        result->n_samples++;
    }
}

static void encode_row(dt_encode_worker *worker, const dt_dataset_options *options, dt_encode_result *result)
{
    const dt_row *row = &worker->row;
    char why[200];
    tokens t = {.ids = row->ids.data, .labels = row->labels.data, .n = row->ids.length};
    if (row->kind == DT_ROW_CONVERSATION && !encode_conversation(worker, options, &t, result))
        return;
    if (t.n == 0) {
        drop(result, DT_ROW_EMPTY, "it has no tokens");
        return;
    }
    if (!check_ids(&t, options->vocab_size, why, sizeof why)) {
        drop(result, DT_ROW_FAILED, why);
        return;
    }
    bool too_long = t.n > (size_t)options->max_length;
    if (too_long && options->truncation == DT_TRUNCATE_DELETE) {
        snprintf(why, sizeof why, "%zu tokens are more than max_length %lld", t.n, (long long)options->max_length);
        drop(result, DT_ROW_TOO_LONG, why);
        return;
    }
    result->outcome |= too_long ? DT_ROW_CUT : DT_ROW_KEPT;
    pack_pieces(worker, options, &t, result);
}

void dtp_encode_record(dt_encode_worker *worker, const dt_reader *reader, const dt_record *record,
                       const dt_row_format *format, const dt_dataset_options *options, bool encode,
                       dt_encode_result *result_out)
{
    char why[400];
    dt_encode_result result = {.fatal = DT_OK};
    json_t *json = dtp_reader_parse(reader, record, why, sizeof why);
    result.usable = json && dtp_row_read(&worker->row, format, json, why, sizeof why);
    json_decref(json);
    if (!result.usable)
        drop(&result, DT_ROW_UNUSED, why);
    else {
        result.dropped_keys = worker->row.dropped_keys;
        if (encode)
            encode_row(worker, options, &result);
    }
    *result_out = result;
}
