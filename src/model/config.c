#include "model/config.h"
#include "core/json.h"
#include "core/memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that no model comes near; they keep products of sizes far from overflow. */
enum { MAX_LAYERS = 4096, MAX_SIZE = 1 << 24, MAX_CONFIG_BYTES = 16 << 20 };

/* The object being read and how its fields are called in errors. */
typedef struct {
    const json_t *object;
    const char *where;  /* file */
    const char *prefix; /* "text_config." or "" */
    dt_err *err;
} reader;

/* "FILE: text_config.FIELD: expected WHAT, found VALUE" */
static dt_status refuse(const reader *r, dt_status status, const char *field, const char *expected)
{
    const json_t *value = json_object_get(r->object, field);
    char *found = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    dt_fail(r->err, status, "%s: %s%s: expected %s, found %.200s", r->where, r->prefix, field, expected,
            value ? (found ? found : "?") : "nothing");
    free(found);
    return status;
}

/* A field that is there and not null. */
static const json_t *field_of(const reader *r, const char *field)
{
    const json_t *value = json_object_get(r->object, field);
    return value && !json_is_null(value) ? value : NULL;
}

/* A size in [1, MAX_SIZE]; fallback 0 = required. */
static dt_status read_size(const reader *r, const char *field, int64_t fallback, int64_t *out)
{
    const json_t *value = field_of(r, field);
    if (!value && fallback) {
        *out = fallback;
        return DT_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > MAX_SIZE)
        return refuse(r, DT_E_FORMAT, field, "an integer from 1 to 16777216");
    *out = json_integer_value(value);
    return DT_OK;
}

static dt_status read_positive(const reader *r, const char *field, double fallback, double *out)
{
    const json_t *value = field_of(r, field);
    if (!value) {
        *out = fallback;
        return DT_OK;
    }
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x > 0) || isinf(x))
        return refuse(r, DT_E_FORMAT, field, "a positive number");
    *out = x;
    return DT_OK;
}

/* A field that must be absent, null, or one of two strings. */
static dt_status only_string(const reader *r, const char *field, const char *a, const char *b)
{
    const json_t *value = field_of(r, field);
    const char *text = json_string_value(value);
    if (!value || (text && (!strcmp(text, a) || !strcmp(text, b))))
        return DT_OK;
    char expected[64];
    snprintf(expected, sizeof expected, strcmp(a, b) ? "\"%s\" or \"%s\"" : "\"%s\"", a, b);
    return refuse(r, DT_E_UNSUPPORTED, field, expected);
}

static dt_status only_bool(const reader *r, const char *field, bool wanted)
{
    const json_t *value = field_of(r, field);
    if (!value || (json_is_boolean(value) && json_is_true(value) == wanted))
        return DT_OK;
    return refuse(r, DT_E_UNSUPPORTED, field, wanted ? "true" : "false");
}

static dt_status read_dtype(const reader *r, const char *field, dt_dtype *out)
{
    const json_t *value = field_of(r, field);
    const char *name = json_string_value(value);
    if (!value)
        return DT_OK;
    if (name && !strncmp(name, "torch.", 6))
        name += 6;
    if (name && !strcmp(name, "bfloat16"))
        *out = DT_BF16;
    else if (name && !strcmp(name, "float32"))
        *out = DT_F32;
    else if (name && !strcmp(name, "float16"))
        *out = DT_F16;
    else
        return refuse(r, DT_E_UNSUPPORTED, field, "\"bfloat16\", \"float32\" or \"float16\"");
    return DT_OK;
}

/* ---- layout and architecture ---- */

static bool is_moe(const char *model_type)
{
    return strstr(model_type, "_moe") != NULL;
}

/* Finds the layout; on return `r` reads the text fields. */
static dt_status read_layout(reader *r, dt_model_config *c)
{
    const char *type = json_string_value(json_object_get(r->object, "model_type"));
    if (field_of(r, "quantization_config"))
        return refuse(r, DT_E_UNSUPPORTED, "quantization_config", "none (quantised weights are not supported)");
    c->multimodal = type && (!strcmp(type, "qwen3_5") || !strcmp(type, "qwen3_5_moe"));
    if (!c->multimodal && !(type && (!strcmp(type, "qwen3_5_text") || !strcmp(type, "qwen3_5_moe_text"))))
        return refuse(r, DT_E_UNSUPPORTED, "model_type", "\"qwen3_5\" or \"qwen3_5_text\"");
    if (is_moe(type))
        return refuse(r, DT_E_UNSUPPORTED, "model_type",
                      "a dense model (the mixture of experts of Qwen3.5-MoE is not supported yet)");
    const json_t *tied = field_of(r, "tie_word_embeddings");
    if (tied && !json_is_boolean(tied))
        return refuse(r, DT_E_FORMAT, "tie_word_embeddings", "true or false");
    c->tied = json_is_true(tied);
    if (!c->multimodal)
        return DT_OK;

    const json_t *text = field_of(r, "text_config");
    if (!json_is_object(text))
        return refuse(r, DT_E_FORMAT, "text_config", "an object");
    r->object = text;
    r->prefix = "text_config.";
    if (field_of(r, "quantization_config"))
        return refuse(r, DT_E_UNSUPPORTED, "quantization_config", "none (quantised weights are not supported)");
    return only_string(r, "model_type", "qwen3_5_text", "qwen3_5_text");
}

static dt_status check_variant(const reader *r)
{
    dt_status status = only_string(r, "hidden_act", "silu", "silu");
    if (status == DT_OK)
        status = only_bool(r, "attention_bias", false);
    if (status == DT_OK)
        status = only_bool(r, "attn_output_gate", true);
    if (status == DT_OK)
        status = only_string(r, "output_gate_type", "swish", "silu");
    const json_t *dropout = field_of(r, "attention_dropout");
    if (status == DT_OK && dropout && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        status = refuse(r, DT_E_UNSUPPORTED, "attention_dropout", "0");
    if (status == DT_OK && field_of(r, "num_experts"))
        status = refuse(r, DT_E_UNSUPPORTED, "num_experts", "none in a dense model");
    return status;
}

static dt_status read_sizes(const reader *r, dt_model_config *c)
{
    const struct {
        const char *field;
        int64_t fallback;
        int64_t *out;
    } sizes[] = {
        {"vocab_size", 248320, &c->vocab},
        {"hidden_size", 0, &c->hidden},
        {"intermediate_size", 0, &c->intermediate},
        {"num_hidden_layers", 0, &c->layers},
        {"num_attention_heads", 0, &c->heads},
        {"num_key_value_heads", 0, &c->kv_heads},
        {"head_dim", 256, &c->head_dim},
        {"linear_num_key_heads", 16, &c->key_heads},
        {"linear_num_value_heads", 0, &c->value_heads},
        {"linear_key_head_dim", 128, &c->key_dim},
        {"linear_value_head_dim", 128, &c->value_dim},
        {"linear_conv_kernel_dim", 4, &c->conv_width},
        {"max_position_embeddings", 32768, &c->max_positions},
    };
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < sizeof sizes / sizeof *sizes; i++)
        status = read_size(r, sizes[i].field, sizes[i].fallback, sizes[i].out);
    if (status == DT_OK)
        status = read_positive(r, "rms_norm_eps", 1e-6, &c->rms_eps);
    if (status == DT_OK)
        status = read_positive(r, "initializer_range", 0.02, &c->initializer_range);
    if (status != DT_OK)
        return status;
    if (c->layers > MAX_LAYERS)
        return refuse(r, DT_E_FORMAT, "num_hidden_layers", "at most 4096");
    if (c->conv_width > 8)
        return refuse(r, DT_E_UNSUPPORTED, "linear_conv_kernel_dim", "at most 8");
    if (c->heads % c->kv_heads)
        return refuse(r, DT_E_FORMAT, "num_attention_heads", "a multiple of num_key_value_heads");
    if (c->value_heads % c->key_heads)
        return refuse(r, DT_E_FORMAT, "linear_num_value_heads", "a multiple of linear_num_key_heads");
    return DT_OK;
}

static dt_status read_rope(const reader *r, dt_model_config *c)
{
    const char *name = field_of(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *object = field_of(r, name);
    if (object && !json_is_object(object))
        return refuse(r, DT_E_FORMAT, name, "an object");
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s.", r->prefix, name);
    const reader rope = {object, r->where, prefix, r->err};
    dt_status status = only_string(&rope, "rope_type", "default", "default");
    if (status == DT_OK)
        status = only_string(&rope, "type", "default", "default");

    /* Both numbers may stand inside the object or, in older files, beside it. */
    const reader *theta = field_of(&rope, "rope_theta") ? &rope : r;
    const reader *partial = field_of(&rope, "partial_rotary_factor") ? &rope : r;
    double factor = 0.25;
    if (status == DT_OK && !field_of(theta, "rope_theta"))
        status = refuse(&rope, DT_E_FORMAT, "rope_theta", "a positive number");
    if (status == DT_OK)
        status = read_positive(theta, "rope_theta", 0, &c->rope_theta);
    if (status == DT_OK)
        status = read_positive(partial, "partial_rotary_factor", 0.25, &factor);
    if (status != DT_OK)
        return status;
    c->rotary_dim = factor <= 1 ? (int64_t)((double)c->head_dim * factor) : 0;
    if (c->rotary_dim < 2 || c->rotary_dim % 2)
        return refuse(partial, DT_E_FORMAT, "partial_rotary_factor", "a share of head_dim that is an even number");
    return DT_OK;
}

static dt_status read_layer_kinds(const reader *r, dt_model_config *c)
{
    int64_t interval;
    dt_status status = read_size(r, "full_attention_interval", 4, &interval);
    if (status != DT_OK)
        return status;
    c->kind = dtp_calloc((size_t)c->layers, sizeof *c->kind);
    if (!c->kind)
        return dt_fail(r->err, DT_E_NOMEM, "%s: no memory for %lld layers", r->where, (long long)c->layers);
    const json_t *types = field_of(r, "layer_types");
    if (types && (int64_t)json_array_size(types) != c->layers) {
        char expected[64];
        snprintf(expected, sizeof expected, "a list of num_hidden_layers = %lld names", (long long)c->layers);
        return refuse(r, DT_E_FORMAT, "layer_types", expected);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = types ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
        bool full = types ? type && !strcmp(type, "full_attention") : (i + 1) % interval == 0;
        if (types && !full && !(type && !strcmp(type, "linear_attention")))
            return refuse(r, DT_E_UNSUPPORTED, "layer_types", "only \"linear_attention\" and \"full_attention\"");
        c->kind[i] = full ? DT_LAYER_FULL : DT_LAYER_LINEAR;
    }
    return DT_OK;
}

static dt_status read_config(const json_t *root, const char *where, dt_model_config *c, dt_err *err)
{
    reader top = {root, where, "", err}, r = top;
    if (!json_is_object(root))
        return dt_fail(err, DT_E_FORMAT, "%s: expected a JSON object", where);
    dt_status status = read_layout(&r, c);
    for (const reader *d = &top; status == DT_OK && d; d = d == &top ? &r : NULL) {
        status = read_dtype(d, "torch_dtype", &c->dtype);
        if (status == DT_OK)
            status = read_dtype(d, "dtype", &c->dtype);
    }
    if (status == DT_OK)
        status = check_variant(&r);
    if (status == DT_OK)
        status = read_sizes(&r, c);
    if (status == DT_OK)
        status = read_rope(&r, c);
    if (status == DT_OK)
        status = read_layer_kinds(&r, c);
    return status;
}

static dt_status config_from_json(dt_model_config **out, json_t *root, const char *where, dt_err *err)
{
    dt_model_config *c = dtp_calloc(1, sizeof *c);
    dt_status status =
        c ? read_config(root, where, c, err) : dt_fail(err, DT_E_NOMEM, "%s: no memory for the configuration", where);
    json_decref(root);
    if (status != DT_OK) {
        dtp_config_free(c);
        return status;
    }
    *out = c;
    return DT_OK;
}

dt_status dtp_config_load(dt_model_config **out, const char *path, dt_err *err)
{
    json_t *root;
    dt_status status = dtp_json_load(&root, path, MAX_CONFIG_BYTES, err);
    return status == DT_OK ? config_from_json(out, root, path, err) : status;
}

dt_status dtp_config_parse(dt_model_config **out, const char *text, size_t length, const char *where, dt_err *err)
{
    json_t *root;
    dt_status status = dtp_json_parse(&root, text, length, where, err);
    return status == DT_OK ? config_from_json(out, root, where, err) : status;
}

void dtp_config_free(dt_model_config *config)
{
    if (!config)
        return;
    free(config->kind);
    free(config);
}

const char *dtp_config_prefix(const dt_model_config *config)
{
    return config->multimodal ? "model.language_model." : "model.";
}
