#include "core/test.h"

static void fail_writes_text_and_returns_status(void **state)
{
    (void)state;
    dt_err err = {0};
    assert_int_equal(dt_fail(&err, DT_E_SHAPE, "%s: %d", "x", 3), DT_E_SHAPE);
    assert_string_equal(err.text, "x: 3");
    assert_int_equal(err.status, DT_E_SHAPE);
    assert_int_equal(dt_fail(NULL, DT_E_IO, "ignored"), DT_E_IO);
}

static void prefix_keeps_status(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_fail(&err, DT_E_FORMAT, "bad header");
    assert_int_equal(dt_err_prefix(&err, "%s: ", "m.safetensors"), DT_E_FORMAT);
    assert_string_equal(err.text, "m.safetensors: bad header");
}

static void long_text_is_cut_at_a_character(void **state)
{
    (void)state;
    char text[3 * DT_ERR_TEXT + 4] = {0};
    for (int shift = 0; shift < 3; shift++) { /* every alignment of the 3-byte character against the end */
        memset(text, 'a', (size_t)shift);
        for (int i = 0; i < DT_ERR_TEXT; i++)
            memcpy(text + shift + 3 * i, "\xE4\xBD\xA0", 4);
        dt_err err = {0};
        dt_fail(&err, DT_E_ARG, "%s", text);
        size_t n = strlen(err.text);
        assert_true(n >= DT_ERR_TEXT - 4 && n < DT_ERR_TEXT);
        assert_int_equal((n - (size_t)shift) % 3, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_writes_text_and_returns_status),
        cmocka_unit_test(prefix_keeps_status),
        cmocka_unit_test(long_text_is_cut_at_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
