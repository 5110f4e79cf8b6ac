#include "conformance/bindings.h"

#include "core/json.h"

#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <string.h>

#define IN(name, field, ...)                                                                                           \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_INPUT, __VA_ARGS__                                                        \
    }
#define OUT(name, field, ...)                                                                                          \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_OUTPUT, __VA_ARGS__                                                       \
    }
#define UP(name, field, ...)                                                                                           \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_UPSTREAM, __VA_ARGS__                                                     \
    }
#define GRAD(name, field, ...)                                                                                         \
    {                                                                                                                  \
        name, offsetof(ARGS, field), DT_ROLE_GRADIENT, __VA_ARGS__                                                     \
    }

#define ARGS dt_gdn_args
static const dt_binding gdn_tensors[] = {
    IN("q", q, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("k", k, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("v", v, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("g", g, false, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("beta", beta, false, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("initial_state", initial_state, false, DT_PLACE_STATE, DT_SLICE_NONE),
    OUT("o", o, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
    OUT("final_state", final_state, false, DT_PLACE_STATE, DT_SLICE_STATE_HEAD),
    UP("do", d_o, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    UP("dht", dfinal_state, false, DT_PLACE_STATE, DT_SLICE_NONE),
    GRAD("dq", dq, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD, false, "q"),
    GRAD("dk", dk, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD, false, "k"),
    GRAD("dv", dv, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
    GRAD("dg", dg, false, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD, true),
    GRAD("dbeta", dbeta, false, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD, true),
    GRAD("dinitial_state", dinitial_state, false, DT_PLACE_STATE, DT_SLICE_STATE_HEAD),
};
#undef ARGS
#define ARGS dt_causal_conv1d_args
static const dt_binding conv_tensors[] = {
    IN("x", x, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("weight", weight, true, DT_PLACE_PARAM, DT_SLICE_NONE),
    IN("bias", bias, true, DT_PLACE_PARAM, DT_SLICE_NONE),
    IN("initial_state", initial_state, true, DT_PLACE_STATE, DT_SLICE_NONE),
    OUT("y", y, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE),
    OUT("final_state", final_state, true, DT_PLACE_STATE, DT_SLICE_STATE),
    UP("dy", dy, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    UP("dfinal_state", dfinal_state, true, DT_PLACE_STATE, DT_SLICE_NONE),
    GRAD("dx", dx, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE),
    GRAD("dweight", dweight, false, DT_PLACE_PARAM, DT_SLICE_NONE),
    GRAD("dbias", dbias, false, DT_PLACE_PARAM, DT_SLICE_NONE),
    GRAD("dinitial_state", dinitial_state, true, DT_PLACE_STATE, DT_SLICE_STATE),
};
#undef ARGS
#define ARGS dt_rms_norm_args
static const dt_binding norm_tensors[] = {
    IN("x", x, true, DT_PLACE_ROWS, DT_SLICE_NONE),      IN("weight", weight, true, DT_PLACE_PARAM, DT_SLICE_NONE),
    OUT("y", y, true, DT_PLACE_ROWS, DT_SLICE_STATE),    UP("dy", dy, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    GRAD("dx", dx, true, DT_PLACE_ROWS, DT_SLICE_STATE), GRAD("dweight", dweight, false, DT_PLACE_PARAM, DT_SLICE_NONE),
};
#undef ARGS
#define ARGS dt_rms_norm_gated_args
static const dt_binding gated_norm_tensors[] = {
    IN("x", x, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("z", z, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("weight", weight, true, DT_PLACE_PARAM, DT_SLICE_NONE),
    OUT("y", y, true, DT_PLACE_ROWS, DT_SLICE_STATE),
    UP("dy", dy, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    GRAD("dx", dx, true, DT_PLACE_ROWS, DT_SLICE_STATE),
    GRAD("dz", dz, true, DT_PLACE_ROWS, DT_SLICE_STATE),
    GRAD("dweight", dweight, false, DT_PLACE_PARAM, DT_SLICE_NONE),
};
#undef ARGS
#define ARGS dt_attention_args
static const dt_binding attention_tensors[] = {
    IN("q", q, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("k", k, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    IN("v", v, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    OUT("o", o, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
    UP("do", d_o, true, DT_PLACE_ROWS, DT_SLICE_NONE),
    GRAD("dq", dq, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
    GRAD("dk", dk, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
    GRAD("dv", dv, true, DT_PLACE_ROWS, DT_SLICE_SEQUENCE_HEAD),
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
};

const dt_op_binding *dtp_op_binding(dt_op op)
{
    for (size_t i = 0; i < sizeof op_bindings / sizeof *op_bindings; i++)
        if (op_bindings[i].op == op)
            return &op_bindings[i];
    return NULL;
}
