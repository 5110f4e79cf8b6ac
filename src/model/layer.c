/* Layers and the whole stack, forward and backward. */
#include "model/pass.h"
#include <deltune/op/embedding.h>

/* ---- what both mixers begin with ---- */

dt_status dtp_input_norm(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const dt_rms_norm_args a =
        dtp_pass_norm(p, &l->w[DT_W_INPUT_NORM], dtp_pass_rows(p, h, H), dtp_pass_inputs(p, p->memory->x, H));
    return dtp_pass_forward(p, DT_OP_RMS_NORM, &a, &m->saved[DT_S_INPUT_NORM], err);
}

dt_status dtp_input_backward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, dt_linear_args *in, bool need_dx,
                             dt_err *err)
{
    const int64_t H = p->config->hidden;
    if (need_dx)
        in->dx = dtp_pass_inputs(p, p->memory->dx, H);
    dt_status status = dtp_pass_backward(p, DT_OP_LINEAR, in, &m->saved[DT_S_IN], err);
    if (status != DT_OK || !need_dx)
        return status;
    dt_rms_norm_args norm = dtp_pass_norm(p, &l->w[DT_W_INPUT_NORM], dtp_pass_rows(p, h, H), in->x);
    norm.dy = in->dx;
    norm.dx = norm.residual_grad = dtp_pass_rows(p, p->memory->dh, H);
    return dtp_pass_backward(p, DT_OP_RMS_NORM, &norm, &m->saved[DT_S_INPUT_NORM], err);
}

/* ---- one layer ---- */

static dt_status mixer_forward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *h, dt_err *err)
{
    return l->kind == DT_LAYER_FULL ? dtp_attention_forward(p, l, m, h, err)
                                    : dtp_gated_delta_net_forward(p, l, m, h, err);
}

dt_status dtp_layer_forward(dt_pass *p, int64_t layer, dt_err *err)
{
    dt_layer *l = &p->model->store->layer[layer];
    dt_layer_memory *m = &p->memory->layer[layer];
    dt_status status = mixer_forward(p, l, m, p->memory->h[layer], err);
    return status == DT_OK ? dtp_mlp_forward(p, l, m, p->memory->h[layer + 1], err) : status;
}

dt_status dtp_layer_backward(dt_pass *p, int64_t layer, dt_err *err)
{
    dt_layer *l = &p->model->store->layer[layer];
    dt_layer_memory *m = &p->memory->layer[layer];
    void *h = p->memory->h[layer];
    /* Nothing has been laid over the last layer since its forward. */
    const bool again = layer < p->memory->recomputed && layer + 1 < p->config->layers;
    const bool need_dx = layer > p->model->first_trained || p->model->store->embedding.segment >= 0;
    dt_status status = DT_OK;
    if (again) {
        status = mixer_forward(p, l, m, h, err);
        if (status == DT_OK)
            status = dtp_mlp_forward(p, l, m, NULL, err);
    }
    if (status == DT_OK)
        status = dtp_mlp_backward(p, l, m, again, err);
    if (status != DT_OK)
        return status;
    return l->kind == DT_LAYER_FULL ? dtp_attention_backward(p, l, m, h, need_dx, err)
                                    : dtp_gated_delta_net_backward(p, l, m, h, need_dx, err);
}

/* ---- the stack ---- */

static dt_embedding_args embedding_args(const dt_pass *p)
{
    const dt_memory *m = p->memory;
    const dt_weight *w = &p->model->store->embedding;
    return (dt_embedding_args){
        DT_EMBEDDING_ARGS,  .ids = dt_tensor_1d(m->tokens, DT_I32, p->rows),   .weight = w->value,
        .dweight = w->grad, .y = dtp_pass_rows(p, m->h[0], p->config->hidden), .T = p->T,
    };
}

static void tap(const dt_pass *p, int64_t index, dt_tensor hidden)
{
    const dt_model *m = p->model;
    if (!m->tap || p->planning)
        return;
    const dt_tensor rows = dt_tensor_slice(hidden, 0, 0, p->pack_T);
    m->tap(m->tap_user, index, &rows);
}

dt_status dtp_pass_trunk(dt_pass *p, dt_err *err)
{
    dt_memory *m = p->memory;
    const dt_embedding_args embedding = embedding_args(p);
    dt_status status = dtp_pass_forward(p, DT_OP_EMBEDDING, &embedding, &m->embedding, err);
    for (int64_t i = 0; status == DT_OK && i < p->config->layers; i++) {
        tap(p, i, dtp_pass_rows(p, m->h[i], p->config->hidden));
        status = dtp_layer_forward(p, i, err);
        if (status != DT_OK)
            dt_err_prefix(err, "layer %lld: ", (long long)i);
    }
    return status;
}

static dt_rms_norm_args final_norm_args(const dt_pass *p)
{
    const int64_t H = p->config->hidden;
    return dtp_pass_norm(p, &p->model->store->final_norm, dtp_pass_rows(p, p->memory->h[p->config->layers], H),
                         dtp_pass_inputs(p, p->memory->x, H));
}

dt_status dtp_pass_final_norm(dt_pass *p, dt_err *err)
{
    const dt_rms_norm_args norm = final_norm_args(p);
    dt_status status = dtp_pass_forward(p, DT_OP_RMS_NORM, &norm, &p->memory->final_norm, err);
    if (status == DT_OK)
        tap(p, p->config->layers, norm.y);
    return status;
}

static dt_status head(dt_pass *p, const float *weights, float grad_scale, dt_cross_entropy_result *result, dt_err *err)
{
    dt_memory *m = p->memory;
    const dt_weight *w = &p->model->store->head;
    dt_cross_entropy_args a = {
        DT_CROSS_ENTROPY_ARGS,
        .h = dtp_pass_inputs(p, m->x, p->config->hidden),
        .weight = w->value,
        .target = dt_tensor_1d(m->targets, DT_I32, p->rows),
        .T = p->T,
        .grad_scale = grad_scale,
        .result = result,
        .values = p->values,
        .result_device = m->results ? &m->results->loss : NULL,
    };
    if (weights)
        a.row_weight = dt_tensor_1d(m->weights, DT_F32, p->rows);
    if (p->keep) {
        a.dh = dtp_pass_inputs(p, m->dx, p->config->hidden);
        a.dweight = w->grad;
    } else {
        a.row_loss = dt_tensor_1d(m->row_loss, DT_F32, p->rows);
    }
    return dtp_pass_forward(p, DT_OP_CROSS_ENTROPY, &a, NULL, err);
}

static dt_status backward(dt_pass *p, dt_err *err)
{
    dt_memory *m = p->memory;
    dt_rms_norm_args norm = final_norm_args(p);
    norm.dy = dtp_pass_inputs(p, m->dx, p->config->hidden);
    norm.dx = dtp_pass_rows(p, m->dh, p->config->hidden);
    dt_status status = dtp_pass_backward(p, DT_OP_RMS_NORM, &norm, &m->final_norm, err);
    for (int64_t i = p->config->layers - 1; status == DT_OK && i >= p->model->first_trained; i--) {
        status = dtp_layer_backward(p, i, err);
        if (status != DT_OK)
            dt_err_prefix(err, "layer %lld, backward: ", (long long)i);
    }
    dt_embedding_args embedding = embedding_args(p);
    embedding.dy = dtp_pass_rows(p, m->dh, p->config->hidden);
    if (status == DT_OK && embedding.dweight.data)
        status = dtp_pass_backward(p, DT_OP_EMBEDDING, &embedding, &m->embedding, err);
    return status;
}

dt_status dtp_pass_train(dt_pass *p, const float *weights, float grad_scale, dt_cross_entropy_result *result,
                         dt_err *err)
{
    dt_status status = dtp_pass_trunk(p, err);
    if (status == DT_OK)
        status = dtp_pass_final_norm(p, err);
    if (status == DT_OK)
        status = head(p, weights, grad_scale, result, err);
    return status == DT_OK && p->keep ? backward(p, err) : status;
}
