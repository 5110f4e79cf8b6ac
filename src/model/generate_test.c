/* The loop of generation: how it ends, what it reads again, and generation_config.json. */
#include "model/model_testing.h"

#include "core/file.h"
#include "model/generate.h"

enum { VOCAB = 512, CONTEXT = 120 };

typedef struct collected {
    int32_t token[CONTEXT];
    int64_t n, stop_after; /* 0 = never */
} collected;

static dt_status collect(void *user, int32_t token, bool *stop, dt_err *err)
{
    collected *c = user;
    (void)err;
    c->token[c->n++] = token;
    *stop = c->n == c->stop_after;
    return DT_OK;
}

static dt_generator *open_generator(dt_model *m, const int32_t *stop, size_t n_stop)
{
    dt_generator_options options = {
        .context = CONTEXT, .usable = VOCAB, .sampling = DT_SAMPLING_GREEDY, .stop = stop, .n_stop = n_stop};
    options.sampling.repetition_penalty = 1.5; /* so that a random model does not repeat one token */
    dt_generator *g = NULL;
    dt_err err = {0};
    assert_ok(dtp_generator_open(&g, m, &options, &err), &err);
    return g;
}

static dt_finish answer(dt_generator *g, const int32_t *prompt, int64_t n, int64_t keep, int64_t most, collected *out)
{
    dt_finish finish;
    dt_err err = {0};
    out->n = 0;
    assert_ok(dtp_generator_run(g, prompt, n, keep, most, collect, out, &finish, &err), &err);
    return finish;
}

static void fill(int32_t *tokens, int n, uint64_t seed)
{
    for (int t = 0; t < n; t++)
        tokens[t] = random_token(seed, 0, t, VOCAB);
}

static void test_how_an_answer_ends(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){0});
    dt_generator *g = open_generator(m, NULL, 0);
    static int32_t prompt[CONTEXT];
    collected all = {0}, part = {0};
    dt_finish finish;
    dt_err err = {0};
    fill(prompt, CONTEXT, 4);

    assert_int_equal(answer(g, prompt, 20, 0, 0, &all), DT_FINISH_LENGTH);
    assert_int_equal(all.n, CONTEXT - 20); /* as many as fit */
    assert_int_equal(answer(g, prompt, 20, 0, 7, &part), DT_FINISH_LENGTH);
    assert_int_equal(part.n, 7);
    assert_memory_equal(part.token, all.token, 7 * sizeof(int32_t));
    part.stop_after = 3;
    assert_int_equal(answer(g, prompt, 20, 0, 0, &part), DT_FINISH_CANCELLED);
    assert_int_equal(part.n, 3);
    assert_fails(dtp_generator_run(g, prompt, CONTEXT, 0, 0, collect, &part, &finish, &err), &err, DT_E_ARG,
                 "the prompt has 120 tokens");
    assert_fails(dtp_generator_run(g, prompt, 0, 0, 0, collect, &part, &finish, &err), &err, DT_E_ARG, "0 tokens");
    dtp_generator_close(g);

    /* the sixth token as a stop token: it ends the answer and is not part of it */
    g = open_generator(m, &all.token[5], 1);
    part.stop_after = 0;
    assert_int_equal(answer(g, prompt, 20, 0, 0, &part), DT_FINISH_STOP);
    assert_true(part.n <= 5);
    assert_memory_equal(part.token, all.token, (size_t)part.n * sizeof(int32_t));
    dtp_generator_close(g);
    dtp_model_close(m);
    close_fixture(&f);
}

/* Three turns as a chat template makes them: the next prompt has the turns of this one, then something else. */
static void test_caches_serve_the_next_turn(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){0});
    dt_generator *g = open_generator(m, NULL, 0);
    static int32_t prompt[CONTEXT];
    collected cached = {0}, fresh = {0};
    static const int64_t turns[] = {12, 30, 55}, length[] = {15, 34, 58};
    fill(prompt, 15, 1);
    for (int turn = 0; turn < 3; turn++) {
        answer(g, prompt, length[turn], turns[turn], 8, &cached);
        assert_int_equal(dtp_generator_read(g), length[turn] - (turn ? turns[turn - 1] : 0));
        dt_generator *other = open_generator(m, NULL, 0);
        answer(other, prompt, length[turn], 0, 8, &fresh);
        assert_int_equal(dtp_generator_read(other), length[turn]);
        assert_memory_equal(cached.token, fresh.token, 8 * sizeof(int32_t));
        dtp_generator_close(other);
        fill(prompt + turns[turn], (int)(CONTEXT - turns[turn]), 10 + (uint64_t)turn);
    }
    /* a prompt that begins differently is read from the start, and its turns serve the one after it */
    fill(prompt, CONTEXT, 77);
    answer(g, prompt, 40, 30, 8, &cached);
    assert_int_equal(dtp_generator_read(g), 40);
    answer(g, prompt, 33, 0, 8, &cached);
    assert_int_equal(dtp_generator_read(g), 3);
    dtp_generator_close(g);
    dtp_model_close(m);
    close_fixture(&f);
}

/* All tokens held, the answer too, begin the next prompt: nothing of it is read again. */
static void test_a_prompt_that_goes_on(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){0});
    dt_generator *g = open_generator(m, NULL, 0);
    static int32_t prompt[CONTEXT];
    collected c = {0};
    fill(prompt, 20, 1);
    answer(g, prompt, 20, 0, 8, &c);
    memcpy(prompt + 20, c.token, 8 * sizeof(int32_t));
    fill(prompt + 28, 5, 2);
    answer(g, prompt, 33, 0, 8, &c);
    assert_int_equal(dtp_generator_read(g), 6); /* the last token of the answer was not read yet */
    dtp_generator_close(g);
    dtp_model_close(m);
    close_fixture(&f);
}

static void test_generation_config(void **state)
{
    (void)state;
    char folder[] = "/tmp/deltune-generate-XXXXXX";
    dt_generation_config c;
    dt_err err = {0};
    assert_non_null(mkdtemp(folder));
    assert_ok(dtp_generation_config_load(&c, folder, &err), &err);
    assert_false(c.do_sample);
    assert_int_equal(c.top_k, 50);
    assert_int_equal(c.n_stop, 0);

    char *path = dtp_path_join(folder, "generation_config.json");
    static const char good[] = "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, "
                               "\"repetition_penalty\": null, \"eos_token_id\": [248046, 248044], \"other\": {}}";
    assert_ok(dtp_write_file(path, good, sizeof good - 1, &err), &err);
    assert_ok(dtp_generation_config_load(&c, folder, &err), &err);
    assert_true(c.do_sample && c.temperature == 0.6 && c.top_k == 20 && c.top_p == 0.95);
    assert_true(c.repetition_penalty == 1.0);
    assert_int_equal(c.n_stop, 2);
    assert_int_equal(c.stop[1], 248044);

    static const char *const bad[] = {"{\"eos_token_id\": \"x\"}", "{\"eos_token_id\": [-1]}", "{\"top_k\": \"many\"}",
                                      "[]", "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(dtp_write_file(path, bad[i], strlen(bad[i]), &err), &err);
        assert_fails(dtp_generation_config_load(&c, folder, &err), &err, DT_E_FORMAT, "generation_config.json");
    }
    free(path);
    assert_ok(dtp_remove_tree(folder, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_an_answer_ends),
        cmocka_unit_test(test_caches_serve_the_next_turn),
        cmocka_unit_test(test_a_prompt_that_goes_on),
        cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
