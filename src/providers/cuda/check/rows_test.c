/* The row-wise operators of the CUDA plug-in, emulated, against the reference in F64: every kernel of each (widths of
 * all teams, aligned and not), both dtypes, strided heads, rows beyond T, and the aliases the contracts allow. */
#include "providers/cuda/check/emulated_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/activation.h>
#include <deltune/op/embedding.h>
#include <deltune/op/gdn.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <deltune/op/rope.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* How the tensors of a call lie. */
typedef struct {
    dt_dtype dtype;
    int64_t pad; /* elements between rows; the base moves off its alignment too */
    int64_t gap; /* elements between heads, aligned */
    bool aliases;
} layout;
static const layout exact = {DT_F64, 0, 0, false}, layouts[] = {{DT_BF16, 0, 0, false},
                                                                {DT_BF16, 0, 8, true},
                                                                {DT_BF16, 3, 0, true},
                                                                {DT_F32, 0, 0, false},
                                                                {DT_F32, 5, 8, true}};

static dt_tensor heads(ot_pool *pool, const layout *l, int64_t T, int64_t H, int64_t D)
{
    dt_tensor t = ot_tensor(pool, l->dtype, 3, (const int64_t[]){T, H, D + l->gap}, l->pad);
    return dt_tensor_slice(t, 2, 0, D);
}
/* One rounding to bf16 changes a value by at most 2^-8 of it, and many values by 1.7e-3 in the mean. */
static void compare(const char *what, const dt_tensor *got, const dt_tensor *want)
{
    double tolerance = got->dtype == DT_F32 ? 1e-5 : dt_tensor_numel(got) < 4000 ? 0x1p-8 : 2.0e-3;
    ot_compare(what, got, want, OT_WHOLE, NULL, NULL, tolerance);
}
static void run(const dt_op_set *set, ot_call *c, const void *args)
{
    ot_forward(c, set, args, true);
    ot_backward(c, set, args);
    if (c->exec.device == DT_DEVICE_CUDA)
        emulated_wait(c);
}

/* ---- rms_norm ---- */

static dt_rms_norm_args make_norm(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t H, int64_t D)
{
    uint64_t seed = 41;
    bool oracle = l->dtype == DT_F64;
    dt_rms_norm_args a = {DT_RMS_NORM_ARGS,
                          .x = heads(pool, l, T_cap, H, D),
                          .weight = ot_tensor(pool,
                                              oracle   ? DT_F64
                                              : l->gap ? DT_F32
                                                       : DT_BF16,
                                              1, &D, 0),
                          .y = heads(pool, l, T_cap, H, D),
                          .eps = 1e-6f,
                          .zero_centered = D % 16 == 0,
                          .T = T,
                          .dy = heads(pool, l, T_cap, H, D),
                          .dx = heads(pool, l, T_cap, H, D),
                          .dweight = ot_tensor(pool, oracle ? DT_F64 : DT_F32, 1, &D, 0)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    ot_fill_normal(&a.dweight, &seed, 1);
    if (H > 1) {
        a.residual_grad = heads(pool, l, T_cap, H, D);
        ot_fill_normal(&a.residual_grad, &seed, 1);
    }
    if (l->aliases)
        a.dx = H > 1 ? a.residual_grad : a.dy;
    return a;
}
static void rms_norm(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{3, 5, 2, 64},     {50, 51, 3, 256}, {21, 21, 1, 250}, {9, 12, 1, 1024},
                                {17, 17, 1, 2560}, {2, 2, 2, 4096},  {2, 3, 1, 5120},  {1, 1, 1, 6144},
                                {0, 4, 1, 32},     {2, 2, 1, 8200},  {520, 521, 64, 8} /* several turns a block */};
    const dt_op_set *set = emulated_set(DT_OP_RMS_NORM);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_rms_norm_args want = make_norm(&oracle.pool, &exact, k[0], k[1], k[2], k[3]);
        run(&dtp_ref_rms_norm, &oracle, &want);
        for (const layout *l = layouts; l < layouts + (k[0] > 500 ? 1 : COUNT(layouts)); l++) {
            ot_call c = emulated_begin();
            dt_rms_norm_args a = make_norm(&c.pool, l, k[0], k[1], k[2], k[3]);
            run(set, &c, &a);
            compare("y", &a.y, &want.y);
            compare("dx", &a.dx, &want.dx);
            compare("dweight", &a.dweight, &want.dweight);
            dt_rms_norm_args frozen = make_norm(&c.pool, l, k[0], k[1], k[2], k[3]);
            frozen.dweight.data = NULL;
            run(set, &c, &frozen);
            compare("dx, weight frozen", &frozen.dx, &want.dx);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- rms_norm_gated ---- */

static dt_rms_norm_gated_args make_gated(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t H, int64_t D)
{
    uint64_t seed = 42;
    bool oracle = l->dtype == DT_F64;
    layout wide = *l; /* z lies in a projection of its own pitch */
    wide.gap = 0;
    dt_rms_norm_gated_args a = {DT_RMS_NORM_GATED_ARGS,
                                .x = heads(pool, l, T_cap, H, D),
                                .z = heads(pool, &wide, T_cap, H, D),
                                .weight = ot_tensor(pool,
                                                    oracle   ? DT_F64
                                                    : l->gap ? DT_BF16
                                                             : DT_F32,
                                                    1, &D, 0),
                                .y = heads(pool, l, T_cap, H, D),
                                .eps = 1e-6f,
                                .T = T,
                                .dy = heads(pool, l, T_cap, H, D),
                                .dx = heads(pool, l, T_cap, H, D),
                                .dz = heads(pool, &wide, T_cap, H, D),
                                .dweight = ot_tensor(pool, oracle ? DT_F64 : DT_F32, 1, &D, 0)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.z, &seed, 3);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    ot_fill_normal(&a.dweight, &seed, 1);
    if (l->aliases)
        a.dx = a.dy;
    return a;
}
static void rms_norm_gated(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{70, 71, 4, 128}, {5, 5, 3, 256}, {33, 40, 2, 40},
                                {4, 4, 2, 264},   {7, 9, 1, 30},  {520, 521, 64, 8} /* several turns a block */};
    const dt_op_set *set = emulated_set(DT_OP_RMS_NORM_GATED);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_rms_norm_gated_args want = make_gated(&oracle.pool, &exact, k[0], k[1], k[2], k[3]);
        run(&dtp_ref_rms_norm_gated, &oracle, &want);
        for (const layout *l = layouts; l < layouts + (k[0] > 500 ? 1 : COUNT(layouts)); l++) {
            ot_call c = emulated_begin();
            dt_rms_norm_gated_args a = make_gated(&c.pool, l, k[0], k[1], k[2], k[3]);
            run(set, &c, &a);
            compare("y", &a.y, &want.y);
            compare("dx", &a.dx, &want.dx);
            compare("dz", &a.dz, &want.dz);
            compare("dweight", &a.dweight, &want.dweight);
            dt_rms_norm_gated_args frozen = make_gated(&c.pool, l, k[0], k[1], k[2], k[3]);
            frozen.dweight.data = NULL;
            run(set, &c, &frozen);
            compare("dx, weight frozen", &frozen.dx, &want.dx);
            compare("dz, weight frozen", &frozen.dz, &want.dz);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- sigmoid_gate, swiglu ---- */

static dt_gate_args make_gate(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t H, int64_t D)
{
    uint64_t seed = 43;
    dt_gate_args a = {DT_GATE_ARGS,
                      .x = heads(pool, l, T_cap, H, D),
                      .gate = heads(pool, l, T_cap, H, D),
                      .y = heads(pool, l, T_cap, H, D),
                      .T = T,
                      .dy = heads(pool, l, T_cap, H, D),
                      .dx = heads(pool, l, T_cap, H, D),
                      .dgate = heads(pool, l, T_cap, H, D)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.gate, &seed, 3);
    ot_fill_normal(&a.dy, &seed, 1);
    if (T > 2) { /* both saturated ends */
        ot_set(&a.gate, 0, 200);
        ot_set(&a.gate, ot_offset(&a.gate, 2 * D), -200);
    }
    if (l->aliases)
        a.dx = a.dy, a.dgate = a.gate;
    return a;
}
static void gates(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{9, 10, 1, 1040}, {6, 6, 3, 256}, {3, 3, 2, 20}, {0, 3, 1, 16}};
    const dt_op_set *reference[] = {&dtp_ref_sigmoid_gate, &dtp_ref_swiglu};
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const int64_t *k = cases[i / 2];
        const dt_op_set *set = emulated_set(reference[i % 2]->op);
        ot_call oracle = ot_begin(1);
        dt_gate_args want = make_gate(&oracle.pool, &exact, k[0], k[1], k[2], k[3]);
        run(reference[i % 2], &oracle, &want);
        for (const layout *l = layouts; l < layouts + COUNT(layouts); l++) {
            ot_call c = emulated_begin();
            dt_gate_args a = make_gate(&c.pool, l, k[0], k[1], k[2], k[3]);
            run(set, &c, &a);
            compare("y", &a.y, &want.y);
            compare("dx", &a.dx, &want.dx);
            compare("dgate", &a.dgate, &want.dgate);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- rope ---- */

static dt_rope_args make_rope(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t H, int64_t D,
                              int64_t rotary)
{
    uint64_t seed = 47;
    dt_rope_args a = {DT_ROPE_ARGS,
                      .x = heads(pool, l, T_cap, H, D),
                      .y = heads(pool, l, T_cap, H, D),
                      .positions = ot_tensor(pool, DT_I32, 1, &T_cap, 0),
                      .T = T,
                      .theta = 1e7f,
                      .rotary_dim = (int32_t)rotary,
                      .dy = heads(pool, l, T_cap, H, D),
                      .dx = heads(pool, l, T_cap, H, D)};
    ot_fill_normal(&a.x, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    for (int64_t t = 0; t < T_cap; t++)
        ((int32_t *)a.positions.data)[t] = (int32_t)(t < T / 2 ? t : t * 20000);
    if (l->aliases)
        a.y = a.x, a.dx = a.dy;
    return a;
}
static void rope(void **state)
{
    (void)state;
    const int64_t cases[][5] = {{20, 20, 5, 256, 64}, {11, 13, 3, 256, 64}, {5, 5, 2, 64, 64},
                                {9, 10, 2, 36, 34},   {4, 4, 1, 24, 0},     {0, 3, 2, 64, 32}};
    const dt_op_set *set = emulated_set(DT_OP_ROPE);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_rope_args want = make_rope(&oracle.pool, &exact, k[0], k[1], k[2], k[3], k[4]);
        run(&dtp_ref_rope, &oracle, &want);
        for (const layout *l = layouts; l < layouts + COUNT(layouts); l++) {
            ot_call c = emulated_begin();
            dt_rope_args a = make_rope(&c.pool, l, k[0], k[1], k[2], k[3], k[4]);
            run(set, &c, &a);
            compare("y", &a.y, &want.y);
            compare("dx", &a.dx, &want.dx);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- gdn_gates ---- */

static dt_gdn_gates_args make_gdn_gates(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t H)
{
    uint64_t seed = 51;
    dt_dtype parameter = l->dtype == DT_F64 ? DT_F64 : DT_F32, weight = l->pad ? DT_BF16 : parameter;
#define ROWS(dtype, pad) ot_tensor(pool, dtype, 2, (const int64_t[]){T_cap, H}, pad)
    dt_gdn_gates_args a = {DT_GDN_GATES_ARGS,
                           .a = ROWS(l->dtype, l->pad),
                           .b = ROWS(l->dtype, l->pad),
                           .A_log = ot_tensor(pool, weight, 1, &H, 0),
                           .dt_bias = ot_tensor(pool, weight, 1, &H, 0),
                           .g = ROWS(parameter, 0),
                           .beta = ROWS(parameter, 0),
                           .T = T,
                           .dg = ROWS(parameter, l->pad),
                           .dbeta = ROWS(parameter, l->pad),
                           .da = ROWS(l->dtype, l->pad),
                           .db = ROWS(l->dtype, l->pad),
                           .dA_log = ot_tensor(pool, parameter, 1, &H, 0),
                           .ddt_bias = ot_tensor(pool, parameter, 1, &H, 0)};
    dt_tensor *given[] = {&a.a, &a.b, &a.A_log, &a.dt_bias, &a.dg, &a.dbeta, &a.dA_log, &a.ddt_bias};
    for (size_t i = 0; i < COUNT(given); i++)
        ot_fill_normal(given[i], &seed, i < 2 ? 3 : 1);
    if (T > 2)
        ot_set(&a.a, 0, 30), ot_set(&a.a, ot_offset(&a.a, H), -30);
    return a;
}
static void gdn_gates(void **state)
{
    (void)state;
    const int64_t cases[][3] = {{70, 73, 32}, {9, 9, 48}, {3, 4, 5}, {0, 2, 4}};
    const dt_op_set *set = emulated_set(DT_OP_GDN_GATES);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_gdn_gates_args want = make_gdn_gates(&oracle.pool, &exact, k[0], k[1], k[2]);
        run(&dtp_ref_gdn_gates, &oracle, &want);
        for (const layout *l = layouts; l < layouts + COUNT(layouts); l++) {
            ot_call c = emulated_begin();
            dt_gdn_gates_args a = make_gdn_gates(&c.pool, l, k[0], k[1], k[2]);
            run(set, &c, &a);
            compare("g", &a.g, &want.g);
            compare("beta", &a.beta, &want.beta);
            compare("da", &a.da, &want.da);
            compare("db", &a.db, &want.db);
            compare("dA_log", &a.dA_log, &want.dA_log);
            compare("ddt_bias", &a.ddt_bias, &want.ddt_bias);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}

/* ---- embedding ---- */

static dt_embedding_args make_embedding(ot_pool *pool, const layout *l, int64_t T, int64_t T_cap, int64_t V, int64_t H)
{
    uint64_t seed = 53;
    bool oracle = l->dtype == DT_F64;
    dt_tensor ids = ot_tensor(pool, DT_I32, 1, (const int64_t[]){T_cap + (l->pad ? 1 : 0)}, 0);
    dt_embedding_args a = {DT_EMBEDDING_ARGS,
                           .ids = dt_tensor_slice(ids, 0, ids.shape[0] - T_cap, ids.shape[0]),
                           .weight = ot_tensor(pool,
                                               oracle       ? DT_F64
                                               : l->aliases ? DT_F32
                                                            : l->dtype,
                                               2, (const int64_t[]){V, H}, l->pad),
                           .y = ot_tensor(pool, l->dtype, 2, (const int64_t[]){T_cap, H}, l->pad),
                           .T = T,
                           .dy = ot_tensor(pool, l->dtype, 2, (const int64_t[]){T_cap, H}, l->pad),
                           .dweight = ot_tensor(pool, oracle ? DT_F64 : DT_F32, 2, (const int64_t[]){V, H}, l->pad)};
    for (int64_t t = 0; t < T; t++) /* some ids are rare */
        ((int32_t *)a.ids.data)[t] = (int32_t)(ot_uniform(&seed) * ot_uniform(&seed) * (double)V);
    ot_fill_normal(&a.weight, &seed, 1);
    ot_fill_normal(&a.dy, &seed, 1);
    ot_fill_normal(&a.dweight, &seed, 1);
    return a;
}
static void embedding(void **state)
{
    (void)state;
    const int64_t cases[][4] = {{90, 95, 7, 64}, {30, 30, 12, 1100}, {13, 14, 40, 7}, {2060, 2060, 9, 8}, {0, 3, 2, 8}};
    const dt_op_set *set = emulated_set(DT_OP_EMBEDDING);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t *k = cases[i];
        ot_call oracle = ot_begin(1);
        dt_embedding_args want = make_embedding(&oracle.pool, &exact, k[0], k[1], k[2], k[3]);
        run(&dtp_ref_embedding, &oracle, &want);
        for (const layout *l = layouts; l < layouts + (k[0] > 1000 ? 1 : COUNT(layouts)); l++) {
            ot_call c = emulated_begin();
            dt_embedding_args a = make_embedding(&c.pool, l, k[0], k[1], k[2], k[3]);
            run(set, &c, &a);
            ot_same("y", &a.y, &want.y);
            compare("dweight", &a.dweight, &want.dweight);
            emulated_finish(&c);
        }
        ot_finish(&oracle.pool);
    }
}
/* An id of no row gives NaN and no fault. */
static void embedding_unknown_id(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_EMBEDDING);
    ot_call c = emulated_begin();
    dt_embedding_args a = make_embedding(&c.pool, &layouts[0], 4, 4, 5, 16);
    ((int32_t *)a.ids.data)[1] = 5;
    ((int32_t *)a.ids.data)[2] = -1;
    run(set, &c, &a);
    for (int64_t i = 0; i < 64; i++)
        assert_int_equal(isnan(ot_get(&a.y, i)) != 0, i / 16 == 1 || i / 16 == 2);
    emulated_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(rms_norm_gated),
        cmocka_unit_test(gates),
        cmocka_unit_test(rope),
        cmocka_unit_test(gdn_gates),
        cmocka_unit_test(embedding),
        cmocka_unit_test(embedding_unknown_id),
    };
    return cmocka_run_group_tests(tests, emulated_load, NULL);
}
