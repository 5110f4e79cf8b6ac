/* `deltune infer` from outside: one answer, rows of a file, a conversation on a terminal, an adapter with its run's
 * settings. The model has random weights, so answers are nonsense, but they must be the same nonsense on every way. */
#include "program.h"

#include <pty.h>
#include <signal.h>
#include <termios.h>

static const char *const greedy = "--temperature 0 --repetition_penalty 1.3 --max_new_tokens 24";
static char model[64];

static char *path_in(const char *name)
{
    char *path = dtp_path_join(program_folder, name);
    assert_non_null(path);
    return path;
}

static void write_text(const char *name, const char *text)
{
    dt_err err = {0};
    char *path = path_in(name);
    assert_ok(dtp_write_file(path, text, strlen(text), &err), &err);
    free(path);
}

/* Runs `deltune infer ARGUMENTS`; returns what it printed, without the last newline. */
static char *answer(const char *prefix, const char *arguments)
{
    char *line = dtp_format("infer --model %s %s %s", model, greedy, arguments);
    int code = program_run(prefix, line);
    char *text = program_output();
    if (code != 0)
        fail_msg("exit code %d of: deltune %s\n%s", code, line, text);
    size_t n = strlen(text);
    assert_true(n > 0 && text[n - 1] == '\n');
    text[n - 1] = '\0';
    free(line);
    return text;
}

static int make_model(void **state)
{
    if (program_setup(state) != 0)
        return -1;
    snprintf(model, sizeof model, "%s/model", program_folder);
    char *line = dtp_format("init --config %s/data/sample/config.json --tokenizer %s/data/sample --output_dir %s",
                            DT_SOURCE_DIR, DT_SOURCE_DIR, model);
    int code = program_run("", line);
    free(line);
    return code;
}

static void every_way_in_gives_the_same_answer(void **state)
{
    (void)state;
    char *prompt = answer("", "--prompt '你好'"), *whole = answer("", "--stream false --prompt '你好'");
    char *piped = answer("printf '你好' |", "");
    assert_string_equal(prompt, whole);
    assert_string_equal(prompt, piped);
    char *one_thread = answer("", "--prompt '你好' --threads 1");
    assert_string_equal(prompt, one_thread);
    free(prompt);
    free(whole);
    free(piped);
    free(one_thread);
}

static void a_seed_decides_a_sampled_answer(void **state)
{
    (void)state;
    char *a = answer("", "--prompt hello --temperature 2 --seed 1");
    char *b = answer("", "--prompt hello --temperature 2 --seed 1");
    char *c = answer("", "--prompt hello --temperature 2 --seed 2");
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    free(a);
    free(b);
    free(c);
}

/* Line `index` of a file of JSON lines. */
static json_t *json_line(const char *path, int index)
{
    char *text = NULL;
    size_t length;
    dt_err err = {0};
    json_t *line = NULL;
    assert_ok(dtp_read_file(path, 0, &text, &length, &err), &err);
    const char *at = text;
    while (index-- > 0) {
        at = strchr(at, '\n');
        assert_non_null(at++);
    }
    assert_ok(dtp_json_parse(&line, at, strcspn(at, "\n"), path, &err), &err);
    free(text);
    return line;
}

static const char *message(const json_t *line, size_t index, const char *key)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(line, "messages"), index), key));
}

static void rows_are_answered_and_written(void **state)
{
    (void)state;
    write_text("rows.jsonl",
               "{\"instruction\": \"你好\", \"input\": \"\", \"output\": \"expected\"}\n"
               "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
               "\"q\"}]}\n"
               "{\"query\": 7}\n");
    char *out = path_in("answers.jsonl"), *rows = path_in("rows.jsonl");
    char *arguments = dtp_format("--val_dataset %s --result_path %s", rows, out);
    free(answer("", arguments));

    json_t *first = json_line(out, 0), *second = json_line(out, 1);
    char *alone = answer("", "--prompt '你好'");
    assert_string_equal(json_string_value(json_object_get(first, "response")), alone);
    assert_string_equal(json_string_value(json_object_get(first, "labels")), "expected");
    assert_string_equal(message(first, 0, "content"), "你好");
    assert_string_equal(message(first, 1, "role"), "assistant");
    assert_string_equal(message(first, 1, "content"), alone);
    assert_true(json_is_null(json_object_get(second, "labels")));
    assert_string_equal(message(second, 0, "role"), "system");
    assert_string_equal(message(second, 2, "content"), json_string_value(json_object_get(second, "response")));

    /* an existing result is not overwritten */
    char *again = dtp_format("infer --model %s %s %s", model, greedy, arguments);
    program_fails("", again, 1, "exists already");
    free(again);
    json_decref(first);
    json_decref(second);
    free(alone);
    free(arguments);
    free(rows);
    free(out);
}

/* ---- a terminal ---- */

typedef struct chat {
    pid_t child;
    int terminal;
} chat;

/* The terminal is raw, so that nothing is echoed and lines end as they are written. */
static chat chat_start(const char *more)
{
    chat c = {0};
    struct termios raw = {0};
    cfmakeraw(&raw);
    c.child = forkpty(&c.terminal, NULL, &raw, NULL);
    assert_true(c.child >= 0);
    if (c.child == 0) {
        char *arguments = dtp_format("infer --model %s %s", model, more), *all = on_device(arguments);
        char *command = dtp_format("NO_COLOR=1 exec %s %s", DT_PROGRAM, all);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return c;
}

/* Everything up to and including `end`. */
static char *chat_read(chat c, const char *end)
{
    dt_buf buf = {0};
    char block[256];
    ssize_t n;
    while ((n = read(c.terminal, block, sizeof block)) > 0) {
        dtp_buf_append(&buf, block, (size_t)n);
        if (buf.length >= strlen(end) && strcmp(buf.data + buf.length - strlen(end), end) == 0)
            return buf.data;
    }
    fail_msg("the conversation ended before \"%s\": %s", end, buf.data ? buf.data : "");
    return NULL;
}

static char *chat_ask(chat c, const char *line)
{
    assert_int_equal(write(c.terminal, line, strlen(line)), (ssize_t)strlen(line));
    return chat_read(c, "\n> ");
}

static void chat_end(chat c)
{
    kill(c.child, SIGHUP);
    close(c.terminal);
    assert_int_equal(waitpid(c.child, NULL, 0), c.child);
}

/* The second turn runs on caches left by the first; a row with the same history runs from scratch. */
static void a_conversation_equals_its_rows(void **state)
{
    (void)state;
    chat c = chat_start(greedy);
    free(chat_read(c, "> "));
    char *first = chat_ask(c, "hello\n"), *second = chat_ask(c, "and now?\n");
    assert_int_equal(kill(c.child, 0), 0);
    free(chat_ask(c, "/clear\n"));
    char *again = chat_ask(c, "hello\n");
    assert_string_equal(again, first);
    chat_end(c);

    char *alone = answer("", "--prompt hello");
    assert_memory_equal(first, alone, strlen(alone));
    json_t *row = json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]}", "messages", "role", "user", "content", "hello",
                            "role", "assistant", "content", alone, "role", "user", "content", "and now?");
    char *text = json_dumps(row, 0), *out = path_in("turns-out.jsonl"), *rows = path_in("turns.jsonl");
    write_text("turns.jsonl", text);
    char *arguments = dtp_format("--val_dataset %s --result_path %s", rows, out);
    free(answer("", arguments));
    json_t *line = json_line(out, 0);
    const char *response = json_string_value(json_object_get(line, "response"));
    assert_memory_equal(second, response, strlen(response));
    json_decref(line);
    json_decref(row);
    free(arguments);
    free(rows);
    free(out);
    free(text);
    free(alone);
    free(again);
    free(second);
    free(first);
}

static void an_interrupt_stops_the_answer_not_the_program(void **state)
{
    (void)state;
    chat c = chat_start("--temperature 0 --repetition_penalty 1.3 --max_length 4096");
    free(chat_read(c, "> "));
    assert_int_equal(write(c.terminal, "hello\n", 6), 6);
    char byte;
    assert_int_equal(read(c.terminal, &byte, 1), 1); /* the answer has begun */
    kill(c.child, SIGINT);
    char *rest = chat_read(c, "\n> ");
    assert_non_null(strstr(rest, " (stopped)"));
    free(rest);
    char *help = chat_ask(c, "/help\n");
    assert_non_null(strstr(help, "/clear"));
    free(help);

    /* at the prompt it empties the line, also when it comes just before the program waits for input */
    for (int i = 0; i < 50; i++) {
        kill(c.child, SIGINT);
        free(chat_read(c, "\n> "));
    }
    assert_int_equal(kill(c.child, 0), 0);
    chat_end(c);
}

static void end_of_input_leaves(void **state)
{
    (void)state;
    struct termios cooked = {.c_iflag = ICRNL, .c_lflag = ICANON | ISIG, .c_cflag = CS8 | CREAD};
    cooked.c_cc[VEOF] = 4;
    chat c = chat_start(greedy);
    tcsetattr(c.terminal, TCSANOW, &cooked);
    free(chat_read(c, "> "));
    assert_int_equal(write(c.terminal, "\004", 1), 1); /* Ctrl-D */
    int status = 0;
    assert_int_equal(waitpid(c.child, &status, 0), c.child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(c.terminal);
}

/* ---- an adapter ---- */

static void an_adapter_brings_its_base_and_settings(void **state)
{
    (void)state;
    char *line =
        dtp_format("sft --model %s --dataset %s/data/sample/chat.jsonl --system 'be brief' --max_steps 2 "
                   "--learning_rate 0.1 --gradient_accumulation_steps 1 --split_dataset_ratio 0.1 --save_steps 2 "
                   "--report_to none --add_version false --output_dir %s/run",
                   model, DT_SOURCE_DIR, program_folder);
    program_succeeds(line);
    free(line);
    char *adapter = path_in("run/checkpoint-2"), *base = answer("", "--system 'be brief' --prompt hello");
    line = dtp_format("infer --adapters %s --prompt hello %s", adapter, greedy);
    program_succeeds(line);
    char *adapted = program_output();
    assert_true(strncmp(adapted, base, strlen(base)) != 0); /* the adapter is in effect */
    free(line);

    /* the same system text given by hand changes nothing: it was taken from the run */
    line = dtp_format("infer --adapters %s --system 'be brief' --prompt hello %s", adapter, greedy);
    program_succeeds(line);
    char *given = program_output();
    assert_string_equal(given, adapted);
    free(line);

    line = dtp_format("infer --adapters %s --load_data_args true %s", adapter, greedy);
    program_succeeds(line);
    char *said = program_output();
    assert_non_null(strstr(said, "4 answers in"));
    assert_non_null(strstr(said, "/run/checkpoint-2/infer_result/"));
    free(said);
    free(line);
    free(given);
    free(adapted);
    free(base);
    free(adapter);
}

static void errors_say_what_to_do(void **state)
{
    (void)state;
    program_fails("", "infer --prompt x", 2, "--model FOLDER");
    program_fails("", "infer --model /nowhere --prompt x", 1, "/nowhere");
    char *line = dtp_format("infer --model %s --prompt x --val_dataset y", model);
    program_fails("", line, 2, "not both");
    free(line);
    line = dtp_format("infer --model %s --prompt x --temperature -1", model);
    program_fails("", line, 2, "temperature is -1");
    free(line);
    line = dtp_format("infer --model %s --prompt 'one two three four five' --max_length 8", model);
    program_fails("", line, 2, "context 8");
    free(line);
    line = dtp_format("infer --model %s", model);
    program_fails("</dev/null", line, 2, "standard input is empty");
    free(line);
    line = dtp_format("cp -r %s %s-bare && rm %s-bare/tokenizer*.json", model, model, model);
    assert_int_equal(system(line), 0);
    free(line);
    line = dtp_format("infer --model %s-bare --prompt x", model);
    program_fails("", line, 1, "needs the model's tokenizer");
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_in_gives_the_same_answer),
        cmocka_unit_test(a_seed_decides_a_sampled_answer),
        cmocka_unit_test(rows_are_answered_and_written),
        cmocka_unit_test(a_conversation_equals_its_rows),
        cmocka_unit_test(an_interrupt_stops_the_answer_not_the_program),
        cmocka_unit_test(end_of_input_leaves),
        cmocka_unit_test(an_adapter_brings_its_base_and_settings),
        cmocka_unit_test(errors_say_what_to_do),
    };
    return cmocka_run_group_tests(tests, make_model, program_teardown);
}
