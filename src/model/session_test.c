#include "model/model_testing.h"

#include "model/session.h"

enum { VOCAB = 512 };

/* Greedy choice and logits after `n` tokens, from scratch. */
static void from_scratch(dt_session *s, const int32_t *tokens, int64_t n, float *logits)
{
    dt_err err = {0};
    assert_ok(dtp_session_reset(s, &err), &err);
    assert_ok(dtp_session_append(s, tokens, n, logits, &err), &err);
    assert_int_equal(dtp_session_length(s), n);
}

static int32_t greedy(const float *logits)
{
    int best = 0;
    for (int i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* One token at a time with caches equals everything again from the start. */
static void check_continuation(dt_model *m, int prompt, int steps)
{
    dt_err err = {0};
    dt_session *cached, *scratch;
    static int32_t tokens[2048];
    static float x[VOCAB], y[VOCAB];
    assert_ok(dtp_session_open(&cached, m, prompt + steps, &err), &err);
    assert_ok(dtp_session_open(&scratch, m, prompt + steps, &err), &err);
    for (int t = 0; t < prompt; t++)
        tokens[t] = random_token(9, 0, t, VOCAB);
    assert_ok(dtp_session_append(cached, tokens, prompt, x, &err), &err);
    for (int i = 0; i < steps; i++) {
        from_scratch(scratch, tokens, prompt + i, y);
        assert_true(relative_l2(x, y, VOCAB) < 1e-5);
        assert_int_equal(greedy(x), greedy(y));
        tokens[prompt + i] = greedy(x);
        assert_ok(dtp_session_append(cached, &tokens[prompt + i], 1, x, &err), &err);
    }
    assert_fails(dtp_session_append(cached, tokens, 1, x, &err), &err, DT_E_ARG, "do not fit");
    dtp_session_close(cached);
    dtp_session_close(scratch);
}

static void test_greedy_equals_recomputation(void **state)
{
    (void)state;
    fixture f = open_fixture();
    for (int adapter = 0; adapter < 2; adapter++) {
        dt_model *m = open_model(&f, (dt_model_options){.adapter = adapter ? TINY_ADAPTER : NULL});
        check_continuation(m, 1, 6);
        check_continuation(m, 3, 20);
        check_continuation(m, 63, 4);
        check_continuation(m, 700, 2); /* more than one chunk */
        dtp_model_close(m);
    }
    close_fixture(&f);
}

/* The session's logits are those of the training forward, and pieces of any size give the same state. */
static float tapped[1024 * 128];
static void tap(void *user, int64_t index, const dt_tensor *hidden)
{
    (void)user;
    if (index == 4)
        memcpy(tapped, hidden->data, (size_t)dt_tensor_numel(hidden) * sizeof *tapped);
}

static void test_pieces_and_training_forward(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.adapter = TINY_ADAPTER});
    dt_err err = {0};
    static sample_pack p;
    static const int length[] = {200};
    static const int pieces[] = {1, 2, 70, 1, 64, 62};
    static float x[VOCAB], y[VOCAB];
    dt_cross_entropy_result result;
    plan(m, 200, 1, false, DT_RECOMPUTE_NONE);
    make_pack(&p, 9, length, 0, 1, VOCAB);
    dtp_model_set_tap(m, tap, NULL);
    assert_ok(dtp_model_evaluate(m, &p.pack, &result, NULL, &err), &err);
    dtp_model_set_tap(m, NULL, NULL);
    assert_ok(
        dtp_model_logits(m, dt_tensor_2d(tapped + 199 * 128, DT_F32, 1, 128), dt_tensor_2d(x, DT_F32, 1, VOCAB), &err),
        &err);
    dt_session *s;
    assert_ok(dtp_session_open(&s, m, 200, &err), &err);
    int at = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; at += pieces[i++])
        assert_ok(dtp_session_append(s, p.tokens + at, pieces[i], y, &err), &err);
    assert_int_equal(at, 200);
    assert_true(relative_l2(y, x, VOCAB) < 1e-5);

    const int32_t bad = VOCAB;
    assert_ok(dtp_session_reset(s, &err), &err);
    assert_fails(dtp_session_append(s, &bad, 1, NULL, &err), &err, DT_E_ARG, "outside the vocabulary");
    dtp_session_close(s);
    dtp_model_close(m);
    close_fixture(&f);
}

/* Going back to the mark and on with other tokens is as if the first ones had never been. */
static void test_mark_and_rewind(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.adapter = TINY_ADAPTER});
    dt_err err = {0};
    static int32_t kept[100], lost[130], other[40];
    static float x[VOCAB], y[VOCAB];
    for (int t = 0; t < 130; t++) {
        kept[t % 100] = random_token(1, 0, t, VOCAB);
        lost[t] = random_token(2, 0, t, VOCAB);
        other[t % 40] = random_token(3, 0, t, VOCAB);
    }
    dt_session *s, *plain;
    assert_ok(dtp_session_open(&s, m, 300, &err), &err);
    assert_ok(dtp_session_open(&plain, m, 300, &err), &err);
    assert_fails(dtp_session_rewind(s, &err), &err, DT_E_ARG, "no mark");
    assert_ok(dtp_session_append(plain, kept, 100, NULL, &err), &err);
    assert_ok(dtp_session_append(plain, other, 40, x, &err), &err);

    assert_ok(dtp_session_append(s, kept, 100, NULL, &err), &err);
    assert_ok(dtp_session_mark(s, &err), &err);
    for (int again = 0; again < 2; again++) {
        assert_ok(dtp_session_append(s, lost, 130, y, &err), &err);
        assert_memory_not_equal(x, y, sizeof x);
        assert_ok(dtp_session_rewind(s, &err), &err);
        assert_int_equal(dtp_session_length(s), 100);
        assert_ok(dtp_session_append(s, other, 40, y, &err), &err);
        assert_memory_equal(x, y, sizeof x);
        assert_ok(dtp_session_rewind(s, &err), &err);
    }
    assert_ok(dtp_session_reset(s, &err), &err);
    assert_int_equal(dtp_session_marked(s), 0);
    assert_fails(dtp_session_rewind(s, &err), &err, DT_E_ARG, "no mark");
    dtp_session_close(plain);
    dtp_session_close(s);
    dtp_model_close(m);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_equals_recomputation),
        cmocka_unit_test(test_pieces_and_training_forward),
        cmocka_unit_test(test_mark_and_rewind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
