/* The sampler against probabilities worked out by hand, and its edge cases. */
#include "core/test.h"

#include "model/sampler.h"

enum { VOCAB = 6 };

static dt_sampler *make(double temperature, int64_t top_k, double top_p, double penalty, uint64_t seed)
{
    dt_sampling sampling = {temperature, top_k, top_p, penalty, seed};
    dt_sampler *sampler = NULL;
    dt_err err = {0};
    assert_ok(dtp_sampler_create(&sampler, VOCAB, VOCAB - 1, &sampling, &err), &err);
    return sampler;
}

static int32_t next(dt_sampler *sampler, const float *logits)
{
    float scratch[VOCAB];
    memcpy(scratch, logits, sizeof scratch);
    int32_t token = -1;
    dt_err err = {0};
    assert_ok(dtp_sampler_next(sampler, scratch, &token, &err), &err);
    return token;
}

/* The last id is a padding row: it has the largest logit and must never come out. */
static const float logits[VOCAB] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f, 9.0f};

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    dt_sampler *sampler = make(0.0, 0, 1.0, 1.0, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(next(sampler, logits), 1);
    dtp_sampler_free(sampler);
}

static void penalty_divides_positive_and_multiplies_negative(void **state)
{
    (void)state;
    dt_sampler *sampler = make(0.0, 0, 1.0, 4.0, 0);
    assert_int_equal(next(sampler, logits), 1); /* 2; now seen: 0.5 */
    assert_int_equal(next(sampler, logits), 3); /* 2; now 0.5 */
    assert_int_equal(next(sampler, logits), 2); /* 1; now 0.25 */
    assert_int_equal(next(sampler, logits), 1); /* 0.5 again, lowest id */
    dtp_sampler_reset(sampler);
    assert_int_equal(next(sampler, logits), 1);
    static const int32_t prompt[] = {1, 3, VOCAB - 1, 1000};
    dtp_sampler_observe(sampler, prompt, 4);
    assert_int_equal(next(sampler, logits), 2);

    static const float negative[VOCAB] = {-3.0f, -1.0f, -3.5f, -9.0f, -9.0f, 0.0f};
    dtp_sampler_reset(sampler);
    assert_int_equal(next(sampler, negative), 1); /* now -4 */
    assert_int_equal(next(sampler, negative), 0);
    dtp_sampler_free(sampler);
}

/* Frequencies of many draws against p[], within five standard deviations. */
static void check_frequencies(double temperature, int64_t top_k, double top_p, const double *p)
{
    enum { DRAWS = 20000 };
    int counts[VOCAB] = {0};
    dt_sampler *sampler = make(temperature, top_k, top_p, 1.0, 7);
    for (int i = 0; i < DRAWS; i++)
        counts[next(sampler, logits)]++;
    for (int id = 0; id < VOCAB; id++) {
        double sigma = sqrt(p[id] * (1.0 - p[id]) / DRAWS), got = (double)counts[id] / DRAWS;
        if (p[id] == 0.0 ? counts[id] != 0 : fabs(got - p[id]) > 5.0 * sigma)
            fail_msg("temperature %g top_k %d top_p %g: token %d came %g of the time, expected %g", temperature,
                     (int)top_k, top_p, id, got, p[id]);
    }
    dtp_sampler_free(sampler);
}

static void frequencies_follow_the_distribution(void **state)
{
    (void)state;
    double e0 = exp(-2.0), e1 = 1.0, e2 = exp(-1.0), e4 = exp(-3.0), all = e0 + 2 * e1 + e2 + e4;
    check_frequencies(1.0, 0, 1.0, (double[VOCAB]){e0 / all, e1 / all, e2 / all, e1 / all, e4 / all, 0.0});

    /* temperature 2 halves the exponents */
    double h0 = exp(-1.0), h2 = exp(-0.5), h4 = exp(-1.5), half = h0 + 2 + h2 + h4;
    check_frequencies(2.0, 0, 1.0, (double[VOCAB]){h0 / half, 1 / half, h2 / half, 1 / half, h4 / half, 0.0});

    double k3 = 2 + e2;
    check_frequencies(1.0, 3, 1.0, (double[VOCAB]){0.0, 1 / k3, e2 / k3, 1 / k3, 0.0, 0.0});
    check_frequencies(1.0, 100, 1.0, (double[VOCAB]){e0 / all, e1 / all, e2 / all, e1 / all, e4 / all, 0.0});

    /* the two best hold 2/all = 0.783: top_p 0.7 keeps them, 0.8 also the third */
    check_frequencies(1.0, 0, 0.7, (double[VOCAB]){0.0, 0.5, 0.0, 0.5, 0.0, 0.0});
    check_frequencies(1.0, 0, 0.8, (double[VOCAB]){0.0, 1 / k3, e2 / k3, 1 / k3, 0.0, 0.0});
    /* after top_k 3 they hold 2/k3 = 0.845, so 0.8 keeps two */
    check_frequencies(1.0, 3, 0.8, (double[VOCAB]){0.0, 0.5, 0.0, 0.5, 0.0, 0.0});
    check_frequencies(1.0, 0, 1e-9, (double[VOCAB]){0.0, 1.0, 0.0, 0.0, 0.0, 0.0});
    check_frequencies(1.0, 1, 1.0, (double[VOCAB]){0.0, 1.0, 0.0, 0.0, 0.0, 0.0});
}

static void a_seed_repeats(void **state)
{
    (void)state;
    dt_sampler *a = make(1.5, 0, 1.0, 1.0, 11), *b = make(1.5, 0, 1.0, 1.0, 11), *c = make(1.5, 0, 1.0, 1.0, 12);
    int differ = 0;
    int32_t first[32];
    for (int i = 0; i < 32; i++) {
        first[i] = next(a, logits);
        assert_int_equal(first[i], next(b, logits));
        differ += first[i] != next(c, logits);
    }
    assert_true(differ > 0);
    dtp_sampler_reset(a);
    for (int i = 0; i < 32; i++)
        assert_int_equal(next(a, logits), first[i]);
    dtp_sampler_free(a);
    dtp_sampler_free(b);
    dtp_sampler_free(c);
}

static void minus_infinity_is_never_chosen(void **state)
{
    (void)state;
    static const float masked[VOCAB] = {-INFINITY, 1.0f, -INFINITY, -INFINITY, 0.0f, 0.0f};
    dt_sampler *sampler = make(5.0, 0, 1.0, 1.0, 3);
    for (int i = 0; i < 200; i++) {
        int32_t token = next(sampler, masked);
        assert_true(token == 1 || token == 4);
    }
    dtp_sampler_free(sampler);
}

static void nonfinite_logits_are_errors(void **state)
{
    (void)state;
    dt_err err = {0};
    int32_t token = -1;
    dt_sampler *sampler = make(1.0, 0, 1.0, 1.0, 0);
    float bad[VOCAB] = {0.0f, NAN, 0.0f, 0.0f, 0.0f, 0.0f};
    assert_fails(dtp_sampler_next(sampler, bad, &token, &err), &err, DT_E_NONFINITE, "token 1");
    float huge[VOCAB] = {0.0f, INFINITY, 0.0f, 0.0f, 0.0f, 0.0f};
    assert_fails(dtp_sampler_next(sampler, huge, &token, &err), &err, DT_E_NONFINITE, "not finite");
    float none[VOCAB] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 0.0f};
    assert_fails(dtp_sampler_next(sampler, none, &token, &err), &err, DT_E_NONFINITE, "not finite");
    assert_int_equal(token, -1);
    dtp_sampler_free(sampler);
}

static void bad_settings_are_named(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_sampler *sampler = NULL;
    dt_sampling s = DT_SAMPLING_GREEDY;
    s.temperature = -1.0;
    assert_fails(dtp_sampler_create(&sampler, 4, 4, &s, &err), &err, DT_E_ARG, "temperature is -1");
    s = DT_SAMPLING_GREEDY;
    s.top_p = 0.0;
    assert_fails(dtp_sampler_create(&sampler, 4, 4, &s, &err), &err, DT_E_ARG, "top_p is 0");
    s = DT_SAMPLING_GREEDY;
    s.top_k = -5;
    assert_fails(dtp_sampler_create(&sampler, 4, 4, &s, &err), &err, DT_E_ARG, "top_k is -5");
    s = DT_SAMPLING_GREEDY;
    s.repetition_penalty = 0.0;
    assert_fails(dtp_sampler_create(&sampler, 4, 4, &s, &err), &err, DT_E_ARG, "repetition_penalty is 0");
    s = DT_SAMPLING_GREEDY;
    assert_fails(dtp_sampler_create(&sampler, 4, 5, &s, &err), &err, DT_E_ARG, "5 usable of 4");
    assert_null(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(penalty_divides_positive_and_multiplies_negative),
        cmocka_unit_test(frequencies_follow_the_distribution),
        cmocka_unit_test(a_seed_repeats),
        cmocka_unit_test(minus_infinity_is_never_chosen),
        cmocka_unit_test(nonfinite_logits_are_errors),
        cmocka_unit_test(bad_settings_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
