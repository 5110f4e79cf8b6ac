#include "model/model_testing.h"

#include "core/memory.h"
#include "model/checkpoint.h"
#include "model/merge.h"
#include "model/random_model.h"
#include "model/widen.h"

/* Distance in representable bf16 numbers. */
static int bf16_distance(uint16_t a, uint16_t b)
{
    int x = a & 0x8000 ? -(a & 0x7fff) : a, y = b & 0x8000 ? -(b & 0x7fff) : b;
    return abs(x - y);
}

static float number(uint64_t seed, int i)
{
    return (float)(int32_t)dt_philox(seed, (uint32_t)i, 0, 0, 0).word[0] * 0x1p-31f;
}

/* P-88: the float64 sum rounded once: exactly the nearest bf16, not one beside it. */
static void test_rounding(void **state)
{
    (void)state;
    enum { OUT = 37, IN = 600 };
    static float a[64 * IN], b[OUT * 64], wide[OUT * IN];
    static uint16_t w[OUT * IN], out[OUT * IN];
    static float w32[OUT * IN], out32[OUT * IN];
    static const int ranks[] = {1, 8, 64};
    for (int r = 0; r < 3; r++) {
        const int rank = ranks[r];
        const double scale = r == 1 ? 32 / sqrt(rank) : 32.0 / rank;
        for (int i = 0; i < rank * IN; i++)
            a[i] = number(1, i) * 0.1f;
        for (int i = 0; i < OUT * rank; i++)
            b[i] = number(2, i) * 0.01f;
        for (int i = 0; i < OUT * IN; i++)
            w32[i] = dt_bf16_to_f32(w[i] = dt_f32_to_bf16(number(3, i)));
        dtp_merge_rows(out, w, DT_BF16, OUT, IN, b, a, rank, scale);
        dtp_merge_rows(out32, w32, DT_F32, OUT, IN, b, a, rank, scale);
        dtp_widen(wide, out, DT_BF16, OUT * IN);
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++) {
                double sum = 0;
                for (int k = 0; k < rank; k++)
                    sum += (double)b[o * rank + k] * a[k * IN + i];
                const double exact = w32[o * IN + i] + scale * sum;
                const uint16_t h = out[o * IN + i];
                const double error = fabs(wide[o * IN + i] - exact);
                assert_true(error <= fabs(dt_bf16_to_f32((uint16_t)(h + 1)) - exact));
                assert_true((h & 0x7fff) == 0 || error <= fabs(dt_bf16_to_f32((uint16_t)(h - 1)) - exact));
                assert_true(bf16_distance(h, dt_f32_to_bf16((float)exact)) <= 1);
                assert_true(out32[o * IN + i] == (float)exact ||
                            fabs(out32[o * IN + i] - exact) < fabs(exact) * 0x1p-23);
            }
    }
}

/* F16: every half goes there and back; values between two halves round to the nearer, ties to even. */
static void test_f16(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        const uint16_t half = (uint16_t)h;
        float x, up;
        uint16_t back;
        dtp_widen(&x, &half, DT_F16, 1);
        dtp_narrow(&back, DT_F16, &x, 1);
        assert_int_equal(back, h);
        const uint16_t next = (uint16_t)(h + 1);
        if (next == 0x7c00)
            continue;
        dtp_widen(&up, &next, DT_F16, 1);
        const float middle = x + (up - x) / 2, low = x + (up - x) * 0.499f, high = x + (up - x) * 0.501f;
        dtp_narrow(&back, DT_F16, &middle, 1);
        assert_int_equal(back, h & 1 ? h + 1 : h);
        dtp_narrow(&back, DT_F16, &low, 1);
        assert_int_equal(back, h);
        dtp_narrow(&back, DT_F16, &high, 1);
        assert_int_equal(back, h + 1);
    }
    const float special[] = {65520, 1e30f, INFINITY, -INFINITY, NAN, -0.0f, 1e-30f};
    const uint16_t expected[] = {0x7c00, 0x7c00, 0x7c00, 0xfc00, 0x7e00, 0x8000, 0};
    for (int i = 0; i < 7; i++) {
        uint16_t h;
        dtp_narrow(&h, DT_F16, &special[i], 1);
        assert_int_equal(h, expected[i]);
    }
}

/* The merged model gives the loss of base and adapter; what was not adapted is copied byte for byte. */
static void test_merged_model(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_err err = {0};
    char *parent = temporary_folder(), *folder = dtp_path_join(parent, "merged");
    static sample_pack p;
    static const int lengths[] = {60, 41};
    dt_cross_entropy_result adapted, merged, plain;
    make_pack(&p, 8, lengths, 0, 2, 512);
    dt_merge_options o = {.base = TINY, .adapter = TINY_ADAPTER, .folder = folder, .max_shard_bytes = 400000};
    assert_ok(dtp_merge_adapter(&o, &err), &err);
    assert_fails(dtp_merge_adapter(&o, &err), &err, DT_E_ARG, "exists already");
    o.exist_ok = true;
    assert_ok(dtp_merge_adapter(&o, &err), &err);
    o.folder = TINY;
    assert_fails(dtp_merge_adapter(&o, &err), &err, DT_E_ARG, "the base model, which is never overwritten");
    o.folder = TINY_ADAPTER "/../adapter_init";
    assert_fails(dtp_merge_adapter(&o, &err), &err, DT_E_ARG, "the adapter, which is never overwritten");

    const dt_model_options options[] = {{.adapter = TINY_ADAPTER}, {.folder = folder}, {.folder = TINY}};
    dt_cross_entropy_result *results[] = {&adapted, &merged, &plain};
    for (int i = 0; i < 3; i++) {
        dt_model *m = open_model(&f, options[i]);
        plan(m, 101, 2, false, DT_RECOMPUTE_NONE);
        assert_ok(dtp_model_evaluate(m, &p.pack, results[i], NULL, &err), &err);
        dtp_model_close(m);
    }
    assert_true(fabs(plain.loss - adapted.loss) > 1e-3 * plain.loss);
    assert_true(fabs(merged.loss - adapted.loss) < 1e-3 * plain.loss); /* weights rounded to bf16 */

    dt_checkpoint *a, *b;
    assert_ok(dtp_checkpoint_open(&a, TINY, &err), &err);
    assert_ok(dtp_checkpoint_open(&b, folder, &err), &err);
    assert_int_equal(dtp_checkpoint_count(a), dtp_checkpoint_count(b));
    int changed = 0;
    for (size_t i = 0; i < dtp_checkpoint_count(a); i++) {
        const dt_st_tensor *x = dtp_checkpoint_at(a, i).tensor, *y = dtp_checkpoint_find(b, x->name).tensor;
        assert_non_null(y);
        assert_string_equal(x->dtype_name, y->dtype_name);
        changed += memcmp(x->data, y->data, x->bytes) != 0;
    }
    assert_int_equal(changed, 31);
    dtp_checkpoint_close(a);
    dtp_checkpoint_close(b);
    free(folder);
    remove_folder(parent);
    close_fixture(&f);
}

/* P-12 and the contract of random models: plausible first loss, the same bytes again, nothing half-written. */
static void test_random_model(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_err err = {0};
    char *parent = temporary_folder(), *one = dtp_path_join(parent, "one"), *two = dtp_path_join(parent, "two");
    dt_random_model_options o = {.config = TINY "/config.json", .seed = 4, .folder = one, .max_shard_bytes = 500000};
    assert_ok(dtp_random_model(&o, &err), &err);
    assert_fails(dtp_random_model(&o, &err), &err, DT_E_ARG, "exists already");
    o.folder = two;
    o.max_shard_bytes = UINT64_MAX / 2;
    assert_ok(dtp_random_model(&o, &err), &err);

    dt_checkpoint *a, *b;
    assert_ok(dtp_checkpoint_open(&a, one, &err), &err);
    assert_ok(dtp_checkpoint_open(&b, two, &err), &err);
    assert_true(dtp_checkpoint_files(a) > 1 && dtp_checkpoint_files(b) == 1);
    for (size_t i = 0; i < dtp_checkpoint_count(a); i++) {
        const dt_st_tensor *x = dtp_checkpoint_at(a, i).tensor, *y = dtp_checkpoint_find(b, x->name).tensor;
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    const dt_st_tensor *embedding = dtp_checkpoint_find(a, "model.embed_tokens.weight").tensor;
    static float values[512 * 128];
    dtp_widen(values, embedding->data, embedding->dtype, 512 * 128);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < 512 * 128; i++) {
        const double x = values[i] / 0.02;
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    assert_true(fabs(sum / 65536) < 0.02 && fabs(squares / 65536 - 1) < 0.02 && fabs(fourth / 65536 - 3) < 0.15);
    dtp_checkpoint_close(a);
    dtp_checkpoint_close(b);

    static sample_pack p;
    static const int lengths[] = {300, 100};
    dt_cross_entropy_result r;
    make_pack(&p, 8, lengths, 0, 2, 512);
    dt_model *m = open_model(&f, (dt_model_options){.folder = one});
    plan(m, 400, 2, false, DT_RECOMPUTE_NONE);
    assert_ok(dtp_model_evaluate(m, &p.pack, &r, NULL, &err), &err);
    assert_true(fabs(r.loss / (double)r.targets - log(512)) < 0.3);
    dtp_model_close(m);
    free(one);
    free(two);
    remove_folder(parent);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_merged_model),
        cmocka_unit_test(test_random_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
