/* config.json of a Qwen3.5 text model, in either layout: read, checked against what is implemented, refused otherwise.
 *
 * Every refusal names file, field, what was expected and what was found. Sizes come from the file; a class default is
 * used only where all published models agree on it. Not for: tensor shapes (model/store.h checks them). */
#ifndef DT_MODEL_CONFIG_H
#define DT_MODEL_CONFIG_H

#include <deltune/tensor.h>

typedef enum dt_layer_kind { DT_LAYER_LINEAR, DT_LAYER_FULL } dt_layer_kind;

typedef struct dt_model_config {
    bool multimodal; /* tensors are named model.language_model.*, not model.* */
    bool tied;       /* the head is the embedding */
    int64_t vocab, hidden, intermediate, layers;
    int64_t heads, kv_heads, head_dim, rotary_dim;                  /* full attention */
    int64_t key_heads, value_heads, key_dim, value_dim, conv_width; /* linear attention */
    int64_t max_positions;
    double rope_theta, rms_eps, initializer_range;
    dt_dtype dtype;      /* dtype or torch_dtype; DT_NONE when the file has neither */
    dt_layer_kind *kind; /* [layers] */
} dt_model_config;

/* Errors: DT_E_IO, DT_E_FORMAT, DT_E_UNSUPPORTED (a mixture of experts, quantised weights, another architecture or
 * variant), DT_E_NOMEM. */
dt_status dtp_config_load(dt_model_config **out, const char *path, dt_err *err);
dt_status dtp_config_parse(dt_model_config **out, const char *text, size_t length, const char *where, dt_err *err);
void dtp_config_free(dt_model_config *config); /* accepts NULL */

/* "model.language_model." or "model.": what all tensors of the text model but lm_head.weight start with. */
const char *dtp_config_prefix(const dt_model_config *config);

/* Channels of q and k together with v, as in_proj_qkv and the convolution see them. */
static inline int64_t dtp_config_value_width(const dt_model_config *c)
{
    return c->value_heads * c->value_dim;
}
static inline int64_t dtp_config_key_width(const dt_model_config *c)
{
    return c->key_heads * c->key_dim;
}
static inline int64_t dtp_config_conv_channels(const dt_model_config *c)
{
    return 2 * dtp_config_key_width(c) + dtp_config_value_width(c);
}

#endif
