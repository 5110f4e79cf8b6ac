#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/lora.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/philox.h"
#include "model/lora_private.h"
#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* A pattern that needs more steps on a module name is refused rather than run for minutes. */
enum { MATCH_LIMIT = 1000000 };

static const char all_linear_regex[] = "^(model\\.language_model(?=\\.).*\\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_"
                                       "proj|down_proj|in_proj_qkv|in_proj_z|"
                                       "in_proj_b|in_proj_a|out_proj))$";

void dtp_lora_options_default(dt_lora_options *options)
{
    *options = (dt_lora_options){.rank = 8, .alpha = 32, .dropout = 0.05};
}

/* ---- matching names ---- */

/* "mlp.up_proj" is a suffix of "model.layers.1.mlp.up_proj", "p_proj" is not. */
static bool is_suffix(const char *name, const char *target)
{
    size_t n = strlen(name), t = strlen(target);
    return t > 0 && t <= n && !strcmp(name + n - t, target) && (t == n || name[n - t - 1] == '.');
}

static bool in_list(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_suffix(name, list[i]))
            return true;
    return false;
}

typedef struct {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    const char *text;
} regex;

static void regex_free(regex *r)
{
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->data);
    pcre2_code_free(r->code);
}

static dt_status regex_compile(regex *r, const char *text, dt_err *err)
{
    int code;
    PCRE2_SIZE offset;
    r->text = text;
    r->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                            &code, &offset, NULL);
    if (!r->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return dt_fail(err, DT_E_ARG, "target_regex '%s': %s at character %zu", text, (char *)why, (size_t)offset);
    }
    r->data = pcre2_match_data_create_from_pattern(r->code, NULL);
    r->context = pcre2_match_context_create(NULL);
    if (!r->data || !r->context)
        return dt_fail(err, DT_E_NOMEM, "target_regex '%s': no memory", text);
    pcre2_set_match_limit(r->context, MATCH_LIMIT);
    return DT_OK;
}

static dt_status regex_matches(regex *r, const char *name, bool *out, dt_err *err)
{
    int rc = pcre2_match(r->code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, r->data, r->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return dt_fail(err, DT_E_ARG, "target_regex '%s' cannot be matched against %s (error %d)", r->text, name, rc);
    *out = rc >= 0;
    return DT_OK;
}

/* ---- choosing modules ---- */

static bool *adapted(const dt_lora *lora, int64_t layer, int index)
{
    return &lora->adapted[layer * DT_MAX_MODULES + index];
}

/* Names that are no linear map of a layer: adapting them is refused with the reason. */
static dt_status refuse_target(const dt_lora *lora, const char *target, const char *name, dt_err *err)
{
    if (strstr(name, "lm_head") || strstr(name, "embed_tokens"))
        return dt_fail(err, DT_E_ARG, "target_modules: '%s' selects %s, which cannot be adapted%s", target, name,
                       lora->config->tied ? " (embedding and head share one weight: tie_word_embeddings)" : "");
    return dt_fail(err, DT_E_ARG, "target_modules: '%s' selects %s, which is no linear map", target, name);
}

/* Calls `visit` with the name of each module and of everything else that has weights (index < 0), until it fails. */
typedef dt_status (*visitor)(dt_lora *lora, int64_t layer, int index, const char *name, void *user, dt_err *err);
static dt_status each_name(dt_lora *lora, visitor visit, void *user, dt_err *err)
{
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    char name[DT_MAX_NAME];
    dt_status status = DT_OK;
    for (int64_t layer = 0; layer < lora->config->layers; layer++) {
        int modules, n = dtp_layer_tensors(lora->config, layer, info, &modules);
        for (int i = 0; status == DT_OK && i < n; i++) {
            dtp_module_name(name, lora->config, layer, &info[i]);
            status = visit(lora, layer, i < modules ? i : -1, name, user, err);
        }
    }
    static const char *const outside[] = {"embed_tokens", "norm", "lm_head"}; /* a tied head has a name, too */
    for (int i = 0; status == DT_OK && i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", i < 2 ? dtp_config_prefix(lora->config) : "", outside[i]);
        status = visit(lora, -1, -1, name, user, err);
    }
    return status;
}

typedef struct {
    const char *target;
    bool hit;
} list_target;

static dt_status visit_list(dt_lora *lora, int64_t layer, int index, const char *name, void *user, dt_err *err)
{
    list_target *t = user;
    if (!is_suffix(name, t->target))
        return DT_OK;
    if (index < 0)
        return refuse_target(lora, t->target, name, err);
    t->hit = *adapted(lora, layer, index) = true;
    return DT_OK;
}

static dt_status visit_regex(dt_lora *lora, int64_t layer, int index, const char *name, void *user, dt_err *err)
{
    regex *r = user;
    bool hit = false;
    dt_status status = regex_matches(r, name, &hit, err);
    if (status == DT_OK && !hit && lora->any_prefix) { /* the other spelling of the same module */
        const char *own = dtp_config_prefix(lora->config);
        char other[DT_MAX_NAME + 16];
        snprintf(other, sizeof other, "%s%s", lora->config->multimodal ? "model." : "model.language_model.",
                 name + (index >= 0 ? strlen(own) : 0));
        if (index >= 0)
            status = regex_matches(r, other, &hit, err);
    }
    if (status != DT_OK || !hit)
        return status;
    if (index < 0)
        return refuse_target(lora, r->text, name, err);
    *adapted(lora, layer, index) = true;
    return DT_OK;
}

static dt_status visit_all(dt_lora *lora, int64_t layer, int index, const char *name, void *user, dt_err *err)
{
    (void)name, (void)user, (void)err;
    if (index >= 0)
        *adapted(lora, layer, index) = true;
    return DT_OK;
}

static dt_status visit_exclude(dt_lora *lora, int64_t layer, int index, const char *name, void *user, dt_err *err)
{
    const dt_lora_options *o = user;
    (void)err;
    if (index >= 0 && in_list(name, o->exclude, o->n_exclude))
        *adapted(lora, layer, index) = false;
    return DT_OK;
}

static bool wants_all(const dt_lora_options *o)
{
    for (size_t i = 0; i < o->n_targets; i++)
        if (!strcmp(o->targets[i], "all-linear"))
            return true;
    return o->n_targets == 0;
}

/* Fills lora->adapted and lora->count. */
static dt_status choose(dt_lora *lora, const dt_lora_options *o, dt_err *err)
{
    dt_status status = DT_OK;
    if (o->target_regex) {
        regex r = {0};
        status = regex_compile(&r, o->target_regex, err);
        if (status == DT_OK)
            status = each_name(lora, visit_regex, &r, err);
        regex_free(&r);
    } else if (wants_all(o)) {
        status = each_name(lora, visit_all, NULL, err);
    }
    for (size_t i = 0; status == DT_OK && !o->target_regex && i < o->n_targets; i++) {
        list_target t = {o->targets[i], !strcmp(o->targets[i], "all-linear")};
        status = each_name(lora, visit_list, &t, err);
        if (status == DT_OK && !t.hit)
            status = dt_fail(err, DT_E_ARG, "target_modules: '%s' matches no module of this model", t.target);
    }
    if (status == DT_OK)
        status = each_name(lora, visit_exclude, (void *)(uintptr_t)o, err);
    for (int64_t i = 0; i < lora->config->layers * DT_MAX_MODULES; i++)
        lora->count += lora->adapted[i];
    if (status == DT_OK && lora->count == 0)
        status = dt_fail(err, DT_E_ARG, "%s%s selects no module of this model",
                         o->target_regex ? "target_regex " : "target_modules", o->target_regex ? o->target_regex : "");
    return status;
}

/* ---- how the choice is written to adapter_config.json ---- */

static json_t *string_list(const char *const *list, size_t n)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_string(list[i]));
    return out;
}

/* The last parts of the names of all linear maps this model has, each once. */
static json_t *leaf_names(const dt_model_config *config)
{
    static const char *const leaves[] = {"down_proj", "gate_proj", "in_proj_a", "in_proj_b", "in_proj_qkv", "in_proj_z",
                                         "k_proj",    "o_proj",    "out_proj",  "q_proj",    "up_proj",     "v_proj"};
    json_t *out = json_array();
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) {
        bool found = false;
        for (int64_t layer = 0; !found && layer < config->layers; layer++) {
            dt_weight_info info[DT_MAX_LAYER_TENSORS];
            int modules;
            dtp_layer_tensors(config, layer, info, &modules);
            for (int m = 0; !found && m < modules; m++)
                found = is_suffix(info[m].module, leaves[i]);
        }
        if (found)
            json_array_append_new(out, json_string(leaves[i]));
    }
    return out;
}

static json_t *written_targets(const dt_model_config *config, const dt_lora_options *o)
{
    if (o->target_regex)
        return json_string(o->target_regex);
    if (!wants_all(o))
        return string_list(o->targets, o->n_targets);
    return config->multimodal ? json_string(all_linear_regex) : leaf_names(config);
}

/* ---- creation ---- */

static dt_status check_options(const dt_lora_options *o, dt_err *err)
{
    if (o->rank < 1 || o->rank > 65536)
        return dt_fail(err, DT_E_ARG, "lora_rank: expected 1 to 65536, found %lld", (long long)o->rank);
    if (!(o->alpha > 0) || isinf(o->alpha))
        return dt_fail(err, DT_E_ARG, "lora_alpha: expected a positive number, found %g", o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return dt_fail(err, DT_E_ARG, "lora_dropout: expected 0 <= p < 1, found %g", o->dropout);
    return DT_OK;
}

dt_status dtp_lora_choose(dt_lora **out, const dt_model_config *config, const dt_lora_options *o, bool any_prefix,
                          dt_err *err)
{
    dt_status status = check_options(o, err);
    if (status != DT_OK)
        return status;
    dt_lora *lora = dtp_calloc(1, sizeof *lora);
    if (lora) {
        lora->config = config;
        lora->any_prefix = any_prefix;
        lora->settings =
            (dt_lora_options){.rank = o->rank, .alpha = o->alpha, .dropout = o->dropout, .rslora = o->rslora};
        lora->adapted = dtp_calloc((size_t)config->layers * DT_MAX_MODULES, sizeof *lora->adapted);
        lora->target_modules = written_targets(config, o);
        lora->exclude_modules = o->n_exclude ? string_list(o->exclude, o->n_exclude) : NULL;
    }
    if (!lora || !lora->adapted || !lora->target_modules)
        status = dt_fail(err, DT_E_NOMEM, "no memory for the LoRA settings");
    else
        status = choose(lora, o, err);
    if (status != DT_OK) {
        dtp_lora_free(lora);
        return status;
    }
    *out = lora;
    return DT_OK;
}

dt_status dtp_lora_create(dt_lora **out, const dt_model_config *config, const dt_lora_options *options, dt_err *err)
{
    return dtp_lora_choose(out, config, options, false, err);
}

void dtp_lora_free(dt_lora *lora)
{
    if (!lora)
        return;
    json_decref(lora->target_modules);
    json_decref(lora->exclude_modules);
    dtp_st_close(lora->file);
    free(lora->stored);
    free(lora->adapted);
    free(lora);
}

/* ---- access ---- */

dt_lora_options dtp_lora_settings(const dt_lora *lora)
{
    return lora->settings;
}
int64_t dtp_lora_count(const dt_lora *lora)
{
    return lora->count;
}
bool dtp_lora_targets(const dt_lora *lora, int64_t layer, int index)
{
    return *adapted(lora, layer, index);
}

bool dtp_lora_has_values(const dt_lora *lora)
{
    return lora->file != NULL;
}

double dtp_lora_exact_scale(const dt_lora *lora)
{
    const double r = (double)lora->settings.rank;
    return lora->settings.alpha / (lora->settings.rslora ? sqrt(r) : r);
}

float dtp_lora_scale(const dt_lora *lora)
{
    return (float)dtp_lora_exact_scale(lora);
}

void dtp_lora_init_a(float *a, int64_t rank, int64_t in, uint64_t seed, uint32_t module, dt_dtype base)
{
    const float bound = 1.0f / sqrtf((float)in);
    const uint32_t tag = 0x4c6f5241u; /* "LoRA" */
    for (int64_t block = 0; block < (rank * in + 3) / 4; block++) {
        dt_philox_block r = dt_philox(seed, (uint32_t)block, module, (uint32_t)(block >> 32), tag);
        for (int64_t i = 4 * block; i < 4 * block + 4 && i < rank * in; i++) {
            float x = bound * ((float)(r.word[i % 4] >> 8) * 0x1p-23f - 1.0f);
            a[i] = base == DT_BF16 ? dt_bf16_to_f32(dt_f32_to_bf16(x)) : x;
        }
    }
}
