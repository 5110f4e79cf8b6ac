/* The oracle itself: against the reference cases, and against central differences in double. */
#include "providers/golden_testing.h"
#include "providers/reference/differences_testing.h"
#include "providers/reference/reference.h"

static void reference_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDEN_COUNT(golden_gdn_cases); i++)
        golden_gdn(&dtp_ref_gdn, golden_gdn_cases[i], 2);
    for (size_t i = 0; i < GOLDEN_COUNT(golden_conv_cases); i++)
        golden_conv(&dtp_ref_causal_conv1d, golden_conv_cases[i], 2);
    for (size_t i = 0; i < GOLDEN_COUNT(golden_gnorm_cases); i++)
        golden_gnorm(&dtp_ref_rms_norm_gated, golden_gnorm_cases[i], 2);
}

static void gdn_differences(void **state)
{
    (void)state;
    enum { T = 71, N = 4, HK = 2, HV = 4, K = 3, V = 5 };
    static const int32_t cu[N + 1] = {0, 4, 4, 70, T};
    for (int l2 = 0; l2 < 2; l2++) {
        problem p = {.set = &dtp_ref_gdn, .call = ot_begin(1)};
        ot_pool *pool = &p.call.pool;
        uint64_t seed = 7;
        dt_gdn_args a = {DT_GDN_ARGS,
                         .q = RANDOM(0.6, 3, T, HK, K),
                         .k = RANDOM(0.6, 3, T, HK, K),
                         .v = RANDOM(1, 3, T, HV, V),
                         .g = EMPTY(2, T, HV),
                         .beta = EMPTY(2, T, HV),
                         .initial_state = RANDOM(0.5, 4, N, HV, K, V),
                         .o = EMPTY(3, T, HV, V),
                         .final_state = EMPTY(4, N, HV, K, V),
                         .seqs = {.cu_seqlens = cu, .n_seq = N, .n_seq_cap = N, .T = T, .T_cap = T},
                         .scale = 0.7f,
                         .qk_l2norm = l2,
                         .d_o = RANDOM(1, 3, T, HV, V),
                         .dfinal_state = RANDOM(1, 4, N, HV, K, V),
                         .dq = EMPTY(3, T, HK, K),
                         .dk = EMPTY(3, T, HK, K),
                         .dv = EMPTY(3, T, HV, V),
                         .dg = EMPTY(2, T, HV),
                         .dbeta = EMPTY(2, T, HV),
                         .dinitial_state = EMPTY(4, N, HV, K, V)};
        ot_fill_uniform(&a.g, &seed, -0.8, 0.0);
        ot_fill_uniform(&a.beta, &seed, 0.0, 1.0);
        p.args = &a;
        p.output[0] = &a.o, p.upstream[0] = &a.d_o;
        p.output[1] = &a.final_state, p.upstream[1] = &a.dfinal_state;
        ot_forward(&p.call, p.set, &a, true);
        ot_backward(&p.call, p.set, &a);
        check_differences(&p, "q", &a.q, &a.dq, 5);
        check_differences(&p, "k", &a.k, &a.dk, 5);
        check_differences(&p, "v", &a.v, &a.dv, 11);
        check_differences(&p, "g", &a.g, &a.dg, 3);
        check_differences(&p, "beta", &a.beta, &a.dbeta, 3);
        check_differences(&p, "initial_state", &a.initial_state, &a.dinitial_state, 3);
        ot_finish(pool);
    }
}

static void gates_differences(void **state)
{
    (void)state;
    enum { T = 9, HV = 3 };
    problem p = {.set = &dtp_ref_gdn_gates, .call = ot_begin(1)};
    ot_pool *pool = &p.call.pool;
    uint64_t seed = 3;
    dt_gdn_gates_args a = {
        DT_GDN_GATES_ARGS,           .a = RANDOM(2, 2, T, HV),     .b = RANDOM(2, 2, T, HV), .A_log = RANDOM(1, 1, HV),
        .dt_bias = RANDOM(1, 1, HV), .g = EMPTY(2, T, HV),         .beta = EMPTY(2, T, HV),  .T = T,
        .dg = RANDOM(1, 2, T, HV),   .dbeta = RANDOM(1, 2, T, HV), .da = EMPTY(2, T, HV),    .db = EMPTY(2, T, HV),
        .dA_log = EMPTY(1, HV),      .ddt_bias = EMPTY(1, HV)};
    ot_set(&a.a, 0, 30.0); /* the straight part of softplus */
    ot_fill(&a.dA_log, 0.0);
    ot_fill(&a.ddt_bias, 0.0);
    p.args = &a;
    p.output[0] = &a.g, p.upstream[0] = &a.dg;
    p.output[1] = &a.beta, p.upstream[1] = &a.dbeta;
    ot_forward(&p.call, p.set, &a, true);
    ot_backward(&p.call, p.set, &a);
    check_differences(&p, "a", &a.a, &a.da, 1);
    check_differences(&p, "b", &a.b, &a.db, 1);
    check_differences(&p, "A_log", &a.A_log, &a.dA_log, 1);
    check_differences(&p, "dt_bias", &a.dt_bias, &a.ddt_bias, 1);
    ot_finish(pool);
}

static void conv_differences(void **state)
{
    (void)state;
    enum { T = 23, C = 3, N = 6 };
    static const int32_t cu[N + 1] = {0, 1, 3, 3, 6, 10, T};
    for (int64_t W = 1; W <= 8; W++) {
        problem p = {.set = &dtp_ref_causal_conv1d, .call = ot_begin(1)};
        ot_pool *pool = &p.call.pool;
        uint64_t seed = (uint64_t)W;
        dt_causal_conv1d_args a = {DT_CAUSAL_CONV1D_ARGS,
                                   .x = RANDOM(1, 2, T, C),
                                   .weight = RANDOM(0.5, 2, C, W),
                                   .bias = RANDOM(1, 1, C),
                                   .y = EMPTY(2, T, C),
                                   .initial_state = RANDOM(1, 3, N, C, W),
                                   .final_state = EMPTY(3, N, C, W),
                                   .seqs = {.cu_seqlens = cu, .n_seq = N, .n_seq_cap = N, .T = T, .T_cap = T},
                                   .silu = W % 2 == 0,
                                   .dy = RANDOM(1, 2, T, C),
                                   .dfinal_state = RANDOM(1, 3, N, C, W),
                                   .dx = EMPTY(2, T, C),
                                   .dweight = EMPTY(2, C, W),
                                   .dbias = EMPTY(1, C),
                                   .dinitial_state = EMPTY(3, N, C, W)};
        ot_fill(&a.dweight, 0.0);
        ot_fill(&a.dbias, 0.0);
        p.args = &a;
        p.output[0] = &a.y, p.upstream[0] = &a.dy;
        p.output[1] = &a.final_state, p.upstream[1] = &a.dfinal_state;
        ot_forward(&p.call, p.set, &a, true);
        ot_backward(&p.call, p.set, &a);
        check_differences(&p, "x", &a.x, &a.dx, 1);
        check_differences(&p, "weight", &a.weight, &a.dweight, 1);
        check_differences(&p, "bias", &a.bias, &a.dbias, 1);
        check_differences(&p, "initial_state", &a.initial_state, &a.dinitial_state, 1);
        ot_finish(pool);
    }
}

static void gated_norm_differences(void **state)
{
    (void)state;
    enum { T = 5, H = 2, D = 7 };
    problem p = {.set = &dtp_ref_rms_norm_gated, .call = ot_begin(1)};
    ot_pool *pool = &p.call.pool;
    uint64_t seed = 11;
    dt_rms_norm_gated_args a = {DT_RMS_NORM_GATED_ARGS,
                                .x = RANDOM(1, 3, T, H, D),
                                .z = RANDOM(1, 3, T, H, D),
                                .weight = RANDOM(1, 1, D),
                                .y = EMPTY(3, T, H, D),
                                .eps = 1e-3f,
                                .T = T,
                                .dy = RANDOM(1, 3, T, H, D),
                                .dx = EMPTY(3, T, H, D),
                                .dz = EMPTY(3, T, H, D),
                                .dweight = EMPTY(1, D)};
    ot_fill(&a.dweight, 0.0);
    p.args = &a;
    p.output[0] = &a.y, p.upstream[0] = &a.dy;
    ot_forward(&p.call, p.set, &a, true);
    ot_backward(&p.call, p.set, &a);
    check_differences(&p, "x", &a.x, &a.dx, 1);
    check_differences(&p, "z", &a.z, &a.dz, 1);
    check_differences(&p, "weight", &a.weight, &a.dweight, 1);
    ot_finish(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_cases),        cmocka_unit_test(gdn_differences),
        cmocka_unit_test(gates_differences),      cmocka_unit_test(conv_differences),
        cmocka_unit_test(gated_norm_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
