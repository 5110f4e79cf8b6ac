/* cross_entropy: against the reference in F64, around its blocks of rows and of the vocabulary. */
#include "providers/cpu/cpu.h"
#include "providers/cpu/cpu_isa.h"
#include "providers/op_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/cross_entropy.h>

typedef struct {
    int64_t T, T_cap, H, V;
    dt_dtype weight;
    double targets; /* share of the rows that have one */
    bool gradient, weight_gradient, row_weight;
} shape;

typedef struct {
    dt_cross_entropy_args a;
    dt_cross_entropy_result result;
} problem;

static void make(problem *p, ot_pool *pool, const shape *s, dt_dtype dtype, int64_t pad)
{
    uint64_t seed = 31;
    dt_dtype weight = dtype == DT_F64 ? DT_F64 : s->weight, parameter = dtype == DT_F64 ? DT_F64 : DT_F32;
#define MATRIX(type, rows, columns) ot_tensor(pool, type, 2, (const int64_t[]){rows, columns}, pad)
#define ROW(type, n)                ot_tensor(pool, type, 1, (const int64_t[]){n}, 0)
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = MATRIX(dtype, s->T_cap, s->H),
                               .weight = MATRIX(weight, s->V, s->H),
                               .target = ROW(DT_I32, s->T_cap),
                               .T = s->T,
                               .grad_scale = 0.125f,
                               .result = &p->result,
                               .row_loss = ROW(dtype, s->T_cap)};
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
        a.dh = MATRIX(dtype, s->T_cap, s->H);
    if (s->weight_gradient) {
        a.dweight = MATRIX(parameter, s->V, s->H);
        ot_fill_normal(&a.dweight, &seed, 1);
    }
    p->a = a;
}

static void check_shape(const shape *s)
{
    static problem want, one, many;
    ot_call oracle = ot_begin(1);
    make(&want, &oracle.pool, s, DT_F64, 0);
    ot_forward(&oracle, &dtp_ref_cross_entropy, &want.a, false);
    for (dt_cpu_isa isa = DT_ISA_PORTABLE; isa <= dtp_cpu_isa_best(); isa++) {
        dtp_cpu_isa_cap(isa);
        ot_call first = ot_begin(1), second = ot_begin(3);
        make(&one, &first.pool, s, DT_F32, 0);
        make(&many, &second.pool, s, DT_F32, 3);
        ot_forward(&first, &dtp_cpu_cross_entropy, &one.a, false);
        ot_forward(&second, &dtp_cpu_cross_entropy, &many.a, false);
        assert_int_equal(one.result.targets, want.result.targets);
        assert_int_equal(one.result.correct, want.result.correct);
        assert_true(fabs(one.result.loss - want.result.loss) <= 1e-6 * fabs(want.result.loss));
        assert_true(many.result.loss == one.result.loss && many.result.correct == one.result.correct);
        ot_compare("row_loss", &one.a.row_loss, &want.a.row_loss, OT_WHOLE, NULL, NULL, 1e-5);
        ot_same("row_loss with 3 threads", &many.a.row_loss, &one.a.row_loss);
        if (s->gradient) {
            ot_compare("dh", &one.a.dh, &want.a.dh, OT_WHOLE, NULL, NULL, 1e-5);
            ot_same("dh with 3 threads", &many.a.dh, &one.a.dh);
        }
        if (s->weight_gradient) {
            ot_compare("dweight", &one.a.dweight, &want.a.dweight, OT_WHOLE, NULL, NULL, 1e-5);
            ot_same("dweight with 3 threads", &many.a.dweight, &one.a.dweight);
        }
        ot_finish(&first.pool);
        ot_finish(&second.pool);
    }
    dtp_cpu_isa_cap(DT_ISA_AVX512);
    ot_finish(&oracle.pool);
}

static void shapes(void **state)
{
    (void)state;
    const shape list[] = {
        {.T = 0, .T_cap = 64, .H = 8, .V = 20, .weight = DT_F32, .targets = 1, .gradient = true},
        {.T = 1, .T_cap = 1, .H = 1, .V = 1, .weight = DT_F32, .targets = 1, .gradient = true},
        {.T = 20, .T_cap = 64, .H = 16, .V = 50, .weight = DT_BF16, .targets = 0, .gradient = true},
        {.T = 40, .T_cap = 64, .H = 64, .V = 511, .weight = DT_BF16, .targets = 0.6},
        {.T = 31,
         .T_cap = 31,
         .H = 65,
         .V = 513,
         .weight = DT_F32,
         .targets = 0.6,
         .gradient = true,
         .row_weight = true},
        {.T = 65,
         .T_cap = 128,
         .H = 130,
         .V = 1031,
         .weight = DT_BF16,
         .targets = 0.8,
         .gradient = true,
         .weight_gradient = true},
        {.T = 530,
         .T_cap = 576,
         .H = 24,
         .V = 1025,
         .weight = DT_F32,
         .targets = 1,
         .gradient = true,
         .weight_gradient = true,
         .row_weight = true},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}

/* A row alone has the loss and the gradient it has among others, bit for bit. */
static void rows_do_not_depend_on_neighbours(void **state)
{
    (void)state;
    enum { ROW = 321 };
    const shape s = {.T = 600, .T_cap = 640, .H = 48, .V = 3000, .weight = DT_BF16, .targets = 1, .gradient = true};
    static problem all, one;
    ot_call c = ot_begin(3);
    make(&all, &c.pool, &s, DT_F32, 0);
    make(&one, &c.pool, &s, DT_F32, 0);
    one.a.h = dt_tensor_slice(one.a.h, 0, ROW, ROW + 1);
    one.a.dh = dt_tensor_slice(one.a.dh, 0, ROW, ROW + 1);
    one.a.target = dt_tensor_slice(one.a.target, 0, ROW, ROW + 1);
    one.a.row_loss = dt_tensor_slice(one.a.row_loss, 0, ROW, ROW + 1);
    one.a.T = 1;
    ot_forward(&c, &dtp_cpu_cross_entropy, &all.a, false);
    ot_forward(&c, &dtp_cpu_cross_entropy, &one.a, false);
    dt_tensor dh = dt_tensor_slice(all.a.dh, 0, ROW, ROW + 1), loss = dt_tensor_slice(all.a.row_loss, 0, ROW, ROW + 1);
    ot_same("dh", &one.a.dh, &dh);
    ot_same("row_loss", &one.a.row_loss, &loss);
    ot_finish(&c.pool);
}

/* Equal logits: the lowest index is the answer, within a block of the vocabulary and across blocks. */
static void ties(void **state)
{
    (void)state;
    enum { V = 1100 };
    float h[3] = {1, 1, 1}, weight[V] = {0};
    int32_t target[3] = {700, 701, 1050};
    weight[700] = weight[701] = weight[1050] = 2;
    dt_cross_entropy_result result;
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = dt_tensor_2d(h, DT_F32, 3, 1),
                               .weight = dt_tensor_2d(weight, DT_F32, V, 1),
                               .target = dt_tensor_1d(target, DT_I32, 3),
                               .T = 3,
                               .grad_scale = 1,
                               .result = &result};
    ot_call c = ot_begin(2);
    ot_forward(&c, &dtp_cpu_cross_entropy, &a, false);
    assert_int_equal(result.correct, 1);
    ot_finish(&c.pool);
}

/* 16,384 targets and 248,320 words: the workspace stays far below the 15.2 GiB of all logits. */
static void workspace_is_bounded(void **state)
{
    (void)state;
    dt_exec exec = {.struct_size = sizeof exec, .threads = 2};
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS, .h = dt_tensor_2d(NULL, DT_F32, 16384, 2560),
                               .weight = dt_tensor_2d(NULL, DT_BF16, 248320, 2560),
                               .target = dt_tensor_1d(NULL, DT_I32, 16384), .T = 16384};
    size_t bytes = dtp_cpu_cross_entropy.workspace_bytes(&exec, &a, false);
    print_message("workspace of the loss: %zu MiB\n", bytes >> 20);
    assert_true(bytes <= (size_t)192 << 20);
}

/* A NaN in a hidden row shows in the loss, and nowhere but in that row's gradient. */
static void nan_shows(void **state)
{
    (void)state;
    const shape s = {.T = 10, .T_cap = 64, .H = 32, .V = 600, .weight = DT_F32, .targets = 1, .gradient = true};
    ot_call c = ot_begin(2);
    problem p;
    make(&p, &c.pool, &s, DT_F32, 0);
    ot_set(&p.a.h, 4 * s.H + 3, NAN);
    ot_forward(&c, &dtp_cpu_cross_entropy, &p.a, false);
    assert_true(isnan(p.result.loss));
    for (int64_t i = 0; i < dt_tensor_numel(&p.a.dh); i++)
        assert_true(isnan(ot_get(&p.a.dh, i)) == (i / s.H == 4));
    ot_finish(&c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),    cmocka_unit_test(rows_do_not_depend_on_neighbours),
        cmocka_unit_test(ties),      cmocka_unit_test(workspace_is_bounded),
        cmocka_unit_test(nan_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
