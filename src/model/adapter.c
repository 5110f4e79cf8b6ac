/* Adapter folders: adapter_config.json and adapter_model.safetensors, as peft writes and reads them. */
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "model/lora_private.h"
#include "model/widen.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

static const char tensor_prefix[] = "base_model.model.";
static const char *const kind_suffix[2] = {".lora_A.weight", ".lora_B.weight"};

/* ---- adapter_config.json ---- */

static dt_status refuse(const char *path, const char *field, const char *expected, const json_t *found, dt_err *err)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    dt_fail(err, DT_E_UNSUPPORTED, "%s: %s: expected %s, found %.200s", path, field, expected, text ? text : "nothing");
    free(text);
    return DT_E_UNSUPPORTED;
}

/* Empty in the sense of "not used": absent, null, false, "", [], {}. */
static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) || (json_is_string(value) && !json_string_length(value));
}

/* Settings that change the arithmetic and are not implemented. */
static dt_status check_variant(const json_t *root, const char *path, dt_err *err)
{
    static const char *const unused[] = {
        "use_dora",
        "lora_bias",
        "fan_in_fan_out",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "layers_pattern",
        "layers_to_transform",
        "layer_replication",
        "target_parameters",
        "trainable_token_indices",
        "use_bdlora",
        "use_qalora",
        "alora_invocation_tokens",
        "arrow_config",
        "velora_config",
        "monteclora_config",
        "kasa_config",
    };
    const json_t *type = json_object_get(root, "peft_type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0)
        return refuse(path, "peft_type", "\"LORA\"", type, err);
    const json_t *bias = json_object_get(root, "bias");
    if (!is_empty(bias) && !(json_is_string(bias) && !strcmp(json_string_value(bias), "none")))
        return refuse(path, "bias", "\"none\"", bias, err);
    /* These start from changed base weights, which the adapter folder does not hold. */
    const char *init = json_string_value(json_object_get(root, "init_lora_weights"));
    if (init && strcmp(init, "gaussian") != 0 && strcmp(init, "orthogonal") != 0)
        return refuse(path, "init_lora_weights", "true, false, \"gaussian\" or \"orthogonal\"",
                      json_object_get(root, "init_lora_weights"), err);
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (!is_empty(json_object_get(root, unused[i])))
            return refuse(path, unused[i], "not to be used (not implemented here)", json_object_get(root, unused[i]),
                          err);
    return DT_OK;
}

/* A list of strings; *out is to be freed, its strings are borrowed. */
static dt_status read_strings(const json_t *list, const char *path, const char *field, const char ***out, size_t *n_out,
                              dt_err *err)
{
    size_t n = json_array_size(list);
    const char **strings = dtp_calloc(n ? n : 1, sizeof *strings);
    if (!strings)
        return dt_fail(err, DT_E_NOMEM, "%s: %s: no memory", path, field);
    for (size_t i = 0; i < n; i++) {
        strings[i] = json_string_value(json_array_get(list, i));
        if (!strings[i]) {
            free(strings);
            return dt_fail(err, DT_E_FORMAT, "%s: %s[%zu] is not a string", path, field, i);
        }
    }
    *out = strings;
    *n_out = n;
    return DT_OK;
}

static dt_status read_numbers(const json_t *root, const char *path, dt_lora_options *o, dt_err *err)
{
    *o = (dt_lora_options){.rank = 8, .alpha = 8}; /* peft's own defaults */
    dt_status status = dtp_json_get_int(root, "r", path, &o->rank, err);
    if (status == DT_OK)
        status = dtp_json_get_double(root, "lora_alpha", path, &o->alpha, err);
    if (status == DT_OK)
        status = dtp_json_get_double(root, "lora_dropout", path, &o->dropout, err);
    if (status == DT_OK)
        status = dtp_json_get_bool(root, "use_rslora", path, &o->rslora, err);
    return status;
}

static dt_status lora_from_config(dt_lora **out, const dt_model_config *config, const json_t *root, const char *path,
                                  dt_err *err)
{
    if (!json_is_object(root))
        return dt_fail(err, DT_E_FORMAT, "%s: expected a JSON object", path);
    dt_lora_options o;
    const char **targets = NULL, **exclude = NULL;
    const json_t *target = json_object_get(root, "target_modules"),
                 *excluded = json_object_get(root, "exclude_modules");
    const char *pattern = json_string_value(target);
    dt_status status = check_variant(root, path, err);
    if (status == DT_OK)
        status = read_numbers(root, path, &o, err);
    if (status == DT_OK && !pattern && !json_array_size(target))
        status = dt_fail(err, DT_E_FORMAT, "%s: target_modules: expected a string or a list of names", path);
    if (status == DT_OK && !pattern)
        status = read_strings(target, path, "target_modules", &targets, &o.n_targets, err);
    if (status == DT_OK && !is_empty(excluded) && !json_is_array(excluded))
        status = refuse(path, "exclude_modules", "a list of names", excluded, err);
    if (status == DT_OK && json_array_size(excluded))
        status = read_strings(excluded, path, "exclude_modules", &exclude, &o.n_exclude, err);
    if (status == DT_OK) {
        o.targets = targets;
        o.exclude = exclude;
        o.target_regex = pattern && strcmp(pattern, "all-linear") != 0 ? pattern : NULL;
        status = dtp_lora_choose(out, config, &o, true, err);
        if (status != DT_OK && status != DT_E_NOMEM)
            dt_err_prefix(err, "%s: ", path);
    }
    free(targets);
    free(exclude);
    return status;
}

/* ---- adapter_model.safetensors ---- */

/* Finds what "base_model.model.PREFIXlayers.3.mlp.up_proj.lora_A.weight" names; false when it names nothing. */
static bool parse_name(const dt_model_config *config, const char *name, int64_t *layer_out, int *index_out,
                       int *kind_out)
{
    if (strncmp(name, tensor_prefix, sizeof tensor_prefix - 1) != 0)
        return false;
    name += sizeof tensor_prefix - 1;
    static const char *const prefixes[] = {"model.language_model.layers.", "model.layers."};
    size_t skip = !strncmp(name, prefixes[0], strlen(prefixes[0]))   ? strlen(prefixes[0])
                  : !strncmp(name, prefixes[1], strlen(prefixes[1])) ? strlen(prefixes[1])
                                                                     : 0;
    if (!skip || name[skip] < '0' || name[skip] > '9' || (name[skip] == '0' && name[skip + 1] != '.'))
        return false;
    char *end;
    long layer = strtol(name + skip, &end, 10);
    if (*end != '.' || layer < 0 || layer >= config->layers)
        return false;
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    int modules;
    dtp_layer_tensors(config, layer, info, &modules);
    for (int m = 0; m < modules; m++) {
        size_t n = strlen(info[m].module);
        for (int kind = 0; kind < 2; kind++)
            if (!strncmp(end + 1, info[m].module, n) && !strcmp(end + 1 + n, kind_suffix[kind])) {
                *layer_out = layer;
                *index_out = m;
                *kind_out = kind;
                return true;
            }
    }
    return false;
}

static dt_status take_tensor(dt_lora *lora, const dt_st_tensor *t, dt_err *err)
{
    const char *path = dtp_st_path(lora->file);
    int64_t layer;
    int index, kind;
    if (!parse_name(lora->config, t->name, &layer, &index, &kind))
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s belongs to no linear map of this model", path, t->name);
    if (!dtp_lora_targets(lora, layer, index))
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s is not among the target_modules of adapter_config.json", path,
                       t->name);
    const dt_st_tensor **slot = &lora->stored[layer * DT_MAX_MODULES + index][kind];
    if (*slot)
        return dt_fail(err, DT_E_FORMAT, "%s: tensors %s and %s are for the same module", path, (*slot)->name, t->name);
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    int modules;
    dtp_layer_tensors(lora->config, layer, info, &modules);
    int64_t rows = kind ? info[index].shape[0] : lora->settings.rank;
    int64_t columns = kind ? lora->settings.rank : info[index].shape[1];
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != columns)
        return dt_fail(err, DT_E_SHAPE, "%s: tensor %s: expected shape [%lld, %lld], found %d dimensions [%lld, %lld]",
                       path, t->name, (long long)rows, (long long)columns, t->rank, (long long)t->shape[0],
                       (long long)t->shape[1]);
    if (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)
        return dt_fail(err, DT_E_DTYPE, "%s: tensor %s: expected F32, BF16 or F16, found %s", path, t->name,
                       t->dtype_name);
    *slot = t;
    return DT_OK;
}

static dt_status open_tensors(dt_lora *lora, const char *path, dt_err *err)
{
    dt_status status = dtp_st_open(&lora->file, path, err);
    if (status != DT_OK)
        return status;
    lora->stored = dtp_calloc((size_t)lora->config->layers * DT_MAX_MODULES, sizeof *lora->stored);
    if (!lora->stored)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for its list of tensors", path);
    for (size_t i = 0; status == DT_OK && i < dtp_st_count(lora->file); i++)
        status = take_tensor(lora, dtp_st_at(lora->file, i), err);
    for (int64_t layer = 0; status == DT_OK && layer < lora->config->layers; layer++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        int modules;
        dtp_layer_tensors(lora->config, layer, info, &modules);
        for (int m = 0; status == DT_OK && m < modules; m++)
            for (int kind = 0; status == DT_OK && kind < 2; kind++)
                if (dtp_lora_targets(lora, layer, m) && !lora->stored[layer * DT_MAX_MODULES + m][kind]) {
                    char name[DT_MAX_NAME];
                    dtp_module_name(name, lora->config, layer, &info[m]);
                    status = dt_fail(err, DT_E_FORMAT, "%s: tensor %s%s%s is missing", path, tensor_prefix, name,
                                     kind_suffix[kind]);
                }
    }
    return status;
}

/* A pattern written for the other prefix would select nothing for peft: name the modules instead. */
static dt_status respell_targets(dt_lora *lora, dt_err *err)
{
    const char *pattern = json_string_value(lora->target_modules);
    dt_lora *own = NULL;
    dt_lora_options o = lora->settings;
    if (!pattern)
        return DT_OK;
    o.target_regex = pattern;
    bool same = dtp_lora_choose(&own, lora->config, &o, false, NULL) == DT_OK;
    for (int64_t i = 0; same && i < lora->config->layers * DT_MAX_MODULES; i++)
        same = own->adapted[i] || !lora->adapted[i];
    dtp_lora_free(own);
    if (same)
        return DT_OK;
    json_t *names = json_array();
    for (int64_t layer = 0; layer < lora->config->layers; layer++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        char name[DT_MAX_NAME];
        int modules;
        dtp_layer_tensors(lora->config, layer, info, &modules);
        for (int m = 0; m < modules; m++)
            if (dtp_lora_targets(lora, layer, m)) {
                dtp_module_name(name, lora->config, layer, &info[m]);
                json_array_append_new(names, json_string(name));
            }
    }
    if ((int64_t)json_array_size(names) != lora->count) {
        json_decref(names);
        return dt_fail(err, DT_E_NOMEM, "no memory for the names of adapted modules");
    }
    json_decref(lora->target_modules);
    lora->target_modules = names;
    return DT_OK;
}

dt_status dtp_lora_open(dt_lora **out, const dt_model_config *config, const char *folder, dt_err *err)
{
    dt_lora *lora = NULL;
    json_t *root = NULL;
    char *config_path = dtp_path_join(folder, "adapter_config.json");
    char *weights_path = dtp_path_join(folder, "adapter_model.safetensors");
    dt_status status =
        config_path && weights_path ? DT_OK : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    if (status == DT_OK && !dtp_file_exists(config_path))
        status =
            dt_fail(err, DT_E_IO,
                    "%s: has no adapter_config.json; name a checkpoint-N folder of a LoRA run (one of a full run is "
                    "a model of its own: --model)",
                    folder);
    if (status == DT_OK)
        status = dtp_json_load(&root, config_path, MAX_CONFIG_BYTES, err);
    if (status == DT_OK)
        status = lora_from_config(&lora, config, root, config_path, err);
    if (status == DT_OK)
        status = open_tensors(lora, weights_path, err);
    if (status == DT_OK)
        status = respell_targets(lora, err);
    json_decref(root);
    free(config_path);
    free(weights_path);
    if (status != DT_OK) {
        dtp_lora_free(lora);
        return status;
    }
    *out = lora;
    return DT_OK;
}

dt_status dtp_lora_read(const dt_lora *lora, int64_t layer, int index, float *a, float *b, dt_err *err)
{
    float *to[2] = {a, b};
    if (!lora->stored)
        return dt_fail(err, DT_E_INTERNAL, "LoRA values asked for, but no adapter was opened");
    for (int kind = 0; kind < 2; kind++) {
        const dt_st_tensor *t = lora->stored[layer * DT_MAX_MODULES + index][kind];
        dtp_widen(to[kind], t->data, t->dtype, (size_t)(t->shape[0] * t->shape[1]));
    }
    return DT_OK;
}

/* ---- writing ---- */

typedef struct {
    const dt_lora *lora;
    dt_lora_values values;
    void *user;
    struct saved_tensor {
        char name[DT_MAX_NAME + 32];
        int64_t layer;
        int index, kind;
    } * tensor;
    dt_st_spec *spec;
    size_t n;
} save;

static void list_tensors(save *s)
{
    const dt_lora *lora = s->lora;
    for (int64_t layer = 0; layer < lora->config->layers; layer++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        char name[DT_MAX_NAME];
        int modules;
        dtp_layer_tensors(lora->config, layer, info, &modules);
        for (int m = 0; m < modules; m++)
            for (int kind = 0; kind < 2; kind++) {
                if (!dtp_lora_targets(lora, layer, m))
                    continue;
                struct saved_tensor *t = &s->tensor[s->n];
                dtp_module_name(name, lora->config, layer, &info[m]);
                snprintf(t->name, sizeof t->name, "%s%s%s", tensor_prefix, name, kind_suffix[kind]);
                t->layer = layer;
                t->index = m;
                t->kind = kind;
                int64_t r = lora->settings.rank;
                s->spec[s->n++] =
                    (dt_st_spec){t->name, "F32", 2, {kind ? info[m].shape[0] : r, kind ? r : info[m].shape[1]}, NULL};
            }
    }
}

static dt_status emit_tensor(void *user, size_t index, dt_st_sink *sink, dt_err *err)
{
    save *s = user;
    const struct saved_tensor *t = &s->tensor[index];
    const float *values;
    uint64_t bytes;
    dt_status status = dtp_st_spec_bytes(&s->spec[index], &bytes, err);
    if (status == DT_OK)
        status = s->values(s->user, t->layer, t->index, t->kind == 1, &values, err);
    return status == DT_OK ? dtp_st_put(sink, values, (size_t)bytes, err) : status;
}

static json_t *config_json(const dt_lora *lora, const char *base_model)
{
    const dt_lora_options *o = &lora->settings;
    json_t *alpha =
        o->alpha == floor(o->alpha) && o->alpha < 1e15 ? json_integer((json_int_t)o->alpha) : json_real(o->alpha);
    json_t *root =
        json_pack("{s:n, s:s, s:s, s:b, s:b, s:b, s:n, s:n, s:o, s:f, s:[], s:s, s:I, s:{}, s:{}, s:n, s:O, s:s, "
                  "s:b, s:b}",
                  "auto_mapping", "base_model_name_or_path", base_model, "bias", "none", "fan_in_fan_out", 0,
                  "inference_mode", 1, "init_lora_weights", 1, "layers_pattern", "layers_to_transform", "lora_alpha",
                  alpha, "lora_dropout", o->dropout, "modules_to_save", "peft_type", "LORA", "r", (json_int_t)o->rank,
                  "rank_pattern", "alpha_pattern", "revision", "target_modules", lora->target_modules, "task_type",
                  "CAUSAL_LM", "use_dora", 0, "use_rslora", o->rslora);
    if (root && lora->exclude_modules)
        json_object_set(root, "exclude_modules", lora->exclude_modules);
    return root;
}

static dt_status save_config(const dt_lora *lora, const char *folder, const char *base_model, dt_err *err)
{
    char *path = dtp_path_join(folder, "adapter_config.json");
    json_t *root = config_json(lora, base_model);
    dt_status status = path && root ? dtp_python_save(root, path, true, err)
                                    : dt_fail(err, DT_E_NOMEM, "%s: no memory for adapter_config.json", folder);
    json_decref(root);
    free(path);
    return status;
}

dt_status dtp_lora_save(const dt_lora *lora, const char *folder, const char *base_model, dt_lora_values values,
                        void *user, dt_err *err)
{
    save s = {.lora = lora, .values = values, .user = user};
    char *path = dtp_path_join(folder, "adapter_model.safetensors");
    s.tensor = dtp_calloc(2 * (size_t)lora->count, sizeof *s.tensor);
    s.spec = dtp_calloc(2 * (size_t)lora->count, sizeof *s.spec);
    dt_status status;
    if (!path || !s.tensor || !s.spec) {
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory to save the adapter", folder);
    } else {
        list_tensors(&s);
        status = dtp_st_write(path, s.spec, s.n, NULL, 0, emit_tensor, &s, err);
    }
    if (status == DT_OK)
        status = save_config(lora, folder, base_model, err);
    free(s.tensor);
    free(s.spec);
    free(path);
    return status;
}
