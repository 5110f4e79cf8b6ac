#include "core/test.h"

#include "core/json.h"
#include "core/python_json.h"

/* Expected texts were printed by Python 3. */
static void floats(void **state)
{
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = {
        {0.1, "0.1"},
        {1e-5, "1e-05"},
        {9.993e-05, "9.993e-05"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {1.0, "1.0"},
        {300, "300.0"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {9007199254740993.0, "9007199254740992.0"},
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {-2.5, "-2.5"},
        {1.0 / 3, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {2.41302228, "2.41302228"},
        {123.456, "123.456"},
        {-1.5e-10, "-1.5e-10"},
    };
    char text[40];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dtp_float_repr(text, cases[i].x);
        assert_string_equal(text, cases[i].text);
    }
    dtp_float_repr(text, NAN);
    assert_string_equal(text, "nan");
}

static void rounding(void **state)
{
    (void)state;
    assert_true(dtp_python_round(9.99315e-05, 8) == 9.993e-05);
    assert_true(dtp_python_round(2.675, 2) == 2.67); /* the binary value is below the tie */
    assert_true(dtp_python_round(0.5, 0) == 0.0);
    assert_true(dtp_python_round(1.5, 0) == 2.0);
    assert_true(dtp_python_round(1.83712494123, 8) == 1.83712494);
    assert_true(dtp_python_round(1e22, 8) == 1e22);
}

static void styles(void **state)
{
    (void)state;
    dt_err err = {0};
    json_t *value = NULL;
    const char *text = "{\"loss\": 1.5, \"n\": 3, \"s\": \"a\\n\xe6\xb1\x89's\", \"l\": [true, null], \"e\": {}}";
    assert_ok(dtp_json_parse(&value, text, strlen(text), "test", &err), &err);
    dt_buf out = {0};
    dtp_python_write(&out, value, DT_PYTHON_JSON);
    assert_string_equal(out.data, text);
    dtp_buf_clear(&out);
    dtp_python_write(&out, value, DT_PYTHON_REPR);
    assert_string_equal(out.data, "{'loss': 1.5, 'n': 3, 's': \"a\\n\xe6\xb1\x89's\", 'l': [True, None], 'e': {}}");
    dtp_buf_clear(&out);
    dtp_python_write(&out, value, DT_PYTHON_JSON_INDENT);
    assert_string_equal(out.data, "{\n  \"loss\": 1.5,\n  \"n\": 3,\n  \"s\": \"a\\n\xe6\xb1\x89's\",\n  \"l\": [\n    "
                                  "true,\n    null\n  ],\n  \"e\": {}\n}");
    dtp_buf_free(&out);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(floats), cmocka_unit_test(rounding), cmocka_unit_test(styles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
