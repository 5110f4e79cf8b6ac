#include "core/json.h"
#include "text/test_tokenizer.h"

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

/* Every line of the golden file: ids, decoded at once and id by id. */
static void check_golden(const char *json, size_t length, const char *field)
{
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    assert_ok(dtp_tokenizer_open_memory(&tokenizer, json, length, NULL, 0, "qwen3", &err), &err);
    assert_ok(dtp_encoder_create(&encoder, tokenizer, &err), &err);
    FILE *file = fopen(DT_SHARED_DIR "/golden/tokenizer/qwen3.jsonl", "r");
    assert_non_null(file);
    char *line = NULL;
    size_t capacity = 0, rows = 0;
    dt_ids ids = {0};
    dt_buf text = {0}, streamed = {0};
    while (getline(&line, &capacity, file) > 0) {
        json_t *row;
        assert_ok(dtp_json_parse(&row, line, strlen(line), "qwen3.jsonl", &err), &err);
        const json_t *input = json_object_get(row, "text"), *decoded = json_object_get(row, "decoded");
        ids.length = 0;
        dtp_buf_clear(&text);
        dtp_buf_clear(&streamed);
        assert_ok(dtp_encode(encoder, json_string_value(input), json_string_length(input), &ids, &err), &err);
        expect_ids(row, field, &ids);

        assert_ok(dtp_decode(tokenizer, ids.data, ids.length, false, &text, &err), &err);
        assert_int_equal(text.length, json_string_length(decoded));
        if (text.length)
            assert_memory_equal(text.data, json_string_value(decoded), text.length);
        dt_stream_decoder stream = {0};
        for (size_t i = 0; i < ids.length; i++)
            assert_ok(dtp_stream_decode(&stream, tokenizer, ids.data[i], false, &streamed, &err), &err);
        assert_ok(dtp_stream_finish(&stream, &streamed, &err), &err);
        assert_int_equal(streamed.length, text.length);
        if (text.length)
            assert_memory_equal(streamed.data, text.data, text.length);
        json_decref(row);
        rows++;
    }
    assert_true(rows > 400);
    free(line);
    fclose(file);
    dtp_ids_free(&ids);
    dtp_buf_free(&text);
    dtp_buf_free(&streamed);
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(tokenizer);
}

static void golden_ids_with_qwen3_pattern(void **state)
{
    (void)state;
    dt_buf json = {0};
    if (!read_qwen3_json(&json))
        skip();
    check_golden(json.data, json.length, "ids");
    dtp_buf_free(&json);
}

static void golden_ids_with_marks_pattern(void **state)
{
    (void)state;
    dt_buf json = {0}, marks = {0};
    if (!read_qwen3_json(&json))
        skip();
    use_marks_pattern(json.data, &marks);
    check_golden(marks.data, marks.length, "ids_marks_regex");
    dtp_buf_free(&marks);
    dtp_buf_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids_with_qwen3_pattern),
        cmocka_unit_test(golden_ids_with_marks_pattern),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
