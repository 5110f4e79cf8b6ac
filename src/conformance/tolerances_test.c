#include "conformance/tolerances.h"
#include "core/test.h"

static dt_comparison_rule limits(dt_op op, const char *name, const char *tensor, dt_dtype dtype)
{
    dt_case c;
    dt_err err = {0};
    dt_comparison_rule rule;
    assert_ok(dtp_case_create(&c, op, name, "{}", &err), &err);
    assert_non_null(dtp_case_add(&c, tensor, 1, (const int64_t[]){1}));
    dtp_case_tolerances(&c, 0, dtype, &rule);
    dtp_case_free(&c);
    return rule;
}

static void fp32_has_one_limit_for_all_operators(void **state)
{
    (void)state;
    assert_true(limits(DT_OP_GDN, "gdn_long", "o", DT_F32).tolerance == 1e-5);
    assert_true(limits(DT_OP_GDN, "gdn_long", "dq", DT_F32).tolerance == 1e-4);
    assert_true(limits(DT_OP_GDN, "gdn_long", "dg", DT_F32).tolerance == 1e-3);
    assert_true(limits(DT_OP_SWIGLU, "x", "dx", DT_F32).tolerance == 1e-4);
    assert_true(limits(DT_OP_SWIGLU, "x", "dx", DT_F32).slice_tolerance == 1e-4);
}

/* No larger than flash-linear-attention's figures, but where its own rounding points give more. */
static void the_delta_rule_has_measured_figures(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        double all, no_decay;
    } figures[] = {{"o", 4.3e-3, 4.9e-3},  {"final_state", 3.3e-3, 4.6e-3}, {"dq", 4.4e-3, 4.8e-3},
                   {"dk", 4.7e-3, 5.9e-3}, {"dv", 4.0e-3, 4.8e-3},          {"dg", 4.6e-3, 7.5e-3},
                   {"dbeta", 4e-3, 5.8e-3}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        dt_comparison_rule rule = limits(DT_OP_GDN, "gdn_long", figures[i].tensor, DT_BF16);
        assert_true(rule.tolerance == figures[i].all);
        assert_true(rule.slice_tolerance == 2.5 * figures[i].all && rule.slice_floor == 0.25);
        rule = limits(DT_OP_GDN, "gdn_no_decay_full_write", figures[i].tensor, DT_BF16);
        assert_true(rule.tolerance == figures[i].no_decay);
    }
    assert_true(limits(DT_OP_GDN, "gdn_strong_decay", "dg", DT_BF16).tolerance == 6.3e-3);
    assert_true(limits(DT_OP_GDN, "gdn_strong_decay", "dq", DT_BF16).tolerance == 4.4e-3);
    assert_true(limits(DT_OP_GDN, "gdn_states", "dinitial_state", DT_BF16).tolerance == 1.7e-3);
}

static void others_have_their_roundings(void **state)
{
    (void)state;
    assert_true(limits(DT_OP_RMS_NORM, "x", "y", DT_BF16).tolerance == 2e-3);       /* its own */
    assert_true(limits(DT_OP_RMS_NORM, "x", "dweight", DT_BF16).tolerance == 1e-5); /* fp32 sums of exact products */
    assert_true(limits(DT_OP_ATTENTION, "x", "o", DT_BF16).tolerance == 4e-3);
    assert_true(fabs(limits(DT_OP_LINEAR, "x", "dlora_a", DT_BF16).tolerance - 2e-3 * sqrt(3)) < 1e-15);
    assert_true(limits(DT_OP_ADAMW, "x", "new_param", DT_BF16).tolerance == 1e-5);
}

/* A result that nobody gave a limit would pass or fail by chance. */
static void every_result_has_a_limit(void **state)
{
    (void)state;
    for (int op = 0; op < DT_OP_COUNT; op++) {
        const dt_op_binding *binding = dtp_op_binding((dt_op)op);
        assert_non_null(binding);
        for (size_t i = 0; i < binding->n; i++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                if (!dtp_binding_is_given(&binding->tensors[i])) {
                    double limit = limits((dt_op)op, "x", binding->tensors[i].name, bf16 ? DT_BF16 : DT_F32).tolerance;
                    assert_true(limit >= 1e-5 && limit <= 5e-3);
                }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_has_one_limit_for_all_operators), cmocka_unit_test(the_delta_rule_has_measured_figures),
        cmocka_unit_test(others_have_their_roundings), cmocka_unit_test(every_result_has_a_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
