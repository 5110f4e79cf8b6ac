/* linear: against the reference in F64, for every instruction set, block edges, bf16 weights, strided views. */
#include "providers/cpu/cpu.h"
#include "providers/cpu/cpu_isa.h"
#include "providers/op_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/linear.h>

typedef struct {
    int64_t T, T_cap, in, out[3];
    int n_parts;
    int64_t rank; /* of the parts 0 and 2; 0 = no adapters */
    float dropout;
    dt_dtype weight;
    bool plain; /* no addends, no gradient of the weight */
} shape;

/* The same numbers for every dtype; every output is NaN before the call. */
static dt_linear_args make(ot_pool *pool, const shape *s, dt_dtype activation, int64_t pad)
{
    uint64_t seed = 17;
    dt_dtype weight = activation == DT_F64 ? DT_F64 : s->weight, parameter = activation == DT_F64 ? DT_F64 : DT_F32;
#define TENSOR(dtype, rows, columns) ot_tensor(pool, dtype, 2, (const int64_t[]){rows, columns}, pad)
    dt_linear_args a = {DT_LINEAR_ARGS,
                        .x = TENSOR(activation, s->T_cap, s->in),
                        .T = s->T,
                        .n_parts = s->n_parts,
                        .lora_scale = 2,
                        .dropout = s->dropout,
                        .seed = 12345678901ull,
                        .step = 7,
                        .micro = 1,
                        .input = 9,
                        .dx = TENSOR(activation, s->T_cap, s->in)};
    ot_fill_normal(&a.x, &seed, 1);
    if (s->rank) {
        a.lora_a = TENSOR(parameter, 2 * s->rank, s->in);
        a.dlora_a = TENSOR(parameter, 2 * s->rank, s->in);
        ot_fill_normal(&a.lora_a, &seed, 0.1);
        ot_fill_normal(&a.dlora_a, &seed, 1);
    }
    if (!s->plain) {
        a.dx_add = TENSOR(activation, s->T_cap, s->in);
        ot_fill_normal(&a.dx_add, &seed, 1);
    }
    for (int j = 0; j < s->n_parts; j++) {
        dt_linear_part *p = &a.part[j];
        p->weight = TENSOR(weight, s->out[j], s->in);
        p->y = TENSOR(activation, s->T_cap, s->out[j]);
        p->dy = TENSOR(activation, s->T_cap, s->out[j]);
        ot_fill_normal(&p->weight, &seed, 0.1);
        ot_fill_normal(&p->dy, &seed, 1);
        if (!s->plain && j != 1) {
            p->c = TENSOR(activation, s->T_cap, s->out[j]);
            ot_fill_normal(&p->c, &seed, 1);
        }
        if (!s->plain) {
            p->dweight = TENSOR(parameter, s->out[j], s->in);
            ot_fill_normal(&p->dweight, &seed, 1);
        }
        if (s->rank && j != 1) {
            p->lora_b = TENSOR(parameter, s->out[j], s->rank);
            p->dlora_b = TENSOR(parameter, s->out[j], s->rank);
            p->lora_row = j ? s->rank : 0;
            ot_fill_normal(&p->lora_b, &seed, 0.1);
            ot_fill_normal(&p->dlora_b, &seed, 1);
        }
    }
    return a;
}

static void run(ot_call *c, const dt_op_set *set, const dt_linear_args *a)
{
    ot_forward(c, set, a, true);
    ot_backward(c, set, a);
}

typedef void (*visit)(const char *what, const dt_tensor *got, const dt_tensor *want, double tolerance);

static void each_output(const dt_linear_args *got, const dt_linear_args *want, visit compare)
{
    compare("dx", &got->dx, &want->dx, 1e-4);
    if (dt_tensor_present(&want->dlora_a))
        compare("dlora_a", &got->dlora_a, &want->dlora_a, 1e-4);
    for (int j = 0; j < want->n_parts; j++) {
        const dt_linear_part *g = &got->part[j], *w = &want->part[j];
        compare("y", &g->y, &w->y, 1e-5);
        if (dt_tensor_present(&w->dweight))
            compare("dweight", &g->dweight, &w->dweight, 1e-4);
        if (dt_tensor_present(&w->dlora_b))
            compare("dlora_b", &g->dlora_b, &w->dlora_b, 1e-4);
    }
}

static void close_enough(const char *what, const dt_tensor *got, const dt_tensor *want, double tolerance)
{
    ot_compare(what, got, want, OT_WHOLE, NULL, NULL, tolerance);
}

static void same(const char *what, const dt_tensor *got, const dt_tensor *want, double tolerance)
{
    (void)tolerance;
    ot_same(what, got, want);
}

static void check_shape(const shape *s)
{
    ot_call oracle = ot_begin(1);
    dt_linear_args want = make(&oracle.pool, s, DT_F64, 0);
    run(&oracle, &dtp_ref_linear, &want);
    for (dt_cpu_isa isa = DT_ISA_PORTABLE; isa <= dtp_cpu_isa_best(); isa++) {
        dtp_cpu_isa_cap(isa);
        ot_call first = ot_begin(1);
        dt_linear_args one = make(&first.pool, s, DT_F32, 0);
        run(&first, &dtp_cpu_linear, &one);
        each_output(&one, &want, close_enough);
        for (int threads = 2; threads <= 5; threads += 3) { /* any number of threads: the same bits */
            ot_call c = ot_begin(threads);
            dt_linear_args many = make(&c.pool, s, DT_F32, threads); /* and any row pitch and alignment */
            run(&c, &dtp_cpu_linear, &many);
            each_output(&many, &one, same);
            ot_finish(&c.pool);
        }
        ot_finish(&first.pool);
    }
    dtp_cpu_isa_cap(DT_ISA_AVX512);
    ot_finish(&oracle.pool);
}

static void shapes(void **state)
{
    (void)state;
    const shape list[] = {
        {.T = 0, .T_cap = 64, .in = 8, .out = {4}, .n_parts = 1, .rank = 2, .weight = DT_F32},
        {.T = 1, .T_cap = 1, .in = 1, .out = {1}, .n_parts = 1, .weight = DT_BF16},
        {.T = 1,
         .T_cap = 64,
         .in = 40,
         .out = {24, 8, 129},
         .n_parts = 3,
         .rank = 4,
         .dropout = 0.5f,
         .weight = DT_BF16},
        {.T = 63, .T_cap = 64, .in = 511, .out = {127}, .n_parts = 1, .rank = 1, .weight = DT_F32},
        {.T = 64,
         .T_cap = 64,
         .in = 512,
         .out = {128, 1},
         .n_parts = 2,
         .rank = 8,
         .dropout = 0.05f,
         .weight = DT_BF16},
        {.T = 65,
         .T_cap = 128,
         .in = 513,
         .out = {129, 7, 12},
         .n_parts = 3,
         .rank = 3,
         .dropout = 0.1f,
         .weight = DT_F32},
        {.T = 255, .T_cap = 256, .in = 96, .out = {31, 33}, .n_parts = 2, .weight = DT_BF16, .plain = true},
        {.T = 257, .T_cap = 320, .in = 67, .out = {260}, .n_parts = 1, .rank = 16, .dropout = 0.9f, .weight = DT_BF16},
        {.T = 521,
         .T_cap = 521,
         .in = 13,
         .out = {17, 5, 3},
         .n_parts = 3,
         .rank = 2,
         .dropout = 0.25f,
         .weight = DT_F32},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}

/* A row of y and dx is the same bits whatever rows stand around it: packed equals separate. */
static void rows_do_not_depend_on_neighbours(void **state)
{
    (void)state;
    enum { ROW = 33 };
    const shape s = {.T = 700, .T_cap = 704, .in = 530, .out = {150, 40}, .n_parts = 2, .rank = 4, .weight = DT_BF16};
    ot_call all = ot_begin(3), one = ot_begin(1);
    dt_linear_args a = make(&all.pool, &s, DT_F32, 0), b = make(&one.pool, &s, DT_F32, 0);
    dt_tensor *of_rows[] = {&b.x,         &b.dx,         &b.dx_add,    &b.part[0].y,
                            &b.part[0].c, &b.part[0].dy, &b.part[1].y, &b.part[1].dy};
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        *of_rows[i] = dt_tensor_slice(*of_rows[i], 0, ROW, ROW + 1);
    b.T = 1;
    run(&all, &dtp_cpu_linear, &a);
    run(&one, &dtp_cpu_linear, &b);
    dt_tensor dx = dt_tensor_slice(a.dx, 0, ROW, ROW + 1);
    ot_same("dx", &b.dx, &dx);
    for (int j = 0; j < 2; j++) {
        dt_tensor y = dt_tensor_slice(a.part[j].y, 0, ROW, ROW + 1);
        ot_same("y", &b.part[j].y, &y);
    }
    ot_finish(&all.pool);
    ot_finish(&one.pool);
}

/* y over c, dx over dx_add: the aliases the contract allows. */
static void aliases(void **state)
{
    (void)state;
    const shape s = {
        .T = 70, .T_cap = 128, .in = 50, .out = {60}, .n_parts = 1, .rank = 2, .dropout = 0.1f, .weight = DT_F32};
    ot_call apart = ot_begin(2), over = ot_begin(2);
    dt_linear_args a = make(&apart.pool, &s, DT_F32, 0), b = make(&over.pool, &s, DT_F32, 0);
    b.part[0].y = b.part[0].c;
    b.dx = b.dx_add;
    run(&apart, &dtp_cpu_linear, &a);
    run(&over, &dtp_cpu_linear, &b);
    each_output(&b, &a, same);
    ot_finish(&apart.pool);
    ot_finish(&over.pool);
}

/* A frozen part in the first layer of a frozen model: no dx, no parameter gradient of any kind. */
static void nothing_to_do_in_backward(void **state)
{
    (void)state;
    const shape s = {.T = 5, .T_cap = 5, .in = 8, .out = {3}, .n_parts = 1, .weight = DT_BF16, .plain = true};
    ot_call c = ot_begin(2);
    dt_linear_args a = make(&c.pool, &s, DT_F32, 0);
    dt_tensor dx = a.dx;
    a.dx = (dt_tensor){0};
    run(&c, &dtp_cpu_linear, &a);
    assert_true(isnan(ot_get(&dx, 0)));
    ot_finish(&c.pool);
}

/* NaN in one row of x stays in that row of y. */
static void nan_stays_in_its_row(void **state)
{
    (void)state;
    const shape s = {
        .T = 70, .T_cap = 128, .in = 50, .out = {60}, .n_parts = 1, .rank = 2, .weight = DT_F32, .plain = true};
    ot_call c = ot_begin(2);
    dt_linear_args a = make(&c.pool, &s, DT_F32, 0);
    ot_set(&a.x, ot_offset(&a.x, 33 * s.in + 4), NAN);
    ot_forward(&c, &dtp_cpu_linear, &a, true);
    for (int64_t i = 0; i < dt_tensor_numel(&a.part[0].y); i++)
        assert_true(isnan(ot_get(&a.part[0].y, ot_offset(&a.part[0].y, i))) == (i / 60 == 33));
    ot_finish(&c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(rows_do_not_depend_on_neighbours),
        cmocka_unit_test(aliases),
        cmocka_unit_test(nothing_to_do_in_backward),
        cmocka_unit_test(nan_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
