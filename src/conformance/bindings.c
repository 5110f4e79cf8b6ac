#include "conformance/bindings.h"

#include "core/json.h"

#include <deltune/op/activation.h>
#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/embedding.h>
#include <deltune/op/gdn.h>
#include <deltune/op/linear.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <deltune/op/rope.h>
#include <string.h>

/* name in the case, field, storage, what its rows are, how a result is cut, then .loose or .apart_input */
#define BINDING(role, name, field, storage, place, slicing, ...)                                                       \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_##role, DT_STORE_##storage, DT_PLACE_##place, DT_SLICE_##slicing,         \
            __VA_ARGS__                                                                                                \
    }
#define IN(name, field, storage, place)            BINDING(INPUT, name, field, storage, place, NONE, )
#define UP(name, field, storage, place)            BINDING(UPSTREAM, name, field, storage, place, NONE, )
#define OUT(name, field, storage, place, slicing)  BINDING(OUTPUT, name, field, storage, place, slicing, )
#define GRAD(name, field, storage, place, slicing) BINDING(GRADIENT, name, field, storage, place, slicing, )

#define ARGS dt_gdn_args
static const dt_binding gdn_tensors[] = {
    IN("q", q, ACT, ROWS),
    IN("k", k, ACT, ROWS),
    IN("v", v, ACT, ROWS),
    IN("g", g, F32, ROWS),
    IN("beta", beta, F32, ROWS),
    IN("initial_state", initial_state, F32, STATE),
    OUT("o", o, ACT, ROWS, SEQUENCE_HEAD),
    OUT("final_state", final_state, F32, STATE, STATE_HEAD),
    UP("do", d_o, ACT, ROWS),
    UP("dht", dfinal_state, F32, STATE),
    BINDING(GRADIENT, "dq", dq, ACT, ROWS, SEQUENCE_HEAD, .apart_input = "q"),
    BINDING(GRADIENT, "dk", dk, ACT, ROWS, SEQUENCE_HEAD, .apart_input = "k"),
    GRAD("dv", dv, ACT, ROWS, SEQUENCE_HEAD),
    BINDING(GRADIENT, "dg", dg, F32, ROWS, SEQUENCE_HEAD, .loose = true),
    BINDING(GRADIENT, "dbeta", dbeta, F32, ROWS, SEQUENCE_HEAD, .loose = true),
    GRAD("dinitial_state", dinitial_state, F32, STATE, STATE_HEAD),
};
#undef ARGS
#define ARGS dt_causal_conv1d_args
static const dt_binding conv_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("weight", weight, ACT, PARAM),
    IN("bias", bias, ACT, PARAM),
    IN("initial_state", initial_state, ACT, STATE),
    OUT("y", y, ACT, ROWS, SEQUENCE),
    OUT("final_state", final_state, ACT, STATE, STATE),
    UP("dy", dy, ACT, ROWS),
    UP("dfinal_state", dfinal_state, ACT, STATE),
    GRAD("dx", dx, ACT, ROWS, SEQUENCE),
    GRAD("dweight", dweight, F32, PARAM, NONE),
    GRAD("dbias", dbias, F32, PARAM, NONE),
    GRAD("dinitial_state", dinitial_state, ACT, STATE, STATE),
};
#undef ARGS
#define ARGS dt_rms_norm_args
static const dt_binding norm_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("weight", weight, ACT, PARAM), OUT("y", y, ACT, ROWS, STATE),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE), GRAD("dweight", dweight, F32, PARAM, NONE),
};
#undef ARGS
#define ARGS dt_rms_norm_gated_args
static const dt_binding gated_norm_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("z", z, ACT, ROWS),
    IN("weight", weight, ACT, PARAM),
    OUT("y", y, ACT, ROWS, STATE),
    UP("dy", dy, ACT, ROWS),
    GRAD("dx", dx, ACT, ROWS, STATE),
    GRAD("dz", dz, ACT, ROWS, STATE),
    GRAD("dweight", dweight, F32, PARAM, NONE),
};
#undef ARGS
#define ARGS dt_attention_args
static const dt_binding attention_tensors[] = {
    IN("q", q, ACT, ROWS),
    IN("k", k, ACT, ROWS),
    IN("v", v, ACT, ROWS),
    OUT("o", o, ACT, ROWS, SEQUENCE_HEAD),
    UP("do", d_o, ACT, ROWS),
    GRAD("dq", dq, ACT, ROWS, SEQUENCE_HEAD),
    GRAD("dk", dk, ACT, ROWS, SEQUENCE_HEAD),
    GRAD("dv", dv, ACT, ROWS, SEQUENCE_HEAD),
};
#undef ARGS

#define ARGS dt_gate_args
static const dt_binding gate_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("gate", gate, ACT, ROWS),      OUT("y", y, ACT, ROWS, STATE),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE), GRAD("dgate", dgate, ACT, ROWS, STATE),
};
#undef ARGS
#define ARGS dt_gdn_gates_args
static const dt_binding gdn_gates_tensors[] = {
    IN("a", a, ACT, ROWS),
    IN("b", b, ACT, ROWS),
    IN("A_log", A_log, ACT, PARAM),
    IN("dt_bias", dt_bias, ACT, PARAM),
    OUT("g", g, F32, ROWS, STATE),
    OUT("beta", beta, F32, ROWS, STATE),
    UP("dg", dg, F32, ROWS),
    UP("dbeta", dbeta, F32, ROWS),
    GRAD("da", da, ACT, ROWS, STATE),
    GRAD("db", db, ACT, ROWS, STATE),
    GRAD("dA_log", dA_log, F32, PARAM, NONE),
    GRAD("ddt_bias", ddt_bias, F32, PARAM, NONE),
};
#undef ARGS
#define ARGS dt_rope_args
static const dt_binding rope_tensors[] = {
    IN("x", x, ACT, ROWS),   IN("positions", positions, I32, ROWS), OUT("y", y, ACT, ROWS, STATE),
    UP("dy", dy, ACT, ROWS), GRAD("dx", dx, ACT, ROWS, STATE),
};
#undef ARGS
#define ARGS dt_embedding_args
static const dt_binding embedding_tensors[] = {
    IN("ids", ids, I32, ROWS), IN("weight", weight, ACT, PARAM),           OUT("y", y, ACT, ROWS, STATE),
    UP("dy", dy, ACT, ROWS),   GRAD("dweight", dweight, F32, PARAM, NONE),
};
#undef ARGS
#define ARGS dt_linear_args /* one part, with an adapter */
static const dt_binding linear_tensors[] = {
    IN("x", x, ACT, ROWS),
    IN("weight", part[0].weight, ACT, PARAM),
    IN("c", part[0].c, ACT, ROWS),
    IN("lora_a", lora_a, F32, PARAM),
    IN("lora_b", part[0].lora_b, F32, PARAM),
    OUT("y", part[0].y, ACT, ROWS, STATE),
    UP("dy", part[0].dy, ACT, ROWS),
    GRAD("dx", dx, ACT, ROWS, STATE),
    GRAD("dweight", part[0].dweight, F32, PARAM, NONE),
    GRAD("dlora_a", dlora_a, F32, PARAM, NONE),
    GRAD("dlora_b", part[0].dlora_b, F32, PARAM, NONE),
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
    a->n_parts = 1;
    return get_float(params, "lora_scale", where, &a->lora_scale, err);
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
    {DT_OP_LINEAR, sizeof(dt_linear_args), COUNT(linear_tensors), 0, offsetof(dt_linear_args, T), linear_params},
};

const dt_op_binding *dtp_op_binding(dt_op op)
{
    for (size_t i = 0; i < sizeof op_bindings / sizeof *op_bindings; i++)
        if (op_bindings[i].op == op)
            return &op_bindings[i];
    return NULL;
}
