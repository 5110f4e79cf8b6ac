#include "model/pass.h"

dt_status dtp_pass_forward(dt_pass *p, dt_op op, const void *args, dt_saved *saved, dt_err *err)
{
    if (!p->planning)
        return dt_op_forward(p->exec, op, args, p->keep ? saved : NULL, err);
    size_t bytes;
    dt_status status = dt_op_workspace_bytes(p->exec, op, args, &bytes, err);
    if (status == DT_OK && bytes > p->memory->workspace)
        p->memory->workspace = bytes;
    if (status == DT_OK && saved && p->keep)
        status = dt_op_saved_bytes(p->exec, op, args, &saved->bytes, err);
    return status;
}

dt_status dtp_pass_backward(dt_pass *p, dt_op op, const void *args, dt_saved *saved, dt_err *err)
{
    if (!p->planning)
        return dt_op_backward(p->exec, op, args, saved, err);
    size_t bytes;
    dt_status status = dt_op_workspace_bytes(p->exec, op, args, &bytes, err);
    if (status == DT_OK && bytes > p->memory->workspace)
        p->memory->workspace = bytes;
    return status;
}

dt_tensor dtp_pass_rows(const dt_pass *p, void *data, int64_t width)
{
    return dt_tensor_2d(data, p->model->activation, p->rows, width);
}

dt_tensor dtp_pass_rows_f32(const dt_pass *p, float *data, int64_t width)
{
    return dt_tensor_2d(data, DT_F32, p->rows, width);
}

dt_tensor dtp_pass_inputs(const dt_pass *p, void *data, int64_t width)
{
    return dtp_pass_columns(p, data, width + p->memory->extension, 0, width);
}

dt_tensor dtp_pass_columns(const dt_pass *p, void *data, int64_t total, int64_t from, int64_t width)
{
    return dt_tensor_slice(dtp_pass_rows(p, data, total), 1, from, from + width);
}

dt_linear_args dtp_pass_linear(const dt_pass *p, const dt_layer *layer, const dt_weight_id *id, int n, dt_tensor x)
{
    int input = layer->w[id[0]].info.input;
    const dt_input_lora *lora = &layer->lora[input];
    dt_linear_args a = {
        DT_LINEAR_ARGS,
        .x = x,
        .T = p->T,
        .n_parts = n,
        .lora_a = lora->a,
        .dlora_a = lora->da,
        .lora_scale = p->model->lora ? dtp_lora_scale(p->model->lora) : 0,
        .dropout = p->dropout,
        .seed = p->key.seed,
        .step = p->key.step,
        .micro = p->key.micro,
        .input = (uint32_t)(layer->index * DT_LAYER_INPUTS + input),
        .extension = lora->extension,
        .values = p->values,
    };
    for (int i = 0; i < n; i++)
        a.part[i] = (dt_linear_part){
            .weight = layer->w[id[i]].value,
            .dweight = layer->w[id[i]].grad,
            .lora_b = lora->b[i],
            .dlora_b = lora->db[i],
            .lora_row = lora->row[i],
        };
    return a;
}

dt_rms_norm_args dtp_pass_norm(const dt_pass *p, const dt_weight *weight, dt_tensor x, dt_tensor y)
{
    return (dt_rms_norm_args){
        DT_RMS_NORM_ARGS,      .x = x,    .weight = weight->value, .y = y, .eps = (float)p->config->rms_eps,
        .zero_centered = true, .T = p->T, .dweight = weight->grad,
    };
}

/* Rows of a fused projection start on a multiple of 32 elements, so that vector loads stay aligned. */
static int64_t padded(int64_t width)
{
    return (width + 31) / 32 * 32;
}

int64_t dtp_proj_width(const dt_model_config *c, dt_layer_kind kind)
{
    return padded(kind == DT_LAYER_FULL ? 2 * (c->heads + c->kv_heads) * c->head_dim
                                        : dtp_config_conv_channels(c) + dtp_config_value_width(c) + 2 * c->value_heads);
}

int64_t dtp_mixer_width(const dt_model_config *c, dt_layer_kind kind)
{
    return kind == DT_LAYER_FULL ? c->heads * c->head_dim : dtp_config_value_width(c);
}

int64_t dtp_mix_width(const dt_model_config *c, dt_layer_kind kind)
{
    return kind == DT_LAYER_FULL ? (c->heads + c->kv_heads) * c->head_dim : dtp_config_conv_channels(c);
}
