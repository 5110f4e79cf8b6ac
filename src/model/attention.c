/* The full-attention mixer: h + o(attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)), all from a = norm(h).
 * q_proj yields query and gate interleaved per head: [heads][query head_dim | gate head_dim]. */
#include "model/pass.h"
#include <deltune/op/activation.h>
#include <deltune/op/attention.h>
#include <deltune/op/rope.h>
#include <math.h>

static const dt_weight_id in_proj[] = {DT_W_Q, DT_W_K, DT_W_V};
static const dt_weight_id out_proj[] = {DT_W_O};

/* Rows of this pass in a cache [capacity, kv_heads * head_dim]: generation writes keys and values there directly. */
static dt_tensor cache_rows(const dt_pass *p, void *cache)
{
    const int64_t width = p->config->kv_heads * p->config->head_dim;
    char *at = (char *)cache + (size_t)(p->cached * width) * dt_dtype_size(p->model->activation);
    return dtp_pass_rows(p, at, width);
}

/* Views of the fused projection q|k|v, or of its gradient: as linear maps write it and by heads. */
typedef struct {
    dt_tensor q_rows, k_rows, v_rows;
    dt_tensor query, gate, k, v;
} projections;

static projections split_projections(const dt_pass *p, const dt_layer *l, void *proj)
{
    const dt_model_config *c = p->config;
    const int64_t D = c->head_dim, q = 2 * c->heads * D, kv = c->kv_heads * D;
    const int64_t total = dtp_proj_width(c, DT_LAYER_FULL);
    projections s = {
        .q_rows = dtp_pass_columns(p, proj, total, 0, q),
        .k_rows = dtp_pass_columns(p, proj, total, q, kv),
        .v_rows = dtp_pass_columns(p, proj, total, q + kv, kv),
    };
    if (p->cache)
        s.v_rows = cache_rows(p, p->cache[l->index].v);
    const dt_tensor heads = dt_tensor_split_last(s.q_rows, 2 * D);
    s.query = dt_tensor_slice(heads, 2, 0, D);
    s.gate = dt_tensor_slice(heads, 2, D, 2 * D);
    s.k = dt_tensor_split_last(s.k_rows, D);
    s.v = dt_tensor_split_last(s.v_rows, D);
    return s;
}

/* Rotated q and k, side by side in `mix` (k in the cache when generating); or their gradients. */
static dt_tensor rotated_q(const dt_pass *p, void *mix)
{
    const dt_model_config *c = p->config;
    return dt_tensor_split_last(dtp_pass_columns(p, mix, dtp_mix_width(c, DT_LAYER_FULL), 0, c->heads * c->head_dim),
                                c->head_dim);
}

static dt_tensor rotated_k(const dt_pass *p, const dt_layer *l, void *mix)
{
    const dt_model_config *c = p->config;
    if (p->cache)
        return dt_tensor_split_last(cache_rows(p, p->cache[l->index].k), c->head_dim);
    return dt_tensor_split_last(
        dtp_pass_columns(p, mix, dtp_mix_width(c, DT_LAYER_FULL), c->heads * c->head_dim, c->kv_heads * c->head_dim),
        c->head_dim);
}

static dt_rope_args rope_args(const dt_pass *p, dt_tensor x)
{
    return (dt_rope_args){
        DT_ROPE_ARGS,
        .x = x,
        .y = x,
        .positions = dt_tensor_1d(p->memory->positions, DT_I32, p->rows),
        .T = p->T,
        .theta = (float)p->config->rope_theta,
        .rotary_dim = (int32_t)p->config->rotary_dim,
    };
}

/* Norm, then rotation, of q and k into `mix`. */
static dt_status rotate(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_err *err)
{
    const projections in = split_projections(p, l, m->proj);
    const dt_tensor q = rotated_q(p, p->memory->mix), k = rotated_k(p, l, p->memory->mix);
    const dt_rms_norm_args q_norm = dtp_pass_norm(p, &l->w[DT_W_Q_NORM], in.query, q);
    const dt_rms_norm_args k_norm = dtp_pass_norm(p, &l->w[DT_W_K_NORM], in.k, k);
    const dt_rope_args q_rope = rope_args(p, q), k_rope = rope_args(p, k);
    dt_status status = dtp_pass_forward(p, DT_OP_RMS_NORM, &q_norm, &m->saved[DT_S_Q_NORM], err);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_RMS_NORM, &k_norm, &m->saved[DT_S_K_NORM], err);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_ROPE, &q_rope, &m->saved[DT_S_Q_ROPE], err);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_ROPE, &k_rope, &m->saved[DT_S_K_ROPE], err);
    return status;
}

static dt_attention_args attention_args(const dt_pass *p, const dt_layer *l, const dt_layer_memory *m)
{
    const dt_model_config *c = p->config;
    return (dt_attention_args){
        DT_ATTENTION_ARGS,
        .q = rotated_q(p, p->memory->mix),
        .k = rotated_k(p, l, p->memory->mix),
        .v = split_projections(p, l, m->proj).v,
        .o = dt_tensor_split_last(dtp_pass_rows(p, m->core, c->heads * c->head_dim), c->head_dim),
        .seqs = p->seqs,
        .scale = (float)(1 / sqrt((double)c->head_dim)),
    };
}

static dt_gate_args gate_args(const dt_pass *p, const dt_layer *l, const dt_layer_memory *m)
{
    const dt_model_config *c = p->config;
    const int64_t width = c->heads * c->head_dim;
    return (dt_gate_args){
        DT_GATE_ARGS,
        .x = dt_tensor_split_last(dtp_pass_rows(p, m->core, width), c->head_dim),
        .gate = split_projections(p, l, m->proj).gate,
        .y = dt_tensor_split_last(dtp_pass_inputs(p, p->memory->mid, width), c->head_dim),
        .T = p->T,
    };
}

/* Generation attends to all cached keys, those of this pass included. */
static dt_status attend(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_err *err)
{
    dt_attention_args a = attention_args(p, l, m);
    if (p->cache) {
        const dt_model_config *c = p->config;
        const dt_layer_cache *cache = &p->cache[l->index];
        const int64_t rows = p->cache_seqs.T_cap;
        a.kv_seqs = p->cache_seqs;
        a.k = dt_tensor_3d(cache->k, p->model->activation, rows, c->kv_heads, c->head_dim);
        a.v = dt_tensor_3d(cache->v, p->model->activation, rows, c->kv_heads, c->head_dim);
    }
    return dtp_pass_forward(p, DT_OP_ATTENTION, &a, &m->saved[DT_S_CORE], err);
}

dt_status dtp_attention_forward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, dt_err *err)
{
    const dt_model_config *c = p->config;
    const int64_t H = c->hidden;
    const projections out = split_projections(p, l, m->proj);
    dt_status status = dtp_input_norm(p, l, m, h, err);
    dt_linear_args in = dtp_pass_linear(p, l, in_proj, 3, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].y = out.q_rows;
    in.part[1].y = out.k_rows;
    in.part[2].y = out.v_rows;
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &in, &m->saved[DT_S_IN], err);
    if (status == DT_OK)
        status = rotate(p, l, m, err);
    if (status == DT_OK)
        status = attend(p, l, m, err);
    const dt_gate_args gate = gate_args(p, l, m);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_SIGMOID_GATE, &gate, &m->saved[DT_S_GATE], err);
    dt_linear_args last =
        dtp_pass_linear(p, l, out_proj, 1, dtp_pass_inputs(p, p->memory->mid, c->heads * c->head_dim));
    last.part[0].c = dtp_pass_rows(p, h, H);
    last.part[0].y = dtp_pass_rows(p, m->h1, H);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_OUT], err);
    return status;
}

/* dh through o_proj and the gate: gradient of attention's output into dmid, of the gate into dproj. */
static dt_status backward_out(dt_pass *p, dt_layer *l, dt_layer_memory *m, const projections *d, dt_err *err)
{
    const dt_model_config *c = p->config;
    const int64_t width = c->heads * c->head_dim;
    const dt_tensor dmid = dtp_pass_inputs(p, p->memory->dmid, width);
    dt_gate_args gate = gate_args(p, l, m);
    dt_status status = dtp_pass_forward(p, DT_OP_SIGMOID_GATE, &gate, &m->saved[DT_S_GATE], err);
    dt_linear_args last = dtp_pass_linear(p, l, out_proj, 1, dtp_pass_inputs(p, p->memory->mid, width));
    last.part[0].dy = dtp_pass_rows(p, p->memory->dh, c->hidden);
    last.dx = dmid;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_OUT], err);
    gate.dy = gate.dx = dt_tensor_split_last(dmid, c->head_dim);
    gate.dgate = d->gate;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_SIGMOID_GATE, &gate, &m->saved[DT_S_GATE], err);
    return status;
}

/* dmid through attention, rotation and norms: the rest of dproj. */
static dt_status backward_attend(dt_pass *p, dt_layer *l, dt_layer_memory *m, const projections *d, dt_err *err)
{
    const dt_model_config *c = p->config;
    const projections in = split_projections(p, l, m->proj);
    dt_status status = rotate(p, l, m, err);
    dt_attention_args a = attention_args(p, l, m);
    a.d_o = dt_tensor_split_last(dtp_pass_inputs(p, p->memory->dmid, c->heads * c->head_dim), c->head_dim);
    a.dq = rotated_q(p, p->memory->dmix);
    a.dk = rotated_k(p, l, p->memory->dmix);
    a.dv = d->v;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_ATTENTION, &a, &m->saved[DT_S_CORE], err);
    const struct {
        dt_weight *weight;
        dt_tensor x, y, dy, dx;
        dt_saved *norm, *rope;
    } side[2] = {
        {&l->w[DT_W_Q_NORM], in.query, a.q, a.dq, d->query, &m->saved[DT_S_Q_NORM], &m->saved[DT_S_Q_ROPE]},
        {&l->w[DT_W_K_NORM], in.k, a.k, a.dk, d->k, &m->saved[DT_S_K_NORM], &m->saved[DT_S_K_ROPE]},
    };
    for (int i = 0; i < 2; i++) {
        dt_rope_args rope = rope_args(p, side[i].y);
        rope.dy = rope.dx = side[i].dy;
        if (status == DT_OK)
            status = dtp_pass_backward(p, DT_OP_ROPE, &rope, side[i].rope, err);
        dt_rms_norm_args norm = dtp_pass_norm(p, side[i].weight, side[i].x, side[i].y);
        norm.dy = side[i].dy;
        norm.dx = side[i].dx;
        if (status == DT_OK)
            status = dtp_pass_backward(p, DT_OP_RMS_NORM, &norm, side[i].norm, err);
    }
    return status;
}

dt_status dtp_attention_backward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, bool need_dx, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const projections d = split_projections(p, l, p->memory->dproj);
    dt_status status = backward_out(p, l, m, &d, err);
    if (status == DT_OK)
        status = backward_attend(p, l, m, &d, err);
    if (status == DT_OK)
        status = dtp_input_norm(p, l, m, h, err);
    dt_linear_args in = dtp_pass_linear(p, l, in_proj, 3, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].dy = d.q_rows;
    in.part[1].dy = d.k_rows;
    in.part[2].dy = d.v_rows;
    return status == DT_OK ? dtp_input_backward(p, l, m, h, &in, need_dx, err) : status;
}
