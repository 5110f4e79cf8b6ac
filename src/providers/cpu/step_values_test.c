/* Recorded steps on the CPU: values read from dt_step_values give the bits of the same values in the fields. */
#include "providers/cpu/cpu.h"
#include "providers/op_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/cross_entropy.h>
#include <deltune/op/linear.h>
#include <deltune/op/optimizer.h>

static const dt_step_values values = {
    .seed = 77, .step = 5, .micro = 3, .grad_scale = 0.25f, .lr = 1e-2f, .max_grad_norm = 1.5f, .update = 4};

#define RANDOM(rank, ...) random_tensor(pool, &seed, rank, (const int64_t[]){__VA_ARGS__})

static dt_tensor random_tensor(ot_pool *pool, uint64_t *seed, int rank, const int64_t *shape)
{
    dt_tensor t = ot_tensor(pool, DT_F32, rank, shape, 0);
    ot_fill_normal(&t, seed, 1);
    return t;
}

/* ---- linear: the mask ---- */

static dt_linear_args run_linear(ot_call *c, const dt_op_set *set, const dt_step_values *v)
{
    enum { T = 7, IN = 24, OUT = 9, RANK = 2 };
    uint64_t seed = 5;
    ot_pool *pool = &c->pool;
    dt_linear_args a = {DT_LINEAR_ARGS,
                        .x = RANDOM(2, T, IN),
                        .T = T,
                        .n_parts = 1,
                        .part = {{.weight = RANDOM(2, OUT, IN),
                                  .y = RANDOM(2, T, OUT),
                                  .lora_b = RANDOM(2, OUT, RANK),
                                  .dy = RANDOM(2, T, OUT),
                                  .dlora_b = RANDOM(2, OUT, RANK)}},
                        .lora_a = RANDOM(2, RANK, IN),
                        .lora_scale = 2,
                        .dropout = 0.5f,
                        .seed = v ? 1 : values.seed, /* wrong where it must not be read */
                        .step = v ? 2 : values.step,
                        .micro = v ? 4 : values.micro,
                        .input = 6,
                        .dx = RANDOM(2, T, IN),
                        .dlora_a = RANDOM(2, RANK, IN),
                        .values = v};
    ot_forward(c, set, &a, true);
    ot_backward(c, set, &a);
    return a;
}

static void linear(void **state)
{
    const dt_op_set *set = *state;
    ot_call c = ot_begin(2), d = ot_begin(2), e = ot_begin(2);
    dt_step_values other = values;
    other.step++;
    dt_linear_args fields = run_linear(&c, set, NULL), device = run_linear(&d, set, &values);
    dt_linear_args differs = run_linear(&e, set, &other);
    ot_same("y", &fields.part[0].y, &device.part[0].y);
    ot_same("dx", &fields.dx, &device.dx);
    ot_same("dlora_a", &fields.dlora_a, &device.dlora_a);
    ot_same("dlora_b", &fields.part[0].dlora_b, &device.part[0].dlora_b);
    assert_memory_not_equal(fields.dx.data, differs.dx.data, 7 * 24 * sizeof(float));
    ot_finish(&c.pool), ot_finish(&d.pool), ot_finish(&e.pool);
}

/* ---- cross_entropy: the scale of gradients, and where the result goes ---- */

static dt_cross_entropy_args run_loss(ot_call *c, const dt_op_set *set, const dt_step_values *v,
                                      dt_cross_entropy_result *result, dt_cross_entropy_result *result_device)
{
    enum { T = 5, H = 8, V = 11 };
    static int32_t target[T] = {3, -100, 0, 10, 4};
    uint64_t seed = 7;
    ot_pool *pool = &c->pool;
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = RANDOM(2, T, H),
                               .weight = RANDOM(2, V, H),
                               .target = dt_tensor_1d(target, DT_I32, T),
                               .T = T,
                               .grad_scale = v ? 9 : values.grad_scale,
                               .result = result,
                               .dh = RANDOM(2, T, H),
                               .dweight = RANDOM(2, V, H),
                               .values = v,
                               .result_device = result_device};
    ot_forward(c, set, &a, false);
    return a;
}

static void cross_entropy(void **state)
{
    const dt_op_set *set = *state;
    ot_call c = ot_begin(2), d = ot_begin(2);
    dt_cross_entropy_result host = {0}, device = {0}, untouched = {.loss = -1};
    dt_cross_entropy_args fields = run_loss(&c, set, NULL, &host, NULL);
    dt_cross_entropy_args recorded = run_loss(&d, set, &values, &untouched, &device);
    ot_same("dh", &fields.dh, &recorded.dh);
    ot_same("dweight", &fields.dweight, &recorded.dweight);
    assert_memory_equal(&host, &device, sizeof host);
    assert_int_equal(device.targets, 4);
    assert_true(untouched.loss == -1);
    ot_finish(&c.pool), ot_finish(&d.pool);
}

/* ---- adamw: rate, step and clipping; grad_norm: where the result goes ---- */

enum { PARAMETERS = 300 };
static const dt_param_segment segments[] = {{0, 100, 0.1f}, {100, 200, 0}};

typedef struct moments {
    float param[PARAMETERS], grad[PARAMETERS], m[PARAMETERS], v[PARAMETERS];
} moments;

static dt_adamw_args make_adamw(moments *s, const dt_step_values *v, const dt_grad_norm_result *norm)
{
    uint64_t seed = 11;
    for (int i = 0; i < PARAMETERS; i++) {
        s->param[i] = (float)ot_normal(&seed);
        s->grad[i] = (float)ot_normal(&seed);
        s->m[i] = (float)ot_normal(&seed);
        s->v[i] = (float)ot_uniform(&seed);
    }
    return (dt_adamw_args){DT_ADAMW_ARGS,
                           .param = dt_tensor_1d(s->param, DT_F32, PARAMETERS),
                           .grad = dt_tensor_1d(s->grad, DT_F32, PARAMETERS),
                           .m = dt_tensor_1d(s->m, DT_F32, PARAMETERS),
                           .v = dt_tensor_1d(s->v, DT_F32, PARAMETERS),
                           .segments = segments,
                           .n_segments = 2,
                           .lr = v ? 5 : values.lr,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .grad_scale = norm ? 5 : 1,
                           .step = v ? 50 : values.update,
                           .values = v,
                           .norm = norm};
}

static void adamw(void **state)
{
    const dt_op_set *set = *state, *norm_set = set == &dtp_ref_adamw ? &dtp_ref_grad_norm : &dtp_cpu_grad_norm;
    static moments want, got;
    ot_call c = ot_begin(2);
    dt_grad_norm_result norm;
    dt_adamw_args a = make_adamw(&want, NULL, NULL);
    dt_grad_norm_args n = {DT_GRAD_NORM_ARGS, .grad = a.grad, .segments = segments, .n_segments = 2,
                           .result_device = &norm};
    ot_forward(&c, norm_set, &n, false);
    assert_int_equal(norm.first_nonfinite, -1);
    assert_true(sqrt(norm.sum_of_squares) > values.max_grad_norm);
    a.grad_scale = (float)(values.max_grad_norm / (sqrt(norm.sum_of_squares) + 1e-6));
    ot_forward(&c, set, &a, false);
    dt_adamw_args b = make_adamw(&got, &values, &norm);
    ot_forward(&c, set, &b, false);
    assert_memory_equal(&want, &got, sizeof want);

    dt_step_values unclipped = values; /* 0: no clipping */
    unclipped.max_grad_norm = 0;
    a = make_adamw(&want, NULL, NULL);
    ot_forward(&c, set, &a, false);
    b = make_adamw(&got, &unclipped, &norm);
    ot_forward(&c, set, &b, false);
    assert_memory_equal(&want, &got, sizeof want);

    make_adamw(&want, NULL, NULL); /* a gradient that is not finite: not a bit changes */
    b = make_adamw(&got, &values, &norm);
    norm.first_nonfinite = 1;
    ot_forward(&c, set, &b, false);
    assert_memory_equal(&want, &got, sizeof want);
    ot_finish(&c.pool);
}

#define ON_BOTH(test)                                                                                                  \
    {#test ", reference", test, NULL, NULL, (void *)(uintptr_t)&dtp_ref_##test},                                       \
    {                                                                                                                  \
#test ", cpu", test, NULL, NULL, (void *)(uintptr_t)&dtp_cpu_##test                                            \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {ON_BOTH(linear), ON_BOTH(cross_entropy), ON_BOTH(adamw)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
