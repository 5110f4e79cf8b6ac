#include "model/model_testing.h"

#include "model/checkpoint.h"

static const int lengths[] = {37, 90, 5};
static const dt_step_key key = {.seed = 42, .step = 3, .micro = 1};

static double backward(dt_model *m, const dt_pack *pack, float scale, dt_step_key k)
{
    dt_err err = {0};
    dt_cross_entropy_result result;
    assert_ok(dtp_model_backward(m, pack, scale, k, &result, &err), &err);
    return result.loss;
}

static double evaluate(dt_model *m, const dt_pack *pack, float *row_loss)
{
    dt_err err = {0};
    dt_cross_entropy_result result;
    assert_ok(dtp_model_evaluate(m, pack, &result, row_loss, &err), &err);
    return result.loss;
}

static void zero_grad(dt_model *m)
{
    dt_err err = {0};
    assert_ok(dtp_model_zero_grad(m, &err), &err);
}

static float *copy_grad(const dt_model *m)
{
    const dt_trainable *t = dtp_model_trainable(m);
    float *grad = malloc((size_t)t->count * sizeof *grad);
    memcpy(grad, t->grad, (size_t)t->count * sizeof *grad);
    return grad;
}

/* P-01, P-02: packed equals separate, for every gradient of every weight. */
static void test_packed_equals_separate(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_FULL});
    static sample_pack all, one;
    plan(m, 200, 3, true, DT_RECOMPUTE_NONE);
    make_pack(&all, 1, lengths, 0, 3, 512);
    double packed = backward(m, &all.pack, 0.01f, key), separate = 0;
    float *grad = copy_grad(m);
    zero_grad(m);
    for (int n = 0; n < 3; n++) {
        make_pack(&one, 1, lengths, n, 1, 512);
        separate += backward(m, &one.pack, 0.01f, key);
    }
    const dt_trainable *t = dtp_model_trainable(m);
    assert_true(fabs(packed - separate) < 1e-5 * packed);
    for (int64_t i = 0; i < t->n_segments; i++) {
        double error = relative_l2(grad + t->segments[i].offset, t->grad + t->segments[i].offset, t->segments[i].count);
        if (!(error < 1e-4))
            fail_msg("%s: %g", t->names[i], error);
    }
    free(grad);
    dtp_model_close(m);
    close_fixture(&f);
}

/* Leak probe: other tokens in the first sample leave the losses of the others bit for bit. */
static void test_no_leak(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_NONE});
    static sample_pack p;
    static float before[200], after[200];
    plan(m, 132, 3, false, DT_RECOMPUTE_NONE);
    make_pack(&p, 1, lengths, 0, 3, 512);
    evaluate(m, &p.pack, before);
    for (int t = 0; t < lengths[0]; t++)
        p.tokens[t] = random_token(77, 0, t, 512);
    evaluate(m, &p.pack, after);
    assert_memory_not_equal(before, after, 37 * sizeof *before);
    assert_memory_equal(before + 37, after + 37, 95 * sizeof *before);
    dtp_model_close(m);
    close_fixture(&f);
}

/* P-13 and the plan: running layers again, all or some, gives the same bits with less memory; dropout included. */
static void test_recompute(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_lora_options lora;
    dtp_lora_options_default(&lora);
    lora.dropout = 0.25;
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_LORA, .lora = &lora, .seed = 5});
    dt_trainable t = *dtp_model_trainable(m);
    for (int64_t i = 0; i < t.count; i++) /* B = 0 would hide every gradient of A */
        t.param[i] += 0.01f * (float)(i % 7 - 3);
    static sample_pack p;
    make_pack(&p, 2, lengths, 0, 3, 512);
    dt_plan_report none = plan(m, 132, 3, true, DT_RECOMPUTE_NONE);
    double loss = backward(m, &p.pack, 0.01f, key);
    float *grad = copy_grad(m);
    assert_int_equal(none.layers_recomputed, 0);

    dt_plan_report all = plan(m, 132, 3, true, DT_RECOMPUTE_ALL);
    assert_int_equal(all.layers_recomputed, 4);
    assert_true(all.activations < none.activations * 2 / 3);
    zero_grad(m);
    assert_true(backward(m, &p.pack, 0.01f, key) == loss);
    assert_memory_equal(grad, t.grad, (size_t)t.count * sizeof *grad);

    dt_err err = {0};
    dt_plan_report some;
    dt_plan_options o = {.max_tokens = 132,
                         .max_n_seq = 3,
                         .train = true,
                         .recompute = DT_RECOMPUTE_AUTO,
                         .memory_limit = (all.total + none.total) / 2};
    assert_ok(dtp_model_plan(m, &o, &some, &err), &err);
    assert_true(some.layers_recomputed > 0 && some.layers_recomputed < 4 && some.total <= o.memory_limit);
    zero_grad(m);
    assert_true(backward(m, &p.pack, 0.01f, key) == loss);
    assert_memory_equal(grad, t.grad, (size_t)t.count * sizeof *grad);

    o.memory_limit = all.total - 1; /* P-44 */
    assert_fails(dtp_model_plan(m, &o, &some, &err), &err, DT_E_NOMEM, "a pack of 132 tokens needs");
    assert_true(some.total == all.total);
    free(grad);
    dtp_model_close(m);
    close_fixture(&f);
}

/* P-14: nothing survives from one call to the next. */
static void test_no_state(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.adapter = TINY_ADAPTER, .tune = DT_TUNE_LORA});
    static sample_pack x, y;
    static const int others[] = {64, 130};
    static float first[200], second[200];
    plan(m, 200, 3, true, DT_RECOMPUTE_ALL);
    make_pack(&x, 3, lengths, 0, 3, 512);
    make_pack(&y, 4, others, 0, 2, 512);
    double loss = evaluate(m, &x.pack, first);
    evaluate(m, &y.pack, NULL);
    backward(m, &y.pack, 0.1f, key);
    assert_true(evaluate(m, &x.pack, second) == loss);
    assert_memory_equal(first, second, 132 * sizeof *first);
    zero_grad(m);
    assert_true(fabs(backward(m, &x.pack, 0.1f, key) - loss) < 1e-6 * loss); /* no dropout in this adapter */
    dtp_model_close(m);
    close_fixture(&f);
}

/* The capacity behind a pack has no effect, and dropout depends on its key only. */
static void test_capacity_and_dropout_key(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_lora_options lora;
    dtp_lora_options_default(&lora);
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_LORA, .lora = &lora, .seed = 5});
    dt_trainable t = *dtp_model_trainable(m);
    for (int64_t i = 0; i < t.count; i++)
        t.param[i] += 0.01f * (float)(i % 5 - 2);
    static sample_pack p;
    make_pack(&p, 2, lengths, 0, 3, 512);
    plan(m, 132, 3, true, DT_RECOMPUTE_NONE);
    double loss = backward(m, &p.pack, 0.01f, key);
    assert_true(backward(m, &p.pack, 0.01f, key) == loss);
    assert_true(backward(m, &p.pack, 0.01f, (dt_step_key){42, 3, 2}) != loss);
    assert_true(backward(m, &p.pack, 0.01f, (dt_step_key){42, 4, 1}) != loss);
    assert_true(backward(m, &p.pack, 0.01f, (dt_step_key){43, 3, 1}) != loss);
    plan(m, 640, 9, true, DT_RECOMPUTE_NONE);
    assert_true(backward(m, &p.pack, 0.01f, key) == loss);
    dtp_model_close(m);
    close_fixture(&f);
}

/* Gradients of a sum over two packs equal those of one pack with both; a pack without targets adds nothing. */
static void test_accumulation(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.adapter = TINY_ADAPTER, .tune = DT_TUNE_LORA});
    static sample_pack p;
    plan(m, 132, 3, true, DT_RECOMPUTE_NONE);
    make_pack(&p, 2, lengths, 0, 3, 512);
    backward(m, &p.pack, 0.02f, key);
    float *grad = copy_grad(m);
    const dt_trainable *t = dtp_model_trainable(m);
    for (int i = 0; i < 200; i++)
        p.targets[i] = -1;
    assert_true(backward(m, &p.pack, 0.02f, key) == 0);
    assert_memory_equal(grad, t->grad, (size_t)t->count * sizeof *grad);
    make_pack(&p, 2, lengths, 0, 3, 512);
    backward(m, &p.pack, 0.02f, key);
    for (int64_t i = 0; i < t->count; i++)
        grad[i] *= 2;
    assert_true(relative_l2(t->grad, grad, t->count) < 1e-6);
    free(grad);
    dtp_model_close(m);
    close_fixture(&f);
}

/* Central differences of the loss along the gradient of a few trainable tensors. */
static void test_gradient_direction(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_FULL});
    static sample_pack p;
    plan(m, 132, 3, true, DT_RECOMPUTE_NONE);
    make_pack(&p, 6, lengths, 0, 3, 512);
    backward(m, &p.pack, 1, key);
    const dt_trainable *t = dtp_model_trainable(m);
    static const char *const names[] = {"model.layers.1.linear_attn.A_log", "model.layers.0.linear_attn.conv1d.weight",
                                        "model.layers.3.self_attn.q_proj.weight", "model.embed_tokens.weight",
                                        "model.norm.weight"};
    for (int64_t i = 0; i < t->n_segments; i++) {
        bool wanted = false;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            wanted = wanted || !strcmp(t->names[i], names[k]);
        if (!wanted)
            continue;
        float *param = t->param + t->segments[i].offset, *grad = t->grad + t->segments[i].offset;
        const int64_t n = t->segments[i].count;
        double norm = 0;
        for (int64_t k = 0; k < n; k++)
            norm += (double)grad[k] * grad[k];
        norm = sqrt(norm);
        float *saved = malloc((size_t)n * sizeof *saved);
        memcpy(saved, param, (size_t)n * sizeof *saved);
        const double h = fmin(2e-2, 0.1 / norm);
        double loss[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t k = 0; k < n; k++)
                param[k] = (float)(saved[k] + (side ? -h : h) * grad[k] / norm);
            loss[side] = evaluate(m, &p.pack, NULL);
        }
        memcpy(param, saved, (size_t)n * sizeof *saved);
        free(saved);
        double slope = (loss[0] - loss[1]) / (2 * h);
        if (fabs(slope - norm) > 5e-3 * norm)
            fail_msg("%s: slope %g along a gradient of length %g", t->names[i], slope, norm);
    }
    dtp_model_close(m);
    close_fixture(&f);
}

static void test_bad_packs(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = open_model(&f, (dt_model_options){.adapter = TINY_ADAPTER, .tune = DT_TUNE_LORA});
    static sample_pack p;
    dt_err err = {0};
    dt_cross_entropy_result r;
    make_pack(&p, 2, lengths, 0, 3, 512);
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "no plan");
    plan(m, 100, 3, false, DT_RECOMPUTE_NONE);
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "132 tokens in 3 samples is outside");
    plan(m, 132, 2, false, DT_RECOMPUTE_NONE);
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "outside the plan");
    plan(m, 132, 3, false, DT_RECOMPUTE_NONE);
    assert_fails(dtp_model_backward(m, &p.pack, 1, key, &r, &err), &err, DT_E_ARG, "evaluation only");
    p.cu[1] = 0;
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "sample 0 of the pack is empty");
    p.cu[1] = 37;
    p.cu[3] = 131;
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "expected 0 to 132");
    p.cu[3] = 132;
    p.tokens[40] = 512;
    assert_fails(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err, DT_E_ARG, "ids[40] is 512");
    dtp_model_close(m);
    close_fixture(&f);
}

static void test_bad_options(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_model *m = NULL;
    dt_err err = {0};
    dt_model_options o = {.folder = TINY, .tune = DT_TUNE_LORA, .activation = DT_F32};
    assert_fails(dtp_model_open(&m, f.exec, &o, &err), &err, DT_E_ARG, "either settings or an adapter");
    o.tune = DT_TUNE_FULL;
    o.adapter = TINY_ADAPTER;
    assert_fails(dtp_model_open(&m, f.exec, &o, &err), &err, DT_E_ARG, "merge it first");
    o = (dt_model_options){.folder = "/nonexistent", .activation = DT_F32};
    assert_fails(dtp_model_open(&m, f.exec, &o, &err), &err, DT_E_IO, "/nonexistent/config.json");
    assert_null(m);
    close_fixture(&f);
}

/* P-89: zero steps, save: every byte as it was; and a changed tensor is rounded once into its dtype. */
static void test_save_full(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_err err = {0};
    char *folder = temporary_folder();
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_FULL});
    const dt_trainable *t = dtp_model_trainable(m);
    t->param[0] = 1.00390625f + 0.00390625f; /* 1 + 2/256 */
    t->param[1] = 1.00390625f;               /* between 1 and 1 + 2/256: to even */
    assert_ok(dtp_model_save_full(m, folder, 500000, &err), &err);
    assert_fails(dtp_model_save_full(m, TINY, 0, &err), &err, DT_E_ARG, "never overwritten");
    dtp_model_close(m);

    dt_checkpoint *a, *b;
    assert_ok(dtp_checkpoint_open(&a, TINY, &err), &err);
    assert_ok(dtp_checkpoint_open(&b, folder, &err), &err);
    assert_true(dtp_checkpoint_files(b) > 1);
    assert_int_equal(dtp_checkpoint_count(a), dtp_checkpoint_count(b));
    for (size_t i = 0; i < dtp_checkpoint_count(a); i++) {
        dt_stored x = dtp_checkpoint_at(a, i), y = dtp_checkpoint_find(b, x.tensor->name);
        assert_non_null(y.tensor);
        assert_string_equal(x.tensor->dtype_name, y.tensor->dtype_name);
        assert_int_equal(x.tensor->bytes, y.tensor->bytes);
        const bool changed = !strcmp(x.tensor->name, "model.embed_tokens.weight");
        const size_t skip = changed ? 4 : 0;
        assert_memory_equal((const char *)x.tensor->data + skip, (const char *)y.tensor->data + skip,
                            x.tensor->bytes - skip);
        if (changed) {
            assert_int_equal(((const uint16_t *)y.tensor->data)[0], 0x3f81);
            assert_int_equal(((const uint16_t *)y.tensor->data)[1], 0x3f80);
        }
    }
    dtp_checkpoint_close(a);
    dtp_checkpoint_close(b);
    dtp_model_close(open_model(&f, (dt_model_options){.folder = folder}));
    remove_folder(folder);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_equals_separate),
        cmocka_unit_test(test_no_leak),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_no_state),
        cmocka_unit_test(test_capacity_and_dropout_key),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_gradient_direction),
        cmocka_unit_test(test_bad_packs),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_save_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
