/* The oracle of the operators outside the delta-rule family: gradients against central differences, values against
 * formulas worked out here. (Attention and the norm also run the reference cases, in the tests of the cpu room.) */
#include "providers/reference/differences_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/activation.h>
#include <deltune/op/attention.h>
#include <deltune/op/cross_entropy.h>
#include <deltune/op/embedding.h>
#include <deltune/op/linear.h>
#include <deltune/op/optimizer.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rope.h>

/* Forward, then backward with the gradients it leaves. */
static void run(problem *p, const void *args)
{
    p->args = args;
    ot_forward(&p->call, p->set, args, true);
    ot_backward(&p->call, p->set, args);
}

static void rms_norm_differences(void **state)
{
    (void)state;
    enum { T = 5, H = 2, D = 7 };
    for (int zero_centered = 0; zero_centered < 2; zero_centered++) {
        problem p = {.set = &dtp_ref_rms_norm, .call = ot_begin(1)};
        ot_pool *pool = &p.call.pool;
        uint64_t seed = 1;
        dt_rms_norm_args a = {DT_RMS_NORM_ARGS,
                              .x = RANDOM(1, 3, T, H, D),
                              .weight = RANDOM(1, 1, D),
                              .y = EMPTY(3, T, H, D),
                              .eps = 1e-3f,
                              .zero_centered = zero_centered,
                              .T = T,
                              .dy = RANDOM(1, 3, T, H, D),
                              .dx = EMPTY(3, T, H, D),
                              .dweight = EMPTY(1, D)};
        ot_fill(&a.dweight, 0);
        p.output[0] = &a.y, p.upstream[0] = &a.dy;
        run(&p, &a);
        check_differences(&p, "x", &a.x, &a.dx, 1);
        check_differences(&p, "weight", &a.weight, &a.dweight, 1);
        ot_finish(pool);
    }
}

static void gate_differences(void **state)
{
    (void)state;
    enum { T = 6, C = 5 };
    const dt_op_set *const sets[] = {&dtp_ref_sigmoid_gate, &dtp_ref_swiglu};
    for (int i = 0; i < 2; i++) {
        problem p = {.set = sets[i], .call = ot_begin(1)};
        ot_pool *pool = &p.call.pool;
        uint64_t seed = 2;
        dt_gate_args a = {DT_GATE_ARGS, .x = RANDOM(1, 2, T, C),  .gate = RANDOM(2, 2, T, C), .y = EMPTY(2, T, C),
                          .T = T,       .dy = RANDOM(1, 2, T, C), .dx = EMPTY(2, T, C),       .dgate = EMPTY(2, T, C)};
        p.output[0] = &a.y, p.upstream[0] = &a.dy;
        run(&p, &a);
        check_differences(&p, "x", &a.x, &a.dx, 1);
        check_differences(&p, "gate", &a.gate, &a.dgate, 1);
        ot_finish(pool);
    }
}

static void rope_differences(void **state)
{
    (void)state;
    enum { T = 5, H = 2, D = 10 };
    static int32_t positions[T] = {0, 1, 2, 0, 100};
    problem p = {.set = &dtp_ref_rope, .call = ot_begin(1)};
    ot_pool *pool = &p.call.pool;
    uint64_t seed = 3;
    dt_rope_args a = {DT_ROPE_ARGS,
                      .x = RANDOM(1, 3, T, H, D),
                      .y = EMPTY(3, T, H, D),
                      .positions = dt_tensor_1d(positions, DT_I32, T),
                      .T = T,
                      .theta = 1e4f,
                      .rotary_dim = 6,
                      .dy = RANDOM(1, 3, T, H, D),
                      .dx = EMPTY(3, T, H, D)};
    p.output[0] = &a.y, p.upstream[0] = &a.dy;
    run(&p, &a);
    check_differences(&p, "x", &a.x, &a.dx, 1);
    /* Pair (1, 4) of the last row turns by 100 * theta^(-1/3); channels past rotary_dim stay. */
    double f = 100 * pow(1e4, -2.0 / 6), x0 = ref_load3(&a.x, 4, 1, 1), x1 = ref_load3(&a.x, 4, 1, 4);
    assert_true(fabs(ref_load3(&a.y, 4, 1, 1) - (x0 * cos(f) - x1 * sin(f))) < 1e-12);
    assert_true(fabs(ref_load3(&a.y, 4, 1, 4) - (x1 * cos(f) + x0 * sin(f))) < 1e-12);
    assert_true(ref_load3(&a.y, 4, 1, 7) == ref_load3(&a.x, 4, 1, 7));
    ot_finish(pool);
}

static void attention_differences(void **state)
{
    (void)state;
    enum { T = 11, H = 4, HKV = 2, D = 3, N = 4 };
    static const int32_t cu[N + 1] = {0, 1, 1, 7, T};
    problem p = {.set = &dtp_ref_attention, .call = ot_begin(1)};
    ot_pool *pool = &p.call.pool;
    uint64_t seed = 4;
    dt_attention_args a = {DT_ATTENTION_ARGS,
                           .q = RANDOM(1, 3, T, H, D),
                           .k = RANDOM(1, 3, T, HKV, D),
                           .v = RANDOM(1, 3, T, HKV, D),
                           .o = EMPTY(3, T, H, D),
                           .seqs = {.cu_seqlens = cu, .n_seq = N, .n_seq_cap = N, .T = T, .T_cap = T},
                           .scale = 0.6f,
                           .d_o = RANDOM(1, 3, T, H, D),
                           .dq = EMPTY(3, T, H, D),
                           .dk = EMPTY(3, T, HKV, D),
                           .dv = EMPTY(3, T, HKV, D)};
    p.output[0] = &a.o, p.upstream[0] = &a.d_o;
    run(&p, &a);
    check_differences(&p, "q", &a.q, &a.dq, 1);
    check_differences(&p, "k", &a.k, &a.dk, 1);
    check_differences(&p, "v", &a.v, &a.dv, 1);
    ot_finish(pool);
}

static void linear_differences(void **state)
{
    (void)state;
    enum { T = 4, IN = 9, OUT0 = 5, OUT1 = 3, R = 5 };
    for (int dropout = 0; dropout < 2; dropout++) {
        problem p = {.set = &dtp_ref_linear, .call = ot_begin(1)};
        ot_pool *pool = &p.call.pool;
        uint64_t seed = 5;
        dt_linear_args a = {DT_LINEAR_ARGS,
                            .x = RANDOM(1, 2, T, IN),
                            .T = T,
                            .n_parts = 2,
                            .lora_a = RANDOM(1, 2, R, IN),
                            .lora_scale = 1.5f,
                            .dropout = dropout ? 0.3f : 0.0f,
                            .seed = 99,
                            .step = 3,
                            .input = 8,
                            .dx = EMPTY(2, T, IN),
                            .dlora_a = EMPTY(2, R, IN)};
        const int64_t out[2] = {OUT0, OUT1}, rank[2] = {2, 3};
        for (int j = 0; j < 2; j++) {
            dt_linear_part *part = &a.part[j];
            *part = (dt_linear_part){.weight = RANDOM(1, 2, out[j], IN),
                                     .y = EMPTY(2, T, out[j]),
                                     .c = RANDOM(1, 2, T, out[j]),
                                     .lora_b = RANDOM(1, 2, out[j], rank[j]),
                                     .lora_row = j ? 2 : 0,
                                     .dy = RANDOM(1, 2, T, out[j]),
                                     .dweight = EMPTY(2, out[j], IN),
                                     .dlora_b = EMPTY(2, out[j], rank[j])};
            ot_fill(&part->dweight, 0);
            ot_fill(&part->dlora_b, 0);
            p.output[j] = &part->y, p.upstream[j] = &part->dy;
        }
        ot_fill(&a.dlora_a, 0);
        run(&p, &a);
        check_differences(&p, "x", &a.x, &a.dx, 1);
        check_differences(&p, "lora_a", &a.lora_a, &a.dlora_a, 1);
        for (int j = 0; j < 2; j++) {
            check_differences(&p, "weight", &a.part[j].weight, &a.part[j].dweight, 1);
            check_differences(&p, "lora_b", &a.part[j].lora_b, &a.part[j].dlora_b, 1);
        }
        ot_finish(pool);
    }
}

static double cross_entropy_loss(const void *args)
{
    const dt_cross_entropy_args *a = args;
    return a->result->loss * a->grad_scale;
}

static void cross_entropy_differences(void **state)
{
    (void)state;
    enum { T = 6, H = 4, V = 11 };
    static int32_t target[T] = {3, -1, 10, 0, -100, 3};
    static float weights[T] = {1, 5, 0.5f, 2, 5, 0};
    problem p = {.set = &dtp_ref_cross_entropy, .call = ot_begin(1), .loss = cross_entropy_loss};
    ot_pool *pool = &p.call.pool;
    uint64_t seed = 6;
    dt_cross_entropy_result result;
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = RANDOM(1, 2, T, H),
                               .weight = RANDOM(1, 2, V, H),
                               .target = dt_tensor_1d(target, DT_I32, T),
                               .row_weight = dt_tensor_1d(weights, DT_F32, T),
                               .T = T,
                               .grad_scale = 0.25f,
                               .result = &result};
    dt_tensor dh = EMPTY(2, T, H), dweight = EMPTY(2, V, H), row_loss = EMPTY(1, T);
    ot_fill(&dweight, 0);
    a.dh = dh, a.dweight = dweight, a.row_loss = row_loss;
    ot_forward(&p.call, p.set, &a, false);
    double sum = 0;
    for (int64_t t = 0; t < T; t++)
        sum += target[t] < 0 ? 0 : weights[t] * ot_get(&row_loss, t);
    assert_true(fabs(sum - result.loss) < 1e-12);
    assert_int_equal(result.targets, 4);
    a.dh.data = a.dweight.data = a.row_loss.data = NULL;
    p.args = &a;
    check_differences(&p, "h", &a.h, &dh, 1);
    check_differences(&p, "weight", &a.weight, &dweight, 1);
    ot_finish(pool);
}

/* Two equal logits: the lower index is the answer. */
static void cross_entropy_ties(void **state)
{
    (void)state;
    float h[2] = {1, 1}, weight[3] = {1, 2, 2};
    int32_t target[2] = {1, 2};
    dt_cross_entropy_result result;
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = dt_tensor_2d(h, DT_F32, 2, 1),
                               .weight = dt_tensor_2d(weight, DT_F32, 3, 1),
                               .target = dt_tensor_1d(target, DT_I32, 2),
                               .T = 2,
                               .grad_scale = 1,
                               .result = &result};
    ot_call c = ot_begin(1);
    ot_forward(&c, &dtp_ref_cross_entropy, &a, false);
    assert_int_equal(result.correct, 1);
    assert_true(fabs(result.loss - 2 * (log(exp(1) + 2 * exp(2)) - 2)) < 1e-12);
    ot_finish(&c.pool);
}

static void embedding_adds_rows(void **state)
{
    (void)state;
    enum { T = 4, V = 3, H = 2 };
    int32_t ids[T] = {2, 0, 2, 1};
    float weight[V * H] = {0, 1, 10, 11, 20, 21}, y[(T + 1) * H], dy[T * H] = {1, 2, 3, 4, 5, 6, 7, 8},
                     dweight[V * H] = {0.5f};
    dt_embedding_args a = {DT_EMBEDDING_ARGS,
                           .ids = dt_tensor_1d(ids, DT_I32, T),
                           .weight = dt_tensor_2d(weight, DT_F32, V, H),
                           .y = dt_tensor_2d(y, DT_F32, T + 1, H),
                           .T = T,
                           .dy = dt_tensor_2d(dy, DT_F32, T, H),
                           .dweight = dt_tensor_2d(dweight, DT_F32, V, H)};
    ot_call c = ot_begin(1);
    ot_forward(&c, &dtp_ref_embedding, &a, true);
    ot_backward(&c, &dtp_ref_embedding, &a);
    const float expected_y[] = {20, 21, 0, 1, 20, 21, 10, 11, 0, 0}, expected_dweight[] = {3.5f, 4, 7, 8, 6, 8};
    assert_memory_equal(y, expected_y, sizeof expected_y);
    assert_memory_equal(dweight, expected_dweight, sizeof expected_dweight);
    ot_finish(&c.pool);
}

/* torch.optim.AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), parameter 1, gradients 0.5 then -0.25. */
static void adamw_matches_torch(void **state)
{
    (void)state;
    float param[2] = {1, 1}, m[2] = {0}, v[2] = {0}, grad[2] = {1, 1};
    dt_param_segment segments[2] = {{0, 1, 0.1f}, {1, 1, 0}};
    dt_adamw_args a = {DT_ADAMW_ARGS,
                       .param = dt_tensor_1d(param, DT_F32, 2),
                       .grad = dt_tensor_1d(grad, DT_F32, 2),
                       .m = dt_tensor_1d(m, DT_F32, 2),
                       .v = dt_tensor_1d(v, DT_F32, 2),
                       .segments = segments,
                       .n_segments = 2,
                       .lr = 0.1f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .grad_scale = 0.5f,
                       .step = 1};
    ot_call c = ot_begin(1);
    ot_forward(&c, &dtp_ref_adamw, &a, false);
    grad[0] = grad[1] = -0.5f;
    a.step = 2;
    ot_forward(&c, &dtp_ref_adamw, &a, false);
    const double expected[2] = {0.8542630578558273, 0.8731630578758274}; /* with and without decay */
    for (int i = 0; i < 2; i++) {
        assert_true(fabs(param[i] - expected[i]) < 1e-6);
        assert_true(fabs(m[i] - 0.02) < 1e-8 && fabs(v[i] - 0.015) < 1e-8);
    }
    ot_finish(&c.pool);
}

static void grad_norm_names_the_segment(void **state)
{
    (void)state;
    float grad[6] = {3, 4, 1, 1, 1, 1};
    dt_param_segment segments[3] = {{0, 2, 0}, {2, 0, 0}, {2, 4, 0}};
    dt_grad_norm_result result;
    dt_grad_norm_args a = {DT_GRAD_NORM_ARGS, .grad = dt_tensor_1d(grad, DT_F32, 6), .segments = segments,
                           .n_segments = 3, .result = &result};
    ot_call c = ot_begin(1);
    ot_forward(&c, &dtp_ref_grad_norm, &a, false);
    assert_true(result.sum_of_squares == 29);
    assert_int_equal(result.first_nonfinite, -1);
    grad[5] = NAN;
    ot_forward(&c, &dtp_ref_grad_norm, &a, false);
    assert_int_equal(result.first_nonfinite, 2);
    grad[0] = INFINITY;
    ot_forward(&c, &dtp_ref_grad_norm, &a, false);
    assert_int_equal(result.first_nonfinite, 0);
    ot_finish(&c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_differences), cmocka_unit_test(gate_differences),
        cmocka_unit_test(rope_differences),     cmocka_unit_test(attention_differences),
        cmocka_unit_test(linear_differences),   cmocka_unit_test(cross_entropy_differences),
        cmocka_unit_test(cross_entropy_ties),   cmocka_unit_test(embedding_adds_rows),
        cmocka_unit_test(adamw_matches_torch),  cmocka_unit_test(grad_norm_names_the_segment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
