#include "model/catalogue.h"
#include <string.h>

/* Appends to a list being built. */
typedef struct {
    dt_weight_info *out;
    int n;
} list;

static void add_linear(list *l, dt_weight_id id, const char *module, int input, int64_t out, int64_t in)
{
    l->out[l->n++] = (dt_weight_info){id, module, ".weight", input, 2, {out, in, 1}};
}

static void add_vector(list *l, dt_weight_id id, const char *module, const char *suffix, int64_t n)
{
    l->out[l->n++] = (dt_weight_info){id, module, suffix, DT_INPUT_NONE, 1, {n, 1, 1}};
}

static void add_mlp(list *l, const dt_model_config *c)
{
    add_linear(l, DT_W_GATE, "mlp.gate_proj", DT_INPUT_MLP, c->intermediate, c->hidden);
    add_linear(l, DT_W_UP, "mlp.up_proj", DT_INPUT_MLP, c->intermediate, c->hidden);
    add_linear(l, DT_W_DOWN, "mlp.down_proj", DT_INPUT_MLP_DOWN, c->hidden, c->intermediate);
}

static void add_linear_layer(list *l, const dt_model_config *c)
{
    int64_t values = dtp_config_value_width(c), channels = dtp_config_conv_channels(c);
    add_linear(l, DT_W_QKV, "linear_attn.in_proj_qkv", DT_INPUT_MIXER, channels, c->hidden);
    add_linear(l, DT_W_Z, "linear_attn.in_proj_z", DT_INPUT_MIXER, values, c->hidden);
    add_linear(l, DT_W_B, "linear_attn.in_proj_b", DT_INPUT_MIXER, c->value_heads, c->hidden);
    add_linear(l, DT_W_A, "linear_attn.in_proj_a", DT_INPUT_MIXER, c->value_heads, c->hidden);
    add_linear(l, DT_W_OUT, "linear_attn.out_proj", DT_INPUT_MIXER_OUT, c->hidden, values);
    add_mlp(l, c);
    l->out[l->n++] =
        (dt_weight_info){DT_W_CONV, "linear_attn.conv1d", ".weight", DT_INPUT_NONE, 3, {channels, 1, c->conv_width}};
    add_vector(l, DT_W_A_LOG, "linear_attn.A_log", "", c->value_heads);
    add_vector(l, DT_W_DT_BIAS, "linear_attn.dt_bias", "", c->value_heads);
    add_vector(l, DT_W_GATED_NORM, "linear_attn.norm", ".weight", c->value_dim);
}

static void add_full_layer(list *l, const dt_model_config *c)
{
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    add_linear(l, DT_W_Q, "self_attn.q_proj", DT_INPUT_MIXER, 2 * q, c->hidden); /* query and gate */
    add_linear(l, DT_W_K, "self_attn.k_proj", DT_INPUT_MIXER, kv, c->hidden);
    add_linear(l, DT_W_V, "self_attn.v_proj", DT_INPUT_MIXER, kv, c->hidden);
    add_linear(l, DT_W_O, "self_attn.o_proj", DT_INPUT_MIXER_OUT, c->hidden, q);
    add_mlp(l, c);
    add_vector(l, DT_W_Q_NORM, "self_attn.q_norm", ".weight", c->head_dim);
    add_vector(l, DT_W_K_NORM, "self_attn.k_norm", ".weight", c->head_dim);
}

int dtp_layer_tensors(const dt_model_config *config, int64_t layer, dt_weight_info out[DT_MAX_LAYER_TENSORS],
                      int *modules_out)
{
    list l = {out, 0};
    if (config->kind[layer] == DT_LAYER_FULL)
        add_full_layer(&l, config);
    else
        add_linear_layer(&l, config);
    add_vector(&l, DT_W_INPUT_NORM, "input_layernorm", ".weight", config->hidden);
    add_vector(&l, DT_W_POST_NORM, "post_attention_layernorm", ".weight", config->hidden);
    int modules = 0;
    while (out[modules].input != DT_INPUT_NONE)
        modules++;
    *modules_out = modules;
    return l.n;
}

int dtp_outer_tensors(const dt_model_config *config, dt_weight_info out[3])
{
    list l = {out, 0};
    out[l.n++] = (dt_weight_info){
        DT_W_EMBEDDING, "embed_tokens", ".weight", DT_INPUT_NONE, 2, {config->vocab, config->hidden, 1}};
    add_vector(&l, DT_W_FINAL_NORM, "norm", ".weight", config->hidden);
    if (!config->tied)
        out[l.n++] =
            (dt_weight_info){DT_W_HEAD, "lm_head", ".weight", DT_INPUT_NONE, 2, {config->vocab, config->hidden, 1}};
    return l.n;
}

void dtp_module_name(char out[DT_MAX_NAME], const dt_model_config *config, int64_t layer, const dt_weight_info *info)
{
    const char *prefix = info->id == DT_W_HEAD ? "" : dtp_config_prefix(config);
    if (layer < 0)
        snprintf(out, DT_MAX_NAME, "%s%s", prefix, info->module);
    else
        snprintf(out, DT_MAX_NAME, "%slayers.%lld.%s", prefix, (long long)layer, info->module);
}

void dtp_tensor_name(char out[DT_MAX_NAME], const dt_model_config *config, int64_t layer, const dt_weight_info *info)
{
    dtp_module_name(out, config, layer, info);
    strncat(out, info->suffix, DT_MAX_NAME - 1 - strlen(out));
}

int64_t dtp_weight_count(const dt_weight_info *info)
{
    int64_t n = 1;
    for (int i = 0; i < info->rank; i++)
        n *= info->shape[i];
    return n;
}
