/* The linear-attention mixer: h + out(gated_norm(delta_rule(conv(qkv), gates), z)), all from a = norm(h). */
#include "model/pass.h"
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/op/rms_norm_gated.h>
#include <math.h>

static const dt_weight_id in_proj[] = {DT_W_QKV, DT_W_Z, DT_W_B, DT_W_A};
static const dt_weight_id out_proj[] = {DT_W_OUT};

/* Views of the fused projection qkv|z|b|a, or of its gradient. */
typedef struct {
    dt_tensor qkv, z, b, a;
} projections;

static projections split_projections(const dt_pass *p, void *proj)
{
    const dt_model_config *c = p->config;
    int64_t total = dtp_proj_width(c, DT_LAYER_LINEAR), C = dtp_config_conv_channels(c), V = dtp_config_value_width(c);
    return (projections){
        .qkv = dtp_pass_columns(p, proj, total, 0, C),
        .z = dtp_pass_columns(p, proj, total, C, V),
        .b = dtp_pass_columns(p, proj, total, C + V, c->value_heads),
        .a = dtp_pass_columns(p, proj, total, C + V + c->value_heads, c->value_heads),
    };
}

/* [rows, heads * width] columns of the convolution's output as heads. */
static dt_tensor heads_of(const dt_pass *p, void *mix, int64_t from, int64_t heads, int64_t width)
{
    return dt_tensor_split_last(dtp_pass_columns(p, mix, dtp_config_conv_channels(p->config), from, heads * width),
                                width);
}

static dt_causal_conv1d_args conv_args(const dt_pass *p, const dt_layer *l, const dt_layer_memory *m)
{
    return (dt_causal_conv1d_args){
        DT_CAUSAL_CONV1D_ARGS,
        .x = split_projections(p, m->proj).qkv,
        .weight = l->w[DT_W_CONV].value,
        .dweight = l->w[DT_W_CONV].grad,
        .y = dtp_pass_rows(p, p->memory->mix, dtp_config_conv_channels(p->config)),
        .seqs = p->seqs,
        .silu = true,
    };
}

static dt_gdn_gates_args gates_args(const dt_pass *p, const dt_layer *l, const dt_layer_memory *m)
{
    const projections in = split_projections(p, m->proj);
    return (dt_gdn_gates_args){
        DT_GDN_GATES_ARGS,
        .a = in.a,
        .b = in.b,
        .A_log = l->w[DT_W_A_LOG].value,
        .dt_bias = l->w[DT_W_DT_BIAS].value,
        .dA_log = l->w[DT_W_A_LOG].grad,
        .ddt_bias = l->w[DT_W_DT_BIAS].grad,
        .g = dtp_pass_rows_f32(p, m->g, p->config->value_heads),
        .beta = dtp_pass_rows_f32(p, m->beta, p->config->value_heads),
        .T = p->T,
    };
}

static dt_gdn_args gdn_args(const dt_pass *p, const dt_layer_memory *m)
{
    const dt_model_config *c = p->config;
    const int64_t K = dtp_config_key_width(c);
    return (dt_gdn_args){
        DT_GDN_ARGS,
        .q = heads_of(p, p->memory->mix, 0, c->key_heads, c->key_dim),
        .k = heads_of(p, p->memory->mix, K, c->key_heads, c->key_dim),
        .v = heads_of(p, p->memory->mix, 2 * K, c->value_heads, c->value_dim),
        .g = dtp_pass_rows_f32(p, m->g, c->value_heads),
        .beta = dtp_pass_rows_f32(p, m->beta, c->value_heads),
        .o = dt_tensor_split_last(dtp_pass_rows(p, m->core, dtp_config_value_width(c)), c->value_dim),
        .seqs = p->seqs,
        .scale = (float)(1 / sqrt((double)c->key_dim)),
        .qk_l2norm = true,
        .save_less = p->memory->save_less,
    };
}

static dt_rms_norm_gated_args gated_norm_args(const dt_pass *p, const dt_layer *l, const dt_layer_memory *m)
{
    const dt_model_config *c = p->config;
    const int64_t width = dtp_config_value_width(c);
    return (dt_rms_norm_gated_args){
        DT_RMS_NORM_GATED_ARGS,
        .x = dt_tensor_split_last(dtp_pass_rows(p, m->core, width), c->value_dim),
        .z = dt_tensor_split_last(split_projections(p, m->proj).z, c->value_dim),
        .weight = l->w[DT_W_GATED_NORM].value,
        .dweight = l->w[DT_W_GATED_NORM].grad,
        .y = dt_tensor_split_last(dtp_pass_inputs(p, p->memory->mid, width), c->value_dim),
        .eps = (float)c->rms_eps,
        .T = p->T,
    };
}

/* ---- generation: convolution window and state come from the caches and go back there ---- */

static dt_status step(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_layer_cache *cache, dt_err *err)
{
    const dt_model_config *c = p->config;
    const dt_causal_conv1d_args conv = conv_args(p, l, m);
    const dt_causal_conv1d_step_args conv_step = {
        DT_CAUSAL_CONV1D_STEP_ARGS,
        .x = conv.x,
        .weight = conv.weight,
        .y = conv.y,
        .state = dt_tensor_3d(cache->conv, p->model->activation, 1, dtp_config_conv_channels(c), c->conv_width),
        .silu = true,
    };
    const dt_gdn_args gdn = gdn_args(p, m);
    const dt_gdn_step_args gdn_step = {
        DT_GDN_STEP_ARGS,   .q = gdn.q,
        .k = gdn.k,         .v = gdn.v,
        .g = gdn.g,         .beta = gdn.beta,
        .o = gdn.o,         .state = dt_tensor_4d(cache->state, DT_F32, 1, c->value_heads, c->key_dim, c->value_dim),
        .scale = gdn.scale, .qk_l2norm = true,
    };
    dt_status status = dtp_pass_forward(p, DT_OP_CAUSAL_CONV1D_STEP, &conv_step, NULL, err);
    return status == DT_OK ? dtp_pass_forward(p, DT_OP_GDN_STEP, &gdn_step, NULL, err) : status;
}

static dt_status prefill(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_layer_cache *cache, dt_err *err)
{
    const dt_model_config *c = p->config;
    const int64_t C = dtp_config_conv_channels(c), W = c->conv_width;
    const int64_t states = c->value_heads * c->key_dim * c->value_dim;
    dt_causal_conv1d_args conv = conv_args(p, l, m);
    dt_gdn_args gdn = gdn_args(p, m);
    conv.final_state = dt_tensor_3d(cache->conv, p->model->activation, 1, C, W);
    gdn.final_state = dt_tensor_4d(cache->state, DT_F32, 1, c->value_heads, c->key_dim, c->value_dim);
    dt_status status = DT_OK;
    if (p->cached) { /* outputs may not alias inputs */
        conv.initial_state = conv.final_state;
        gdn.initial_state = gdn.final_state;
        conv.initial_state.data = cache->conv_before;
        gdn.initial_state.data = cache->state_before;
        status = dt_exec_copy(p->exec, cache->conv_before, cache->conv,
                              (size_t)(C * W) * dt_dtype_size(p->model->activation), err);
        if (status == DT_OK)
            status = dt_exec_copy(p->exec, cache->state_before, cache->state, (size_t)states * sizeof(float), err);
    }
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_CAUSAL_CONV1D, &conv, NULL, err);
    return status == DT_OK ? dtp_pass_forward(p, DT_OP_GDN, &gdn, NULL, err) : status;
}

static dt_status mix(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_err *err)
{
    dt_layer_cache *cache = p->cache ? &p->cache[l->index] : NULL;
    if (cache)
        return p->T == 1 && p->cached ? step(p, l, m, cache, err) : prefill(p, l, m, cache, err);
    const dt_causal_conv1d_args conv = conv_args(p, l, m);
    const dt_gdn_args gdn = gdn_args(p, m);
    dt_status status = dtp_pass_forward(p, DT_OP_CAUSAL_CONV1D, &conv, &m->saved[DT_S_CONV], err);
    return status == DT_OK ? dtp_pass_forward(p, DT_OP_GDN, &gdn, &m->saved[DT_S_CORE], err) : status;
}

/* ---- forward and backward ---- */

dt_status dtp_gated_delta_net_forward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const projections out = split_projections(p, m->proj);
    dt_status status = dtp_input_norm(p, l, m, h, err);
    dt_linear_args in = dtp_pass_linear(p, l, in_proj, 4, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].y = out.qkv;
    in.part[1].y = out.z;
    in.part[2].y = out.b;
    in.part[3].y = out.a;
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &in, &m->saved[DT_S_IN], err);
    const dt_gdn_gates_args gates = gates_args(p, l, m);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_GDN_GATES, &gates, &m->saved[DT_S_GATES], err);
    if (status == DT_OK)
        status = mix(p, l, m, err);
    const dt_rms_norm_gated_args norm = gated_norm_args(p, l, m);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_RMS_NORM_GATED, &norm, &m->saved[DT_S_GATE], err);
    dt_linear_args last =
        dtp_pass_linear(p, l, out_proj, 1, dtp_pass_inputs(p, p->memory->mid, dtp_config_value_width(p->config)));
    last.part[0].c = dtp_pass_rows(p, h, H);
    last.part[0].y = dtp_pass_rows(p, m->h1, H);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_OUT], err);
    return status;
}

/* dh through out_proj and the gated norm: gradient of the delta rule's output into dmid, of z into dproj. */
static dt_status backward_out(dt_pass *p, dt_layer *l, dt_layer_memory *m, const projections *d, dt_err *err)
{
    const dt_model_config *c = p->config;
    const dt_tensor dmid = dtp_pass_inputs(p, p->memory->dmid, dtp_config_value_width(c));
    dt_rms_norm_gated_args norm = gated_norm_args(p, l, m);
    dt_status status = dtp_pass_forward(p, DT_OP_RMS_NORM_GATED, &norm, &m->saved[DT_S_GATE], err);
    dt_linear_args last =
        dtp_pass_linear(p, l, out_proj, 1, dtp_pass_inputs(p, p->memory->mid, dtp_config_value_width(c)));
    last.part[0].dy = dtp_pass_rows(p, p->memory->dh, c->hidden);
    last.dx = dmid;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_OUT], err);
    norm.dy = norm.dx = dt_tensor_split_last(dmid, c->value_dim);
    norm.dz = dt_tensor_split_last(d->z, c->value_dim);
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_RMS_NORM_GATED, &norm, &m->saved[DT_S_GATE], err);
    return status;
}

/* dmid through the delta rule, the convolution and the gates: the rest of dproj. */
static dt_status backward_mix(dt_pass *p, dt_layer *l, dt_layer_memory *m, const projections *d, dt_err *err)
{
    const dt_model_config *c = p->config;
    const int64_t K = dtp_config_key_width(c);
    dt_causal_conv1d_args conv = conv_args(p, l, m);
    dt_gdn_args gdn = gdn_args(p, m);
    dt_gdn_gates_args gates = gates_args(p, l, m);
    dt_status status = dtp_pass_forward(p, DT_OP_CAUSAL_CONV1D, &conv, &m->saved[DT_S_CONV], err);
    gdn.d_o = dt_tensor_split_last(dtp_pass_inputs(p, p->memory->dmid, dtp_config_value_width(c)), c->value_dim);
    gdn.dq = heads_of(p, p->memory->dmix, 0, c->key_heads, c->key_dim);
    gdn.dk = heads_of(p, p->memory->dmix, K, c->key_heads, c->key_dim);
    gdn.dv = heads_of(p, p->memory->dmix, 2 * K, c->value_heads, c->value_dim);
    gdn.dg = gates.dg = dtp_pass_rows_f32(p, p->memory->dg, c->value_heads);
    gdn.dbeta = gates.dbeta = dtp_pass_rows_f32(p, p->memory->dbeta, c->value_heads);
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_GDN, &gdn, &m->saved[DT_S_CORE], err);
    conv.dy = dtp_pass_rows(p, p->memory->dmix, dtp_config_conv_channels(c));
    conv.dx = d->qkv;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_CAUSAL_CONV1D, &conv, &m->saved[DT_S_CONV], err);
    gates.da = d->a;
    gates.db = d->b;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_GDN_GATES, &gates, &m->saved[DT_S_GATES], err);
    return status;
}

dt_status dtp_gated_delta_net_backward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, bool need_dx, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const projections d = split_projections(p, p->memory->dproj);
    dt_status status = backward_out(p, l, m, &d, err);
    if (status == DT_OK)
        status = backward_mix(p, l, m, &d, err);
    if (status == DT_OK)
        status = dtp_input_norm(p, l, m, h, err);
    dt_linear_args in = dtp_pass_linear(p, l, in_proj, 4, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].dy = d.qkv;
    in.part[1].dy = d.z;
    in.part[2].dy = d.b;
    in.part[3].dy = d.a;
    return status == DT_OK ? dtp_input_backward(p, l, m, h, &in, need_dx, err) : status;
}
