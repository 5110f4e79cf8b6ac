#include "core/test.h"

#include "core/log.h"
#include "data/rows.h"
#include "data/test_data.h"

/* ---- A conversation as one line: "user:Q|assistant:A" ---- */

static void describe(const dt_row *row, char *out, size_t n)
{
    size_t at = 0;
    out[0] = '\0';
    if (row->kind == DT_ROW_TEXT)
        snprintf(out, n, "text:%.*s", (int)row->text.length, row->text.data);
    for (size_t i = 0; row->kind == DT_ROW_TOKENS && i < row->ids.length; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%d/%d", i ? " " : "", row->ids.data[i], row->labels.data[i]);
    for (size_t i = 0; row->kind == DT_ROW_CONVERSATION && i < row->conversation.count; i++) {
        const dt_message *m = &row->conversation.messages[i];
        at += (size_t)snprintf(out + at, n - at, "%s%s:%.*s", i ? "|" : "", dtp_role_name(m->role), (int)m->length,
                               m->content);
        if (m->has_loss)
            at += (size_t)snprintf(out + at, n - at, "[loss %d]", m->loss);
        if (m->has_loss_scale)
            at += (size_t)snprintf(out + at, n - at, "[scale %g]", m->loss_scale);
    }
}

/* Log lines of the reader under test. */
typedef struct captured {
    char text[8192];
    size_t length;
} captured;

static void capture(void *user, dt_log_level level, const char *line)
{
    (void)level;
    captured *c = user;
    int n = snprintf(c->text + c->length, sizeof c->text - c->length, "%s\n", line);
    c->length += (size_t)n < sizeof c->text - c->length ? (size_t)n : 0;
}

/* All rows of a file, one a line; bad rows as "BAD reason". */
static char *read_rows(const char *folder, const char *name, const char *content, const dt_row_options *options)
{
    char *path = test_write(folder, name, content), line[4096];
    static captured log;
    dt_buf out = {0};
    dt_rows *rows;
    dt_row row = {0};
    dt_err err = {0};
    bool more;
    int64_t bad = 0;
    log.length = 0;
    dtp_log_set_sink(capture, &log);
    assert_ok(dtp_rows_open(&rows, path, options, &err), &err);
    for (;;) {
        size_t before = log.length;
        assert_ok(dtp_rows_next(rows, &row, &more, &err), &err);
        for (; bad < dtp_rows_bad(rows) && bad < 10; bad++) {
            char *reason = strstr(log.text + before, "row skipped: "), *end = reason ? strchr(reason, '\n') : NULL;
            assert_non_null(end);
            dtp_buf_printf(&out, "BAD %.*s\n", (int)(end - reason - 13), reason + 13);
            before = (size_t)(end - log.text);
        }
        if (!more)
            break;
        describe(&row, line, sizeof line);
        dtp_buf_printf(&out, "%s\n", line);
    }
    dtp_row_free(&row);
    dtp_rows_close(rows);
    dtp_log_set_sink(NULL, NULL);
    free(path);
    return out.data ? out.data : dtp_strdup("");
}

static void expect(const char *folder, const char *name, const char *content, const char *expected)
{
    char *got = read_rows(folder, name, content, &(dt_row_options){0});
    assert_string_equal(got, expected);
    free(got);
}

/* One jsonl row. */
static void row(void **state, const char *json, const char *expected)
{
    char *line = dtp_format("%s\n", expected);
    expect(*state, "row.jsonl", json, line);
    free(line);
}

static void row_with(void **state, dt_row_options options, const char *json, const char *expected)
{
    char *got = read_rows(*state, "row.jsonl", json, &options), *line = dtp_format("%s\n", expected);
    assert_string_equal(got, line);
    free(got);
    free(line);
}

/* ---- Messages ---- */

static void messages(void **state)
{
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}",
        "user:Q|assistant:A");
    row(state, "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"gpt\", \"value\": \"A\"}]}",
        "user:Q|assistant:A");
    row(state, "{\"conversation\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"bot\", \"value\": \"A\"}]}",
        "user:Q|assistant:A");
    row(state,
        "{\"conversation\": [{\"human\": \"Q\", \"assistant\": \"A\"}, {\"user\": \"R\", \"gpt\": \"B\"}], \"system\": "
        "\"S\"}",
        "system:S|user:Q|assistant:A|user:R|assistant:B");
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"\"}], "
        "\"system_prompt\": \"S\"}",
        "system:S|user:Q|assistant:");
    row(state,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"own\"}, {\"role\": \"user\", \"content\": \"Q\"}], "
        "\"system\": \"S\"}",
        "system:own|user:Q");
    row(state,
        "{\"messages\": \"[{'role': 'user', 'content': 'it\\\\'s'}, {'role': 'assistant', 'content': \\\"A\\\"}]\"}",
        "user:it's|assistant:A");
    row(state,
        "{\"messages\": [{\"role\": \"function-call\", \"content\": \"c\"}, {\"role\": \"observation\", \"content\": "
        "\"r\"}, "
        "{\"role\": \"tool\", \"content\": \"t\"}]}",
        "tool_call:c|tool_response:r|tool_response:t");
}

static void message_keys(void **state)
{
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\", \"name\": \"x\", \"weight\": 1}, "
        "{\"role\": \"assistant\", \"content\": \"A\", \"loss\": false}, {\"role\": \"assistant\", \"content\": \"B\", "
        "\"loss\": 1.0, "
        "\"loss_scale\": 0.5}]}",
        "user:Q|assistant:A[loss 0]|assistant:B[loss 1][scale 0.5]");
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
        "\"text\", \"value\": \"b\"}]}, "
        "{\"role\": \"assistant\", \"content\": [], \"loss\": null}]}",
        "user:ab|assistant:");
    row(state, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"url\": \"x\"}]}]}",
        "BAD message 0: content: part 0 is of type \"image_url\"; only text is supported");
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", "
        "\"loss\": \"no\"}]}",
        "BAD message 1: loss is a string, expected true or false");
    row(state,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", "
        "\"loss_scale\": -1}]}",
        "BAD message 1: loss_scale is not a number >= 0");
}

static void bad_messages(void **state)
{
    row(state, "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "BAD message 0 (user): content is null");
    row(state, "{\"messages\": [{\"role\": \"user\"}]}", "BAD message 0 (user): content is missing");
    row(state, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}",
        "BAD message 0: content is a number, expected a string");
    row(state, "{\"messages\": [{\"content\": \"Q\"}]}", "BAD message 0: role is missing");
    row(state, "{\"messages\": [{\"role\": \"king\", \"content\": \"Q\"}]}", "BAD message 0: unknown role \"king\"");
    row(state, "{\"messages\": []}", "BAD the list of messages is empty");
    row(state, "{\"messages\": null}", "BAD messages is null");
    row(state, "{\"messages\": {\"a\": 1}}", "BAD messages is an object, expected a list");
    row(state, "{\"messages\": [1]}", "BAD message 0 is a number, expected an object");
    row(state, "{\"messages\": \"[oops\"}",
        "BAD messages: neither JSON nor a literal: not a list, dictionary, string, number, True, False or None (byte "
        "1)");
    row(state, "{\"conversation\": [{\"human\": \"Q\", \"assistant\": null}]}",
        "BAD turn 0: neither role and content nor a pair of user and assistant texts");
    row(state, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}], \"images\": [\"a.png\"]}",
        "BAD it has \"images\"; only text is supported");
    row(state, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}], \"images\": [], \"image\": null}", "user:Q");
}

/* ---- Query and response, alpaca ---- */

static void query_response(void **state)
{
    row(state, "{\"query\": \"Q\", \"response\": \"A\"}", "user:Q|assistant:A");
    row(state, "{\"Prompt\": \"Q\", \"Completion\": \"A\"}", "user:Q|assistant:A");
    row(state, "{\"question\": \"Q\", \"answers\": [\"A\", \"B\"], \"system\": \"S\"}", "system:S|user:Q|assistant:A");
    row(state, "{\"query\": \"Q\", \"prompt\": \"no\", \"response\": \"A\", \"text\": \"no\"}", "user:Q|assistant:A");
    row(state, "{\"query\": \"Q3\", \"response\": \"A3\", \"history\": [[\"Q1\", \"A1\"], [null, \"A2\"]]}",
        "user:Q1|assistant:A1|assistant:A2|user:Q3|assistant:A3");
    row(state, "{\"query\": \"Q2\", \"response\": \"A2\", \"history\": \"[['Q1', 'A1']]\"}",
        "user:Q1|assistant:A1|user:Q2|assistant:A2");
    row(state, "{\"query\": \"Q\", \"response\": \"A\", \"history\": null, \"system\": null}", "user:Q|assistant:A");
    row(state, "{\"text\": \"A\"}", "assistant:A");
    row(state, "{\"instruction\": \"Q\", \"output\": \"A\"}", "user:Q|assistant:A");
    row(state, "{\"query\": \"\", \"response\": \"\"}", "user:|assistant:");
    row(state, "{\"query\": \"Q\", \"prompt\": null, \"response\": \"A\"}", "user:Q|assistant:A");
}

static void bad_query_response(void **state)
{
    row(state, "{\"query\": \"Q\"}", "BAD there is no response");
    row(state, "{\"query\": \"Q\", \"response\": null}", "BAD response is null");
    row(state, "{\"query\": null, \"response\": \"A\"}", "BAD query is null");
    row(state, "{\"query\": 3, \"response\": \"A\"}", "BAD query is a number, expected a string");
    row(state, "{\"query\": \"Q\", \"answer\": \"A\", \"output\": \"B\"}",
        "BAD columns \"answer\" and \"output\" could both be the response; name one with --columns");
    row(state, "{\"prompt\": \"Q\", \"question\": \"R\", \"response\": \"A\"}",
        "BAD columns \"prompt\" and \"question\" could both be the query; name one with --columns");
    row(state, "{\"query\": \"Q\", \"response\": \"A\", \"history\": [[\"x\"]]}",
        "BAD history: turn 0 is not a list of query and response");
    row(state, "{\"query\": \"Q\", \"response\": \"A\", \"history\": [[\"x\", null]]}",
        "BAD history: the response of turn 0 is null");
    row(state, "{\"a\": 1, \"b\": 2}", "BAD no column with messages, a query or a response (columns: a, b)");
    row(state, "{}", "BAD no column with messages, a query or a response (columns: none)");
}

static void alpaca(void **state)
{
    row(state, "{\"instruction\": \"Do\", \"input\": \"this\", \"output\": \"A\"}", "user:Do\nthis|assistant:A");
    row(state, "{\"instruction\": \"Do\", \"input\": \"\", \"output\": \"A\", \"system\": \"S\"}",
        "system:S|user:Do|assistant:A");
    row(state, "{\"instruction\": \"\", \"input\": \"this\", \"output\": \"A\"}", "user:this|assistant:A");
    row(state, "{\"instruction\": null, \"input\": \"this\", \"response\": \"A\"}", "user:this|assistant:A");
    row(state, "{\"instruction\": \"Do\", \"input\": null, \"output\": \"A\", \"text\": \"all of it\"}",
        "user:Do|assistant:A");
    row(state, "{\"instruction\": \"\", \"input\": \"\", \"output\": \"A\"}", "user:|assistant:A");
    row(state, "{\"instruction\": \"\", \"input\": null, \"output\": \"A\"}",
        "BAD instruction is empty and input is null");
    row(state, "{\"instruction\": \"Do\", \"input\": 1, \"output\": \"A\"}",
        "BAD input is a number, expected a string");
    row(state, "{\"instruction\": \"Do\", \"input\": \"\", \"output\": null}", "BAD output is null");
    row(state, "{\"instruction\": \"Q2\", \"input\": \"\", \"output\": \"A2\", \"history\": [[\"Q1\", \"A1\"]]}",
        "user:Q1|assistant:A1|user:Q2|assistant:A2");
}

/* The registered data set loses the marker in front of its inputs, a folder of that name too; others keep it. */
static void alpaca_zh(void **state)
{
    static const char json[] = "[{\"instruction\": \"改写\", \"input\": \"输入：原文\", \"output\": \"译文\"}]";
    expect(*state, "a.json", json, "user:改写\n输入：原文|assistant:译文\n");
    char *folder = dtp_path_join(*state, "alpaca-gpt4-data-zh"), line[200];
    dt_err err = {0};
    dt_rows *rows;
    dt_row got = {0};
    bool more;
    assert_ok(dtp_make_folders(folder, &err), &err);
    free(test_write(folder, "train.json", json));
    assert_ok(dtp_rows_open(&rows, folder, &(dt_row_options){0}, &err), &err);
    assert_ok(dtp_rows_next(rows, &got, &more, &err), &err);
    describe(&got, line, sizeof line);
    assert_string_equal(line, "user:改写\n原文|assistant:译文");
    dtp_row_free(&got);
    dtp_rows_close(rows);
    free(folder);
}

/* ---- Options ---- */

static void columns(void **state)
{
    dt_row_options options = {.columns = "{\"frage\": \"query\", \"antwort\": \"response\"}"};
    row_with(state, options, "{\"frage\": \"Q\", \"Antwort\": \"A\"}", "user:Q|assistant:A");
    options.columns = "{\"dialog\": \"messages\"}";
    row_with(state, options, "{\"dialog\": [{\"role\": \"user\", \"content\": \"Q\"}]}", "user:Q");
    options.columns = "{\"a\": \"query\", \"b\": \"query\"}"; /* both there: none is renamed */
    row_with(state, options, "{\"a\": \"1\", \"b\": \"2\", \"response\": \"A\"}", "assistant:A");
    row_with(state, options, "{\"b\": \"2\", \"response\": \"A\"}", "user:2|assistant:A");
    options.columns = "{\"a\": \"query\"}"; /* the name is taken already */
    row_with(state, options, "{\"a\": \"1\", \"query\": \"2\", \"response\": \"A\"}",
             "BAD columns \"a\" and \"query\" could both be the query; name one with --columns");
    dt_rows *rows;
    dt_err err = {0};
    char *path = test_write(*state, "x.jsonl", "");
    options.columns = "[1]";
    assert_fails(dtp_rows_open(&rows, path, &options, &err), &err, DT_E_ARG, "--columns [1]");
    free(path);
}

static void plain_text_and_prompts(void **state)
{
    dt_row_options plain = {.plain_text = true}, prompts = {.prompts = true};
    row_with(state, plain, "{\"text\": \"T\", \"id\": 3, \"output\": \"B\"}", "text:T");
    row_with(state, plain, "{\"text\": \"\"}", "text:");
    row_with(state, plain, "{\"text\": \"T\", \"query\": \"Q\"}", "user:Q|assistant:T");
    row_with(state, prompts, "{\"query\": \"Q\"}", "user:Q");
    row_with(state, prompts, "{\"query\": \"Q\", \"response\": \"A\"}", "user:Q|assistant:A");
}

static void token_rows(void **state)
{
    row(state, "{\"input_ids\": [1, 2], \"labels\": [-100, 2], \"messages\": null}", "1/-100 2/2");
    row(state, "{\"input_ids\": [1, 2], \"labels\": null}", "1/1 2/2");
    row(state, "{\"input_ids\": [1, 2], \"labels\": [1]}", "BAD 2 input_ids but 1 labels");
    row(state, "{\"input_ids\": [1, 2.5]}", "BAD input_ids: entry 1 is not a token id");
    row(state, "{\"input_ids\": [1, 3000000000]}", "BAD input_ids: entry 1 is not a token id");
    row(state, "{\"input_ids\": \"1 2\"}", "BAD input_ids is a string, expected a list of integers");
}

/* ---- Files ---- */

static const char QA[] = "{\"query\": \"Q\", \"response\": \"A\"}";

static void json_lines(void **state)
{
    expect(*state, "a.jsonl",
           "\xef\xbb\xbf{\"query\": \"1\", \"response\": \"x\"}\r\n\n  \n{\"query\": \"2\", \"response\": \"y\"}",
           "user:1|assistant:x\nuser:2|assistant:y\n");
    expect(*state, "a.jsonl", "{\"query\": \"1\"\n{\"query\": \"2\", \"response\": \"y\"}\n\"text\"\n",
           "BAD not valid JSON: '}' expected near end of file (column 13)\nuser:2|assistant:y\nBAD the row is a "
           "string, expected an object\n");
    expect(*state, "a.json", "{\"query\": \"1\", \"response\": \"x\"}\n{\"query\": \"2\", \"response\": \"y\"}\n",
           "user:1|assistant:x\nuser:2|assistant:y\n");
    expect(*state, "a.jsonl", "", "");
    expect(*state, "a.jsonl", "\n\n", "");
    expect(*state, "a.jsonl", "{\"query\": \"1\", \"query\": \"2\", \"response\": \"y\"}\n",
           "BAD not valid JSON: duplicate object key near '\"query\"' (column 22)\n");
}

/* P-71: unused fields may hold anything, also numbers that fit no machine word. */
static void unused_fields(void **state)
{
    row(state,
        "{\"query\": \"Q\", \"response\": \"A\", \"id\": 123456789012345678901234567890, \"meta\": {\"a\": [1, null]}}",
        "user:Q|assistant:A");
    dt_buf rows = {0}, expected = {0};
    for (int i = 0; i < 1000; i++) {
        dtp_buf_printf(&rows, "{\"query\": \"%d\", \"response\": \"A\"%s}\n", i,
                       i == 499   ? ", \"extra\": {}"
                       : i == 500 ? ", \"note\": 7"
                       : i % 2    ? ", \"note\": \"text\""
                                  : "");
        dtp_buf_printf(&expected, "user:%d|assistant:A\n", i);
    }
    expect(*state, "a.jsonl", rows.data, expected.data);
    dtp_buf_free(&rows);
    dtp_buf_free(&expected);
}

static void json_array(void **state)
{
    expect(*state, "a.json",
           "\n [ {\"query\": \"a]},{\\\"\", \"response\": \"x\"}\n,\n{\"query\": \"2\", \"response\": \"y\"} ] \n",
           "user:a]},{\"|assistant:x\nuser:2|assistant:y\n");
    expect(*state, "a.jsonl", "[{\"query\": \"1\", \"response\": \"x\"}, 5, null, \"a,b\"]",
           "user:1|assistant:x\nBAD the row is a number, expected an object\nBAD the row is null, expected an object\n"
           "BAD the row is a string, expected an object\n");
    expect(*state, "a.json", "[{\"query\": \"1\", \"response\": x}, {\"query\": \"2\", \"response\": \"y\"}]",
           "BAD not valid JSON: invalid token near 'x' (column 28)\nuser:2|assistant:y\n");
    expect(*state, "a.json", "[]", "");
}

static void broken(void **state, const char *name, const char *content, const char *part)
{
    char *path = test_write(*state, name, content);
    dt_rows *rows = NULL;
    dt_row got = {0};
    dt_err err = {0};
    bool more = true;
    dt_status status = dtp_rows_open(&rows, path, &(dt_row_options){0}, &err);
    while (status == DT_OK && more)
        status = dtp_rows_next(rows, &got, &more, &err);
    assert_int_equal(status, DT_E_FORMAT);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
    dtp_row_free(&got);
    dtp_rows_close(rows);
    free(path);
}

static void broken_arrays(void **state)
{
    broken(state, "a.json", "[\n{\"query\": \"1\", \"response\": \"x\"},\n{\"query\": \"2",
           "a.json:3: the file ends inside its JSON array");
    broken(state, "a.json", "[{\"query\": \"1\", \"response\": \"x\"}", "is it cut off?");
    broken(state, "a.json", "[{} {}]", "expected ',' or ']'");
    broken(state, "a.json", "[,{}]", "before ','");
    broken(state, "a.json", "[{},]", "expected an element");
    broken(state, "a.json", "[{}] x", "text after the JSON array");
    broken(state, "a.csv", "a,a\n1,2\n", "a.csv:1: header: two columns have the same name (column 2)");
    broken(state, "a.csv", "query,response\nQ,A\nQ,\"open\nQ,A\n", "a.csv:3: the file ends inside a quoted field");
    broken(state, "a.csv", "a,,b\n1,2,3\n", "a column has no name (column 2)");
}

static void csv(void **state)
{
    expect(*state, "a.csv", "query,response,id\nQ,A,1\n\"a \"\"b\"\", c\",\"line 1\nline 2\",2\r\n\n\"\",,\n",
           "user:Q|assistant:A\nuser:a \"b\", c|assistant:line 1\nline 2\nuser:|assistant:\n");
    expect(*state, "a.csv", "query,response\nQ,A,B\nQ\nsay \"hi\",\"A\"x\n",
           "BAD more than the 2 fields of the header\nBAD response is null\nuser:say \"hi\"|assistant:Ax\n");
    expect(*state, "a.csv", "query,response\nQ,\xff\nQ,A",
           "BAD column \"response\" is not valid UTF-8\nuser:Q|assistant:A\n");
    expect(*state, "a.csv", "messages\n\"[{'role': 'user', 'content': 'Q'}, {'role': 'assistant', 'content': 'A'}]\"\n",
           "user:Q|assistant:A\n");
    expect(*state, "a.csv", "\xef\xbb\xbfquery,response\n1,2\n", "user:1|assistant:2\n");
}

static void text_lines(void **state)
{
    expect(*state, "a.txt", "one\r\n\n  two \nthree", "assistant:one\nassistant:\nassistant:  two \nassistant:three\n");
}

/* Records that do not fit the read buffer at once, in every kind of file. */
static void long_records(void **state)
{
    size_t n = 5 << 20;
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    text[n] = '\0';
    static const struct {
        const char *name, *before, *after;
    } files[] = {{"a.jsonl", "{\"query\": \"Q\", \"response\": \"", "\"}\n{\"query\": \"Q\", \"response\": \"B\"}"},
                 {"a.json", "[{\"query\": \"Q\", \"response\": \"", "\"},{\"query\": \"Q\", \"response\": \"B\"}]"},
                 {"a.csv", "query,response\nQ,\"", "\"\nQ,B\n"},
                 {"a.txt", "", "\nB\n"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *content = dtp_format("%s%s%s", files[i].before, text, files[i].after);
        char *path = test_write(*state, files[i].name, content);
        dt_rows *rows;
        dt_row got = {0};
        dt_err err = {0};
        bool more;
        assert_ok(dtp_rows_open(&rows, path, &(dt_row_options){0}, &err), &err);
        assert_ok(dtp_rows_next(rows, &got, &more, &err), &err);
        const dt_message *m = &got.conversation.messages[got.conversation.count - 1];
        assert_int_equal(m->length, n);
        assert_memory_equal(m->content, text, n);
        assert_ok(dtp_rows_next(rows, &got, &more, &err), &err);
        assert_string_equal(got.conversation.messages[got.conversation.count - 1].content, "B");
        assert_ok(dtp_rows_next(rows, &got, &more, &err), &err);
        assert_false(more);
        dtp_row_free(&got);
        dtp_rows_close(rows);
        free(path);
        free(content);
    }
    free(text);
}

static void strict_stops_and_names_the_row(void **state)
{
    char *path = test_write(*state, "a.jsonl",
                            "{\"query\": \"Q\", \"response\": \"A\"}\n\n{\"query\": null, \"response\": \"A\"}\n"),
         where[600];
    dt_rows *rows;
    dt_row got = {0};
    dt_err err = {0};
    bool more;
    assert_ok(dtp_rows_open(&rows, path, &(dt_row_options){.strict = true}, &err), &err);
    assert_ok(dtp_rows_next(rows, &got, &more, &err), &err);
    snprintf(where, sizeof where, "%s:3: query is null", path);
    assert_fails(dtp_rows_next(rows, &got, &more, &err), &err, DT_E_FORMAT, where);
    dtp_row_free(&got);
    dtp_rows_close(rows);
    free(path);
}

/* ---- Names of data sets ---- */

static void refuse_name(const char *argument, dt_status status, const char *part)
{
    dt_rows *rows;
    dt_err err = {0};
    assert_fails(dtp_rows_open(&rows, argument, &(dt_row_options){0}, &err), &err, status, part);
}

static void names(void **state)
{
    refuse_name("AI-ModelScope/alpaca-gpt4-data-zh", DT_E_UNSUPPORTED,
                "modelscope download --dataset AI-ModelScope/alpaca-gpt4-data-zh --local_dir alpaca-gpt4-data-zh");
    refuse_name("hf::llm-wizard/alpaca-gpt4-data-zh#500", DT_E_UNSUPPORTED,
                "hf download --repo-type dataset llm-wizard/alpaca-gpt4-data-zh");
    refuse_name("no/such.jsonl", DT_E_IO, "no file or folder");
    refuse_name("", DT_E_ARG, "an empty file name");
    refuse_name("/dev/null", DT_E_ARG, "/dev/null: is neither a file nor a folder");
    char *file = test_write(*state, "a.jsonl", QA), *name = dtp_format("%s#x", file),
         *other = test_write(*state, "a.parquet", "");
    refuse_name(name, DT_E_ARG, "is no number of rows");
    refuse_name(other, DT_E_UNSUPPORTED, "a.parquet: only .jsonl, .json, .csv and .txt files are read");
    free(name);
    free(other);
    name = dtp_format("ms::%s#5", file);
    dt_rows *rows;
    dt_err err = {0};
    assert_ok(dtp_rows_open(&rows, name, &(dt_row_options){0}, &err), &err);
    dtp_rows_close(rows);
    free(name);
    free(file);
}

/* Counts the rows of a folder whose query says which file it came from. */
static void expect_folder(const char *argument, const char *expected)
{
    dt_rows *rows;
    dt_row got = {0};
    dt_err err = {0};
    dt_buf order = {0};
    bool more;
    assert_ok(dtp_rows_open(&rows, argument, &(dt_row_options){0}, &err), &err);
    while (assert_true(dtp_rows_next(rows, &got, &more, &err) == DT_OK), more)
        dtp_buf_printf(&order, "%s ", got.conversation.messages[0].content);
    assert_string_equal(order.data ? order.data : "", expected);
    dtp_buf_free(&order);
    dtp_row_free(&got);
    dtp_rows_close(rows);
}

static void add_file(const char *folder, const char *name)
{
    char *text = dtp_format("{\"query\": \"%s\", \"response\": \"A\"}\n", name);
    free(test_write(folder, name, text));
    free(text);
}

static void folders(void **state)
{
    const char *folder = *state;
    char *sub = dtp_path_join(folder, "data"), *subset = dtp_format("%s:data", folder);
    dt_err err = {0};
    assert_ok(dtp_make_folders(sub, &err), &err);
    add_file(folder, "b.jsonl");
    add_file(folder, "a.json");
    add_file(folder, "README.txt");
    add_file(folder, "dataset_infos.json");
    add_file(folder, ".hidden.jsonl");
    expect_folder(folder, "a.json b.jsonl ");
    add_file(folder, "test.jsonl"); /* another split */
    expect_folder(folder, "a.json b.jsonl ");
    add_file(sub, "my-train-0.jsonl");
    expect_folder(folder, "my-train-0.jsonl ");
    expect_folder(subset, "my-train-0.jsonl ");
    free(sub);
    free(subset);
    refuse_name("/dev/null/x", DT_E_IO, "no file or folder");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, test_folder, test_folder_remove)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(messages),
        IN_FOLDER(message_keys),
        IN_FOLDER(bad_messages),
        IN_FOLDER(query_response),
        IN_FOLDER(bad_query_response),
        IN_FOLDER(alpaca),
        IN_FOLDER(alpaca_zh),
        IN_FOLDER(columns),
        IN_FOLDER(plain_text_and_prompts),
        IN_FOLDER(token_rows),
        IN_FOLDER(json_lines),
        IN_FOLDER(unused_fields),
        IN_FOLDER(json_array),
        IN_FOLDER(broken_arrays),
        IN_FOLDER(csv),
        IN_FOLDER(text_lines),
        IN_FOLDER(long_records),
        IN_FOLDER(strict_stops_and_names_the_row),
        IN_FOLDER(names),
        IN_FOLDER(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
