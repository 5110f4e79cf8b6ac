/* deltune encode: how rows become tokens, and which of them carry loss. */
#include "cli/cli.h"
#include "cli/template_args.h"
#include "cli/token_view.h"
#include "core/log.h"
#include "data/rows.h"
#include <stdlib.h>
#include <string.h>

static const dt_arg_spec specs[] = {
    {"input", DT_ARG_LIST, "", NULL,
     "Files (.jsonl .json .csv .txt) or folders with rows of any data format; a row with just `text` is taken as it "
     "stands (required)."},
    {"tokenizer", DT_ARG_STRING, NULL, NULL, "Folder with a tokenizer.json, or that file."},
    {"model", DT_ARG_STRING, NULL, NULL, "Folder of a checkpoint with a tokenizer.json, instead of tokenizer."},
    {"max_rows", DT_ARG_INT, NULL, NULL, "Stop after this many rows. Default: all."},
    {"json", DT_ARG_BOOL, "false", NULL, "One object a row: ids, labels, text; weights where a row has any."},
    {"columns", DT_ARG_JSON, NULL, NULL, "Columns to rename first: '{\"old\": \"new\"}'."},
    {"strict", DT_ARG_BOOL, "false", NULL, "Stop at the first bad row instead of skipping it."},
};
static const dt_arg_group group = DT_ARG_GROUP("Rows", specs);
static const dt_arg_group *const table[] = {&group, &dtp_template_arguments, NULL};

/* Everything one run holds. */
typedef struct dt_encode_run {
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_template *chat; /* NULL when the tokenizer cannot chat: `why` says it when a row needs it */
    dt_err why;
    dt_row row;
    dt_encoded encoded;
    dt_buf line;
    dt_token_view view;
    bool json, strict;
    int64_t max_rows, shown, failed;
} dt_encode_run;

/* Rows of ids bring no text: theirs is what the ids say. */
static dt_status encode_ids(dt_encode_run *run, dt_err *err)
{
    const dt_row *row = &run->row;
    dt_encoded *e = &run->encoded;
    dtp_encoded_clear(e);
    size_t n = row->ids.length;
    if (!dtp_ids_reserve(&e->ids, n) || !dtp_ids_reserve(&e->labels, n))
        return dt_fail(err, DT_E_NOMEM, "out of memory for %zu ids", n);
    if (n == 0)
        return DT_OK;
    memcpy(e->ids.data, row->ids.data, n * sizeof *e->ids.data);
    memcpy(e->labels.data, row->labels.data, n * sizeof *e->labels.data);
    e->ids.length = e->labels.length = n;
    e->labels.data[0] = DT_LABEL_IGNORE;
    return dtp_decode(run->tokenizer, e->ids.data, n, false, &e->text, err);
}

static dt_status encode_row(dt_encode_run *run, dt_err *err)
{
    switch (run->row.kind) {
    case DT_ROW_TEXT:
        return dtp_encode_plain(run->encoder, run->row.text.data ? run->row.text.data : "", run->row.text.length,
                                &run->encoded, err);
    case DT_ROW_TOKENS: return encode_ids(run, err);
    case DT_ROW_CONVERSATION: break;
    }
    if (!run->chat)
        return dt_fail(err, run->why.status, "%s", run->why.text);
    return dtp_template_encode(run->chat, run->encoder, &run->row.conversation, DT_TEMPLATE_TRAIN, &run->encoded, err);
}

static void put_ids(dt_buf *line, const char *name, const dt_ids *ids)
{
    dtp_buf_printf(line, "\"%s\": [", name);
    for (size_t i = 0; i < ids->length; i++)
        dtp_buf_printf(line, i ? ", %d" : "%d", ids->data[i]);
    dtp_buf_puts(line, "], ");
}

static dt_status put_json(dt_encode_run *run, dt_err *err)
{
    const dt_encoded *e = &run->encoded;
    json_t *string = json_stringn(e->text.data ? e->text.data : "", e->text.length);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!text)
        return dt_fail(err, DT_E_NOMEM, "out of memory for a text of %zu bytes", e->text.length);
    dtp_buf_putc(&run->line, '{');
    put_ids(&run->line, "ids", &e->ids);
    put_ids(&run->line, "labels", &e->labels);
    if (e->has_weights) {
        dtp_buf_puts(&run->line, "\"weights\": [");
        for (size_t i = 0; i < e->ids.length; i++)
            dtp_buf_printf(&run->line, i ? ", %.7g" : "%.7g", (double)e->weights[i]);
        dtp_buf_puts(&run->line, "], ");
    }
    dtp_buf_puts(&run->line, "\"text\": ");
    dtp_buf_puts(&run->line, text);
    dtp_buf_puts(&run->line, "}\n");
    free(text);
    return dtp_buf_status(&run->line, "a row", err);
}

static dt_status show_row(dt_encode_run *run, dt_err *err)
{
    dt_err reason = {0};
    dt_status st = encode_row(run, &reason);
    if (st == DT_E_NOMEM || (st != DT_OK && run->strict))
        return dt_fail(err, st, "%s:%lld: %s", run->row.file, (long long)run->row.line, reason.text);
    if (st != DT_OK) {
        dt_warning("%s:%lld: %s", run->row.file, (long long)run->row.line, reason.text);
        run->failed++;
        return DT_OK;
    }
    dtp_buf_clear(&run->line);
    if (run->json) {
        st = put_json(run, err);
    } else {
        char *title = dtp_format("%s:%lld", run->row.file, (long long)run->row.line);
        if (run->shown)
            dtp_buf_putc(&run->line, '\n');
        const dt_encoded *e = &run->encoded;
        st = title ? dtp_view_tokens(&run->view, title, &e->ids, &e->labels, e->has_weights ? e->weights : NULL,
                                     &run->line, err)
                   : dt_fail(err, DT_E_NOMEM, "out of memory");
        free(title);
    }
    if (st == DT_OK && fwrite(run->line.data, 1, run->line.length, stdout) != run->line.length)
        return dt_fail(err, DT_E_IO, "standard output: cannot write");
    run->shown++;
    return st;
}

static dt_status show_file(dt_encode_run *run, const char *path, const dt_row_options *options, dt_err *err)
{
    dt_rows *rows;
    dt_status st = dtp_rows_open(&rows, path, options, err);
    if (st != DT_OK)
        return st;
    while (run->max_rows < 0 || run->shown < run->max_rows) {
        bool more;
        st = dtp_rows_next(rows, &run->row, &more, err);
        if (st != DT_OK || !more)
            break;
        if ((st = show_row(run, err)) != DT_OK)
            break;
    }
    run->failed += dtp_rows_bad(rows);
    dtp_rows_close(rows);
    return st;
}

static dt_status open_run(dt_encode_run *run, const dt_args *args, dt_err *err)
{
    const char *tokenizer = dtp_args_string(args, "tokenizer"), *model = dtp_args_string(args, "model");
    if (dtp_args_list_count(args, "input") == 0)
        return dt_fail(err, DT_E_ARG, "--input FILE is required: the rows to show");
    if (!tokenizer == !model)
        return dt_fail(err, DT_E_ARG, "%s",
                       tokenizer ? "give --tokenizer or --model, not both"
                                 : "--tokenizer FOLDER or --model FOLDER is required");
    run->max_rows = dtp_args_int(args, "max_rows", -1);
    if (dtp_args_given(args, "max_rows") && run->max_rows < 0)
        return dt_fail(err, DT_E_ARG, "--max_rows %lld: expected a number >= 0", (long long)run->max_rows);
    dt_template_options options;
    dt_status st = dtp_template_options(&options, args, err);
    if (st == DT_OK)
        st = dtp_tokenizer_open(&run->tokenizer, tokenizer ? tokenizer : model, err);
    if (st == DT_OK)
        st = dtp_encoder_create(&run->encoder, run->tokenizer, err);
    if (st != DT_OK)
        return st;
    /* A tokenizer without chat tokens still serves rows of plain text. */
    st = dtp_template_create(&run->chat, run->tokenizer, &options, &run->why);
    run->json = dtp_args_bool(args, "json");
    run->strict = dtp_args_bool(args, "strict");
    run->view = (dt_token_view){
        .tokenizer = run->tokenizer, .colour = dtp_stdout_is_terminal(), .columns = dtp_stdout_columns()};
    return st == DT_E_NOMEM ? dt_fail(err, st, "%s", run->why.text) : DT_OK;
}

/* --columns as the text the row reader takes; NULL when not given. */
static char *columns_text(const dt_args *args)
{
    const json_t *columns = json_object_get(dtp_args_values(args), "columns");
    return json_is_object(columns) ? json_dumps(columns, JSON_COMPACT) : NULL;
}

static int run_encode(const dt_args *args, dt_err *err)
{
    dt_encode_run run = {0};
    char *columns = columns_text(args);
    dt_status st = open_run(&run, args, err);
    dt_row_options options = {.columns = columns, .strict = run.strict, .plain_text = true};
    for (size_t i = 0; i < dtp_args_list_count(args, "input") && st == DT_OK; i++)
        st = show_file(&run, dtp_args_list_at(args, "input", i), &options, err);
    if (st == DT_OK && run.failed && !run.shown)
        st = dt_fail(err, DT_E_FORMAT, "no row could be encoded: all %lld are bad", (long long)run.failed);
    free(columns);
    dtp_row_free(&run.row);
    dtp_encoded_free(&run.encoded);
    dtp_buf_free(&run.line);
    dtp_template_free(run.chat);
    dtp_encoder_free(run.encoder);
    dtp_tokenizer_close(run.tokenizer);
    return st;
}

const dt_command dtp_command_encode = {
    .name = "encode",
    .summary = "Show how rows become tokens, and which carry loss.",
    .about = "For each row: its text as the model sees it, then every\n"
             "token with its id. Lines marked \"loss\" are what training\n"
             "learns; on a terminal they are green in the text too.",
    .table = table,
    .run = run_encode,
};
