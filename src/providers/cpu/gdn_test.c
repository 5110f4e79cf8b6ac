/* The chunked delta rule on every instruction set of this machine: reference cases, the oracle over many sizes, and
 * the packing rules of every operator (numbers in the test names' comments). */
#include "providers/cpu/cpu.h"
#include "providers/cpu/isa_testing.h"
#include "providers/golden_testing.h"
#include "providers/reference/reference.h"

/* ---- problems ---- */

typedef struct {
    int64_t HK, HV, K, V;
    const int32_t *cu;
    int64_t n_seq, T_cap;
    bool l2norm, states; /* states: initial, final and both gradients */
    int64_t pad;
    double log_decay; /* g uniform in [log_decay, 0) */
} shape;

typedef struct {
    ot_call call;
    dt_gdn_args a;
} problem;

static dt_tensor filled(problem *p, uint64_t *seed, double scale, int64_t pad, int rank, const int64_t *dims)
{
    dt_tensor t = ot_tensor(&p->call.pool, DT_F32, rank, dims, pad);
    ot_fill_normal(&t, seed, scale);
    return t;
}

static dt_tensor empty(problem *p, int64_t pad, int rank, const int64_t *dims)
{
    return ot_tensor(&p->call.pool, DT_F32, rank, dims, pad);
}
#define DIMS(...)                                                                                                      \
    (const int64_t[])                                                                                                  \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Random inputs from `seed`, NaN-filled outputs. Rows of one token do not depend on what stands before it in the
 * pack when `per_token` draws are the same, so two layouts of the same samples are filled by copying (see copy_rows).
 */
static problem make(const shape *s, int threads, uint64_t seed)
{
    problem p = {.call = ot_begin(threads)};
    int64_t T = s->T_cap, N = s->n_seq;
    p.a = (dt_gdn_args){DT_GDN_ARGS, .scale = 0.3f, .qk_l2norm = s->l2norm};
    dt_gdn_args *a = &p.a;
    a->seqs = (dt_seqs){.cu_seqlens = s->cu, .n_seq = N, .n_seq_cap = N, .T = s->cu[N], .T_cap = T};
    a->q = filled(&p, &seed, s->l2norm ? 1.0 : 0.3, s->pad, 3, DIMS(T, s->HK, s->K));
    a->k = filled(&p, &seed, s->l2norm ? 1.0 : 0.7 / sqrt((double)s->K), s->pad, 3, DIMS(T, s->HK, s->K));
    a->v = filled(&p, &seed, 1.0, s->pad, 3, DIMS(T, s->HV, s->V));
    a->g = empty(&p, 0, 2, DIMS(T, s->HV));
    a->beta = empty(&p, 0, 2, DIMS(T, s->HV));
    ot_fill_uniform(&a->g, &seed, s->log_decay, 0.0);
    ot_fill_uniform(&a->beta, &seed, 0.0, 1.0);
    a->d_o = filled(&p, &seed, 1.0, s->pad, 3, DIMS(T, s->HV, s->V));
    a->o = empty(&p, s->pad, 3, DIMS(T, s->HV, s->V));
    a->dq = empty(&p, s->pad, 3, DIMS(T, s->HK, s->K));
    a->dk = empty(&p, s->pad, 3, DIMS(T, s->HK, s->K));
    a->dv = empty(&p, s->pad, 3, DIMS(T, s->HV, s->V));
    a->dg = empty(&p, 0, 2, DIMS(T, s->HV));
    a->dbeta = empty(&p, 0, 2, DIMS(T, s->HV));
    if (s->states) {
        a->initial_state = filled(&p, &seed, 0.2, 0, 4, DIMS(N, s->HV, s->K, s->V));
        a->dfinal_state = filled(&p, &seed, 0.2, 0, 4, DIMS(N, s->HV, s->K, s->V));
        a->final_state = empty(&p, 0, 4, DIMS(N, s->HV, s->K, s->V));
        a->dinitial_state = empty(&p, 0, 4, DIMS(N, s->HV, s->K, s->V));
    }
    return p;
}

static void run_both(problem *p, const dt_op_set *set)
{
    ot_forward(&p->call, set, &p->a, true);
    ot_backward(&p->call, set, &p->a);
}

/* Every output and gradient of `got` against `want`, in slices. */
static void compare_all(problem *got, problem *want)
{
    const dt_gdn_args *x = &got->a, *y = &want->a;
    ot_compare("o", &x->o, &y->o, OT_HEADS, &y->seqs, NULL, golden_output);
    ot_compare("dq", &x->dq, &y->dq, OT_HEADS, &y->seqs, NULL, golden_gradient);
    ot_compare("dk", &x->dk, &y->dk, OT_HEADS, &y->seqs, NULL, golden_gradient);
    ot_compare("dv", &x->dv, &y->dv, OT_HEADS, &y->seqs, NULL, golden_gradient);
    ot_compare("dg", &x->dg, &y->dg, OT_HEADS, &y->seqs, NULL, golden_gate_gradient);
    ot_compare("dbeta", &x->dbeta, &y->dbeta, OT_HEADS, &y->seqs, NULL, golden_gate_gradient);
    if (dt_tensor_present(&y->final_state)) {
        ot_compare("final_state", &x->final_state, &y->final_state, OT_STATES, &y->seqs, NULL, golden_output);
        ot_compare("dinitial_state", &x->dinitial_state, &y->dinitial_state, OT_STATES, &y->seqs, NULL,
                   golden_gradient);
    }
}

static void against_reference(const shape *s, int threads)
{
    problem got = make(s, threads, 5), want = make(s, 2, 5);
    run_both(&got, &dtp_cpu_gdn);
    run_both(&want, &dtp_ref_gdn);
    compare_all(&got, &want);
    ot_finish(&got.call.pool);
    ot_finish(&want.call.pool);
}

/* ---- tests ---- */

static void all_reference_cases(void)
{
    for (size_t i = 0; i < GOLDEN_COUNT(golden_gdn_cases); i++)
        golden_gdn(&dtp_cpu_gdn, golden_gdn_cases[i], 2);
}
ISA_TEST(reference_cases)

static void all_lengths(void)
{
    static const int32_t lengths[] = {0, 1, 2, 3, 5, 15, 16, 17, 31, 37, 63, 64, 65, 97, 127, 128, 129, 191, 200, 257};
    for (size_t i = 0; i < GOLDEN_COUNT(lengths); i++) {
        int32_t cu[] = {0, lengths[i]};
        for (int states = 0; states < 2; states++) {
            shape s = {.HK = 1,
                       .HV = 2,
                       .K = 32,
                       .V = 32,
                       .cu = cu,
                       .n_seq = 1,
                       .T_cap = cu[1],
                       .l2norm = true,
                       .states = states,
                       .pad = 5,
                       .log_decay = -0.5};
            against_reference(&s, 2);
        }
    }
}
ISA_TEST(lengths)

/* P-28: errors do not grow along a long sample that hardly forgets. */
static void all_long_samples(void)
{
    static const int32_t cu[] = {0, 2113};
    shape s = {
        .HK = 1, .HV = 1, .K = 32, .V = 32, .cu = cu, .n_seq = 1, .T_cap = 2113, .l2norm = true, .log_decay = -0.002};
    problem got = make(&s, 2, 6), want = make(&s, 2, 6);
    run_both(&got, &dtp_cpu_gdn);
    run_both(&want, &dtp_ref_gdn);
    compare_all(&got, &want);
    double error[2] = {0, 0};
    for (int64_t i = 0; i < 528 * s.V; i++) {
        int64_t last = dt_tensor_numel(&want.a.o) - 1 - i;
        error[0] += pow(ot_get(&got.a.o, i) - ot_get(&want.a.o, i), 2);
        error[1] += pow(ot_get(&got.a.o, last) - ot_get(&want.a.o, last), 2);
    }
    if (!(sqrt(error[1]) < 2.0 * sqrt(error[0])))
        fail_msg("error of the last quarter %.3g, of the first %.3g", sqrt(error[1]), sqrt(error[0]));
    ot_finish(&got.call.pool);
    ot_finish(&want.call.pool);
}
ISA_TEST(long_samples)

static void all_widths(void)
{
    static const int64_t widths[][2] = {{1, 1},   {3, 5},   {7, 130},  {16, 8},   {20, 33},  {32, 64},
                                        {64, 32}, {96, 96}, {128, 64}, {100, 12}, {256, 17}, {48, 256}};
    static const int32_t cu[] = {0, 70, 70, 71, 150};
    for (size_t i = 0; i < GOLDEN_COUNT(widths); i++) {
        shape s = {.HK = 2,
                   .HV = 2,
                   .K = widths[i][0],
                   .V = widths[i][1],
                   .cu = cu,
                   .n_seq = 4,
                   .T_cap = 150,
                   .l2norm = true,
                   .states = true,
                   .pad = 3,
                   .log_decay = -0.3};
        against_reference(&s, 2);
    }
}
ISA_TEST(widths)

/* Rules 4, 8, 11: awkward packs, several value heads per key head, rows behind the last boundary. */
static void all_packs(void)
{
    static const int32_t ones[] = {0, 1, 2, 3, 4}, three[] = {0, 3}, edges[] = {0, 63, 64, 128, 193, 320, 448, 577},
                         holes[] = {0, 0, 5, 5, 5, 12, 12}, none[] = {0};
    const struct {
        const int32_t *cu;
        int64_t n;
    } packs[] = {{ones, 4}, {three, 1}, {edges, 7}, {holes, 6}, {none, 0}};
    for (size_t i = 0; i < GOLDEN_COUNT(packs); i++)
        for (int64_t group = 1; group <= 4; group += group) {
            int64_t T = packs[i].cu[packs[i].n];
            shape s = {.HK = 2,
                       .HV = 2 * group,
                       .K = 16,
                       .V = 24,
                       .cu = packs[i].cu,
                       .n_seq = packs[i].n,
                       .T_cap = (T + 64) / 64 * 64,
                       .l2norm = group != 2,
                       .states = group != 4,
                       .log_decay = -1.0};
            against_reference(&s, 2);
        }
}
ISA_TEST(packs)

/* Gates of -100 and 0 mixed in one chunk, -1e30, and growth; write strengths exactly 0, 1 and 2; keys that are 0. */
static void all_extremes(void)
{
    static const int32_t cu[] = {0, 130, 150};
    shape s = {.HK = 1,
               .HV = 2,
               .K = 32,
               .V = 32,
               .cu = cu,
               .n_seq = 2,
               .T_cap = 150,
               .l2norm = true,
               .states = true,
               .log_decay = -0.1};
    problem got = make(&s, 2, 9), want = make(&s, 2, 9);
    static const double gates[] = {0.0, -100.0, 0.0, -0.01, -1e30, -3.0, 0.02, -20.0},
                        strengths[] = {0.0, 1.0, 0.5, 2.0};
    problem *both[] = {&got, &want};
    for (int b = 0; b < 2; b++)
        for (int64_t i = 0; i < 2 * 150; i++) {
            ot_set(&both[b]->a.g, i, gates[(i * i + i / 3) % 8]);
            ot_set(&both[b]->a.beta, i, strengths[(i / 2 + i / 7) % 4]);
            for (int64_t j = 0; i % 11 == 0 && i < 150 && j < 32; j++)
                ot_set(&both[b]->a.k, i * 32 + j, 0.0);
        }
    run_both(&got, &dtp_cpu_gdn);
    run_both(&want, &dtp_ref_gdn);
    compare_all(&got, &want);
    ot_finish(&got.call.pool);
    ot_finish(&want.call.pool);
}
ISA_TEST(extremes)

/* dg keeps its relative accuracy when every token forgets nearly everything: no cancellation of large sums. The limit
 * is the plain ratio here, without the allowance for small numbers. */
static void all_strong_decays(void)
{
    static const int32_t cu[] = {0, 100, 165};
    static const double decays[] = {-5.0, -10.0, -20.0, -40.0};
    for (size_t d = 0; d < GOLDEN_COUNT(decays); d++) {
        shape s = {.HK = 1,
                   .HV = 2,
                   .K = 32,
                   .V = 32,
                   .cu = cu,
                   .n_seq = 2,
                   .T_cap = 165,
                   .l2norm = true,
                   .states = true,
                   .log_decay = -0.1};
        problem got = make(&s, 2, 10), want = make(&s, 2, 10);
        ot_fill(&got.a.g, decays[d]);
        ot_fill(&want.a.g, decays[d]);
        run_both(&got, &dtp_cpu_gdn);
        run_both(&want, &dtp_ref_gdn);
        double error = 0.0, size = 0.0;
        for (int64_t i = 0; i < dt_tensor_numel(&want.a.dg); i++) {
            double x = ot_get(&got.a.dg, i), y = ot_get(&want.a.dg, i);
            error += (x - y) * (x - y);
            size += y * y;
        }
        if (!(sqrt(error) < 1e-5 * sqrt(size)))
            fail_msg("g = %g: dg is off by %.3g of its size", decays[d], sqrt(error / size));
        ot_finish(&got.call.pool);
        ot_finish(&want.call.pool);
    }
}
ISA_TEST(strong_decays)

/* ---- bit for bit ---- */

static void same_rows(const dt_gdn_args *x, const dt_gdn_args *y, int64_t begin, int64_t end)
{
    const dt_tensor *const got[] = {&x->o, &x->dq, &x->dk, &x->dv, &x->dg, &x->dbeta}, *const want[] = {
                                                                                           &y->o,  &y->dq, &y->dk,
                                                                                           &y->dv, &y->dg, &y->dbeta};
    static const char *const names[] = {"o", "dq", "dk", "dv", "dg", "dbeta"};
    for (size_t i = 0; i < GOLDEN_COUNT(got); i++) {
        dt_tensor a = dt_tensor_slice(*got[i], 0, begin, end), b = dt_tensor_slice(*want[i], 0, begin, end);
        ot_same(names[i], &a, &b);
    }
}

static void same_states(const dt_gdn_args *x, const dt_gdn_args *y, int64_t begin, int64_t end)
{
    dt_tensor a = dt_tensor_slice(x->final_state, 0, begin, end), b = dt_tensor_slice(y->final_state, 0, begin, end);
    ot_same("final_state", &a, &b);
    a = dt_tensor_slice(x->dinitial_state, 0, begin, end), b = dt_tensor_slice(y->dinitial_state, 0, begin, end);
    ot_same("dinitial_state", &a, &b);
}

static const int32_t mixed[] = {0, 70, 70, 71, 200, 328};
static const shape mixed_shape = {.HK = 2,
                                  .HV = 4,
                                  .K = 24,
                                  .V = 40,
                                  .cu = mixed,
                                  .n_seq = 5,
                                  .T_cap = 328,
                                  .l2norm = true,
                                  .states = true,
                                  .log_decay = -0.3};

/* Rules 15 and P-94: views of a wider buffer, and any number of threads. */
static void all_layouts(void)
{
    shape wide = mixed_shape;
    wide.pad = 7;
    problem p = make(&mixed_shape, 1, 21), q = make(&wide, 3, 21);
    run_both(&p, &dtp_cpu_gdn);
    run_both(&q, &dtp_cpu_gdn);
    same_rows(&q.a, &p.a, 0, 328);
    same_states(&q.a, &p.a, 0, 5);
    ot_finish(&p.call.pool);
    ot_finish(&q.call.pool);
}
ISA_TEST(layouts)

/* Rules 4, 6, 16, 19: each sample as if alone, whatever the pack around it. */
static void all_separate(void)
{
    problem pack = make(&mixed_shape, 2, 22), alone = make(&mixed_shape, 2, 22);
    run_both(&pack, &dtp_cpu_gdn);
    for (int64_t n = mixed_shape.n_seq - 1; n >= 0; n--) {
        problem one = alone;
        const int32_t cu[] = {0, mixed[n + 1] - mixed[n]};
        one.a.seqs = (dt_seqs){.cu_seqlens = cu, .n_seq = 1, .n_seq_cap = 1, .T = cu[1], .T_cap = cu[1]};
        dt_tensor *rows[] = {&one.a.q,   &one.a.k,  &one.a.v,  &one.a.g,  &one.a.beta, &one.a.o,
                             &one.a.d_o, &one.a.dq, &one.a.dk, &one.a.dv, &one.a.dg,   &one.a.dbeta};
        dt_tensor *states[] = {&one.a.initial_state, &one.a.final_state, &one.a.dfinal_state, &one.a.dinitial_state};
        for (size_t i = 0; i < GOLDEN_COUNT(rows); i++)
            *rows[i] = dt_tensor_slice(*rows[i], 0, mixed[n], mixed[n + 1]);
        for (size_t i = 0; i < GOLDEN_COUNT(states); i++)
            *states[i] = dt_tensor_slice(*states[i], 0, n, n + 1);
        run_both(&one, &dtp_cpu_gdn);
        alone.call = one.call;
    }
    same_rows(&pack.a, &alone.a, 0, 328);
    same_states(&pack.a, &alone.a, 0, 5);
    ot_finish(&pack.call.pool);
    ot_finish(&alone.call.pool);
}
ISA_TEST(separate)

/* Rule 3: nothing of sample 0 reaches the others, and a loss on the others has no gradient in sample 0. */
static void all_isolation(void)
{
    problem p = make(&mixed_shape, 2, 23), q = make(&mixed_shape, 2, 23);
    int64_t first = mixed[1];
    dt_tensor *changed[] = {&q.a.q, &q.a.k, &q.a.v, &q.a.d_o};
    for (size_t i = 0; i < GOLDEN_COUNT(changed); i++) {
        dt_tensor rows = dt_tensor_slice(*changed[i], 0, 0, first);
        ot_fill(&rows, i == 3 ? 0.0 : 123.0);
    }
    dt_tensor state = dt_tensor_slice(q.a.dfinal_state, 0, 0, 1);
    ot_fill(&state, 0.0);
    run_both(&p, &dtp_cpu_gdn);
    run_both(&q, &dtp_cpu_gdn);
    same_rows(&q.a, &p.a, first, 328);
    same_states(&q.a, &p.a, 1, 5);
    const dt_tensor *gradients[] = {&q.a.dq, &q.a.dk, &q.a.dv, &q.a.dg, &q.a.dbeta};
    for (size_t i = 0; i < GOLDEN_COUNT(gradients); i++)
        for (int64_t j = 0; j < first * gradients[i]->stride[0]; j++)
            assert_true(ot_get(gradients[i], j) == 0.0);
    ot_finish(&p.call.pool);
    ot_finish(&q.call.pool);
}
ISA_TEST(isolation)

/* Rule 7: an initial state of zeros is no initial state; and inference (nothing saved) gives the same outputs. */
static void all_zero_states(void)
{
    problem p = make(&mixed_shape, 2, 24), q = make(&mixed_shape, 2, 24);
    ot_fill(&p.a.initial_state, 0.0);
    ot_fill(&p.a.dfinal_state, 0.0);
    q.a.initial_state = q.a.dfinal_state = (dt_tensor){0};
    run_both(&p, &dtp_cpu_gdn);
    run_both(&q, &dtp_cpu_gdn);
    same_rows(&q.a, &p.a, 0, 328);
    same_states(&q.a, &p.a, 0, 5);
    ot_fill(&q.a.o, 5.0);
    ot_fill(&q.a.final_state, 5.0);
    ot_forward(&q.call, &dtp_cpu_gdn, &q.a, false);
    same_rows(&q.a, &p.a, 0, 328);
    same_states(&q.a, &p.a, 0, 5);
    ot_finish(&p.call.pool);
    ot_finish(&q.call.pool);
}
ISA_TEST(zero_states)

/* P-27: offsets beyond 2^31 elements. */
static void all_far_rows(void)
{
    static const int32_t cu[] = {0, 1, 3};
    shape s = {.HK = 1, .HV = 2, .K = 8, .V = 12, .cu = cu, .n_seq = 2, .T_cap = 3, .l2norm = true, .log_decay = -0.3};
    problem near = make(&s, 2, 25), far = make(&s, 2, 25);
    dt_gdn_args *a = &far.a;
    dt_tensor *rows[] = {&a->q,  &a->k,  &a->v, &a->o,    &a->d_o, &a->dq,
                         &a->dk, &a->dv, &a->g, &a->beta, &a->dg,  &a->dbeta};
    bool mapped = true;
    for (size_t i = 0; i < GOLDEN_COUNT(rows); i++) {
        *rows[i] = ot_far_rows(rows[i]);
        mapped = mapped && rows[i]->data;
    }
    if (mapped) {
        run_both(&near, &dtp_cpu_gdn);
        run_both(&far, &dtp_cpu_gdn);
        same_rows(&far.a, &near.a, 0, 3);
    } else {
        print_message("not checked: the system refuses the address space\n");
    }
    for (size_t i = 0; i < GOLDEN_COUNT(rows); i++)
        ot_unmap_far(rows[i]);
    ot_finish(&near.call.pool);
    ot_finish(&far.call.pool);
}
ISA_TEST(far_rows)

/* ---- one-token steps ---- */

/* Token by token through the step equals the whole sequence. */
static void all_steps(void)
{
    enum { T = 67 };
    static const int64_t widths[][2] = {{16, 16}, {128, 128}, {24, 40}, {5, 3}, {96, 72}};
    static const int32_t cu[] = {0, T};
    for (size_t i = 0; i < GOLDEN_COUNT(widths); i++) {
        shape s = {.HK = 1,
                   .HV = 2,
                   .K = widths[i][0],
                   .V = widths[i][1],
                   .cu = cu,
                   .n_seq = 1,
                   .T_cap = T,
                   .l2norm = i != 2,
                   .states = true,
                   .log_decay = -0.4};
        problem p = make(&s, 2, 30 + i);
        ot_forward(&p.call, &dtp_ref_gdn, &p.a, false);
        dt_tensor o = empty(&p, 0, 3, DIMS(T, s.HV, s.V)), state = p.a.initial_state;
        for (int64_t t = 0; t < T; t++) {
            dt_gdn_step_args a = {DT_GDN_STEP_ARGS,
                                  .q = dt_tensor_slice(p.a.q, 0, t, t + 1),
                                  .k = dt_tensor_slice(p.a.k, 0, t, t + 1),
                                  .v = dt_tensor_slice(p.a.v, 0, t, t + 1),
                                  .g = dt_tensor_slice(p.a.g, 0, t, t + 1),
                                  .beta = dt_tensor_slice(p.a.beta, 0, t, t + 1),
                                  .state = state,
                                  .o = dt_tensor_slice(o, 0, t, t + 1),
                                  .scale = p.a.scale,
                                  .qk_l2norm = s.l2norm};
            ot_forward(&p.call, t % 3 == 2 ? &dtp_ref_gdn_step : &dtp_cpu_gdn_step, &a, false);
        }
        ot_compare("o", &o, &p.a.o, OT_HEADS, &p.a.seqs, NULL, golden_output);
        ot_compare("state", &state, &p.a.final_state, OT_STATES, &p.a.seqs, NULL, golden_output);
        ot_finish(&p.call.pool);
    }
}
ISA_TEST(steps)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_cases), cmocka_unit_test(long_samples), cmocka_unit_test(lengths),
        cmocka_unit_test(widths),          cmocka_unit_test(packs),        cmocka_unit_test(extremes),
        cmocka_unit_test(layouts),         cmocka_unit_test(separate),     cmocka_unit_test(isolation),
        cmocka_unit_test(zero_states),     cmocka_unit_test(steps),        cmocka_unit_test(strong_decays),
        cmocka_unit_test(far_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
