/* Convolution, gates and gated norm on every instruction set of this machine: the reference cases, the oracle over
 * many sizes, one-token steps, and the packing rules of every operator. */
#include "providers/cpu/cpu.h"
#include "providers/cpu/isa_testing.h"
#include "providers/golden_testing.h"
#include "providers/reference/reference.h"

#define DIMS(...)                                                                                                      \
    (const int64_t[])                                                                                                  \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static dt_tensor normal(ot_pool *pool, uint64_t *seed, double scale, int64_t pad, int rank, const int64_t *dims)
{
    dt_tensor t = ot_tensor(pool, DT_F32, rank, dims, pad);
    ot_fill_normal(&t, seed, scale);
    return t;
}

static dt_tensor blank(ot_pool *pool, int64_t pad, int rank, const int64_t *dims)
{
    return ot_tensor(pool, DT_F32, rank, dims, pad);
}

/* Parameter gradients are added to: they start at the same numbers on both sides. */
static dt_tensor started(ot_pool *pool, int rank, const int64_t *dims)
{
    uint64_t seed = 77;
    return normal(pool, &seed, 1.0, 0, rank, dims);
}

static void all_reference_cases(void)
{
    for (size_t i = 0; i < GOLDEN_COUNT(golden_conv_cases); i++)
        golden_conv(&dtp_cpu_causal_conv1d, golden_conv_cases[i], 2);
    for (size_t i = 0; i < GOLDEN_COUNT(golden_gnorm_cases); i++)
        golden_gnorm(&dtp_cpu_rms_norm_gated, golden_gnorm_cases[i], 2);
}
ISA_TEST(reference_cases)

/* ---- convolution ---- */

typedef struct {
    int64_t C, W;
    const int32_t *cu;
    int64_t n_seq, T_cap;
    bool silu, bias, states;
    dt_dtype weight;
} conv_shape;

typedef struct {
    ot_call call;
    dt_causal_conv1d_args a;
} conv_problem;

static conv_problem make_conv(const conv_shape *s, int threads, uint64_t seed)
{
    conv_problem p = {.call = ot_begin(threads)};
    ot_pool *pool = &p.call.pool;
    int64_t T = s->T_cap, N = s->n_seq;
    p.a = (dt_causal_conv1d_args){DT_CAUSAL_CONV1D_ARGS, .silu = s->silu};
    dt_causal_conv1d_args *a = &p.a;
    a->seqs = (dt_seqs){.cu_seqlens = s->cu, .n_seq = N, .n_seq_cap = N, .T = s->cu[N], .T_cap = T};
    a->x = normal(pool, &seed, 1.0, 5, 2, DIMS(T, s->C));
    dt_tensor weight = normal(pool, &seed, 0.5, 0, 2, DIMS(s->C, s->W));
    a->weight = ot_like(pool, &weight, s->weight, 0);
    a->dy = normal(pool, &seed, 1.0, 0, 2, DIMS(T, s->C));
    a->y = blank(pool, 3, 2, DIMS(T, s->C));
    a->dx = blank(pool, 5, 2, DIMS(T, s->C));
    a->dweight = started(pool, 2, DIMS(s->C, s->W));
    if (s->bias) {
        a->bias = normal(pool, &seed, 1.0, 0, 1, DIMS(s->C));
        a->dbias = started(pool, 1, DIMS(s->C));
    }
    if (s->states) {
        a->initial_state = normal(pool, &seed, 1.0, 0, 3, DIMS(N, s->C, s->W));
        a->dfinal_state = normal(pool, &seed, 1.0, 0, 3, DIMS(N, s->C, s->W));
        a->final_state = blank(pool, 0, 3, DIMS(N, s->C, s->W));
        a->dinitial_state = blank(pool, 0, 3, DIMS(N, s->C, s->W));
    }
    return p;
}

static void run_conv(conv_problem *p, const dt_op_set *set)
{
    ot_forward(&p->call, set, &p->a, true);
    ot_backward(&p->call, set, &p->a);
}

static void conv_against_reference(const conv_shape *s)
{
    conv_problem got = make_conv(s, 2, 3), want = make_conv(s, 1, 3);
    run_conv(&got, &dtp_cpu_causal_conv1d);
    run_conv(&want, &dtp_ref_causal_conv1d);
    const dt_causal_conv1d_args *x = &got.a, *y = &want.a;
    ot_compare("y", &x->y, &y->y, OT_ROWS, &y->seqs, NULL, golden_output);
    ot_compare("dx", &x->dx, &y->dx, OT_ROWS, &y->seqs, NULL, golden_gradient);
    ot_compare("dweight", &x->dweight, &y->dweight, OT_WHOLE, NULL, NULL, golden_gradient);
    if (s->bias)
        ot_compare("dbias", &x->dbias, &y->dbias, OT_WHOLE, NULL, NULL, golden_gradient);
    if (s->states) {
        ot_compare("final_state", &x->final_state, &y->final_state, OT_STATES, &y->seqs, NULL, golden_output);
        ot_compare("dinitial_state", &x->dinitial_state, &y->dinitial_state, OT_STATES, &y->seqs, NULL,
                   golden_gradient);
    }
    ot_finish(&got.call.pool);
    ot_finish(&want.call.pool);
}

static void all_convolutions(void)
{
    static const int32_t short_ones[] = {0, 1, 3, 6, 10, 15, 15, 22, 30}, cross_blocks[] = {0, 125, 129, 130, 259, 384},
                         none[] = {0, 0}, one[] = {0, 3};
    const struct {
        const int32_t *cu;
        int64_t n;
    } packs[] = {{short_ones, 8}, {cross_blocks, 5}, {none, 1}, {one, 1}};
    static const int64_t channels[] = {1, 7, 16, 33, 128, 200};
    for (size_t i = 0; i < GOLDEN_COUNT(packs); i++)
        for (int64_t W = 1; W <= 8; W++) {
            int64_t T = packs[i].cu[packs[i].n], C = channels[(i + (size_t)W) % GOLDEN_COUNT(channels)];
            conv_shape s = {.C = C,
                            .W = W,
                            .cu = packs[i].cu,
                            .n_seq = packs[i].n,
                            .T_cap = T + (W == 4 ? 9 : 0),
                            .silu = W != 3,
                            .bias = W % 2 == 0,
                            .states = W != 5,
                            .weight = W == 6 ? DT_BF16 : DT_F32};
            conv_against_reference(&s);
        }
    /* more than one block of channels */
    static const int32_t few[] = {0, 2, 9};
    conv_shape wide = {.C = 1033,
                       .W = 4,
                       .cu = few,
                       .n_seq = 2,
                       .T_cap = 9,
                       .silu = true,
                       .bias = true,
                       .states = true,
                       .weight = DT_F32};
    conv_against_reference(&wide);
}
ISA_TEST(convolutions)

/* P-27: offsets beyond 2^31 elements. */
static void all_far_rows(void)
{
    static const int32_t cu[] = {0, 1, 3};
    conv_shape s = {.C = 5, .W = 4, .cu = cu, .n_seq = 2, .T_cap = 3, .silu = true, .weight = DT_F32};
    conv_problem near = make_conv(&s, 2, 9), far = make_conv(&s, 2, 9);
    dt_tensor *rows[] = {&far.a.x, &far.a.y, &far.a.dy, &far.a.dx};
    bool mapped = true;
    for (size_t i = 0; i < GOLDEN_COUNT(rows); i++) {
        *rows[i] = ot_far_rows(rows[i]);
        mapped = mapped && rows[i]->data;
    }
    if (mapped) {
        run_conv(&near, &dtp_cpu_causal_conv1d);
        run_conv(&far, &dtp_cpu_causal_conv1d);
        ot_same("y", &far.a.y, &near.a.y);
        ot_same("dx", &far.a.dx, &near.a.dx);
        ot_same("dweight", &far.a.dweight, &near.a.dweight);
    } else {
        print_message("not checked: the system refuses the address space\n");
    }
    for (size_t i = 0; i < GOLDEN_COUNT(rows); i++)
        ot_unmap_far(rows[i]);
    ot_finish(&near.call.pool);
    ot_finish(&far.call.pool);
}
ISA_TEST(far_rows)

/* Rules 1 and 2: nothing passes a boundary, forward or backward. */
static void all_conv_isolation(void)
{
    static const int32_t cu[] = {0, 255, 300};
    conv_shape s = {.C = 40, .W = 4, .cu = cu, .n_seq = 2, .T_cap = 300, .silu = true, .weight = DT_F32};
    conv_problem p = make_conv(&s, 2, 4), q = make_conv(&s, 2, 4);
    for (int64_t c = 0; c < s.C; c++) {
        ot_set(&q.a.x, 254 * q.a.x.stride[0] + c, 1e6);
        ot_set(&q.a.dy, 255 * q.a.dy.stride[0] + c, 1e6);
    }
    run_conv(&p, &dtp_cpu_causal_conv1d);
    run_conv(&q, &dtp_cpu_causal_conv1d);
    dt_tensor y0 = dt_tensor_slice(p.a.y, 0, 255, 300), y1 = dt_tensor_slice(q.a.y, 0, 255, 300);
    ot_same("y of sample 1", &y1, &y0);
    /* dx of sample 0 sees its own x: only rows whose window lies before the changed token can be compared */
    dt_tensor d0 = dt_tensor_slice(p.a.dx, 0, 0, 251), d1 = dt_tensor_slice(q.a.dx, 0, 0, 251);
    ot_same("dx of sample 0", &d1, &d0);
    ot_finish(&p.call.pool);
    ot_finish(&q.call.pool);

    p = make_conv(&s, 2, 4);
    q = make_conv(&s, 2, 4);
    for (int64_t c = 0; c < s.C; c++)
        ot_set(&q.a.dy, 255 * q.a.dy.stride[0] + c, 1e6);
    run_conv(&p, &dtp_cpu_causal_conv1d);
    run_conv(&q, &dtp_cpu_causal_conv1d);
    d0 = dt_tensor_slice(p.a.dx, 0, 0, 255);
    d1 = dt_tensor_slice(q.a.dx, 0, 0, 255);
    ot_same("all dx of sample 0", &d1, &d0);
    ot_finish(&p.call.pool);
    ot_finish(&q.call.pool);
}
ISA_TEST(conv_isolation)

/* Rule 20, and any number of threads: the same bits; parameter gradients are the sum over separate calls. */
static void all_conv_sums(void)
{
    static const int32_t cu[] = {0, 300, 301, 700};
    conv_shape s = {.C = 130, .W = 4, .cu = cu, .n_seq = 3, .T_cap = 700, .silu = true, .bias = true, .weight = DT_F32};
    conv_problem one = make_conv(&s, 1, 6), many = make_conv(&s, 3, 6), parts = make_conv(&s, 2, 6);
    run_conv(&one, &dtp_cpu_causal_conv1d);
    run_conv(&many, &dtp_cpu_causal_conv1d);
    ot_same("y", &many.a.y, &one.a.y);
    ot_same("dx", &many.a.dx, &one.a.dx);
    ot_same("dweight", &many.a.dweight, &one.a.dweight);
    ot_same("dbias", &many.a.dbias, &one.a.dbias);
    for (int64_t n = 0; n < s.n_seq; n++) {
        conv_problem part = parts; /* the same parameters and gradients, the rows of one sample */
        const int32_t alone[] = {0, cu[n + 1] - cu[n]};
        part.a.seqs = (dt_seqs){.cu_seqlens = alone, .n_seq = 1, .n_seq_cap = 1, .T = alone[1], .T_cap = alone[1]};
        dt_tensor *rows[] = {&part.a.x, &part.a.y, &part.a.dy, &part.a.dx};
        for (size_t i = 0; i < GOLDEN_COUNT(rows); i++)
            *rows[i] = dt_tensor_slice(*rows[i], 0, cu[n], cu[n + 1]);
        run_conv(&part, &dtp_cpu_causal_conv1d);
        parts.call = part.call;
    }
    ot_same("y of separate calls", &parts.a.y, &one.a.y);
    ot_same("dx of separate calls", &parts.a.dx, &one.a.dx);
    ot_compare("dweight of separate calls", &parts.a.dweight, &one.a.dweight, OT_WHOLE, NULL, NULL, golden_output);
    ot_compare("dbias of separate calls", &parts.a.dbias, &one.a.dbias, OT_WHOLE, NULL, NULL, golden_output);
    ot_finish(&one.call.pool);
    ot_finish(&many.call.pool);
    ot_finish(&parts.call.pool);
}
ISA_TEST(conv_sums)

/* Token by token through the step equals the whole sequence. */
static void all_conv_steps(void)
{
    enum { T = 11, C = 37 };
    static const int32_t cu[] = {0, T};
    for (int64_t W = 1; W <= 8; W++) {
        conv_shape s = {.C = C,
                        .W = W,
                        .cu = cu,
                        .n_seq = 1,
                        .T_cap = T,
                        .silu = W != 2,
                        .bias = W != 4,
                        .states = true,
                        .weight = W == 4 ? DT_BF16 : DT_F32};
        conv_problem whole = make_conv(&s, 1, 8);
        ot_forward(&whole.call, &dtp_ref_causal_conv1d, &whole.a, false);
        dt_tensor y = blank(&whole.call.pool, 0, 2, DIMS(T, C)), state = whole.a.initial_state;
        for (int64_t t = 0; t < T; t++) {
            dt_causal_conv1d_step_args a = {DT_CAUSAL_CONV1D_STEP_ARGS,
                                            .x = dt_tensor_slice(whole.a.x, 0, t, t + 1),
                                            .weight = whole.a.weight,
                                            .bias = whole.a.bias,
                                            .state = state,
                                            .y = dt_tensor_slice(y, 0, t, t + 1),
                                            .silu = s.silu};
            ot_forward(&whole.call, t % 2 ? &dtp_ref_causal_conv1d_step : &dtp_cpu_causal_conv1d_step, &a, false);
        }
        ot_compare("y", &y, &whole.a.y, OT_ROWS, &whole.a.seqs, NULL, golden_output);
        ot_compare("state", &state, &whole.a.final_state, OT_STATES, &whole.a.seqs, NULL, golden_output);
        ot_finish(&whole.call.pool);
    }
}
ISA_TEST(conv_steps)

/* ---- gates ---- */

static void all_gates(void)
{
    static const int64_t sizes[][2] = {{0, 4}, {1, 1}, {5, 3}, {64, 16}, {130, 33}, {200, 32}};
    for (size_t i = 0; i < GOLDEN_COUNT(sizes); i++) {
        int64_t T = sizes[i][0], H = sizes[i][1], cap = T + 2;
        dt_gdn_gates_args a[2];
        ot_call call[2];
        for (int k = 0; k < 2; k++) {
            call[k] = ot_begin(2);
            ot_pool *pool = &call[k].pool;
            uint64_t seed = 12;
            a[k] = (dt_gdn_gates_args){DT_GDN_GATES_ARGS,
                                       .a = normal(pool, &seed, 12.0, 7, 2, DIMS(cap, H)),
                                       .b = normal(pool, &seed, 8.0, 7, 2, DIMS(cap, H)),
                                       .A_log = normal(pool, &seed, 1.0, 0, 1, DIMS(H)),
                                       .dt_bias = normal(pool, &seed, 1.0, 0, 1, DIMS(H)),
                                       .g = blank(pool, 0, 2, DIMS(cap, H)),
                                       .beta = blank(pool, 0, 2, DIMS(cap, H)),
                                       .T = T,
                                       .dg = normal(pool, &seed, 1.0, 0, 2, DIMS(cap, H)),
                                       .dbeta = normal(pool, &seed, 1.0, 0, 2, DIMS(cap, H)),
                                       .da = blank(pool, 7, 2, DIMS(cap, H)),
                                       .db = blank(pool, 7, 2, DIMS(cap, H)),
                                       .dA_log = started(pool, 1, DIMS(H)),
                                       .ddt_bias = started(pool, 1, DIMS(H))};
            if (i % 2)
                a[k].dt_bias = ot_like(pool, &a[k].dt_bias, DT_BF16, 0);
            const dt_op_set *set = k ? &dtp_ref_gdn_gates : &dtp_cpu_gdn_gates;
            ot_forward(&call[k], set, &a[k], true);
            ot_backward(&call[k], set, &a[k]);
        }
        int32_t cu[] = {0, (int32_t)T};
        dt_seqs seqs = {.cu_seqlens = cu, .n_seq = 1, .n_seq_cap = 1, .T = T, .T_cap = cap};
        ot_compare("g", &a[0].g, &a[1].g, OT_HEADS, &seqs, NULL, golden_output);
        ot_compare("beta", &a[0].beta, &a[1].beta, OT_HEADS, &seqs, NULL, golden_output);
        ot_compare("da", &a[0].da, &a[1].da, OT_HEADS, &seqs, NULL, golden_gradient);
        ot_compare("db", &a[0].db, &a[1].db, OT_HEADS, &seqs, NULL, golden_gradient);
        ot_compare("dA_log", &a[0].dA_log, &a[1].dA_log, OT_WHOLE, NULL, NULL, golden_gradient);
        ot_compare("ddt_bias", &a[0].ddt_bias, &a[1].ddt_bias, OT_WHOLE, NULL, NULL, golden_gradient);
        ot_finish(&call[0].pool);
        ot_finish(&call[1].pool);
    }
}
ISA_TEST(gates)

/* softplus keeps its relative accuracy where e^x is tiny, and is x beyond 20. */
static void all_softplus(void)
{
    enum { N = 600 };
    ot_call call = ot_begin(1);
    ot_pool *pool = &call.pool;
    dt_gdn_gates_args a = {DT_GDN_GATES_ARGS,
                           .a = blank(pool, 0, 2, DIMS(N, 1)),
                           .b = blank(pool, 0, 2, DIMS(N, 1)),
                           .A_log = blank(pool, 0, 1, DIMS(1)),
                           .dt_bias = blank(pool, 0, 1, DIMS(1)),
                           .g = blank(pool, 0, 2, DIMS(N, 1)),
                           .beta = blank(pool, 0, 2, DIMS(N, 1)),
                           .T = N};
    ot_fill(&a.A_log, 0.0);
    ot_fill(&a.dt_bias, 0.0);
    for (int i = 0; i < N; i++) {
        ot_set(&a.a, i, (i - 400) * 0.2);
        ot_set(&a.b, i, (i - 300) * 0.25);
    }
    ot_forward(&call, &dtp_cpu_gdn_gates, &a, false);
    for (int i = 0; i < N; i++) {
        double x = ot_get(&a.a, i), want = x > 20 ? x : log1p(exp(x)), got = -ot_get(&a.g, i);
        if (fabs(got - want) > 5e-7 * want)
            fail_msg("softplus(%g) = %.9g, expected %.9g", x, got, want);
        double b = ot_get(&a.b, i), s = 1 / (1 + exp(-b)), got_s = ot_get(&a.beta, i);
        if (fabs(got_s - s) > 5e-7 * s)
            fail_msg("sigmoid(%g) = %.9g, expected %.9g", b, got_s, s);
    }
    ot_finish(pool);
}
ISA_TEST(softplus)

/* ---- gated norm ---- */

static void all_gated_norms(void)
{
    static const int64_t sizes[][3] = {{0, 2, 16}, {1, 1, 1}, {7, 3, 5}, {33, 2, 128}, {130, 2, 100}, {65, 1, 24}};
    for (size_t i = 0; i < GOLDEN_COUNT(sizes); i++) {
        int64_t T = sizes[i][0], H = sizes[i][1], D = sizes[i][2], cap = T + 3;
        int rank = H == 1 ? 2 : 3;
        const int64_t *dims = rank == 2 ? DIMS(cap, D) : DIMS(cap, H, D);
        dt_rms_norm_gated_args a[3]; /* cpu, reference, cpu in place: dx is dy */
        ot_call call[3];
        for (int k = 0; k < 3; k++) {
            call[k] = ot_begin(k == 2 ? 3 : 2);
            ot_pool *pool = &call[k].pool;
            uint64_t seed = 13;
            a[k] = (dt_rms_norm_gated_args){DT_RMS_NORM_GATED_ARGS,
                                            .x = normal(pool, &seed, 1.0, 0, rank, dims),
                                            .z = normal(pool, &seed, 2.0, 9, rank, dims),
                                            .weight = normal(pool, &seed, 1.0, 0, 1, DIMS(D)),
                                            .y = blank(pool, 0, rank, dims),
                                            .eps = 1e-6f,
                                            .T = T,
                                            .dy = normal(pool, &seed, 1.0, 0, rank, dims),
                                            .dz = blank(pool, 9, rank, dims),
                                            .dweight = started(pool, 1, DIMS(D))};
            a[k].dx = k == 2 ? a[k].dy : blank(pool, 0, rank, dims);
            const dt_op_set *set = k == 1 ? &dtp_ref_rms_norm_gated : &dtp_cpu_rms_norm_gated;
            ot_forward(&call[k], set, &a[k], true);
            ot_backward(&call[k], set, &a[k]);
        }
        int32_t cu[] = {0, (int32_t)T};
        dt_seqs seqs = {.cu_seqlens = cu, .n_seq = 1, .n_seq_cap = 1, .T = T, .T_cap = cap};
        ot_compare("y", &a[0].y, &a[1].y, OT_ROWS, &seqs, NULL, golden_output);
        ot_compare("dx", &a[0].dx, &a[1].dx, OT_ROWS, &seqs, NULL, golden_gradient);
        ot_compare("dz", &a[0].dz, &a[1].dz, OT_ROWS, &seqs, NULL, golden_gradient);
        ot_compare("dweight", &a[0].dweight, &a[1].dweight, OT_WHOLE, NULL, NULL, golden_gradient);
        ot_same("dx in place", &a[2].dx, &a[0].dx);
        ot_same("dweight on three threads", &a[2].dweight, &a[0].dweight);
        for (int k = 0; k < 3; k++)
            ot_finish(&call[k].pool);
    }
}
ISA_TEST(gated_norms)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_cases), cmocka_unit_test(convolutions), cmocka_unit_test(conv_isolation),
        cmocka_unit_test(conv_sums),       cmocka_unit_test(conv_steps),   cmocka_unit_test(gates),
        cmocka_unit_test(far_rows),        cmocka_unit_test(softplus),     cmocka_unit_test(gated_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
