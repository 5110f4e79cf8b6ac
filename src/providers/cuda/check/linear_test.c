/* linear and cross_entropy of the CUDA plug-in, its kernels run on the CPU (libdeltune-cuda-emulated.so), against the
 * reference in F64: joined and separate parts, dropout, any rank, bf16 and f32, aligned rows and any others. */
#include "providers/cuda/check/emulated_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/cross_entropy.h>
#include <deltune/op/linear.h>

/* ---- linear ---- */

typedef struct {
    int64_t T, T_cap, in, out[4];
    int n_parts;
    int64_t rank[4]; /* 0: no adapter */
    float dropout;
    dt_dtype activation, weight;
    bool joined;   /* weights follow each other, results are neighbouring columns */
    bool plain;    /* no addends, no gradient of the weight */
    bool recorded; /* the key is read from device memory */
    bool frozen_input;
    int64_t pad;       /* elements between rows of x, dx and dy; odd: nothing is aligned */
    int64_t extension; /* scratch behind x, dx and the weights: NaN before the call */
} shape;

#define MATRIX(dtype, rows, columns, pad) ot_tensor(pool, dtype, 2, (const int64_t[]){rows, columns}, pad)

/* [rows, columns] with room for `extension` elements behind each row. */
static dt_tensor roomy(ot_pool *pool, dt_dtype dtype, int64_t rows, int64_t columns, int64_t pad, int64_t extension)
{
    return dt_tensor_slice(MATRIX(dtype, rows, columns + extension, pad), 1, 0, columns);
}

static void make_parts(dt_linear_args *a, ot_pool *pool, const shape *s, bool oracle, uint64_t *seed)
{
    dt_dtype activation = oracle ? DT_F64 : s->activation, weight = oracle ? DT_F64 : s->weight,
             parameter = oracle ? DT_F64 : DT_F32;
    int64_t total = 0, at = 0, row = 0;
    for (int j = 0; j < s->n_parts; j++)
        total += s->out[j];
    dt_tensor w = roomy(pool, weight, total, s->in, 0, s->extension), y = MATRIX(activation, s->T_cap, total, 0),
              dy = MATRIX(activation, s->T_cap, total, oracle ? 0 : s->pad), c = MATRIX(activation, s->T_cap, total, 0),
              dw = MATRIX(parameter, total, s->in, 0);
    ot_fill_normal(&w, seed, 0.1);
    ot_fill_normal(&dy, seed, 1);
    ot_fill_normal(&c, seed, 1);
    ot_fill_normal(&dw, seed, 1);
    for (int j = 0; j < s->n_parts; at += s->out[j++]) {
        dt_linear_part *p = &a->part[j];
        p->weight = dt_tensor_slice(w, 0, at, at + s->out[j]);
        p->y = dt_tensor_slice(y, 1, at, at + s->out[j]);
        p->dy = dt_tensor_slice(dy, 1, at, at + s->out[j]);
        if (!s->joined && !oracle) {
            dt_tensor own = roomy(pool, weight, s->out[j], s->in, 0, s->extension);
            ot_copy(&own, &p->weight);
            p->weight = own;
            p->y = ot_like(pool, &p->y, activation, 0);
        }
        if (!s->plain) {
            p->c = dt_tensor_slice(c, 1, at, at + s->out[j]);
            p->dweight = dt_tensor_slice(dw, 0, at, at + s->out[j]);
        }
        if (!s->rank[j])
            continue;
        p->lora_b = MATRIX(parameter, s->out[j], s->rank[j], 0);
        p->dlora_b = MATRIX(parameter, s->out[j], s->rank[j], 0);
        p->lora_row = row;
        row += s->rank[j];
        ot_fill_normal(&p->lora_b, seed, 0.1);
        ot_fill_normal(&p->dlora_b, seed, 0.1);
    }
}

/* The same numbers for every dtype; every output is NaN before the call. */
static dt_linear_args make(ot_pool *pool, const shape *s, bool oracle)
{
    static const dt_step_values values = {.seed = 12345678901ull, .step = 7, .micro = 1};
    uint64_t seed = 17;
    int64_t R = 0, pad = oracle ? 0 : s->pad;
    dt_dtype activation = oracle ? DT_F64 : s->activation, parameter = oracle ? DT_F64 : DT_F32;
    for (int j = 0; j < s->n_parts; j++)
        R += s->rank[j];
    dt_linear_args a = {DT_LINEAR_ARGS,
                        .x = roomy(pool, activation, s->T_cap, s->in, pad, s->extension),
                        .T = s->T,
                        .n_parts = s->n_parts,
                        .lora_scale = 2,
                        .dropout = s->dropout,
                        .seed = values.seed,
                        .step = values.step,
                        .micro = values.micro,
                        .input = 9,
                        .extension = oracle ? 0 : s->extension};
    if (!s->frozen_input)
        a.dx = roomy(pool, activation, s->T_cap, s->in, pad, s->extension);
    if (s->recorded && !oracle) {
        a.values = &values;
        a.seed = a.step = a.micro = 0;
    }
    ot_fill_normal(&a.x, &seed, 1);
    if (R) {
        a.lora_a = MATRIX(parameter, R, s->in, 0);
        a.dlora_a = MATRIX(parameter, R, s->in, 0);
        ot_fill_normal(&a.lora_a, &seed, 0.1);
        ot_fill_normal(&a.dlora_a, &seed, 0.1);
    }
    if (!s->plain && !s->frozen_input) {
        a.dx_add = MATRIX(activation, s->T_cap, s->in, 0);
        ot_fill_normal(&a.dx_add, &seed, 1);
    }
    make_parts(&a, pool, s, oracle, &seed);
    return a;
}

static void compare(const char *what, const dt_tensor *got, const dt_tensor *want, double tolerance)
{
    if (dt_tensor_present(want))
        ot_compare(what, got, want, OT_WHOLE, NULL, NULL, tolerance);
}

static void check_shape(const shape *s)
{
    const dt_op_set *set = emulated_set(DT_OP_LINEAR);
    double fine = s->activation == DT_BF16 ? 4e-3 : 1e-5, sums = s->activation == DT_BF16 ? 5e-3 : 2e-5;
    ot_call oracle = ot_begin(1), device = emulated_begin();
    dt_linear_args want = make(&oracle.pool, s, true), got = make(&device.pool, s, false);
    ot_forward(&oracle, &dtp_ref_linear, &want, true);
    ot_backward(&oracle, &dtp_ref_linear, &want);
    ot_forward(&device, set, &got, true);
    ot_backward(&device, set, &got);
    emulated_wait(&device);
    compare("dx", &got.dx, &want.dx, fine);
    compare("dlora_a", &got.dlora_a, &want.dlora_a, sums);
    for (int j = 0; j < s->n_parts; j++) {
        const dt_linear_part *g = &got.part[j], *w = &want.part[j];
        compare("y", &g->y, &w->y, fine);
        compare("dweight", &g->dweight, &w->dweight, sums);
        compare("dlora_b", &g->dlora_b, &w->dlora_b, sums);
    }
    emulated_finish(&device);
    ot_finish(&oracle.pool);
}

#define BF16 .activation = DT_BF16, .weight = DT_BF16
static void bf16_shapes(void **state)
{
    const shape list[] = {
        {BF16, .T = 0, .T_cap = 16, .in = 8, .out = {8}, .n_parts = 1, .rank = {2}},
        {BF16, .T = 1, .T_cap = 1, .in = 32, .out = {16}, .n_parts = 1, .plain = true},
        {BF16, .T = 70, .T_cap = 128, .in = 328, .out = {72, 40, 8, 8}, .n_parts = 4, .rank = {8, 8, 8, 8},
         .dropout = 0.05f, .joined = true, .plain = true, .recorded = true},
        {BF16, .T = 64, .T_cap = 64, .in = 64, .out = {136, 72}, .n_parts = 2, .rank = {8, 8}, .dropout = 0.5f,
         .joined = true},
        {BF16, .T = 65, .T_cap = 80, .in = 96, .out = {24, 16, 40}, .n_parts = 3, .rank = {4, 0, 5}, .dropout = 0.25f},
        {BF16, .T = 37, .T_cap = 40, .in = 72, .out = {56, 16}, .n_parts = 2, .rank = {3, 64}, .dropout = 0.1f,
         .joined = true},
        {BF16, .T = 33, .T_cap = 33, .in = 264, .out = {24, 8}, .n_parts = 2, .rank = {60, 100}, .joined = true,
         .plain = true},
        {BF16, .T = 20, .T_cap = 21, .in = 40, .out = {16, 24}, .n_parts = 2, .rank = {4, 4}, .dropout = 0.1f,
         .pad = 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}
/* Several tiles a range, several ranges, narrow and wide blocks; parts that share eight ranks or cross them. */
static void streamed_shapes(void **state)
{
    const shape list[] = {
        {BF16, .T = 600, .T_cap = 640, .in = 264, .out = {1032, 520, 40}, .n_parts = 3, .rank = {8, 8, 8},
         .dropout = 0.1f, .joined = true, .plain = true, .recorded = true},
        {BF16, .T = 385, .T_cap = 385, .in = 128, .out = {136, 16}, .n_parts = 2, .rank = {12, 3}, .dropout = 0.1f,
         .joined = true, .plain = true, .frozen_input = true},
        {BF16, .T = 300, .T_cap = 1280, .in = 136, .out = {72, 256}, .n_parts = 2, .rank = {20, 12}, .joined = true},
        {BF16, .T = 200, .T_cap = 200, .in = 384, .out = {16, 72}, .n_parts = 2, .rank = {5, 7}, .dropout = 0.5f},
        {BF16, .T = 900, .T_cap = 900, .in = 16, .out = {768}, .n_parts = 1, .rank = {32}, .joined = true,
         .plain = true, .frozen_input = true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}
/* The adapters inside the products, in scratch behind x, dx and the weights. */
static void extended_shapes(void **state)
{
    const shape list[] = {
        /* a pack's capacity decides how work is divided: long ones in launches of their own, in slabs */
        {BF16, .T = 150, .T_cap = 8192, .in = 136, .out = {24, 8}, .n_parts = 2, .rank = {8, 8}, .dropout = 0.1f,
         .joined = true, .plain = true, .extension = 64},
        {BF16, .T = 70, .T_cap = 4096, .in = 72, .out = {16}, .n_parts = 1, .rank = {70}, .dropout = 0.1f,
         .plain = true, .extension = 128},
        {BF16, .T = 70, .T_cap = 128, .in = 328, .out = {72, 40, 8, 8}, .n_parts = 4, .rank = {8, 8, 8, 8},
         .dropout = 0.05f, .joined = true, .plain = true, .recorded = true, .extension = 64},
        {BF16, .T = 65, .T_cap = 80, .in = 96, .out = {24, 16, 40}, .n_parts = 3, .rank = {4, 0, 5}, .dropout = 0.25f,
         .plain = true, .extension = 64},
        {BF16, .T = 33, .T_cap = 33, .in = 264, .out = {24, 8}, .n_parts = 2, .rank = {50, 70}, .joined = true,
         .plain = true, .extension = 128},
        {BF16, .T = 390, .T_cap = 400, .in = 264, .out = {392, 16}, .n_parts = 2, .rank = {8, 5}, .dropout = 0.1f,
         .joined = true, .plain = true, .extension = 64},
        {BF16, .T = 200, .T_cap = 200, .in = 256, .out = {520}, .n_parts = 1, .rank = {24}, .joined = true,
         .plain = true, .extension = 64},
        {BF16, .T = 40, .T_cap = 41, .in = 64, .out = {32}, .n_parts = 1, .rank = {8}, .dropout = 0.1f,
         .extension = 64}, /* dx_add: dU by itself */
        {BF16, .T = 40, .T_cap = 41, .in = 64, .out = {32, 16}, .n_parts = 2, .rank = {8, 3}, .dropout = 0.1f,
         .joined = true, .frozen_input = true, .extension = 64},
        {BF16, .T = 40, .T_cap = 41, .in = 1040, .out = {24, 136}, .n_parts = 2, .rank = {8, 5}, .dropout = 0.1f,
         .joined = true, .plain = true, .extension = 64}, /* U in parts */
        {BF16, .T = 40, .T_cap = 41, .in = 1040, .out = {15}, .n_parts = 1, .rank = {8}, .plain = true,
         .extension = 64}, /* rows of dY that no vector load fits */
        {BF16, .T = 20, .T_cap = 20, .in = 64, .out = {32}, .n_parts = 1, .rank = {70}, .plain = true,
         .extension = 64}, /* too little room */
        {.activation = DT_F32,
         .weight = DT_BF16,
         .T = 33,
         .T_cap = 33,
         .in = 64,
         .out = {24, 8},
         .n_parts = 2,
         .rank = {8, 8},
         .dropout = 0.1f,
         .joined = true,
         .plain = true,
         .extension = 64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}
/* f32, weights of the other dtype, widths and pitches that no vector load fits. */
static void other_shapes(void **state)
{
    const shape list[] = {
        {.activation = DT_F32,
         .weight = DT_F32,
         .T = 65,
         .T_cap = 80,
         .in = 51,
         .out = {24, 7, 40},
         .n_parts = 3,
         .rank = {4, 0, 5},
         .dropout = 0.25f},
        {.activation = DT_F32,
         .weight = DT_BF16,
         .T = 33,
         .T_cap = 33,
         .in = 64,
         .out = {24, 8},
         .n_parts = 2,
         .rank = {8, 8},
         .dropout = 0.1f,
         .joined = true,
         .recorded = true},
        {.activation = DT_BF16, .weight = DT_F32, .T = 40, .T_cap = 40, .in = 64, .out = {24, 8}, .n_parts = 2},
        {BF16, .T = 30, .T_cap = 31, .in = 37, .out = {15, 6}, .n_parts = 2, .rank = {3, 1}, .dropout = 0.5f,
         .joined = true},
        {BF16, .T = 30, .T_cap = 31, .in = 40, .out = {16, 8}, .n_parts = 2, .rank = {3, 1}, .dropout = 0.5f, .pad = 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}

/* y over c, dx over dx_add: the aliases the contract allows; no dx at all. */
static void aliases(void **state)
{
    const shape s = {BF16, .T = 20, .T_cap = 32, .in = 64, .out = {32}, .n_parts = 1, .rank = {4}, .dropout = 0.1f};
    const dt_op_set *set = emulated_set(DT_OP_LINEAR);
    ot_call apart = emulated_begin(), over = emulated_begin();
    dt_linear_args a = make(&apart.pool, &s, false), b = make(&over.pool, &s, false);
    (void)state;
    b.part[0].y = b.part[0].c;
    b.dx = b.dx_add;
    ot_forward(&apart, set, &a, true);
    ot_forward(&over, set, &b, true);
    ot_backward(&apart, set, &a);
    ot_backward(&over, set, &b);
    emulated_wait(&apart);
    emulated_wait(&over);
    ot_same("y", &b.part[0].y, &a.part[0].y);
    ot_same("dx", &b.dx, &a.dx);
    ot_same("dlora_a", &b.dlora_a, &a.dlora_a);
    emulated_finish(&apart);
    emulated_finish(&over);
}

/* ---- cross_entropy ---- */

typedef struct {
    int64_t T, T_cap, H, V;
    dt_dtype activation, weight;
    double targets; /* share of the rows that have one */
    bool gradient, weight_gradient, row_weight, recorded;
} head_shape;

typedef struct {
    dt_cross_entropy_args a;
    dt_cross_entropy_result result;
} head_problem;

static void make_head(head_problem *p, ot_pool *pool, const head_shape *s, bool oracle)
{
    static const dt_step_values values = {.grad_scale = 0.125f};
    uint64_t seed = 31;
    dt_dtype activation = oracle ? DT_F64 : s->activation, parameter = oracle ? DT_F64 : DT_F32;
#define ROW(type, n) ot_tensor(pool, type, 1, (const int64_t[]){n}, 0)
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = MATRIX(activation, s->T_cap, s->H, 0),
                               .weight = MATRIX(oracle ? DT_F64 : s->weight, s->V, s->H, 0),
                               .target = ROW(DT_I32, s->T_cap),
                               .T = s->T,
                               .grad_scale = 0.125f,
                               .result = &p->result,
                               .row_loss = ROW(oracle ? DT_F64 : DT_F32, s->T_cap)};
    ot_fill_normal(&a.h, &seed, 1);
    ot_fill_normal(&a.weight, &seed, 0.5);
    for (int64_t t = 0; t < s->T_cap; t++) {
        double pick = ot_uniform(&seed), where = ot_uniform(&seed);
        ((int32_t *)a.target.data)[t] = pick < s->targets ? (int32_t)(where * (double)s->V) : -100;
    }
    if (s->row_weight) {
        a.row_weight = ROW(parameter, s->T_cap);
        ot_fill_uniform(&a.row_weight, &seed, 0, 2);
    }
    if (s->gradient)
        a.dh = MATRIX(activation, s->T_cap, s->H, 0);
    if (s->weight_gradient) {
        a.dweight = MATRIX(parameter, s->V, s->H, 0);
        ot_fill_normal(&a.dweight, &seed, 0.1);
    }
    if (s->recorded && !oracle) {
        a.values = &values;
        a.grad_scale = 0;
        a.result = NULL;
        a.result_device = &p->result;
    }
    p->a = a;
}

static void check_head(const head_shape *s)
{
    static head_problem want, got;
    const dt_op_set *set = emulated_set(DT_OP_CROSS_ENTROPY);
    bool rounded = s->activation == DT_BF16; /* the logits are, too */
    ot_call oracle = ot_begin(1), device = emulated_begin();
    make_head(&want, &oracle.pool, s, true);
    make_head(&got, &device.pool, s, false);
    ot_forward(&oracle, &dtp_ref_cross_entropy, &want.a, false);
    ot_forward(&device, set, &got.a, false);
    emulated_wait(&device);
    assert_int_equal(got.result.targets, want.result.targets);
    if (!rounded)
        assert_int_equal(got.result.correct, want.result.correct);
    assert_true(fabs(got.result.loss - want.result.loss) <= (rounded ? 2e-3 : 1e-6) * fabs(want.result.loss));
    compare("row_loss", &got.a.row_loss, &want.a.row_loss, rounded ? 5e-3 : 1e-6);
    compare("dh", &got.a.dh, &want.a.dh, rounded ? 8e-3 : 1e-5);
    compare("dweight", &got.a.dweight, &want.a.dweight, rounded ? 8e-3 : 1e-5);
    emulated_finish(&device);
    ot_finish(&oracle.pool);
}
static void heads(void **state)
{
    const head_shape list[] = {
        {BF16, .T = 40, .T_cap = 48, .H = 24, .V = 1000, .targets = 0.6, .gradient = true},
        {BF16, .T = 33, .T_cap = 33, .H = 16, .V = 8200, .targets = 1, .gradient = true, .weight_gradient = true,
         .row_weight = true, .recorded = true},
        {BF16, .T = 9, .T_cap = 9, .H = 9, .V = 77, .targets = 0.8, .gradient = true, .weight_gradient = true},
        {BF16, .T = 12, .T_cap = 12, .H = 8, .V = 64, .targets = 0, .gradient = true},
        {BF16, .T = 0, .T_cap = 4, .H = 8, .V = 64, .targets = 1, .gradient = true},
        {BF16, .T = 20, .T_cap = 20, .H = 8, .V = 640, .targets = 0.5},
        {.activation = DT_F32,
         .weight = DT_BF16,
         .T = 530,
         .T_cap = 531,
         .H = 8,
         .V = 48,
         .targets = 0.9,
         .gradient = true,
         .row_weight = true},
        {.activation = DT_F32,
         .weight = DT_F32,
         .T = 30,
         .T_cap = 32,
         .H = 40,
         .V = 333,
         .targets = 0.7,
         .gradient = true,
         .weight_gradient = true,
         .recorded = true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_head(&list[i]);
}
/* Of equal logits the lowest index is the answer, wherever threads and units of eight divide the row. */
static void ties(void **state)
{
    const int64_t V = 9000;
    const int64_t equal[3][2] = {{5, 6}, {4104, 8500}, {1023, 8999}};
    const dt_op_set *set = emulated_set(DT_OP_CROSS_ENTROPY);
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int which = 0; which < 2; which++) {
            ot_call c = emulated_begin();
            head_problem p;
            head_shape s = {BF16, .T = 1, .T_cap = 1, .H = 8, .V = V, .targets = 1};
            make_head(&p, &c.pool, &s, false);
            ot_fill(&p.a.h, 1);
            ot_fill(&p.a.weight, 0);
            for (int i = 0; i < 2; i++)
                ot_set(&p.a.weight, equal[k][i] * 8, 3);
            ((int32_t *)p.a.target.data)[0] = (int32_t)equal[k][which];
            ot_forward(&c, set, &p.a, false);
            emulated_wait(&c);
            assert_int_equal(p.result.correct, which == 0);
            emulated_finish(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_shapes),  cmocka_unit_test(streamed_shapes), cmocka_unit_test(extended_shapes),
        cmocka_unit_test(other_shapes), cmocka_unit_test(aliases),         cmocka_unit_test(heads),
        cmocka_unit_test(ties),
    };
    return cmocka_run_group_tests(tests, emulated_load, NULL);
}
