#include "conformance/case.h"

#include "core/json.h"

#include <deltune/op/activation.h>
#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/cross_entropy.h>
#include <deltune/op/embedding.h>
#include <deltune/op/gdn.h>
#include <deltune/op/linear.h>
#include <deltune/op/optimizer.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <deltune/op/rope.h>
#include <math.h>
#include <string.h>

/* name in the case, field, storage, what its rows are, how a result is cut, then what is special about it */
#define BINDING(role, name, field, storage, place, slicing, ...)                                                       \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_##role, DT_STORE_##storage, DT_PLACE_##place, DT_SLICE_##slicing,         \
            __VA_ARGS__                                                                                                \
    }
#define IN(name, field, storage, place) BINDING(INPUT, name, field, storage, place, NONE, )
#define UP(name, field, storage, place) BINDING(UPSTREAM, name, field, storage, place, NONE, )
/* n: roundings to bf16 on the way (tolerances.h) */
#define OUT(name, field, storage, place, slicing, n)                                                                   \
    BINDING(OUTPUT, name, field, storage, place, slicing, .roundings = n)
#define GRAD(name, field, storage, place, slicing, n)                                                                  \
    BINDING(GRADIENT, name, field, storage, place, slicing, .roundings = n)

#define ARGS dt_gdn_args
/* its bf16 figures are measured ones: tolerances.c */
static const dt_binding gdn_tensors[] = {
    IN("q", q, ACT, ROWS),
    IN("k", k, ACT, ROWS),
    IN("v", v, ACT, ROWS),
    IN("g", g, F32, ROWS),
    IN("beta", beta, F32, ROWS),
    IN("initial_state", initial_state, F32, STATE),
    OUT("o", o, ACT, ROWS, SEQUENCE_HEAD, 0),
    OUT("final_state", final_state, F32, STATE, STATE_HEAD, 0),
    UP("do", d_o, ACT, ROWS),
    UP("dht", dfinal_state, F32, STATE),
    BINDING(GRADIENT, "dq", dq, ACT, ROWS, SEQUENCE_HEAD, .apart_input = "q"),
    BINDING(GRADIENT, "dk", dk, ACT, ROWS, SEQUENCE_HEAD, .apart_input = "k"),
    GRAD("dv", dv, ACT, ROWS, SEQUENCE_HEAD, 0),
    BINDING(GRADIENT, "dg", dg, F32, ROWS, SEQUENCE_HEAD, .loose = true),
    BINDING(GRADIENT, "dbeta", dbeta, F32, ROWS, SEQUENCE_HEAD, .loose = true),
    GRAD("dinitial_state", dinitial_state, F32, STATE, STATE_HEAD, 0),
};
#undef ARGS
#define ARGS dt_causal_conv1d_args
static const dt_binding conv_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("weight", weight, ACT, PARAM),
    IN("bias", bias, ACT, PARAM),
    IN("initial_state", initial_state, ACT, STATE),
    OUT("y", y, ACT, ROWS, SEQUENCE, 1),
    OUT("final_state", final_state, ACT, STATE, STATE, 0),
    UP("dy", dy, ACT, ROWS),
    UP("dfinal_state", dfinal_state, ACT, STATE),
    GRAD("dx", dx, ACT, ROWS, SEQUENCE, 1),
    GRAD("dweight", dweight, F32, PARAM, NONE, 0),
    GRAD("dbias", dbias, F32, PARAM, NONE, 0),
    GRAD("dinitial_state", dinitial_state, ACT, STATE, STATE, 1),
};
#undef ARGS
#define ARGS dt_rms_norm_args
static const dt_binding norm_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("weight", weight, ACT, PARAM),    OUT("y", y, ACT, ROWS, STATE, 1),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE, 1), GRAD("dweight", dweight, F32, PARAM, NONE, 0),
};
#undef ARGS
#define ARGS dt_rms_norm_gated_args
static const dt_binding gated_norm_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("z", z, ACT, ROWS),
    IN("weight", weight, ACT, PARAM),
    OUT("y", y, ACT, ROWS, STATE, 1),
    UP("dy", dy, ACT, ROWS),
    GRAD("dx", dx, ACT, ROWS, STATE, 1),
    GRAD("dz", dz, ACT, ROWS, STATE, 1),
    GRAD("dweight", dweight, F32, PARAM, NONE, 0),
};
#undef ARGS
#define ARGS dt_attention_args
static const dt_binding attention_tensors[] = {
    IN("q", q, ACT, ROWS),
    IN("k", k, ACT, ROWS),
    IN("v", v, ACT, ROWS),
    OUT("o", o, ACT, ROWS, SEQUENCE_HEAD, 4),
    UP("do", d_o, ACT, ROWS),
    GRAD("dq", dq, ACT, ROWS, SEQUENCE_HEAD, 6),
    GRAD("dk", dk, ACT, ROWS, SEQUENCE_HEAD, 6),
    GRAD("dv", dv, ACT, ROWS, SEQUENCE_HEAD, 4),
};
#undef ARGS

#define ARGS dt_gate_args
static const dt_binding gate_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("gate", gate, ACT, ROWS),         OUT("y", y, ACT, ROWS, STATE, 1),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE, 1), GRAD("dgate", dgate, ACT, ROWS, STATE, 1),
};
#undef ARGS
#define ARGS dt_gdn_gates_args
static const dt_binding gdn_gates_tensors[] = {
    IN("a", a, ACT, ROWS),
    IN("b", b, ACT, ROWS),
    IN("A_log", A_log, ACT, PARAM),
    IN("dt_bias", dt_bias, ACT, PARAM),
    OUT("g", g, F32, ROWS, STATE, 0),
    OUT("beta", beta, F32, ROWS, STATE, 0),
    UP("dg", dg, F32, ROWS),
    UP("dbeta", dbeta, F32, ROWS),
    GRAD("da", da, ACT, ROWS, STATE, 1),
    GRAD("db", db, ACT, ROWS, STATE, 1),
    GRAD("dA_log", dA_log, F32, PARAM, NONE, 0),
    GRAD("ddt_bias", ddt_bias, F32, PARAM, NONE, 0),
};
#undef ARGS
#define ARGS dt_rope_args
static const dt_binding rope_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("positions", positions, I32, ROWS), OUT("y", y, ACT, ROWS, STATE, 1),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE, 1),
};
#undef ARGS
#define ARGS dt_embedding_args
static const dt_binding embedding_tensors[] = {
    IN("ids", ids, I32, ROWS),
    IN("weight", weight, ACT, PARAM),
    OUT("y", y, ACT, ROWS, STATE, 0),
    UP("dy", dy, ACT, ROWS),
    GRAD("dweight", dweight, F32, PARAM, NONE, 0),
};
#undef ARGS
#define ARGS dt_linear_args /* one part, with an adapter */
static const dt_binding linear_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("weight", part[0].weight, ACT, PARAM),
    IN("c", part[0].c, ACT, ROWS),
    IN("lora_a", lora_a, F32, PARAM),
    IN("lora_b", part[0].lora_b, F32, PARAM),
    OUT("y", part[0].y, ACT, ROWS, STATE, 3),
    UP("dy", part[0].dy, ACT, ROWS),
    GRAD("dx", dx, ACT, ROWS, STATE, 3),
    GRAD("dweight", part[0].dweight, F32, PARAM, NONE, 0),
    GRAD("dlora_a", dlora_a, F32, PARAM, NONE, 3),
    GRAD("dlora_b", part[0].dlora_b, F32, PARAM, NONE, 3),
};
#undef ARGS

#define ARGS dt_gdn_step_args
static const dt_binding gdn_step_tensors[] = {
    IN("q", q, ACT, STATE),
    IN("k", k, ACT, STATE),
    IN("v", v, ACT, STATE),
    IN("g", g, F32, STATE),
    IN("beta", beta, F32, STATE),
    IN("state", state, F32, STATE),
    OUT("o", o, ACT, STATE, STATE_HEAD, 1),
    BINDING(OUTPUT, "new_state", state, F32, STATE, STATE_HEAD, .updates = "state"),
};
#undef ARGS
#define ARGS dt_causal_conv1d_step_args
static const dt_binding conv_step_tensors[] = {
    IN("x", x, ACT, STATE),
    IN("weight", weight, ACT, PARAM),
    IN("bias", bias, ACT, PARAM),
    IN("state", state, ACT, STATE),
    OUT("y", y, ACT, STATE, STATE, 1),
    BINDING(OUTPUT, "new_state", state, ACT, STATE, STATE, .updates = "state"),
};
#undef ARGS
#define NUMBER(name, struct_type, field, storage)                                                                      \
    {                                                                                                                  \
        name, offsetof(struct_type, field), DT_ROLE_OUTPUT, DT_STORE_RESULT_##storage, DT_PLACE_PARAM, DT_SLICE_NONE,  \
    }
#define ARGS dt_cross_entropy_args
static const dt_binding cross_entropy_tensors[] = {
    IN("h", h, ACT, ROWS),
    IN("weight", weight, ACT, PARAM),
    IN("target", target, I32, ROWS),
    IN("row_weight", row_weight, F32, ROWS),
    OUT("row_loss", row_loss, F32, ROWS, STATE, 4), /* logits: of up to twice the loss */
    GRAD("dh", dh, ACT, ROWS, STATE, 3),
    GRAD("dweight", dweight, F32, PARAM, NONE, 2),
    {"loss", offsetof(dt_cross_entropy_result, loss), DT_ROLE_OUTPUT, DT_STORE_RESULT_F64, DT_PLACE_PARAM,
     DT_SLICE_NONE, .roundings = 4},
    NUMBER("targets", dt_cross_entropy_result, targets, I64),
    NUMBER("correct", dt_cross_entropy_result, correct, I64),
};
#undef ARGS
#define ARGS dt_adamw_args
static const dt_binding adamw_tensors[] = {
    IN("param", param, F32, PARAM),
    IN("grad", grad, F32, PARAM),
    IN("m", m, F32, PARAM),
    IN("v", v, F32, PARAM),
    {"segment_count", offsetof(dt_param_segment, count), DT_ROLE_INPUT, DT_STORE_SEGMENT, DT_PLACE_PARAM},
    {"weight_decay", offsetof(dt_param_segment, weight_decay), DT_ROLE_INPUT, DT_STORE_SEGMENT, DT_PLACE_PARAM},
    BINDING(OUTPUT, "new_param", param, F32, PARAM, NONE, .updates = "param"),
    BINDING(OUTPUT, "new_m", m, F32, PARAM, NONE, .updates = "m"),
    BINDING(OUTPUT, "new_v", v, F32, PARAM, NONE, .updates = "v"),
};
#undef ARGS
#define ARGS dt_grad_norm_args
static const dt_binding grad_norm_tensors[] = {
    IN("grad", grad, F32, PARAM),
    {"segment_count", offsetof(dt_param_segment, count), DT_ROLE_INPUT, DT_STORE_SEGMENT, DT_PLACE_PARAM},
    NUMBER("sum_of_squares", dt_grad_norm_result, sum_of_squares, F64),
    NUMBER("first_nonfinite", dt_grad_norm_result, first_nonfinite, I64),
};
#undef ARGS

static dt_status get_float(const json_t *params, const char *field, const char *where, float *out, dt_err *err)
{
    double value = *out;
    dt_status status = dtp_json_get_double(params, field, where, &value, err);
    *out = (float)value;
    return status;
}

static dt_status gdn_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_gdn_args *a = args;
    dt_status status = get_float(params, "scale", where, &a->scale, err);
    return status == DT_OK ? dtp_json_get_bool(params, "use_qk_l2norm_in_kernel", where, &a->qk_l2norm, err) : status;
}

static dt_status conv_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    const char *activation = "none";
    dt_status status = dtp_json_get_string(params, "activation", where, &activation, err);
    bool silu = strcmp(activation, "silu") == 0 || strcmp(activation, "swish") == 0;
    if (status == DT_OK && !silu && strcmp(activation, "none") != 0)
        return dt_fail(err, DT_E_FORMAT, "%s: activation is \"%s\", expected silu, swish or none", where, activation);
    ((dt_causal_conv1d_args *)args)->silu = silu;
    return status;
}

static dt_status norm_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_rms_norm_args *a = args;
    a->eps = 1e-6f;
    dt_status status = get_float(params, "eps", where, &a->eps, err);
    return status == DT_OK ? dtp_json_get_bool(params, "zero_centered", where, &a->zero_centered, err) : status;
}

static dt_status gated_norm_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_rms_norm_gated_args *a = args;
    a->eps = 1e-6f;
    return get_float(params, "eps", where, &a->eps, err);
}

static dt_status attention_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    bool causal = true;
    dt_status status = dtp_json_get_bool(params, "causal", where, &causal, err);
    if (status == DT_OK && !causal)
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: causal is false, but attention here is causal", where);
    return status == DT_OK ? get_float(params, "scale", where, &((dt_attention_args *)args)->scale, err) : status;
}

static dt_status no_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    (void)args, (void)params, (void)where, (void)err;
    return DT_OK;
}

static dt_status rope_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_rope_args *a = args;
    int64_t rotary = a->rotary_dim;
    dt_status status = get_float(params, "theta", where, &a->theta, err);
    if (status == DT_OK)
        status = dtp_json_get_int(params, "rotary_dim", where, &rotary, err);
    a->rotary_dim = (int32_t)rotary;
    return status;
}

static dt_status linear_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_linear_args *a = args;
    int64_t seed = 0;
    a->n_parts = 1;
    dt_status status = get_float(params, "lora_scale", where, &a->lora_scale, err);
    if (status == DT_OK)
        status = get_float(params, "dropout", where, &a->dropout, err);
    if (status == DT_OK)
        status = dtp_json_get_int(params, "seed", where, &seed, err);
    a->seed = (uint64_t)seed;
    return status;
}

static dt_status gdn_step_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_gdn_step_args *a = args;
    dt_status status = get_float(params, "scale", where, &a->scale, err);
    return status == DT_OK ? dtp_json_get_bool(params, "use_qk_l2norm_in_kernel", where, &a->qk_l2norm, err) : status;
}

static dt_status conv_step_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_causal_conv1d_args a = {.silu = false};
    dt_status status = conv_params(&a, params, where, err);
    ((dt_causal_conv1d_step_args *)args)->silu = a.silu;
    return status;
}

static dt_status cross_entropy_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_cross_entropy_args *a = args;
    a->grad_scale = 1;
    return get_float(params, "grad_scale", where, &a->grad_scale, err);
}

static dt_status adamw_params(void *args, const json_t *params, const char *where, dt_err *err)
{
    dt_adamw_args *a = args;
    struct {
        const char *name;
        float *field, value;
    } fields[] = {{"lr", &a->lr, 1e-4f},
                  {"beta1", &a->beta1, 0.9f},
                  {"beta2", &a->beta2, 0.95f},
                  {"eps", &a->eps, 1e-8f},
                  {"grad_scale", &a->grad_scale, 1}};
    dt_status status = DT_OK;
    for (size_t i = 0; i < sizeof fields / sizeof *fields && status == DT_OK; i++) {
        *fields[i].field = fields[i].value;
        status = get_float(params, fields[i].name, where, fields[i].field, err);
    }
    a->step = 1;
    return status == DT_OK ? dtp_json_get_int(params, "step", where, &a->step, err) : status;
}

/* ---- recorded steps ---- */

static void record_linear(void *args, const dt_case *c, dt_recorded *r)
{
    (void)c;
    dt_linear_args *a = args;
    r->values.seed = a->seed;
    r->values.step = a->step;
    r->values.micro = a->micro;
    a->seed += 1;
    a->step += 1;
    a->micro += 1;
}

static void record_cross_entropy(void *args, const dt_case *c, dt_recorded *r)
{
    (void)c;
    dt_cross_entropy_args *a = args;
    r->values.grad_scale = a->grad_scale;
    a->grad_scale = -3;
}

/* The scale comes from clipping: to the norm that gives it. */
static void record_adamw(void *args, const dt_case *c, dt_recorded *r)
{
    dt_adamw_args *a = args;
    const dt_case_tensor *grad = dtp_case_find(c, "grad");
    r->norm = (dt_grad_norm_result){0, -1};
    for (int64_t i = 0; grad && i < grad->count; i++)
        r->norm.sum_of_squares += (double)grad->values[i] * grad->values[i];
    r->values.max_grad_norm = a->grad_scale < 1 ? (float)(a->grad_scale * (sqrt(r->norm.sum_of_squares) + 1e-6)) : 0;
    r->values.lr = a->lr;
    r->values.update = (int32_t)a->step;
    a->grad_scale = a->lr = -3;
    a->step += 5;
}

#define COUNT(list) list, sizeof(list) / sizeof *(list)
static const dt_op_binding op_bindings[] = {
    {DT_OP_GDN, sizeof(dt_gdn_args), COUNT(gdn_tensors), offsetof(dt_gdn_args, seqs), 0, gdn_params},
    {DT_OP_CAUSAL_CONV1D, sizeof(dt_causal_conv1d_args), COUNT(conv_tensors), offsetof(dt_causal_conv1d_args, seqs), 0,
     conv_params},
    {DT_OP_RMS_NORM, sizeof(dt_rms_norm_args), COUNT(norm_tensors), 0, offsetof(dt_rms_norm_args, T), norm_params},
    {DT_OP_RMS_NORM_GATED, sizeof(dt_rms_norm_gated_args), COUNT(gated_norm_tensors), 0,
     offsetof(dt_rms_norm_gated_args, T), gated_norm_params},
    {DT_OP_ATTENTION, sizeof(dt_attention_args), COUNT(attention_tensors), offsetof(dt_attention_args, seqs), 0,
     attention_params},
    {DT_OP_SIGMOID_GATE, sizeof(dt_gate_args), COUNT(gate_tensors), 0, offsetof(dt_gate_args, T), no_params},
    {DT_OP_SWIGLU, sizeof(dt_gate_args), COUNT(gate_tensors), 0, offsetof(dt_gate_args, T), no_params},
    {DT_OP_GDN_GATES, sizeof(dt_gdn_gates_args), COUNT(gdn_gates_tensors), 0, offsetof(dt_gdn_gates_args, T),
     no_params},
    {DT_OP_ROPE, sizeof(dt_rope_args), COUNT(rope_tensors), 0, offsetof(dt_rope_args, T), rope_params},
    {DT_OP_EMBEDDING, sizeof(dt_embedding_args), COUNT(embedding_tensors), 0, offsetof(dt_embedding_args, T),
     no_params},
    {DT_OP_LINEAR, sizeof(dt_linear_args), COUNT(linear_tensors), 0, offsetof(dt_linear_args, T), linear_params,
     .values = offsetof(dt_linear_args, values), .record = record_linear},
    {DT_OP_GDN_STEP, sizeof(dt_gdn_step_args), COUNT(gdn_step_tensors), 0, 0, gdn_step_params},
    {DT_OP_CAUSAL_CONV1D_STEP, sizeof(dt_causal_conv1d_step_args), COUNT(conv_step_tensors), 0, 0, conv_step_params},
    {DT_OP_CROSS_ENTROPY, sizeof(dt_cross_entropy_args), COUNT(cross_entropy_tensors), 0,
     offsetof(dt_cross_entropy_args, T), cross_entropy_params, .result = offsetof(dt_cross_entropy_args, result),
     .result_device = offsetof(dt_cross_entropy_args, result_device), .result_bytes = sizeof(dt_cross_entropy_result),
     .values = offsetof(dt_cross_entropy_args, values), .record = record_cross_entropy},
    {DT_OP_ADAMW, sizeof(dt_adamw_args), COUNT(adamw_tensors), 0, 0, adamw_params,
     .segments = offsetof(dt_adamw_args, segments), .n_segments = offsetof(dt_adamw_args, n_segments),
     .segments_device = offsetof(dt_adamw_args, segments_device), .values = offsetof(dt_adamw_args, values),
     .norm = offsetof(dt_adamw_args, norm), .record = record_adamw},
    {DT_OP_GRAD_NORM, sizeof(dt_grad_norm_args), COUNT(grad_norm_tensors), 0, 0, no_params,
     .result = offsetof(dt_grad_norm_args, result), .result_device = offsetof(dt_grad_norm_args, result_device),
     .result_bytes = sizeof(dt_grad_norm_result), .segments = offsetof(dt_grad_norm_args, segments),
     .n_segments = offsetof(dt_grad_norm_args, n_segments),
     .segments_device = offsetof(dt_grad_norm_args, segments_device)},
};

const dt_op_binding *dtp_op_binding(dt_op op)
{
    for (size_t i = 0; i < sizeof op_bindings / sizeof *op_bindings; i++)
        if (op_bindings[i].op == op)
            return &op_bindings[i];
    return NULL;
}
