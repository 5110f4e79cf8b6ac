#include "core/test.h"

#include "core/json.h"
#include "train/schedule.h"

/* Rates at t = 0, 1, 5, 10, 17, 29, 30 of 30 steps at 1e-4, printed by transformers 5.17 (get_scheduler). */
static const int64_t at[7] = {0, 1, 5, 10, 17, 29, 30};
static const struct {
    const char *name;
    int64_t warmup;
    double rate[7];
} expected[] = {
    {"linear",
     0,
     {0.0001, 9.666666666666667e-05, 8.333333333333334e-05, 6.666666666666667e-05, 4.3333333333333334e-05,
      3.3333333333333333e-06, 0.0}},
    {"linear",
     1,
     {0.0, 0.0001, 8.620689655172413e-05, 6.896551724137931e-05, 4.482758620689655e-05, 3.448275862068966e-06, 0.0}},
    {"linear", 10, {0.0, 1e-05, 5e-05, 0.0001, 6.500000000000001e-05, 5e-06, 0.0}},
    {"cosine",
     0,
     {0.0001, 9.972609476841367e-05, 9.330127018922194e-05, 7.500000000000001e-05, 3.960441545911204e-05,
      2.7390523158633554e-07, 0.0}},
    {"cosine",
     1,
     {0.0, 0.0001, 9.537877098354786e-05, 7.805935326811912e-05, 4.1910900172361764e-05, 2.9310214228202013e-07, 0.0}},
    {"cosine", 10, {0.0, 1e-05, 5e-05, 0.0001, 7.269952498697734e-05, 6.15582970243117e-07, 0.0}},
    {"cosine_with_restarts",
     0,
     {0.0001, 9.972609476841367e-05, 9.330127018922194e-05, 7.500000000000001e-05, 3.960441545911204e-05,
      2.7390523158633554e-07, 0.0}},
    {"cosine_with_restarts",
     1,
     {0.0, 0.0001, 9.537877098354786e-05, 7.805935326811912e-05, 4.1910900172361764e-05, 2.9310214228202013e-07, 0.0}},
    {"cosine_with_restarts", 10, {0.0, 1e-05, 5e-05, 0.0001, 7.269952498697734e-05, 6.15582970243117e-07, 0.0}},
    {"polynomial",
     0,
     {0.0001, 9.667000000000001e-05, 8.335e-05, 6.670000000000001e-05, 4.339e-05, 3.4299999999999993e-06,
      9.999999999999998e-08}},
    {"polynomial",
     1,
     {0.0, 0.0001, 8.622068965517242e-05, 6.899655172413794e-05, 4.488275862068966e-05, 3.5448275862068927e-06,
      9.999999999999998e-08}},
    {"polynomial", 10, {0.0, 1e-05, 5e-05, 0.0001, 6.5035e-05, 5.095000000000005e-06, 9.999999999999998e-08}},
    {"constant_with_warmup", 0, {0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001}},
    {"constant_with_warmup", 1, {0.0, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001}},
    {"constant_with_warmup", 10, {0.0, 1e-05, 5e-05, 0.0001, 0.0001, 0.0001, 0.0001}},
    {"inverse_sqrt",
     0,
     {0.0001, 9.999500037496877e-05, 9.997500937109546e-05, 9.995003746877732e-05, 9.991510822169678e-05,
      9.985531461477268e-05, 9.98503366584589e-05}},
    {"inverse_sqrt",
     1,
     {0.0, 0.0001, 4.4721359549995795e-05, 3.1622776601683795e-05, 2.42535625036333e-05, 1.8569533817705186e-05,
      1.8257418583505536e-05}},
    {"inverse_sqrt",
     10,
     {0.0, 1e-05, 5e-05, 0.0001, 7.669649888473704e-05, 5.872202195147035e-05, 5.7735026918962585e-05}},
    {"cosine_with_min_lr",
     0,
     {0.0001, 9.97534852915723e-05, 9.397114317029975e-05, 7.75e-05, 4.564397391320084e-05, 1.0246514708427702e-05,
      1e-05}},
    {"cosine_with_min_lr",
     1,
     {0.0, 0.0001, 9.584089388519307e-05, 8.025341794130722e-05, 4.771981015512559e-05, 1.0263791928053819e-05, 1e-05}},
    {"cosine_with_min_lr", 10, {0.0, 1e-05, 5e-05, 0.0001, 7.542957248827961e-05, 1.0554024673218807e-05, 1e-05}},
};

static json_t *minimum(const char *name)
{
    return strcmp(name, "cosine_with_min_lr") == 0 ? json_pack("{s:f}", "min_lr", 1e-5) : NULL;
}

static void equals_transformers(void **state)
{
    (void)state;
    dt_err err = {0};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        dt_schedule s;
        json_t *options = minimum(expected[i].name);
        assert_ok(dtp_schedule_init(&s, expected[i].name, 1e-4, 30, expected[i].warmup, 0, options, &err), &err);
        for (int j = 0; j < 7; j++) {
            double rate = dtp_schedule_rate(&s, at[j]);
            if (fabs(rate - expected[i].rate[j]) > 1e-18)
                fail_msg("%s, warmup %d, t = %d: %.17g, expected %.17g", expected[i].name, (int)expected[i].warmup,
                         (int)at[j], rate, expected[i].rate[j]);
        }
        json_decref(options);
    }
}

/* P-92: without warm-up the first step has the full rate; with it the first step has none. */
static void first_step(void **state)
{
    (void)state;
    dt_err err = {0};
    char names[] = DT_SCHEDULE_NAMES;
    int seen = 0;
    for (char *name = strtok(names, "|"); name; name = strtok(NULL, "|"), seen++) {
        for (int64_t warmup = 0; warmup <= 10; warmup += warmup ? 9 : 1) {
            dt_schedule s;
            assert_ok(dtp_schedule_init(&s, name, 3e-4, 40, warmup, 0, NULL, &err), &err);
            assert_true(dtp_schedule_rate(&s, 0) == (warmup ? 0 : 3e-4));
            assert_true(fabs(dtp_schedule_rate(&s, warmup) - 3e-4) < 1e-18);
        }
    }
    assert_int_equal(seen, DT_SCHEDULE_COUNT);
}

static void warmup_ratio(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_schedule s;
    assert_ok(dtp_schedule_init(&s, "cosine", 1e-4, 301, 0, 0.1, NULL, &err), &err);
    assert_int_equal(s.warmup, 31); /* ceil(30.1) */
    assert_ok(dtp_schedule_init(&s, "cosine", 1e-4, 301, 5, 0.1, NULL, &err), &err);
    assert_int_equal(s.warmup, 5);
}

static void refusals(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_schedule s;
    assert_fails(dtp_schedule_init(&s, "cosin", 1e-4, 30, 0, 0, NULL, &err), &err, DT_E_ARG,
                 "not one of linear|cosine");
    json_t *options = json_pack("{s:f}", "power", 2.0);
    assert_fails(dtp_schedule_init(&s, "cosine", 1e-4, 30, 0, 0, options, &err), &err, DT_E_ARG,
                 "the cosine schedule has no \"power\"");
    assert_ok(dtp_schedule_init(&s, "polynomial", 1e-4, 30, 0, 0, options, &err), &err);
    assert_true(s.power == 2.0);
    json_decref(options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_transformers), cmocka_unit_test(first_step),
                                       cmocka_unit_test(warmup_ratio), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
