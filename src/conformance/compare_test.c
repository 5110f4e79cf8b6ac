#include "conformance/compare.h"
#include "core/test.h"

/* 4 rows of 2 heads, two samples of 3 and 1 rows. */
static const float ref[8] = {1, 2, 3, 4, 5, 6, 7, 0.01f};
static const int32_t cu[3] = {0, 3, 4};
static const dt_comparison_rule by_head = {DT_SLICE_SEQUENCE_HEAD, 1e-3, 1e-3, 0, NULL};

static void equal_tensors_pass(void **state)
{
    (void)state;
    dt_comparison c = dtp_compare(ref, ref, 4, 2, 1, cu, 2, &by_head);
    assert_true(c.passed && c.ratio == 0 && c.worst_ratio == 0);
}

static void a_wrong_short_sample_fails_although_the_tensor_passes(void **state)
{
    (void)state;
    float x[8];
    memcpy(x, ref, sizeof x);
    x[7] += 0.001f;
    dt_comparison c = dtp_compare(x, ref, 4, 2, 1, cu, 2, &by_head);
    assert_true(c.ratio < 1e-3);
    assert_false(c.passed);
    assert_int_equal(c.worst_n, 1);
    assert_int_equal(c.worst_head, 1);
    assert_true(fabs(c.worst_ratio - 0.1) < 1e-3);
}

static void rows_set_apart_are_judged_together(void **state)
{
    (void)state;
    float x[8];
    memcpy(x, ref, sizeof x);
    x[7] += 0.001f;
    bool apart[8] = {false};
    apart[6] = apart[7] = true; /* 7 and 0.01 in one slice: the error drowns */
    dt_comparison_rule rule = by_head;
    rule.apart = apart;
    assert_true(dtp_compare(x, ref, 4, 2, 1, cu, 2, &rule).passed);
}

/* A row set apart, a thousand times larger, neither hides an error of others nor is hidden itself. */
static void rows_set_apart_do_not_count_in_the_tensor(void **state)
{
    (void)state;
    float x[8], large[8];
    memcpy(large, ref, sizeof large);
    large[6] = large[7] = 5000;
    memcpy(x, large, sizeof x);
    bool apart[8] = {false};
    apart[6] = apart[7] = true;
    dt_comparison_rule rule = {DT_SLICE_SEQUENCE_HEAD, 1e-3, 1e-2, 0.25, apart};
    x[0] += 0.05f;
    assert_false(dtp_compare(x, large, 4, 2, 1, cu, 2, &rule).passed);
    rule.apart = NULL;
    assert_true(dtp_compare(x, large, 4, 2, 1, cu, 2, &rule).passed);
    x[0] = large[0];
    x[6] += 100;
    rule.apart = apart;
    dt_comparison c = dtp_compare(x, large, 4, 2, 1, cu, 2, &rule);
    assert_true(c.ratio == 0 && !c.passed && c.worst_n == -1);
}

static void nan_fails_wherever_it_is(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        float x[8];
        memcpy(x, ref, sizeof x);
        x[i] = NAN;
        assert_false(dtp_compare(x, ref, 4, 2, 1, cu, 2, &by_head).passed);
        dt_comparison_rule whole = {.tolerance = 1e-3};
        assert_false(dtp_compare(x, ref, 4, 2, 1, NULL, 0, &whole).passed);
    }
}

static void tiny_absolute_errors_pass(void **state)
{
    (void)state;
    float zero[2] = {0, 0}, x[2] = {9e-7f, 0};
    dt_comparison_rule states = {DT_SLICE_STATE, 1e-5, 1e-5, 0, NULL};
    assert_true(dtp_compare(x, zero, 2, 1, 1, NULL, 0, &states).passed);
    assert_true(dtp_compare(x, zero, 2, 1, 1, NULL, 0, &states).negligible);
    x[0] = 2e-6f;
    assert_false(dtp_compare(x, zero, 2, 1, 1, NULL, 0, &states).passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_tensors_pass),
        cmocka_unit_test(a_wrong_short_sample_fails_although_the_tensor_passes),
        cmocka_unit_test(rows_set_apart_are_judged_together),
        cmocka_unit_test(rows_set_apart_do_not_count_in_the_tensor),
        cmocka_unit_test(nan_fails_wherever_it_is),
        cmocka_unit_test(tiny_absolute_errors_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
