/* The operators made of row kernels, against the reference in F64 for every instruction set: norm, RoPE, gates,
 * embedding, AdamW, gradient norm. Widths around every vector length, any alignment, aliased outputs. */
#include "providers/cpu/cpu.h"
#include "providers/cpu/cpu_isa.h"
#include "providers/cpu/dropout.h"
#include "providers/cpu/rows.h"
#include "providers/op_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/activation.h>
#include <deltune/op/embedding.h>
#include <deltune/op/optimizer.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rope.h>

static const int64_t widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 256};
#define COUNT(list)   (sizeof(list) / sizeof *(list))
#define EACH_ISA(isa) for (dt_cpu_isa isa = DT_ISA_PORTABLE; isa <= dtp_cpu_isa_best(); isa++)

static int all_levels_again(void **state)
{
    (void)state;
    dtp_cpu_isa_cap(DT_ISA_AVX512);
    return 0;
}

static void compare(const char *what, const dt_tensor *got, const dt_tensor *want, double tolerance)
{
    ot_compare(what, got, want, OT_WHOLE, NULL, NULL, tolerance);
}

static dt_tensor heads(ot_pool *pool, dt_dtype dtype, int64_t T, int64_t H, int64_t D, int64_t pad)
{
    return ot_tensor(pool, dtype, 3, (const int64_t[]){T, H, D}, pad);
}

/* ---- exp ---- */

static void exponential(void **state)
{
    (void)state;
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        double worst = 0;
        for (int i = -104000; i <= 88720; i++) {
            float x = (float)i * 1e-3f, y = x;
            dtp_row_kernels()->exp_shifted(&y, 0, 1);
            double exact = exp((double)x), ulp = fmax(ldexp(1, ilogb(exact) - 23), 0x1p-149);
            worst = fmax(worst, fabs(y - exact) / ulp);
        }
        print_message("exp, %s: %.2f ulp\n", dtp_cpu_isa_name(isa), worst);
        assert_true(worst <= 1.5);
        float special[] = {-INFINITY, INFINITY, NAN, -1e30f, 1e30f, 0, -0.0f, 88.8f};
        dtp_row_kernels()->exp_shifted(special, 0, 8);
        assert_true(special[0] == 0 && special[1] == INFINITY && isnan(special[2]) && special[3] == 0);
        assert_true(special[4] == INFINITY && special[5] == 1 && special[6] == 1 && special[7] == INFINITY);
    }
}

/* ---- dropout ---- */

static float factor_of(const dt_dropout *d, uint64_t element)
{
    return (dt_dropout_mask8(d->key, element / 8, d->threshold) >> (element % 8)) & 1 ? d->factor : 0;
}

/* The mask is that of core/philox.h, also where the number of the block overflows 32 bits. */
static void dropout(void **state)
{
    (void)state;
    enum { N = 300 };
    const uint64_t starts[] = {0, 1, 7, 8, 12345, (1ull << 35) - 150, (1ull << 35) + 3, (5ull << 35) - 8};
    float in[N], base[N], out[N + 1];
    for (int i = 0; i < N; i++) {
        in[i] = (float)i - 100;
        base[i] = (float)i * 0.25f;
    }
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        for (size_t s = 0; s < COUNT(starts); s++)
            for (int n = 0; n <= N; n += s ? 75 : 1) {
                dt_dropout d = {{0xfedcba9876543210u, 3, 2, 77}, dt_dropout_threshold(0.3f), 1 / (1 - 0.3f), N};
                out[n] = -1;
                dtp_row_kernels()->dropout(out, NULL, in, &d, starts[s], n);
                for (int i = 0; i < n; i++)
                    assert_true(out[i] == in[i] * factor_of(&d, starts[s] + (uint64_t)i));
                dtp_row_kernels()->dropout(out, base, in, &d, starts[s], n);
                for (int i = 0; i < n; i++)
                    assert_true(out[i] == in[i] * factor_of(&d, starts[s] + (uint64_t)i) + base[i]);
                assert_true(out[n] == -1);
            }
    }
}

/* ---- rms_norm ---- */

static dt_rms_norm_args make_norm(ot_pool *pool, int64_t T, int64_t T_cap, int64_t H, int64_t D, dt_dtype dtype,
                                  dt_dtype weight, int64_t pad)
{
    uint64_t seed = 41;
    dt_rms_norm_args a = {DT_RMS_NORM_ARGS,
                          .x = heads(pool, dtype, T_cap, H, D, pad),
                          .weight = ot_tensor(pool, weight, 1, &D, 0),
                          .y = heads(pool, dtype, T_cap, H, D, pad),
                          .eps = 1e-6f,
                          .zero_centered = D % 2 == 0,
                          .T = T,
                          .dy = heads(pool, dtype, T_cap, H, D, pad),
                          .dx = heads(pool, dtype, T_cap, H, D, pad),
                          .dweight = ot_tensor(pool, dtype, 1, &D, 0)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    ot_fill_normal(&a.dweight, &seed, 1);
    if (D % 3 == 0) {
        a.residual_grad = heads(pool, dtype, T_cap, H, D, pad);
        ot_fill_normal(&a.residual_grad, &seed, 1);
    }
    return a;
}

static void check_norm(int64_t T, int64_t T_cap, int64_t H, int64_t D)
{
    ot_call oracle = ot_begin(1);
    dt_rms_norm_args want = make_norm(&oracle.pool, T, T_cap, H, D, DT_F64, DT_F64, 0);
    ot_forward(&oracle, &dtp_ref_rms_norm, &want, true);
    ot_backward(&oracle, &dtp_ref_rms_norm, &want);
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        ot_call one = ot_begin(1), many = ot_begin(3);
        dt_rms_norm_args a = make_norm(&one.pool, T, T_cap, H, D, DT_F32, DT_F32, 0);
        dt_rms_norm_args b = make_norm(&many.pool, T, T_cap, H, D, DT_F32, DT_BF16, 3);
        if (dt_tensor_present(&b.residual_grad))
            b.dx = b.residual_grad; /* aliases the contract allows */
        else
            b.dx = b.dy;
        ot_forward(&one, &dtp_cpu_rms_norm, &a, true);
        ot_backward(&one, &dtp_cpu_rms_norm, &a);
        ot_forward(&many, &dtp_cpu_rms_norm, &b, true);
        ot_backward(&many, &dtp_cpu_rms_norm, &b);
        compare("y", &a.y, &want.y, 1e-5);
        compare("dx", &a.dx, &want.dx, 1e-5);
        compare("dweight", &a.dweight, &want.dweight, 1e-5);
        ot_same("y with 3 threads", &b.y, &a.y);
        ot_same("dx with 3 threads", &b.dx, &a.dx);
        ot_same("dweight with 3 threads", &b.dweight, &a.dweight);
        ot_finish(&one.pool);
        ot_finish(&many.pool);
    }
    ot_finish(&oracle.pool);
}

static void rms_norm(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(widths); i++)
        check_norm(5, 8, 2, widths[i]);
    check_norm(0, 64, 1, 16);
    check_norm(1, 1, 1, 16);
    check_norm(64, 64, 3, 100);
    check_norm(131, 192, 1, 200);
}

/* ---- gates ---- */

static dt_gate_args make_gate(ot_pool *pool, int64_t T, int64_t T_cap, int64_t D, dt_dtype dtype, int64_t pad)
{
    uint64_t seed = 43;
    dt_gate_args a = {DT_GATE_ARGS,
                      .x = heads(pool, dtype, T_cap, 2, D, pad),
                      .gate = heads(pool, dtype, T_cap, 2, D, 2 * pad),
                      .y = heads(pool, dtype, T_cap, 2, D, pad),
                      .T = T,
                      .dy = heads(pool, dtype, T_cap, 2, D, pad),
                      .dx = heads(pool, dtype, T_cap, 2, D, pad),
                      .dgate = heads(pool, dtype, T_cap, 2, D, pad)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.gate, &seed, 3);
    ot_fill_normal(&a.dy, &seed, 1);
    if (T > 2) { /* both saturated ends */
        ot_set(&a.gate, 0, 200);
        ot_set(&a.gate, ot_offset(&a.gate, 2 * D), -200);
    }
    return a;
}

static void check_gate(const dt_op_set *reference, const dt_op_set *cpu, int64_t T, int64_t T_cap, int64_t D)
{
    ot_call oracle = ot_begin(1);
    dt_gate_args want = make_gate(&oracle.pool, T, T_cap, D, DT_F64, 0);
    ot_forward(&oracle, reference, &want, true);
    ot_backward(&oracle, reference, &want);
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        ot_call one = ot_begin(1), many = ot_begin(3);
        dt_gate_args a = make_gate(&one.pool, T, T_cap, D, DT_F32, 0);
        dt_gate_args b = make_gate(&many.pool, T, T_cap, D, DT_F32, 3);
        b.dx = b.dy, b.dgate = b.gate;
        ot_forward(&one, cpu, &a, true);
        ot_backward(&one, cpu, &a);
        ot_forward(&many, cpu, &b, true);
        ot_backward(&many, cpu, &b);
        compare("y", &a.y, &want.y, 1e-6);
        compare("dx", &a.dx, &want.dx, 1e-6);
        compare("dgate", &a.dgate, &want.dgate, 1e-6);
        ot_same("y with 3 threads", &b.y, &a.y);
        ot_same("dx over dy", &b.dx, &a.dx);
        ot_same("dgate over gate", &b.dgate, &a.dgate);
        ot_finish(&one.pool);
        ot_finish(&many.pool);
    }
    ot_finish(&oracle.pool);
}

static void gates(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(widths); i++) {
        check_gate(&dtp_ref_sigmoid_gate, &dtp_cpu_sigmoid_gate, 5, 8, widths[i]);
        check_gate(&dtp_ref_swiglu, &dtp_cpu_swiglu, 5, 8, widths[i]);
    }
    check_gate(&dtp_ref_swiglu, &dtp_cpu_swiglu, 0, 64, 16);
    check_gate(&dtp_ref_swiglu, &dtp_cpu_swiglu, 127, 128, 131);
}

/* ---- rope ---- */

static dt_rope_args make_rope(ot_pool *pool, int64_t T, int64_t T_cap, int64_t D, int32_t rotary, dt_dtype dtype,
                              int64_t pad)
{
    uint64_t seed = 47;
    dt_rope_args a = {DT_ROPE_ARGS,
                      .x = heads(pool, dtype, T_cap, 3, D, pad),
                      .y = heads(pool, dtype, T_cap, 3, D, pad),
                      .positions = ot_tensor(pool, DT_I32, 1, &T_cap, 0),
                      .T = T,
                      .theta = 1e7f,
                      .rotary_dim = rotary,
                      .dy = heads(pool, dtype, T_cap, 3, D, pad),
                      .dx = heads(pool, dtype, T_cap, 3, D, pad)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    for (int64_t t = 0; t < T_cap; t++)
        ((int32_t *)a.positions.data)[t] = (int32_t)(t < T / 2 ? t : t * 2000);
    return a;
}

static void rope(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{0, 64, 8, 4},     {1, 1, 2, 2},    {5, 8, 256, 64},
                                {70, 128, 67, 66}, {33, 33, 20, 0}, {9, 9, 36, 34}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_rope_args want = make_rope(&oracle.pool, k[0], k[1], k[2], (int32_t)k[3], DT_F64, 0);
        ot_forward(&oracle, &dtp_ref_rope, &want, true);
        ot_backward(&oracle, &dtp_ref_rope, &want);
        EACH_ISA(isa)
        {
            dtp_cpu_isa_cap(isa);
            ot_call one = ot_begin(1), many = ot_begin(3);
            dt_rope_args a = make_rope(&one.pool, k[0], k[1], k[2], (int32_t)k[3], DT_F32, 0);
            dt_rope_args b = make_rope(&many.pool, k[0], k[1], k[2], (int32_t)k[3], DT_F32, 5);
            b.y = b.x, b.dx = b.dy;
            ot_forward(&one, &dtp_cpu_rope, &a, true);
            ot_backward(&one, &dtp_cpu_rope, &a);
            ot_forward(&many, &dtp_cpu_rope, &b, true);
            ot_backward(&many, &dtp_cpu_rope, &b);
            compare("y", &a.y, &want.y, 1e-6);
            compare("dx", &a.dx, &want.dx, 1e-6);
            ot_same("y over x", &b.y, &a.y);
            ot_same("dx over dy", &b.dx, &a.dx);
            ot_finish(&one.pool);
            ot_finish(&many.pool);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- embedding ---- */

static dt_embedding_args make_embedding(ot_pool *pool, int64_t T, int64_t T_cap, int64_t V, int64_t H, dt_dtype dtype,
                                        dt_dtype weight, int64_t pad)
{
    uint64_t seed = 53;
    dt_embedding_args a = {DT_EMBEDDING_ARGS,
                           .ids = ot_tensor(pool, DT_I32, 1, &T_cap, 0),
                           .weight = ot_tensor(pool, weight, 2, (const int64_t[]){V, H}, pad),
                           .y = ot_tensor(pool, dtype, 2, (const int64_t[]){T_cap, H}, pad),
                           .T = T,
                           .dy = ot_tensor(pool, dtype, 2, (const int64_t[]){T_cap, H}, pad),
                           .dweight = ot_tensor(pool, dtype, 2, (const int64_t[]){V, H}, pad)};
    for (int64_t t = 0; t < T; t++)
        ((int32_t *)a.ids.data)[t] = (int32_t)(ot_uniform(&seed) * (double)V);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    ot_fill_normal(&a.dweight, &seed, 1);
    return a;
}

static void embedding(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{0, 64, 3, 8}, {1, 1, 1, 1}, {130, 192, 7, 63}, {65, 65, 40, 257}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_embedding_args want = make_embedding(&oracle.pool, k[0], k[1], k[2], k[3], DT_F64, DT_F64, 0);
        ot_forward(&oracle, &dtp_ref_embedding, &want, true);
        ot_backward(&oracle, &dtp_ref_embedding, &want);
        EACH_ISA(isa)
        {
            dtp_cpu_isa_cap(isa);
            ot_call c = ot_begin(3);
            dt_embedding_args a = make_embedding(&c.pool, k[0], k[1], k[2], k[3], DT_F32, DT_F32, 1);
            dt_embedding_args b = make_embedding(&c.pool, k[0], k[1], k[2], k[3], DT_F32, DT_BF16, 0);
            ot_forward(&c, &dtp_cpu_embedding, &a, true);
            ot_backward(&c, &dtp_cpu_embedding, &a);
            ot_forward(&c, &dtp_cpu_embedding, &b, true);
            ot_same("y", &a.y, &want.y);
            ot_same("y of bf16", &b.y, &want.y);
            compare("dweight", &a.dweight, &want.dweight, 1e-6);
            ot_finish(&c.pool);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- the optimiser ---- */

enum { PARAMETERS = 40000 };
static const dt_param_segment segments[] = {
    {0, 5, 0.1f}, {5, 0, 0.1f}, {5, 16389, 0}, {16394, PARAMETERS - 16394, 0.1f}};

typedef struct {
    float param[PARAMETERS], grad[PARAMETERS], m[PARAMETERS], v[PARAMETERS];
} moments;

static dt_adamw_args make_adamw(moments *state)
{
    uint64_t seed = 59;
    for (int i = 0; i < PARAMETERS; i++) {
        state->param[i] = (float)ot_normal(&seed);
        state->grad[i] = i % 100 ? (float)ot_normal(&seed) : 0;
        state->m[i] = i % 7 ? (float)ot_normal(&seed) : 0;
        state->v[i] = i % 7 ? (float)ot_uniform(&seed) : 0;
    }
    return (dt_adamw_args){DT_ADAMW_ARGS,
                           .param = dt_tensor_1d(state->param, DT_F32, PARAMETERS),
                           .grad = dt_tensor_1d(state->grad, DT_F32, PARAMETERS),
                           .m = dt_tensor_1d(state->m, DT_F32, PARAMETERS),
                           .v = dt_tensor_1d(state->v, DT_F32, PARAMETERS),
                           .segments = segments,
                           .n_segments = COUNT(segments),
                           .lr = 1e-2f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .grad_scale = 0.7f,
                           .step = 3};
}

static void adamw(void **state)
{
    (void)state;
    static moments want, got, again;
    dt_adamw_args reference = make_adamw(&want);
    ot_call oracle = ot_begin(1);
    ot_forward(&oracle, &dtp_ref_adamw, &reference, false);
    ot_finish(&oracle.pool);
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        ot_call one = ot_begin(1), many = ot_begin(3);
        dt_adamw_args a = make_adamw(&got), b = make_adamw(&again);
        ot_forward(&one, &dtp_cpu_adamw, &a, false);
        ot_forward(&many, &dtp_cpu_adamw, &b, false);
        compare("param", &a.param, &reference.param, 1e-6);
        compare("m", &a.m, &reference.m, 1e-6);
        compare("v", &a.v, &reference.v, 1e-6);
        assert_memory_equal(&got, &again, sizeof got);
        ot_finish(&one.pool);
        ot_finish(&many.pool);
    }
}

static void grad_norm(void **state)
{
    (void)state;
    static float grad[PARAMETERS];
    uint64_t seed = 61;
    for (int i = 0; i < PARAMETERS; i++)
        grad[i] = (float)ot_normal(&seed) * (i == 17 ? 1e30f : 1); /* squares beyond fp32 */
    dt_grad_norm_result result, reference;
    dt_grad_norm_args a = {DT_GRAD_NORM_ARGS, .grad = dt_tensor_1d(grad, DT_F32, PARAMETERS), .segments = segments,
                           .n_segments = COUNT(segments), .result = &reference};
    ot_call c = ot_begin(3);
    ot_forward(&c, &dtp_ref_grad_norm, &a, false);
    a.result = &result;
    EACH_ISA(isa)
    {
        dtp_cpu_isa_cap(isa);
        ot_forward(&c, &dtp_cpu_grad_norm, &a, false);
        assert_true(fabs(result.sum_of_squares - reference.sum_of_squares) <= 1e-12 * reference.sum_of_squares);
        assert_int_equal(result.first_nonfinite, -1);
        float kept = grad[30000];
        grad[30000] = -INFINITY;
        ot_forward(&c, &dtp_cpu_grad_norm, &a, false);
        assert_int_equal(result.first_nonfinite, 3);
        grad[30000] = kept;
    }
    ot_finish(&c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(exponential, all_levels_again),
        cmocka_unit_test_teardown(dropout, all_levels_again),
        cmocka_unit_test_teardown(rms_norm, all_levels_again),
        cmocka_unit_test_teardown(gates, all_levels_again),
        cmocka_unit_test_teardown(rope, all_levels_again),
        cmocka_unit_test_teardown(embedding, all_levels_again),
        cmocka_unit_test_teardown(adamw, all_levels_again),
        cmocka_unit_test_teardown(grad_norm, all_levels_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
