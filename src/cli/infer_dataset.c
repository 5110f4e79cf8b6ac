/* deltune infer --val_dataset: answers the rows of files, one JSON object a row:
 * {"response": the answer, "labels": what the row had there or null, "messages": the conversation with the answer}. */
#include "cli/cli.h"
#include "cli/infer.h"
#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "data/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct dt_results {
    FILE *file;
    char *path;
    int64_t written, skipped;
} dt_results;

/* ---- where results go ---- */

/* --result_path, else infer_result/<time>.jsonl in the adapter's folder, or in result/<model>/ without an adapter. */
static char *result_path(const dt_infer *infer)
{
    const char *given = dtp_args_string(infer->args, "result_path");
    if (given)
        return dtp_strdup(given);
    time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    if (infer->adapter_folder)
        return dtp_format("%s/infer_result/%s.jsonl", infer->adapter_folder, stamp);
    return dtp_format("result/%s/infer_result/%s.jsonl", dtp_path_base(infer->model_folder), stamp);
}

static dt_status open_results(dt_results *results, const dt_infer *infer, dt_err *err)
{
    results->path = result_path(infer);
    if (!results->path)
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    char *slash = strrchr(results->path, '/');
    if (slash && slash != results->path) {
        *slash = '\0';
        dt_status status = dtp_make_folders(results->path, err);
        *slash = '/';
        if (status != DT_OK)
            return status;
    }
    if (dtp_file_exists(results->path))
        return dt_fail(err, DT_E_IO, "%s: exists already; choose another --result_path", results->path);
    results->file = fopen(results->path, "we");
    if (!results->file)
        return dt_fail(err, DT_E_IO, "%s: cannot create: %s", results->path, strerror(errno));
    return DT_OK;
}

/* ---- one row ---- */

static json_t *messages_json(const dt_conversation *conversation)
{
    json_t *list = json_array();
    for (size_t i = 0; i < conversation->count; i++) {
        const dt_message *message = &conversation->messages[i];
        json_array_append_new(list, json_pack("{s:s, s:o}", "role", dtp_role_name(message->role), "content",
                                              json_stringn_nocheck(message->content, message->length)));
    }
    return list;
}

static dt_status write_row(dt_results *results, const dt_infer *infer, const dt_conversation *conversation,
                           const dt_buf *label, bool has_label, dt_err *err)
{
    json_t *labels = has_label ? json_stringn_nocheck(label->data, label->length) : json_null();
    json_t *object =
        json_pack("{s:o, s:o, s:o}", "response", json_stringn_nocheck(infer->response.data, infer->response.length),
                  "labels", labels, "messages", messages_json(conversation));
    if (!object)
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    int failed = json_dumpf(object, results->file, 0);
    json_decref(object);
    /* a row a line, on disk as soon as it is known: a stopped run keeps what it has */
    if (failed || fputc('\n', results->file) == EOF || fflush(results->file) != 0)
        return dt_fail(err, DT_E_IO, "%s: cannot write: %s", results->path, strerror(errno));
    results->written++;
    return DT_OK;
}

/* The last assistant message is what the row expects: it moves to `label`. */
static bool take_label(dt_conversation *conversation, dt_buf *label)
{
    dtp_buf_clear(label);
    if (conversation->count == 0 || conversation->messages[conversation->count - 1].role != DT_ROLE_ASSISTANT)
        return false;
    dt_message *last = &conversation->messages[--conversation->count];
    dtp_buf_append(label, last->content, last->length);
    free(last->content);
    return true;
}

static dt_status answer_row(dt_infer *infer, dt_row *row, dt_buf *label, dt_results *results, dt_finish *finish,
                            dt_err *err)
{
    if (row->kind != DT_ROW_CONVERSATION) {
        dt_warning("%s:%lld: a row of token ids has no question; skipped", row->file, (long long)row->line);
        results->skipped++;
        return DT_OK;
    }
    bool has_label = take_label(&row->conversation, label);
    dt_status status = dtp_infer_answer(infer, &row->conversation, NULL, finish, err);
    if (status == DT_E_ARG || status == DT_E_FORMAT || status == DT_E_UNSUPPORTED) {
        if (dtp_args_bool(infer->args, "strict"))
            return dt_err_prefix(err, "%s:%lld: ", row->file, (long long)row->line);
        dt_warning("%s:%lld: %s; skipped", row->file, (long long)row->line, err->text);
        results->skipped++;
        return DT_OK;
    }
    if (status != DT_OK || *finish == DT_FINISH_CANCELLED)
        return status;
    if (!dtp_conversation_add(&row->conversation, DT_ROLE_ASSISTANT, infer->response.data, infer->response.length))
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    return write_row(results, infer, &row->conversation, label, has_label, err);
}

/* ---- all rows ---- */

/* The N of "PATH#N": the first N rows, as the reference takes them from data that is not shuffled. */
static int64_t row_limit(const char *argument)
{
    const char *mark = strrchr(argument, '#');
    char *end = NULL;
    long long n = mark ? strtoll(mark + 1, &end, 10) : 0;
    return mark && end != mark + 1 && *end == '\0' && n >= 0 ? n : INT64_MAX;
}

static dt_status answer_file(dt_infer *infer, const char *argument, dt_results *results, dt_finish *finish, dt_err *err)
{
    char *columns = NULL;
    const json_t *renames = json_object_get(dtp_args_values(infer->args), "columns");
    if (json_is_object(renames))
        columns = json_dumps(renames, 0);
    dt_row_options options = {.columns = columns, .strict = dtp_args_bool(infer->args, "strict"), .prompts = true};
    dt_rows *rows = NULL;
    dt_row row = {0};
    dt_buf label = {0};
    bool more = false;
    int64_t left = row_limit(argument);
    dt_progress bar;
    dt_status status = dtp_rows_open(&rows, argument, &options, err);
    dtp_progress_start(&bar, stderr, isatty(STDERR_FILENO), "Infer", 0, 0);
    while (status == DT_OK && left-- > 0 && *finish != DT_FINISH_CANCELLED) {
        status = dtp_rows_next(rows, &row, &more, err);
        if (status != DT_OK || !more)
            break;
        status = answer_row(infer, &row, &label, results, finish, err);
        dtp_progress_update(&bar, results->written + results->skipped, NULL);
    }
    dtp_progress_finish(&bar, NULL);
    dtp_rows_close(rows);
    dtp_row_free(&row);
    dtp_buf_free(&label);
    free(columns);
    return status;
}

/* The validation data of the adapter's run: its val_dataset argument, else the part split off, in the run folder. */
static dt_status answer_trained_data(dt_infer *infer, dt_results *results, dt_finish *finish, dt_err *err)
{
    const json_t *list = json_object_get(infer->trained, "val_dataset");
    dt_status status = DT_OK;
    for (size_t i = 0; i < json_array_size(list) && status == DT_OK; i++)
        status = answer_file(infer, json_string_value(json_array_get(list, i)), results, finish, err);
    if (json_array_size(list) > 0)
        return status;
    char *split = infer->adapter_folder ? dtp_format("%s/../val_dataset.jsonl", infer->adapter_folder) : NULL;
    if (split && dtp_file_exists(split))
        status = answer_file(infer, split, results, finish, err);
    else
        status = dt_fail(err, DT_E_ARG, "load_data_args: the adapter's run has no validation data; use --val_dataset");
    free(split);
    return status;
}

int dtp_infer_dataset(dt_infer *infer, dt_err *err)
{
    dt_results results = {0};
    dt_finish finish = DT_FINISH_STOP;
    size_t n = dtp_args_list_count(infer->args, "val_dataset");
    dt_status status = open_results(&results, infer, err);
    for (size_t i = 0; i < n && status == DT_OK && finish != DT_FINISH_CANCELLED; i++)
        status = answer_file(infer, dtp_args_list_at(infer->args, "val_dataset", i), &results, &finish, err);
    if (status == DT_OK && n == 0)
        status = answer_trained_data(infer, &results, &finish, err);
    if (results.file && fclose(results.file) != 0 && status == DT_OK)
        status = dt_fail(err, DT_E_IO, "%s: cannot write: %s", results.path, strerror(errno));
    if (status == DT_OK)
        printf("%lld answers in %s%s\n", (long long)results.written, results.path,
               results.skipped ? " (some rows skipped: see above)" : "");
    free(results.path);
    if (status != DT_OK)
        return status;
    return finish == DT_FINISH_CANCELLED ? 130 : 0;
}
