/* deltune encode as a user calls it: argument parsing, rows, output. */
#include "cli/cli.h"
#include "cli/token_view.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/test.h"
#include <unistd.h>

extern const dt_command dtp_command_encode;

static const char sample[] = DT_SOURCE_DIR "/data/sample";
static const char chat_rows[] = DT_SOURCE_DIR "/data/sample/chat.jsonl";
static const char instruction_rows[] = DT_SOURCE_DIR "/data/sample/instructions.jsonl";

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    dtp_log_set_level(DT_LOG_ERROR); /* bad rows are reported; here they are expected */
    strcpy(folder, "/tmp/deltune-encode-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    return dtp_remove_tree(folder, NULL) == DT_OK ? 0 : -1;
}

static char *write_rows(const char *name, const char *text)
{
    dt_err err = {0};
    char *path = dtp_path_join(folder, name);
    assert_ok(dtp_write_file(path, text, strlen(text), &err), &err);
    return path;
}

/* Runs the command with stdout in a file; the output is to be freed. */
static int run(const char *const *words, char **output, dt_err *err)
{
    int argc = 0;
    char *argv[16];
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc]; /* main's argv is not const, though nothing writes to it */
    dt_args *args = NULL;
    *output = NULL;
    int result = dtp_args_parse(&args, dtp_command_encode.table, false, false, argc, argv, err);
    if (result != DT_OK)
        return result;
    char *path = dtp_path_join(folder, "stdout");
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    dup2(fileno(file), STDOUT_FILENO);
    result = dtp_command_encode.run(args, err);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    fclose(file);
    size_t length;
    dt_err read_err = {0};
    assert_ok(dtp_read_file(path, 0, output, &length, &read_err), &read_err);
    free(path);
    dtp_args_free(args);
    return result;
}

static void one_json_object_a_row(void **state)
{
    (void)state;
    char *rows =
        write_rows("rows.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"},"
                                 " {\"role\": \"assistant\", \"content\": \"Hello!\"}]}\n"
                                 "{\"instruction\": \"Hello\", \"input\": \"\", \"output\": \"Hello!\"}\n"
                                 "{\"text\": \"Hello \\\"you\\\"\\n\", \"extra\": 1}\n"
                                 "{\"text\": \"\"}\n"
                                 "{\"messages\": [{\"role\": \"user\", \"content\": null}]}\n"
                                 "{\"input_ids\": [0, 198, 4087], \"labels\": [0, -100, 4087]}\n"
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"},"
                                 " {\"role\": \"assistant\", \"content\": \"Hello!\", \"loss_scale\": 0.5}]}\n");
    const char *argv[] = {"--tokenizer", sample, "--input", rows, "--json", NULL};
    char *output;
    dt_err err = {0};
    if (run(argv, &output, &err) != DT_OK)
        fail_msg("%s", err.text);

    json_t *row[8];
    size_t n = 0;
    for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n"))
        assert_ok(dtp_json_parse(&row[n++], line, strlen(line), "stdout", &err), &err);
    assert_int_equal(n, 6); /* the row with null content is bad */
    const char *text = json_string_value(json_object_get(row[0], "text"));
    assert_string_equal(text, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
                              "Hello!<|im_end|>\n");
    assert_true(json_equal(row[0], row[1]));
    assert_string_equal(json_string_value(json_object_get(row[2], "text")), "Hello \"you\"\n");
    const json_t *ids = json_object_get(row[2], "ids"), *labels = json_object_get(row[2], "labels");
    assert_int_equal(json_integer_value(json_array_get(labels, 0)), -100);
    assert_true(json_array_size(ids) > 2 && json_array_size(ids) == json_array_size(labels));
    assert_true(json_equal(json_array_get(ids, 1), json_array_get(labels, 1)));
    json_t *empty;
    const char *nothing = "{\"ids\": [], \"labels\": [], \"text\": \"\"}";
    assert_ok(dtp_json_parse(&empty, nothing, strlen(nothing), "expected", &err), &err);
    assert_true(json_equal(row[3], empty));
    json_decref(empty);
    assert_string_equal(json_string_value(json_object_get(row[4], "text")), "!\n<think>");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(row[4], "labels"), 0)), -100);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(row[4], "labels"), 2)), 4087);
    assert_null(json_object_get(row[0], "weights"));
    assert_int_equal(json_array_size(json_object_get(row[5], "weights")),
                     json_array_size(json_object_get(row[5], "ids")));
    for (size_t i = 0; i < n; i++)
        json_decref(row[i]);
    free(output);
    free(rows);
}

static void max_rows_ends_the_output(void **state)
{
    (void)state;
    const char *argv[] = {"--model", sample, "--input",    chat_rows, instruction_rows,
                          "--json",  "true", "--max_rows", "43",      NULL};
    char *output;
    dt_err err = {0};
    if (run(argv, &output, &err) != DT_OK)
        fail_msg("%s", err.text);
    size_t lines = 0;
    for (const char *p = output; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, 43); /* 40 conversations, then 3 instructions */
    free(output);
}

static void wrong_usage_says_what_is_missing(void **state)
{
    (void)state;
    char *tools = write_rows("tools.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\":"
                                            " \"tool_call\", \"content\": \"{}\"}]}\n");
    char *text = write_rows("text.jsonl", "{\"text\": \"x\"}\n");
    struct {
        const char *argv[10];
        dt_status status;
        const char *part;
    } cases[] = {
        {{"--tokenizer", sample, NULL}, DT_E_ARG, "--input"},
        {{"--input", text, NULL}, DT_E_ARG, "--tokenizer"},
        {{"--input", text, "--tokenizer", sample, "--model", sample, NULL}, DT_E_ARG, "not both"},
        {{"--input", text, "--tokenizer", folder, NULL}, DT_E_IO, "no tokenizer.json"},
        {{"--input", text, "--tokenizer", sample, "--max_rows", "-3", NULL}, DT_E_ARG, "--max_rows -3"},
        {{"--input", text, "--tokenizer", sample, "--loss_scale", "react", NULL}, DT_E_ARG, "last_round"},
        {{"--input", "no-such.jsonl", "--tokenizer", sample, NULL},
         DT_E_IO,
         "no-such.jsonl: there is no file or folder"},
        {{"--input", tools, "--tokenizer", sample, NULL}, DT_E_FORMAT, "no row could be encoded"},
        {{"--input", tools, "--tokenizer", sample, "--strict", "true", NULL},
         DT_E_UNSUPPORTED,
         "tools.jsonl:1: message 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        char *output;
        int result = run(cases[i].argv, &output, &err);
        if (result != (int)cases[i].status || !strstr(err.text, cases[i].part))
            fail_msg("case %zu: %d %s, expected %s with \"%s\"", i, result, err.text, dt_status_name(cases[i].status),
                     cases[i].part);
        free(output);
    }
    free(tools);
    free(text);
}

/* ---- what a person sees ---- */

static void view(bool colour, int columns, const char *text, const dt_ids *labels_of, dt_buf *out)
{
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_encoded e = {0};
    assert_ok(dtp_tokenizer_open(&tokenizer, sample, &err), &err);
    assert_ok(dtp_encoder_create(&encoder, tokenizer, &err), &err);
    assert_ok(dtp_encode_plain(encoder, text, strlen(text), &e, &err), &err);
    dt_token_view settings = {.tokenizer = tokenizer, .colour = colour, .columns = columns};
    const dt_ids *labels = labels_of ? labels_of : &e.labels;
    assert_ok(dtp_view_tokens(&settings, "row", &e.ids, labels, NULL, out, &err), &err);
    dtp_encoded_free(&e);
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(tokenizer);
}

static void plain_output_marks_the_loss(void **state)
{
    (void)state;
    dt_buf out = {0};
    view(false, 60, "!\n", NULL, &out);
    assert_string_equal(out.data, "row: 2 tokens, 1 with loss\n"
                                  "  !\n"
                                  "\n"
                                  "      0 \"!\"\n"
                                  "loss  198 \"\\n\"\n");
    dtp_buf_free(&out);
}

static void terminal_output_is_coloured_and_cannot_be_hijacked(void **state)
{
    (void)state;
    dt_buf out = {0};
    view(true, 60, "!\x1b[2J\xE2\x80\xAE\t\xF0\x9F", NULL, &out);
    assert_non_null(strstr(out.data, "\033[32m")); /* green */
    assert_null(strstr(out.data, "\033[2J"));      /* the row's own escape sequence is shown, not obeyed */
    assert_non_null(strstr(out.data, "\\x1b[2J"));
    assert_null(strstr(out.data, "\xE2\x80\xAE")); /* nor its change of direction */
    assert_non_null(strstr(out.data, "\\u202e"));
    assert_string_equal(out.data + out.length - 5, "\033[0m\n");
    dtp_buf_free(&out);
}

static void lines_fit_the_terminal(void **state)
{
    (void)state;
    dt_buf out = {0};
    dt_buf text = {0};
    for (int i = 0; i < 40; i++)
        dtp_buf_puts(&text, "Hello, \xE4\xBD\xA0\xE5\xA5\xBD\xF0\x9F\x9A\x80\n");
    view(false, 60, text.data, NULL, &out);
    bool tokens = false;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
        tokens |= !strncmp(line, "loss", 4);
        if (!tokens)
            continue;
        int cells = 0; /* bytes that start a character; Chinese characters are two cells wide */
        for (const char *p = line; *p; p++)
            cells += ((*p & 0xC0) != 0x80) + ((unsigned char)*p >= 0xE4);
        assert_true(cells <= 60);
    }
    assert_true(tokens);
    dtp_buf_free(&out);
    dtp_buf_free(&text);
}

static void ids_without_text_show_as_question_marks(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    dt_buf out = {0};
    assert_ok(dtp_tokenizer_open(&tokenizer, sample, &err), &err);
    int32_t ids[] = {0, 5000}, labels[] = {DT_LABEL_IGNORE, 5000};
    float weights[] = {0, 0.25f};
    dt_token_view settings = {.tokenizer = tokenizer, .columns = 60};
    assert_ok(dtp_view_tokens(&settings, "row", &(dt_ids){.data = ids, .length = 2},
                              &(dt_ids){.data = labels, .length = 2}, weights, &out, &err),
              &err);
    assert_string_equal(out.data, "row: 2 tokens, 1 with loss\n  !?\n\n      0 \"!\"\nx0.25 5000 ?\n");
    dtp_buf_free(&out);
    dtp_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_json_object_a_row),
        cmocka_unit_test(max_rows_ends_the_output),
        cmocka_unit_test(wrong_usage_says_what_is_missing),
        cmocka_unit_test(plain_output_marks_the_loss),
        cmocka_unit_test(terminal_output_is_coloured_and_cannot_be_hijacked),
        cmocka_unit_test(lines_fit_the_terminal),
        cmocka_unit_test(ids_without_text_show_as_question_marks),
    };
    return cmocka_run_group_tests_name("encode", tests, make_folder, drop_folder);
}
