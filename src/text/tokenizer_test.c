#include "core/json.h"
#include "text/test_tokenizer.h"
#include "text/unicode.h"
#include <time.h>

#define SAMPLE DT_SOURCE_DIR "/data/sample"

static void expect_ids(const json_t *row, const char *field, const dt_ids *ids)
{
    const json_t *expected = json_object_get(row, field);
    bool same = json_array_size(expected) == ids->length;
    for (size_t i = 0; same && i < ids->length; i++)
        same = json_integer_value(json_array_get(expected, i)) == ids->data[i];
    if (!same) {
        print_error("%s of %s\ngot", field, json_string_value(json_object_get(row, "text")));
        for (size_t i = 0; i < ids->length; i++)
            print_error(" %d", ids->data[i]);
        fail_msg("ids differ");
    }
}

static void expect_text(const json_t *expected, const dt_buf *text)
{
    assert_int_equal(text->length, json_string_length(expected));
    if (text->length)
        assert_memory_equal(text->data, json_string_value(expected), text->length);
}

/* Decoding id by id hands out whole characters only, and in all what decoding at once does. */
static void check_stream(const dt_tokenizer *tokenizer, const dt_ids *ids, const dt_buf *whole)
{
    dt_err err = {0};
    dt_buf streamed = {0};
    dt_stream_decoder stream = {0};
    bool needs_nfc;
    for (size_t i = 0; i < ids->length; i++) {
        size_t before = streamed.length;
        assert_ok(dtp_stream_decode(&stream, tokenizer, ids->data[i], false, &streamed, &err), &err);
        if (streamed.length > before)
            assert_true(dtp_utf8_scan(streamed.data + before, streamed.length - before, &needs_nfc));
    }
    assert_ok(dtp_stream_finish(&stream, &streamed, &err), &err);
    assert_int_equal(streamed.length, whole->length);
    if (whole->length)
        assert_memory_equal(streamed.data, whole->data, whole->length);
    dtp_buf_free(&streamed);
}

/* Every line of a file: ids, decoded with and without special tokens, and id by id. */
static void check_file(const dt_tokenizer *tokenizer, const char *path, const char *field, size_t least)
{
    dt_err err = {0};
    dt_encoder *encoder;
    assert_ok(dtp_encoder_create(&encoder, tokenizer, &err), &err);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL;
    size_t capacity = 0, rows = 0;
    dt_ids ids = {0};
    dt_buf text = {0};
    for (; getline(&line, &capacity, file) > 0; rows++) {
        json_t *row;
        assert_ok(dtp_json_parse(&row, line, strlen(line), path, &err), &err);
        const json_t *input = json_object_get(row, "text"), *skipped = json_object_get(row, "skipped");
        ids.length = 0;
        assert_ok(dtp_encode(encoder, json_string_value(input), json_string_length(input), &ids, &err), &err);
        expect_ids(row, json_object_get(row, field) ? field : "ids", &ids);
        dtp_buf_clear(&text);
        assert_ok(dtp_decode(tokenizer, ids.data, ids.length, true, &text, &err), &err);
        if (skipped)
            expect_text(skipped, &text);
        dtp_buf_clear(&text);
        assert_ok(dtp_decode(tokenizer, ids.data, ids.length, false, &text, &err), &err);
        expect_text(json_object_get(row, "decoded"), &text);
        check_stream(tokenizer, &ids, &text);
        json_decref(row);
    }
    assert_true(rows >= least);
    free(line);
    fclose(file);
    dtp_ids_free(&ids);
    dtp_buf_free(&text);
    dtp_encoder_free(encoder);
}

static dt_tokenizer *open_text(const dt_buf *json)
{
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    assert_ok(dtp_tokenizer_open_memory(&tokenizer, json->data, json->length, NULL, 0, "tokenizer", &err), &err);
    return tokenizer;
}

#define GOLDEN DT_SHARED_DIR "/golden/tokenizer/qwen3.jsonl"

static void golden_ids_with_qwen3_pattern(void **state)
{
    (void)state;
    dt_buf json = {0};
    if (!read_qwen3_json(&json))
        skip();
    dt_tokenizer *tokenizer = open_text(&json);
    check_file(tokenizer, GOLDEN, "ids", 400);
    dtp_tokenizer_close(tokenizer);
    dtp_buf_free(&json);
}

static void golden_ids_with_marks_pattern(void **state)
{
    (void)state;
    dt_buf json = {0}, marks = {0};
    if (!read_qwen3_json(&json))
        skip();
    use_marks_pattern(json.data, &marks);
    dt_tokenizer *tokenizer = open_text(&marks);
    check_file(tokenizer, GOLDEN, "ids_marks_regex", 400);
    dtp_tokenizer_close(tokenizer);
    dtp_buf_free(&marks);
    dtp_buf_free(&json);
}

/* tools/make_tokenizer_cases.py: what the reference makes of them with the sample tokenizer. */
static void sample_ids_equal_the_reference(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    assert_ok(dtp_tokenizer_open(&tokenizer, SAMPLE, &err), &err);
    check_file(tokenizer, DT_TEST_DATA "/text/tokenizer_cases.jsonl", "ids", 200);
    dtp_tokenizer_close(tokenizer);

    char *source;
    size_t length;
    assert_ok(dtp_read_file(SAMPLE "/tokenizer.json", 0, &source, &length, &err), &err);
    dt_buf half = {0}, plain = {0};
    assert_int_equal(replace_all(source, "?[\\\\p{L}\\\\p{M}]+|", "?\\\\p{L}+|", &half), 1);
    assert_int_equal(replace_all(half.data, "[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+", "[^\\\\s\\\\p{L}\\\\p{N}]+", &plain),
                     1);
    tokenizer = open_text(&plain);
    check_file(tokenizer, DT_TEST_DATA "/text/tokenizer_cases.jsonl", "plain_ids", 200);
    dtp_tokenizer_close(tokenizer);
    free(source);
    dtp_buf_free(&half);
    dtp_buf_free(&plain);
}

static void special_tokens_are_found_by_content(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *t;
    assert_ok(dtp_tokenizer_open(&t, SAMPLE "/tokenizer.json", &err), &err);
    assert_int_equal(dtp_tokenizer_size(t), 4096);
    assert_int_equal(dtp_tokenizer_special(t, "<|endoftext|>"), 4063);
    assert_int_equal(dtp_tokenizer_special(t, "<|audio_pad|>"), 4095);
    assert_int_equal(dtp_tokenizer_special(t, "<|audio_pad"), -1);
    assert_int_equal(dtp_tokenizer_special(t, "a"), -1);
    assert_int_equal(dtp_tokenizer_eos(t), dtp_tokenizer_special(t, "<|im_end|>"));
    assert_int_equal(dtp_tokenizer_pad(t), dtp_tokenizer_special(t, "<|endoftext|>"));
    assert_true(dtp_tokenizer_is_special(t, dtp_tokenizer_eos(t)));
    assert_false(dtp_tokenizer_is_special(t, dtp_tokenizer_special(t, "<think>")));
    assert_false(dtp_tokenizer_is_special(t, -1));
    assert_false(dtp_tokenizer_is_special(t, 4096));
    const char *text = "<|im_start|>a<|im_start|<|im_end|><think>";
    assert_int_equal(dtp_tokenizer_count_special(t, text, strlen(text)), 2);
    size_t length;
    const char *piece = dtp_tokenizer_piece(t, 4095, &length);
    assert_int_equal(length, strlen("<|audio_pad|>"));
    assert_memory_equal(piece, "<|audio_pad|>", length);
    dtp_tokenizer_close(t);
}

static void padding_rows_cannot_be_decoded(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *t;
    dt_buf text = {0};
    assert_ok(dtp_tokenizer_open(&t, SAMPLE, &err), &err);
    const int32_t bad[] = {4096, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(dtp_decode(t, &bad[i], 1, false, &text, &err), &err, DT_E_ARG, "end at 4095");
    dtp_buf_free(&text);
    dtp_tokenizer_close(t);
}

/* Part of a character waits for the rest; at the end it becomes U+FFFD. */
static void unfinished_characters_wait(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *t;
    assert_ok(dtp_tokenizer_open(&t, SAMPLE, &err), &err);
    int32_t byte_id[256]; /* a single byte is its own token */
    for (int32_t id = 0; id < 4063; id++) {
        size_t length;
        const char *piece = dtp_tokenizer_piece(t, id, &length);
        if (length == 1)
            byte_id[(unsigned char)*piece] = id;
    }
    static const struct {
        const char *bytes;
        const char *shown[5]; /* after each byte, and after the end */
    } cases[] = {
        {"\xF0\x9F\x9A\x80", {"", "", "", "\xF0\x9F\x9A\x80", "\xF0\x9F\x9A\x80"}},
        {"\xE4\xBD", {"", "", "\xEF\xBF\xBD"}},
        {"\xE4\xBD"
         "a",
         {"", "",
          "\xEF\xBF\xBD"
          "a",
          "\xEF\xBF\xBD"
          "a"}},
        {"\xE4\xC3\xA9", {"", "\xEF\xBF\xBD", "\xEF\xBF\xBD\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"}},
        {"\x80\x80", {"\xEF\xBF\xBD", "\xEF\xBF\xBD\xEF\xBF\xBD", "\xEF\xBF\xBD\xEF\xBF\xBD"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_buf text = {0};
        dt_stream_decoder stream = {0};
        size_t n = strlen(cases[i].bytes);
        for (size_t j = 0; j < n; j++) {
            int32_t id = byte_id[(unsigned char)cases[i].bytes[j]];
            assert_ok(dtp_stream_decode(&stream, t, id, false, &text, &err), &err);
            assert_string_equal(text.data ? text.data : "", cases[i].shown[j]);
        }
        assert_ok(dtp_stream_finish(&stream, &text, &err), &err);
        assert_string_equal(text.data, cases[i].shown[n]);
        dtp_buf_free(&text);
    }
    dtp_tokenizer_close(t);
}

static void invalid_utf8_reads_as_replacement_characters(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *t;
    dt_encoder *encoder;
    dt_ids broken = {0}, repaired = {0};
    assert_ok(dtp_tokenizer_open(&t, SAMPLE, &err), &err);
    assert_ok(dtp_encoder_create(&encoder, t, &err), &err);
    const char *in = "a\xFF<|im_end|>\xE4\xBD", *out = "a\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD";
    assert_ok(dtp_encode(encoder, in, strlen(in), &broken, &err), &err);
    assert_ok(dtp_encode(encoder, out, strlen(out), &repaired, &err), &err);
    assert_int_equal(broken.length, repaired.length);
    assert_memory_equal(broken.data, repaired.data, broken.length * sizeof *broken.data);
    dtp_ids_free(&broken);
    dtp_ids_free(&repaired);
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(t);
}

#ifdef __SANITIZE_ADDRESS__
static const double longest = 20;
#else
static const double longest = 2;
#endif

/* A megabyte of anything must cost linear time: at most 2 s; the slowest takes 0.3 s where this was written. */
static void no_text_is_quadratic(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "a",
        "abcdefgh",
        "qwzxkjvy",
        "\xCC\x81",
        "\xCC\x81\xCC\x96",
        "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
        " ",
        " \n",
        "\n",
        "\r\n\t",
        "'",
        "'s",
        "<",
        "<|",
        "<|im_start|",
        "\xE7\x9A\x84",
        "\xF0\x9F\x9A\x80",
        "\xFF",
        "1",
        "! ",
    };
    const size_t n = 1 << 20;
    dt_err err = {0};
    dt_tokenizer *t;
    dt_encoder *encoder;
    dt_ids ids = {0};
    char *text = malloc(n + 16);
    assert_ok(dtp_tokenizer_open(&t, SAMPLE, &err), &err);
    assert_ok(dtp_encoder_create(&encoder, t, &err), &err);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        size_t unit = strlen(patterns[i]), length = n / unit * unit;
        for (size_t at = 0; at < length; at += unit)
            memcpy(text + at, patterns[i], unit);
        ids.length = 0;
        clock_t begin = clock();
        assert_ok(dtp_encode(encoder, text, length, &ids, &err), &err);
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (seconds > longest)
            fail_msg("1 MB of \"%s\" takes %.1f s", patterns[i], seconds);
    }
    free(text);
    dtp_ids_free(&ids);
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(t);
}

/* Each thread with its own encoder. */
static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tokenizer *t;
    assert_ok(dtp_tokenizer_open(&t, SAMPLE, &err), &err);
    enum { N = 4 };
    dt_ids ids[N] = {{0}};
    bool good[N] = {false};
#pragma omp parallel for num_threads(N)
    for (int i = 0; i < N; i++) {
        dt_encoder *encoder = NULL;
        dt_status status = dtp_encoder_create(&encoder, t, NULL);
        for (int round = 0; round < 2000 && status == DT_OK; round++) {
            char text[64];
            int n = snprintf(text, sizeof text, "word%d \xE4\xBD\xA0%d e\xCC\x81 <|im_end|>", round, round % 7);
            status = dtp_encode(encoder, text, (size_t)n, &ids[i], NULL);
        }
        dtp_encoder_free(encoder);
        good[i] = status == DT_OK;
    }
    for (int i = 0; i < N; i++) {
        assert_true(good[i]);
        assert_int_equal(ids[i].length, ids[0].length);
        assert_memory_equal(ids[i].data, ids[0].data, ids[0].length * sizeof *ids[0].data);
    }
    for (int i = 0; i < N; i++)
        dtp_ids_free(&ids[i]);
    dtp_tokenizer_close(t);
}

/* A file that differs from the sample in one place is refused by the name of that place. */
static void what_we_do_not_do_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        dt_status status;
        const char *text;
    } changes[] = {
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", DT_E_UNSUPPORTED, "model.type"},
        {"\"type\": \"NFC\"", "\"type\": \"NFKC\"", DT_E_UNSUPPORTED, "normalizer"},
        {"\"dropout\": null", "\"dropout\": 0.1", DT_E_UNSUPPORTED, "model.dropout"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", DT_E_UNSUPPORTED, "model.byte_fallback"},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", DT_E_UNSUPPORTED, "model.ignore_merges"},
        {"\"behavior\": \"Isolated\"", "\"behavior\": \"Removed\"", DT_E_UNSUPPORTED, "pre_tokenizer"},
        {"\"invert\": false", "\"invert\": true", DT_E_UNSUPPORTED, "pre_tokenizer"},
        {"|\\\\p{N}|", "|\\\\p{N}{1,3}|", DT_E_UNSUPPORTED, "Split.pattern"},
        {"\"post_processor\": null",
         "\"post_processor\": {\"type\": \"TemplateProcessing\", \"special_tokens\": {\"<s>\": {}}}", DT_E_UNSUPPORTED,
         "post_processor"},
        {"\"content\": \"<think>\"", "\"content\": \"\"", DT_E_FORMAT, "added_tokens"},
        {"\"content\": \"<think>\"", "\"content\": \"</think>\"", DT_E_FORMAT, "contradicts"},
        {"\"id\": 4087,", "\"id\": 4088,", DT_E_FORMAT, "contradicts"},
        {"\"id\": 4087,", "\"id\": 17,", DT_E_FORMAT, "contradicts model.vocab"},
        {"\"id\": 4087,", "\"id\": 5000000,", DT_E_FORMAT, "out of range"},
        {"\"id\": 4087,", "\"id\": -1,", DT_E_FORMAT, "out of range"},
        {"\"!\": 0,", "", DT_E_FORMAT, "byte 0x21"},
        {"\"!\": 0,", "\"!\": 1,", DT_E_FORMAT, "two tokens have id 1"},
        {"\"!\": 0,", "\"!\": \"0\",", DT_E_FORMAT, "model.vocab"},
        {"\"merges\": [", "\"merges\": [\n\"no-space\",", DT_E_FORMAT, "model.merges[0] is neither"},
        {"\"merges\": [", "\"merges\": [\n[\"a\", \"<|x\"],", DT_E_FORMAT, "model.merges[0]: a + <|x"},
        {"\"merges\": [", "\"merges\": [\n7,", DT_E_FORMAT, "model.merges[0] is neither"},
        {"\"merges\": [", "\"merges\": 7, \"other\": [", DT_E_FORMAT, "model.merges"},
        {"\"version\"", "version", DT_E_FORMAT, "not valid JSON"},
    };
    dt_err err = {0};
    char *source;
    size_t length;
    assert_ok(dtp_read_file(SAMPLE "/tokenizer.json", 0, &source, &length, &err), &err);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        /* Only the first place changes. */
        const char *hit = strstr(source, changes[i].from);
        if (!hit)
            fail_msg("the sample has no %s", changes[i].from);
        dt_buf changed = {0};
        dtp_buf_append(&changed, source, (size_t)(hit - source));
        dtp_buf_puts(&changed, changes[i].to);
        dtp_buf_puts(&changed, hit + strlen(changes[i].from));
        dt_tokenizer *t = NULL;
        assert_fails(dtp_tokenizer_open_memory(&t, changed.data, changed.length, NULL, 0, "F", &err), &err,
                     changes[i].status, changes[i].text);
        assert_null(t);
        dtp_buf_free(&changed);
    }
    free(source);
    dt_tokenizer *t;
    assert_fails(dtp_tokenizer_open(&t, DT_TEST_DATA, &err), &err, DT_E_IO, "no tokenizer.json");
    assert_fails(dtp_tokenizer_open(&t, DT_TEST_DATA "/missing.json", &err), &err, DT_E_IO, "missing.json");
}

/* tokenizer_config.json adds tokens that tokenizer.json lacks, and names eos and pad. */
static void config_joins_the_added_tokens(void **state)
{
    (void)state;
    dt_err err = {0};
    char *json;
    size_t length;
    assert_ok(dtp_read_file(SAMPLE "/tokenizer.json", 0, &json, &length, &err), &err);
    const char *config = "{\"model_max_length\": 1000000000000000019884624838656, \"eos_token\": {\"content\": "
                         "\"<more>\"}, \"pad_token\": \"<|fim_pad|>\","
                         " \"added_tokens_decoder\": {\"4096\": {\"content\": \"<more>\", \"special\": true},"
                         " \"4063\": {\"content\": \"<|endoftext|>\", \"special\": true}}}";
    dt_tokenizer *t;
    assert_ok(dtp_tokenizer_open_memory(&t, json, length, config, strlen(config), "F", &err), &err);
    assert_int_equal(dtp_tokenizer_size(t), 4097);
    assert_int_equal(dtp_tokenizer_special(t, "<more>"), 4096);
    assert_int_equal(dtp_tokenizer_eos(t), 4096);
    assert_int_equal(dtp_tokenizer_pad(t), dtp_tokenizer_special(t, "<|fim_pad|>"));
    dtp_tokenizer_close(t);
    const char *wrong = "{\"added_tokens_decoder\": {\"4064\": {\"content\": \"<|endoftext|>\"}}}";
    assert_fails(dtp_tokenizer_open_memory(&t, json, length, wrong, strlen(wrong), "F", &err), &err, DT_E_FORMAT,
                 "contradicts");
    free(json);
}

/* As transformers 5 saves a tokenizer that adds nothing around a text. */
static void a_template_without_tokens_is_no_obstacle(void **state)
{
    (void)state;
    dt_err err = {0};
    char *json;
    size_t length;
    dt_buf saved = {0};
    assert_ok(dtp_read_file(SAMPLE "/tokenizer.json", 0, &json, &length, &err), &err);
    assert_int_equal(replace_all(json, "\"post_processor\": null",
                                 "\"post_processor\": {\"type\": \"TemplateProcessing\", \"special_tokens\": {}}",
                                 &saved),
                     1);
    dtp_tokenizer_close(open_text(&saved));
    dtp_buf_free(&saved);
    free(json);
}

/* Ids published for the Qwen3.5 tokenizer. Runs where such a tokenizer is: DT_QWEN3_5_TOKENIZER=FOLDER. */
static void published_ids_of_qwen3_5(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[16]; /* ended by 0 */
    } vectors[] = {
        {"Hello, world! 12345", {9419, 11, 1814, 0, 220, 16, 17, 18, 19, 20}},
        {"  spaced  text\n", {220, 61674, 220, 1414, 198}},
        {"   hello", {256, 23066}},
        {"hello \n  world", {14556, 695, 220, 1814}},
        {"'s 'S 're 'RE 'll 'D", {579, 359, 50, 359, 265, 359, 762, 359, 636, 359, 35}},
        {"\xC3\xA9 e\xCC\x81", {933, 3825}},
        {"\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xEF\xBC\x81", {109266, 3709, 96748, 6115}},
        {"\xE4\xBB\x8B\xE7\xBB\x8D\xE4\xB8\x80\xE4\xB8\x8B\xE4\xBD\xA0\xE8\x87\xAA\xE5\xB7\xB1", {113552, 111522}},
        {"\xD9\x85\xD9\x8E\xD8\xB1\xD9\x92\xD8\xAD\xD9\x8E\xD8\xA8\xD9\x8B\xD8\xA7 "
         "\xE0\xA4\xA6\xE0\xA5\x81\xE0\xA4\xA8\xE0\xA4\xBF\xE0\xA4\xAF\xE0\xA4\xBE",
         {9873, 164865, 28850, 150765, 150021, 184642, 235886}},
        {"123\xD9\xA4\xD9\xA5\xE2\x85\xAB", {16, 17, 18, 149, 97, 149, 98, 68086, 104}},
        {"foo... \r\nbar", {7724, 1076, 2449, 2185}},
        {"a\xC2\xA0\xE2\x80\x83\xC2\x85"
         "b",
         {64, 3966, 373, 225, 126, 227, 65}},
        {"rock\xE2\x80\x99n\xE2\x80\x99roll isn't I'M", {19896, 58005, 515, 1065, 4290, 914, 353, 26708}},
        {"          a", {670, 264}},
        {"\n\n  \ntext\t\tend  ", {271, 2228, 1272, 197, 6050, 256}},
        {"Caf\xC3\xA9 \xE2\x80\x94 \xCE\xBA\xCF\x8C\xCF\x83\xCE\xBC\xCE\xBF\xCF\x82 \xF0\x9F\x9A\x80",
         {34, 2492, 933, 1892, 166265, 203260, 10838, 248, 222}},
        {"<think>x</think>", {248068, 87, 248069}},
        {"You are a helpful assistant.", {2523, 513, 264, 10631, 17313, 13}},
        {"Hello, \xE4\xB8\x96\xE7\x95\x8C! Don't \xF0\x9F\x8C\x8D test123.",
         {9419, 11, 220, 96748, 0, 4179, 914, 10838, 234, 235, 1228, 16, 17, 18, 13}},
    };
    const char *folder = getenv("DT_QWEN3_5_TOKENIZER");
    if (!folder) {
        print_message("skipped: DT_QWEN3_5_TOKENIZER names no folder\n");
        skip();
    }
    dt_err err = {0};
    dt_tokenizer *t;
    dt_encoder *encoder;
    dt_ids ids = {0};
    assert_ok(dtp_tokenizer_open(&t, folder, &err), &err);
    assert_ok(dtp_encoder_create(&encoder, t, &err), &err);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        ids.length = 0;
        assert_ok(dtp_encode(encoder, vectors[i].text, strlen(vectors[i].text), &ids, &err), &err);
        size_t n = 16; /* an id 0 ("!") may stand inside, never at the end */
        while (n > 0 && vectors[i].ids[n - 1] == 0)
            n--;
        assert_int_equal(ids.length, n);
        assert_memory_equal(ids.data, vectors[i].ids, n * sizeof *ids.data);
    }
    dtp_ids_free(&ids);
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids_with_qwen3_pattern),
        cmocka_unit_test(golden_ids_with_marks_pattern),
        cmocka_unit_test(sample_ids_equal_the_reference),
        cmocka_unit_test(published_ids_of_qwen3_5),
        cmocka_unit_test(special_tokens_are_found_by_content),
        cmocka_unit_test(config_joins_the_added_tokens),
        cmocka_unit_test(a_template_without_tokens_is_no_obstacle),
        cmocka_unit_test(what_we_do_not_do_is_refused),
        cmocka_unit_test(padding_rows_cannot_be_decoded),
        cmocka_unit_test(unfinished_characters_wait),
        cmocka_unit_test(invalid_utf8_reads_as_replacement_characters),
        cmocka_unit_test(no_text_is_quadratic),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
