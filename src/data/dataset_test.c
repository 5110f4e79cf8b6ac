#include "core/test.h"

#include "core/json.h"
#include "core/rng.h"
#include "data/dataset.h"
#include "data/test_data.h"

#include <glob.h>

/* ---- Helpers ---- */

static dt_dataset_options options_for(const char *const *paths, size_t n)
{
    dt_dataset_options options;
    dtp_dataset_options_default(&options);
    options.paths = paths;
    options.n_paths = n;
    options.threads = 2;
    return options;
}

static dt_dataset *prepare(dt_dataset_options options)
{
    dt_dataset *train, *val;
    dt_err err = {0};
    assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
    assert_null(val);
    return train;
}

static void refuse(dt_dataset_options options, dt_status status, const char *part)
{
    dt_dataset *train, *val;
    dt_err err = {0};
    assert_fails(dtp_dataset_prepare(&train, &val, &options, &err), &err, status, part);
}

typedef struct sample {
    size_t n;
    int32_t ids[4096], labels[4096];
    float weights[4096];
} sample;

static const sample *read_sample(const dt_dataset *d, size_t index)
{
    static sample s;
    dt_err err = {0};
    s.n = dtp_dataset_length(d, index);
    assert_true(s.n <= sizeof s.ids / sizeof *s.ids);
    assert_ok(dtp_dataset_read(d, index, s.ids, s.labels, s.weights, &err), &err);
    return &s;
}

static void expect_sample(const dt_dataset *d, size_t index, size_t n, const int32_t *ids, const int32_t *labels)
{
    const sample *s = read_sample(d, index);
    assert_int_equal(s->n, n);
    assert_memory_equal(s->ids, ids, n * sizeof *ids);
    assert_memory_equal(s->labels, labels, n * sizeof *labels);
    for (size_t i = 0; i < n; i++)
        assert_true(s->weights[i] == 1);
}

/* Two data sets hold the same samples in the same order. */
static void expect_equal(const dt_dataset *a, const dt_dataset *b)
{
    assert_int_equal(dtp_dataset_size(a), dtp_dataset_size(b));
    for (size_t i = 0; i < dtp_dataset_size(a); i++) {
        sample first = *read_sample(a, i);
        const sample *second = read_sample(b, i);
        const char *file_a, *file_b;
        int64_t line_a, line_b;
        assert_int_equal(first.n, second->n);
        assert_memory_equal(first.ids, second->ids, first.n * sizeof *first.ids);
        assert_memory_equal(first.labels, second->labels, first.n * sizeof *first.labels);
        dtp_dataset_origin(a, i, &file_a, &line_a);
        dtp_dataset_origin(b, i, &file_b, &line_b);
        assert_string_equal(file_a, file_b);
        assert_int_equal(line_a, line_b);
    }
    assert_memory_equal(dtp_dataset_statistics(a), dtp_dataset_statistics(b), sizeof(dt_dataset_stats));
}

/* Rows first .. first + n - 1, of two tokens: the row's number and 0. */
static char *write_numbers(const char *folder, const char *name, int first, int n)
{
    dt_buf rows = {0};
    for (int i = first; i < first + n; i++)
        dtp_buf_printf(&rows, "{\"input_ids\": [%d, 0]}\n", i);
    char *path = test_write(folder, name, rows.data);
    dtp_buf_free(&rows);
    return path;
}

/* The tokenizer and template of the sample data. */
typedef struct text_tools {
    dt_tokenizer *tokenizer;
    dt_template *chat;
} text_tools;

static text_tools open_tools(void)
{
    text_tools t;
    dt_err err = {0};
    dt_template_options options = DT_TEMPLATE_OPTIONS_DEFAULT;
    assert_ok(dtp_tokenizer_open(&t.tokenizer, DT_SOURCE_DIR "/data/sample", &err), &err);
    assert_ok(dtp_template_create(&t.chat, t.tokenizer, &options, &err), &err);
    return t;
}

static void close_tools(text_tools t)
{
    dtp_template_free(t.chat);
    dtp_tokenizer_close(t.tokenizer);
}

/* ---- Rows of tokens ---- */

static void token_rows(void **state)
{
    char *file = test_write(*state, "a.jsonl",
                            "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n"
                            "{\"input_ids\": [1, 2]}\n"
                            "\n"
                            "{\"input_ids\": []}\n"
                            "{\"input_ids\": [8, 9], \"labels\": [-100, -100]}\n");
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.shuffle = false;
    dt_dataset *d = prepare(options);
    assert_int_equal(dtp_dataset_size(d), 3);
    expect_sample(d, 0, 3, (int32_t[]){5, 6, 7}, (int32_t[]){-100, -100, 9}); /* P-09: the first label is none */
    expect_sample(d, 1, 2, (int32_t[]){1, 2}, (int32_t[]){-100, 2});
    expect_sample(d, 2, 2, (int32_t[]){8, 9}, (int32_t[]){-100, -100}); /* P-41: kept in its place */
    const dt_dataset_stats *s = dtp_dataset_statistics(d);
    assert_int_equal(s->rows, 4);
    assert_int_equal(s->empty, 1);
    assert_int_equal(s->without_targets, 1);
    assert_int_equal(s->targets, 2);
    assert_int_equal(s->tokens, 7);
    char line[200];
    dtp_dataset_length_line(d, line, sizeof line);
    assert_string_equal(line, "2.333333\u00b10.471405, min=2.000000, max=3.000000, size=3");
    const char *origin;
    int64_t number;
    dtp_dataset_origin(d, 2, &origin, &number);
    assert_string_equal(origin, file);
    assert_int_equal(number, 5);
    dtp_dataset_close(d);
    free(file);
}

static void ids_outside_the_vocabulary(void **state)
{
    char *file = test_write(
        *state, "a.jsonl",
        "{\"input_ids\": [1, 100]}\n{\"input_ids\": [1, -1]}\n{\"input_ids\": [1, 2], \"labels\": [1, 100]}\n"
        "{\"input_ids\": [1, 99]}\n");
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.vocab_size = 100;
    dt_dataset *d = prepare(options);
    assert_int_equal(dtp_dataset_size(d), 1);
    assert_int_equal(dtp_dataset_statistics(d)->failed, 3);
    dtp_dataset_close(d);
    options.rows.strict = true;
    refuse(options, DT_E_FORMAT, "a.jsonl:1: token id 100 at position 1 is outside the vocabulary of 100");
    free(file);
}

/* P-08: one policy, labels cut at the same place, a count. */
static void long_rows(void **state)
{
    dt_buf row = {0};
    for (int t = 0; t < 200; t++)
        dtp_buf_printf(&row, "%s%d", t ? ", " : "{\"input_ids\": [", t);
    for (int t = 0; t < 200; t++)
        dtp_buf_printf(&row, "%s%d", t ? ", " : "], \"labels\": [", t < 100 ? -100 : t);
    dtp_buf_puts(&row, "]}\n");
    char *file = test_write(*state, "a.jsonl", row.data);
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.max_length = 64;
    refuse(options, DT_E_FORMAT, "none of 1 rows is left (0 bad, 1 too long, 0 empty, 0 not encoded)");
    options.rows.strict = true;
    refuse(options, DT_E_FORMAT, "a.jsonl:1: 200 tokens are more than max_length 64");
    static const struct {
        dt_truncation truncation;
        size_t samples, first[4], length[4], targets[4];
    } cases[] = {{DT_TRUNCATE_LEFT, 1, {136}, {64}, {63}},
                 {DT_TRUNCATE_SPLIT, 4, {0, 64, 128, 192}, {64, 64, 64, 8}, {0, 28, 63, 7}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        options.truncation = cases[c].truncation;
        dt_dataset *d = prepare(options);
        assert_int_equal(dtp_dataset_size(d), cases[c].samples);
        assert_int_equal(dtp_dataset_statistics(d)->truncated, 1);
        for (size_t i = 0; i < cases[c].samples; i++) {
            const sample *s = read_sample(d, i);
            assert_int_equal(s->n, cases[c].length[i]);
            assert_int_equal(dtp_dataset_targets(d, i), cases[c].targets[i]);
            for (size_t t = 0; t < s->n; t++) {
                int32_t id = (int32_t)(cases[c].first[i] + t);
                assert_int_equal(s->ids[t], id);
                assert_int_equal(s->labels[t], t == 0 || id < 100 ? -100 : id);
            }
        }
        dtp_dataset_close(d);
    }
    options.truncation = DT_TRUNCATE_RIGHT; /* P-41: nothing to train on in the whole data set */
    refuse(options, DT_E_FORMAT, "no sample has a token to train on");
    dtp_buf_free(&row);
    free(file);
}

/* ---- Order ---- */

static void expect_order(const dt_dataset *d, const json_t *numbers)
{
    assert_int_equal(dtp_dataset_size(d), json_array_size(numbers));
    for (size_t i = 0; i < dtp_dataset_size(d); i++)
        assert_int_equal(read_sample(d, i)->ids[0], json_integer_value(json_array_get(numbers, i)));
}

/* The cases of order.json with files: several data sets, "#N", split, shuffle; bad rows in between do not count. */
static void order_equals_numpy(void **state)
{
    json_t *golden;
    dt_err err = {0};
    size_t checked = 0;
    assert_ok(dtp_json_load(&golden, DT_TEST_DATA "/data/order.json", 0, &err), &err);
    const json_t *cases = json_object_get(golden, "order");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *item = json_array_get(cases, c), *sizes = json_object_get(item, "sets");
        if (!json_object_get(item, "train"))
            continue;
        const char *paths[4];
        int first = 0;
        for (size_t s = 0; s < json_array_size(sizes); s++) {
            int n = (int)json_integer_value(json_array_get(json_array_get(sizes, s), 0)), i = first;
            json_int_t wanted = json_integer_value(json_array_get(json_array_get(sizes, s), 1));
            dt_buf rows = {0};
            char name[20];
            for (; i < first + n; i++)
                dtp_buf_printf(&rows, "%s{\"input_ids\": [%d, 0]}\n", i % 3 == 0 ? "{\"bad\": 1}\n\n" : "", i);
            first = i;
            snprintf(name, sizeof name, "%zu.jsonl", s);
            char *file = test_write(*state, name, rows.data);
            paths[s] = wanted < 0 ? dtp_strdup(file) : dtp_format("%s#%d", file, (int)wanted);
            free(file);
            dtp_buf_free(&rows);
        }
        dt_dataset_options options = options_for(paths, json_array_size(sizes));
        options.split_ratio = json_number_value(json_object_get(item, "ratio"));
        options.shuffle = json_is_true(json_object_get(item, "shuffle"));
        options.data_seed = (uint32_t)json_integer_value(json_object_get(item, "seed"));
        dt_dataset *train, *val;
        assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
        if (train)
            expect_order(train, json_object_get(item, "train"));
        else
            assert_int_equal(json_array_size(json_object_get(item, "train")), 0);
        if (val)
            expect_order(val, json_object_get(item, "val"));
        else
            assert_int_equal(json_array_size(json_object_get(item, "val")), 0);
        dtp_dataset_close(train);
        dtp_dataset_close(val);
        for (size_t s = 0; s < json_array_size(sizes); s++)
            free((char *)(uintptr_t)paths[s]);
        checked++;
    }
    assert_true(checked >= 20);
    json_decref(golden);
}

/* --val_dataset has a generator of its own and is not shuffled by default; its rows are written as they are used. */
static void separate_validation_data(void **state)
{
    char *a = write_numbers(*state, "a.jsonl", 0, 10), *b = write_numbers(*state, "b.jsonl", 100, 6);
    dt_dataset_options options = options_for((const char *const[]){a}, 1);
    options.val_paths = (const char *const[]){b};
    options.n_val_paths = 1;
    options.split_ratio = 0.5; /* not used then */
    dt_dataset *train, *val;
    dt_err err = {0};
    assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
    assert_int_equal(dtp_dataset_size(train), 10);
    assert_int_equal(dtp_dataset_size(val), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(read_sample(val, (size_t)i)->ids[0], 100 + i);
    dtp_dataset_close(train);
    dtp_dataset_close(val);
    options.val_shuffle = true;
    options.val_paths = (const char *const[]){a};
    assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
    for (size_t i = 0; i < 10; i++) /* the same file with the same draws */
        assert_int_equal(read_sample(val, i)->ids[0], read_sample(train, i)->ids[0]);
    dtp_dataset_close(train);
    dtp_dataset_close(val);
    free(a);
    free(b);
}

/* ---- Text ---- */

static void sample_rows_equal_the_template(void **state)
{
    (void)state;
    text_tools tools = open_tools();
    const char *path = DT_SOURCE_DIR "/data/sample/chat.jsonl";
    dt_dataset_options options = options_for((const char *const[]){path}, 1);
    options.shuffle = false;
    options.chat = tools.chat;
    options.tokenizer = tools.tokenizer;
    dt_dataset *d = prepare(options);
    dt_rows *rows;
    dt_row row = {0};
    dt_encoder *encoder;
    dt_encoded encoded = {0};
    dt_err err = {0};
    bool more;
    size_t n = 0;
    assert_ok(dtp_rows_open(&rows, path, &(dt_row_options){0}, &err), &err);
    assert_ok(dtp_encoder_create(&encoder, tools.tokenizer, &err), &err);
    while (assert_true(dtp_rows_next(rows, &row, &more, &err) == DT_OK), more) {
        assert_ok(dtp_template_encode(tools.chat, encoder, &row.conversation, DT_TEMPLATE_TRAIN, &encoded, &err), &err);
        expect_sample(d, n++, encoded.ids.length, encoded.ids.data, encoded.labels.data);
    }
    assert_int_equal(dtp_dataset_size(d), n);
    assert_true(n >= 40);
    dtp_encoded_free(&encoded);
    dtp_encoder_free(encoder);
    dtp_row_free(&row);
    dtp_rows_close(rows);
    dtp_dataset_close(d);
    close_tools(tools);
}

static void weights_and_refused_conversations(void **state)
{
    text_tools tools = open_tools();
    char *file = test_write(
        *state, "a.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"One\", "
        "\"loss_scale\": 0.5}, {\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
        "\"Two\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"tool\", \"content\": \"x\"}, "
        "{\"role\": \"assistant\", \"content\": \"One\"}]}\n"
        "{\"query\": \"a\", \"response\": \"\"}\n"
        "{\"query\": \"a\", \"response\": null}\n"
        "{\"text\": \"only an answer\"}\n");
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.shuffle = false;
    options.chat = tools.chat;
    options.tokenizer = tools.tokenizer;
    dt_dataset *d = prepare(options);
    const dt_dataset_stats *s = dtp_dataset_statistics(d);
    assert_int_equal(dtp_dataset_size(d), 3);
    assert_int_equal(s->failed, 1); /* the tool message */
    assert_int_equal(s->bad, 1);    /* null; the empty response is legal */
    assert_int_equal(s->assistant_first, 1);
    assert_true(dtp_dataset_has_weights(d, 0));
    assert_false(dtp_dataset_has_weights(d, 1));
    const sample *first = read_sample(d, 0);
    size_t half = 0, whole = 0;
    for (size_t i = 0; i < first->n; i++)
        if (first->labels[i] != -100) {
            assert_true(first->weights[i] == 0.5f || first->weights[i] == 1);
            half += first->weights[i] == 0.5f;
            whole += first->weights[i] == 1;
        }
    assert_true(half > 0 && whole > 0);
    dtp_dataset_close(d);
    options.chat = NULL;
    options.tokenizer = NULL;
    refuse(options, DT_E_ARG, "a.jsonl:1: this row is text, and there is no tokenizer");
    free(file);
    close_tools(tools);
}

/* Order and content do not depend on the number of threads. */
static void threads_do_not_matter(void **state)
{
    (void)state;
    text_tools tools = open_tools();
    dt_dataset_options options =
        options_for((const char *const[]){DT_SOURCE_DIR "/data/sample/instructions.jsonl#3000"}, 1);
    options.chat = tools.chat;
    options.tokenizer = tools.tokenizer;
    options.truncation = DT_TRUNCATE_SPLIT;
    options.max_length = 40;
    options.threads = 1;
    dt_dataset *one = prepare(options);
    options.threads = 4;
    dt_dataset *four = prepare(options);
    assert_true(dtp_dataset_size(one) > 3000);
    expect_equal(one, four);
    dtp_dataset_close(one);
    dtp_dataset_close(four);
    close_tools(tools);
}

/* ---- Rows written back ---- */

static void expect_file(const char *path, const char *expected)
{
    char *text;
    size_t n;
    dt_err err = {0};
    assert_ok(dtp_read_file(path, 0, &text, &n, &err), &err);
    assert_string_equal(text, expected);
    free(text);
}

static void writes_its_rows(void **state)
{
    char *file =
        test_write(*state, "a.csv", "instruction,input,output,system\nDo,this,\"A \"\"b\"\"\",S\nQ,,\xc3\xa9,\nbad\n");
    char *other =
        test_write(*state, "b.jsonl",
                   "{\"messages\": [{\"from\": \"human\", \"value\": \"x\"}, {\"from\": \"gpt\", \"value\": \"y\", "
                   "\"loss\": false}]}\n{\"input_ids\": [1, 2], \"labels\": [-100, 2]}\n");
    char *out = dtp_path_join(*state, "val_dataset.jsonl"), *csv = dtp_format("%s#3", file);
    text_tools tools = open_tools();
    dt_dataset_options options = options_for((const char *const[]){csv, other}, 2);
    options.chat = tools.chat;
    options.tokenizer = tools.tokenizer;
    options.shuffle = false;
    dt_dataset *d = prepare(options);
    dt_err err = {0};
    assert_ok(dtp_dataset_write_rows(d, out, &err), &err);
    const char *first =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Do\\nthis\"}, "
        "{\"role\": \"assistant\", \"content\": \"A \\\"b\\\"\"}]}\n";
    char *expected = dtp_format(
        "%s{\"messages\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"Q\"}, "
        "{\"role\": \"assistant\", \"content\": \"\xc3\xa9\"}]}\n%s"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\", "
        "\"loss\": false}]}\n"
        "{\"input_ids\": [1, 2], \"labels\": [-100, 2]}\n",
        first, first);
    expect_file(out, expected);
    dtp_dataset_close(d);
    close_tools(tools);
    free(expected);
    free(csv);
    free(out);
    free(other);
    free(file);
}

/* ---- The cache ---- */

static size_t count_cached(const char *folder)
{
    glob_t found = {0};
    char *pattern = dtp_format("%s/cache/*.deltune-data", folder);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    free(pattern);
    return n;
}

/* Changes one byte of every cached file, or cuts it. */
static void damage_cache(const char *folder, long at, bool cut)
{
    glob_t found = {0};
    char *pattern = dtp_format("%s/cache/*.deltune-data", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (cut) {
            assert_int_equal(truncate(found.gl_pathv[i], at), 0);
            continue;
        }
        FILE *file = fopen(found.gl_pathv[i], "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        int byte = fgetc(file);
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        fputc(byte ^ 0x40, file);
        fclose(file);
    }
    globfree(&found);
    free(pattern);
}

static void both(dt_dataset_options options, dt_dataset **train, dt_dataset **val)
{
    dt_err err = {0};
    assert_ok(dtp_dataset_prepare(train, val, &options, &err), &err);
    assert_true(*train && *val);
}

static void expect_both_equal(dt_dataset_options options, const dt_dataset *train, const dt_dataset *val)
{
    dt_dataset *again, *again_val;
    both(options, &again, &again_val);
    expect_equal(train, again);
    expect_equal(val, again_val);
    dtp_dataset_close(again);
    dtp_dataset_close(again_val);
}

/* P-72: reused only when inputs and settings match. */
static void cache_is_found_again(void **state)
{
    char *a = write_numbers(*state, "a.jsonl", 0, 50), *b = write_numbers(*state, "b.jsonl", 100, 30),
         *sampled = dtp_format("%s#20", b), *folder = dtp_path_join(*state, "cache");
    dt_dataset_options options = options_for((const char *const[]){a, sampled}, 2);
    options.split_ratio = 0.2;
    dt_dataset *train, *val;
    both(options, &train, &val);
    options.cache_folder = folder;
    for (int i = 0; i < 2; i++) { /* stored, then taken */
        expect_both_equal(options, train, val);
        assert_int_equal(count_cached(*state), 1);
    }
    damage_cache(*state, 200, false); /* a broken file is said to be broken and made again */
    expect_both_equal(options, train, val);
    damage_cache(*state, 20, true);
    expect_both_equal(options, train, val);
    assert_int_equal(count_cached(*state), 1);

    dt_dataset *cached, *cached_val; /* rows can be written from a cached set too */
    char *out = dtp_path_join(*state, "val.jsonl"), *text, *cached_text;
    size_t n;
    dt_err err = {0};
    assert_ok(dtp_dataset_write_rows(val, out, &err), &err);
    assert_ok(dtp_read_file(out, 0, &text, &n, &err), &err);
    both(options, &cached, &cached_val);
    assert_ok(dtp_dataset_write_rows(cached_val, out, &err), &err);
    assert_ok(dtp_read_file(out, 0, &cached_text, &n, &err), &err);
    assert_string_equal(text, cached_text);
    dtp_dataset_close(cached);
    dtp_dataset_close(cached_val);
    free(text);
    free(cached_text);

    dt_dataset_options changed = options; /* any change makes another file */
    changed.data_seed = 43;
    both(changed, &cached, &cached_val);
    dtp_dataset_close(cached);
    dtp_dataset_close(cached_val);
    assert_int_equal(count_cached(*state), 2);
    free(write_numbers(*state, "a.jsonl", 1, 50));
    both(options, &cached, &cached_val);
    dtp_dataset_close(cached);
    dtp_dataset_close(cached_val);
    assert_int_equal(count_cached(*state), 3);
    dtp_dataset_close(train);
    dtp_dataset_close(val);
    free(out);
    free(folder);
    free(sampled);
    free(a);
    free(b);
}

/* ---- Refusals ---- */

static void impossible_requests(void **state)
{
    char *file = write_numbers(*state, "a.jsonl", 0, 4), *empty = test_write(*state, "b.jsonl", "\n");
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.max_length = 0;
    refuse(options, DT_E_ARG, "max_length is 0");
    options.max_length = 10;
    options.split_ratio = 2;
    refuse(options, DT_E_ARG, "split_dataset_ratio is 2");
    options.split_ratio = 0;
    options.paths = (const char *const[]){empty};
    refuse(options, DT_E_ARG, "b.jsonl: no usable row");
    options.n_paths = 0;
    refuse(options, DT_E_ARG, "no data set is named");
    options = options_for((const char *const[]){"/nonexistent.jsonl"}, 1);
    refuse(options, DT_E_IO, "there is no file or folder");
    free(file);
    free(empty);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, test_folder, test_folder_remove)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(token_rows),
        IN_FOLDER(ids_outside_the_vocabulary),
        IN_FOLDER(long_rows),
        IN_FOLDER(order_equals_numpy),
        IN_FOLDER(separate_validation_data),
        cmocka_unit_test(sample_rows_equal_the_template),
        IN_FOLDER(weights_and_refused_conversations),
        cmocka_unit_test(threads_do_not_matter),
        IN_FOLDER(writes_its_rows),
        IN_FOLDER(cache_is_found_again),
        IN_FOLDER(impossible_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
