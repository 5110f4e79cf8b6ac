/* AdamW, the gradient norm and the one-token steps of the CUDA plug-in, emulated, against the reference in F64. */
#include "providers/cuda/check/emulated_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/op/optimizer.h>

/* ---- adamw, grad_norm ---- */

enum { PARAMETERS = 9001, SEGMENTS = 5 };
/* One that ends inside a vector, an empty one, a tiny one, one over several blocks. */
static const dt_param_segment segments[SEGMENTS] = {
    {0, 1001, 0.1f}, {1001, 0, 0.7f}, {1001, 2, 0}, {1003, 7000, 0.01f}, {8003, 998, 0.3f}};

static dt_adamw_args make_adamw(ot_pool *pool, dt_dtype dtype, int64_t shift)
{
    uint64_t seed = 61;
    dt_tensor t[4];
    for (int i = 0; i < 4; i++) {
        t[i] = ot_tensor(pool, dtype, 1, (const int64_t[]){PARAMETERS + shift}, 0);
        t[i] = dt_tensor_slice(t[i], 0, shift, PARAMETERS + shift);
        ot_fill_normal(&t[i], &seed, 1);
    }
    for (int64_t i = 0; i < PARAMETERS; i++)
        ot_set(&t[3], i, fabs(ot_get(&t[3], i)));
    return (dt_adamw_args){DT_ADAMW_ARGS,        .param = t[0],          .grad = t[1], .m = t[2],     .v = t[3],
                           .segments = segments, .n_segments = SEGMENTS, .lr = 1e-2f,  .beta1 = 0.9f, .beta2 = 0.999f,
                           .eps = 1e-8f,         .grad_scale = 0.25f,    .step = 7};
}
static void compare_adamw(const dt_adamw_args *got, const dt_adamw_args *want)
{
    ot_compare("param", &got->param, &want->param, OT_WHOLE, NULL, NULL, 2e-7);
    ot_compare("m", &got->m, &want->m, OT_WHOLE, NULL, NULL, 2e-7);
    ot_compare("v", &got->v, &want->v, OT_WHOLE, NULL, NULL, 2e-7);
}
/* The reference knows F32 buffers only; it computes in double and rounds once. */
static void adamw(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_ADAMW);
    ot_call oracle = ot_begin(1);
    dt_adamw_args want = make_adamw(&oracle.pool, DT_F32, 0);
    ot_forward(&oracle, &dtp_ref_adamw, &want, false);
    for (int64_t shift = 0; shift < 2; shift++) { /* aligned, then not */
        ot_call c = emulated_begin();
        dt_adamw_args a = make_adamw(&c.pool, DT_F32, shift);
        ot_forward(&c, set, &a, false);
        emulated_wait(&c);
        compare_adamw(&a, &want);
        emulated_finish(&c);
    }
    ot_finish(&oracle.pool);
}
/* What changes from step to step is read from device memory; the by-value fields hold nonsense. */
static void adamw_recorded(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_ADAMW);
    const dt_grad_norm_result norms[] = {{16.0, -1}, {1e-4, -1}, {1.0, 3}};
    for (int i = 0; i < 4; i++) {
        dt_step_values values = {.lr = 1e-2f, .max_grad_norm = i == 3 ? 0 : 1, .update = 7};
        dt_grad_norm_result norm = norms[i % 3];
        ot_call oracle = ot_begin(1), c = emulated_begin();
        dt_adamw_args want = make_adamw(&oracle.pool, DT_F32, 0), a = make_adamw(&c.pool, DT_F32, 0);
        want.grad_scale = i == 0 ? (float)(1 / (4 + 1e-6)) : 1;
        if (norm.first_nonfinite < 0)
            ot_forward(&oracle, &dtp_ref_adamw, &want, false);
        a.lr = a.grad_scale = NAN, a.step = -1;
        a.values = &values, a.norm = &norm, a.segments_device = segments, a.segments = NULL;
        ot_forward(&c, set, &a, false);
        emulated_wait(&c);
        if (norm.first_nonfinite < 0) {
            compare_adamw(&a, &want);
        } else {
            ot_same("param", &a.param, &want.param);
            ot_same("m", &a.m, &want.m);
            ot_same("v", &a.v, &want.v);
        }
        emulated_finish(&c);
        ot_finish(&oracle.pool);
    }
}
static void grad_norm(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_GRAD_NORM);
    const int64_t bad[][2] = {{-1, -1}, {0, -1}, {1002, 8500}, {8500, 1003}, {1000, 8999}, {9000, -1}};
    const int64_t first[] = {-1, 0, 2, 3, 0, 4};
    for (size_t i = 0; i < 2 * sizeof first / sizeof *first; i++) {
        bool device = i % 2;
        dt_grad_norm_result want = {0, -2}, got = {0, -2};
        ot_call oracle = ot_begin(1), c = emulated_begin();
        dt_grad_norm_args a = {DT_GRAD_NORM_ARGS, .grad = make_adamw(&c.pool, DT_F32, device).grad, .result = &got,
                               .segments = segments, .n_segments = SEGMENTS};
        for (int k = 0; k < 2; k++)
            if (bad[i / 2][k] >= 0)
                ot_set(&a.grad, bad[i / 2][k], k ? NAN : -INFINITY);
        dt_grad_norm_args b = a;
        b.result = &want;
        if (device)
            a.result = NULL, a.result_device = &got, a.segments = NULL, a.segments_device = segments;
        ot_forward(&oracle, &dtp_ref_grad_norm, &b, false);
        ot_forward(&c, set, &a, false);
        emulated_wait(&c);
        assert_int_equal(want.first_nonfinite, first[i / 2]);
        assert_int_equal(got.first_nonfinite, first[i / 2]);
        if (first[i / 2] < 0)
            assert_true(fabs(got.sum_of_squares - want.sum_of_squares) <= 1e-13 * want.sum_of_squares);
        ot_finish(&oracle.pool);
        emulated_finish(&c);
    }
}
static void no_parameters(void **state)
{
    (void)state;
    dt_grad_norm_result got = {1, 1};
    const dt_op_set *adamw_set = emulated_set(DT_OP_ADAMW);
    ot_call c = emulated_begin();
    dt_adamw_args a = {DT_ADAMW_ARGS, .step = 1};
    a.param = a.grad = a.m = a.v = dt_tensor_1d(NULL, DT_F32, 0);
    dt_grad_norm_args n = {DT_GRAD_NORM_ARGS, .grad = a.grad, .result = &got};
    ot_forward(&c, adamw_set, &a, false);
    ot_forward(&c, emulated_set(DT_OP_GRAD_NORM), &n, false);
    emulated_wait(&c);
    assert_true(got.sum_of_squares == 0 && got.first_nonfinite == -1);
    emulated_finish(&c);
}

/* ---- one token of each stream ---- */

static dt_causal_conv1d_step_args make_conv(ot_pool *pool, dt_dtype dtype, int64_t W, bool bias, int64_t pad)
{
    enum { N = 3, C = 70 };
    uint64_t seed = 67;
    dt_causal_conv1d_step_args a = {DT_CAUSAL_CONV1D_STEP_ARGS,
                                    .x = ot_tensor(pool, dtype, 2, (const int64_t[]){N, C}, pad),
                                    .weight = ot_tensor(pool, dtype, 2, (const int64_t[]){C, W}, pad),
                                    .state = ot_tensor(pool, dtype, 3, (const int64_t[]){N, C, W}, pad),
                                    .y = ot_tensor(pool, dtype, 2, (const int64_t[]){N, C}, pad),
                                    .silu = bias};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.state, &seed, 1);
    if (bias) {
        a.bias = ot_tensor(pool, dtype, 1, (const int64_t[]){C}, 0);
        ot_fill_normal(&a.bias, &seed, 1);
    }
    return a;
}
static void conv_step(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_CAUSAL_CONV1D_STEP);
    for (int i = 0; i < 8; i++) {
        dt_dtype dtype = i % 2 ? DT_BF16 : DT_F32;
        ot_call oracle = ot_begin(1), c = emulated_begin();
        dt_causal_conv1d_step_args want = make_conv(&oracle.pool, DT_F64, i / 2 % 2 ? 4 : 3, i / 4, 0);
        dt_causal_conv1d_step_args a = make_conv(&c.pool, dtype, i / 2 % 2 ? 4 : 3, i / 4, i / 4 * 3);
        for (int step = 0; step < 2; step++) {
            ot_forward(&oracle, &dtp_ref_causal_conv1d_step, &want, false);
            ot_forward(&c, set, &a, false);
            emulated_wait(&c);
            ot_compare("y", &a.y, &want.y, OT_WHOLE, NULL, NULL, dtype == DT_F32 ? 1e-6 : 0x1p-8);
            ot_same("state", &a.state, &want.state);
        }
        emulated_finish(&c);
        ot_finish(&oracle.pool);
    }
}

static dt_gdn_step_args make_gdn(ot_pool *pool, dt_dtype dtype, const int64_t *s, bool l2norm, int64_t pad)
{
    int64_t n = s[0], Hk = s[1], Hv = s[2], K = s[3], V = s[4];
    uint64_t seed = 71;
    dt_dtype exact = dtype == DT_F64 ? DT_F64 : DT_F32;
    dt_gdn_step_args a = {DT_GDN_STEP_ARGS,
                          .q = ot_tensor(pool, dtype, 3, (const int64_t[]){n, Hk, K}, pad),
                          .k = ot_tensor(pool, dtype, 3, (const int64_t[]){n, Hk, K}, pad),
                          .v = ot_tensor(pool, dtype, 3, (const int64_t[]){n, Hv, V}, pad),
                          .g = ot_tensor(pool, exact, 2, (const int64_t[]){n, Hv}, pad),
                          .beta = ot_tensor(pool, exact, 2, (const int64_t[]){n, Hv}, pad),
                          .state = ot_tensor(pool, exact, 4, (const int64_t[]){n, Hv, K, V}, pad),
                          .o = ot_tensor(pool, dtype, 3, (const int64_t[]){n, Hv, V}, pad),
                          .scale = 0.25f,
                          .qk_l2norm = l2norm};
    ot_fill_normal(&a.q, &seed, 1);
    ot_fill_normal(&a.k, &seed, l2norm ? 1 : 0.1);
    ot_fill_normal(&a.v, &seed, 1);
    ot_fill_normal(&a.state, &seed, 1);
    ot_fill_uniform(&a.g, &seed, -2, 0);
    ot_fill_uniform(&a.beta, &seed, 0, 1);
    return a;
}
static void gdn_step(void **state)
{
    (void)state;
    const int64_t cases[][5] = {{2, 2, 4, 128, 128}, {1, 1, 1, 64, 40}, {2, 1, 3, 30, 33}, {1, 2, 2, 200, 16}};
    const dt_op_set *set = emulated_set(DT_OP_GDN_STEP);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        dt_dtype dtype = i % 2 ? DT_BF16 : DT_F32;
        ot_call oracle = ot_begin(1), c = emulated_begin();
        dt_gdn_step_args want = make_gdn(&oracle.pool, DT_F64, cases[i / 2], i / 2 != 1, 0);
        dt_gdn_step_args a = make_gdn(&c.pool, dtype, cases[i / 2], i / 2 != 1, (int64_t)(i / 4) * 3);
        for (int step = 0; step < 2; step++) {
            ot_forward(&oracle, &dtp_ref_gdn_step, &want, false);
            ot_forward(&c, set, &a, false);
            emulated_wait(&c);
            ot_compare("o", &a.o, &want.o, OT_WHOLE, NULL, NULL, dtype == DT_F32 ? 1e-5 : 0x1p-8);
            ot_compare("state", &a.state, &want.state, OT_WHOLE, NULL, NULL, 1e-6);
        }
        emulated_finish(&c);
        ot_finish(&oracle.pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw),         cmocka_unit_test(adamw_recorded), cmocka_unit_test(grad_norm),
        cmocka_unit_test(no_parameters), cmocka_unit_test(conv_step),      cmocka_unit_test(gdn_step),
    };
    return cmocka_run_group_tests(tests, emulated_load, NULL);
}
