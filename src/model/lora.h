/* LoRA: which modules are adapted, how A and B start, and adapter folders as peft writes and reads them.
 *
 * A module is one linear map of the text model ("model.layers.0.mlp.up_proj"), known by its layer and its module index
 * (catalogue.h). Modules of a layer that read the same
 * input share one stacked A and one dropout mask. Not for: the arithmetic (operator linear), where A and B live
 * (model/store.h). */
#ifndef DT_MODEL_LORA_H
#define DT_MODEL_LORA_H

#include "model/catalogue.h"
#include "model/safetensors.h"

/* ---- settings ---- */

/* What a user asks for. Strings are borrowed. */
typedef struct dt_lora_options {
    int64_t rank;
    double alpha, dropout;
    bool rslora; /* scale alpha / sqrt(rank) instead of alpha / rank */
    const char *const
        *targets; /* module names by suffix ("q_proj", "layers.1.mlp.up_proj"); none or "all-linear": all */
    size_t n_targets;
    const char *target_regex;   /* whole module names, as Python's re.fullmatch; wins over targets; NULL = none */
    const char *const *exclude; /* module names by suffix that stay without adapter */
    size_t n_exclude;
} dt_lora_options;

void dtp_lora_options_default(dt_lora_options *options); /* r 8, alpha 32, dropout 0.05, all-linear */

/* A checked choice for one model, whose configuration it borrows. */
typedef struct dt_lora dt_lora;

/* Errors: DT_E_ARG: rank, alpha or dropout out of range; a target without match; a target that is the head, the
 * embedding or no linear map; a bad regular expression. */
dt_status dtp_lora_create(dt_lora **out, const dt_model_config *config, const dt_lora_options *options, dt_err *err);
/* From an adapter folder's adapter_config.json, which also opens its adapter_model.safetensors and checks that it holds
 * A and B of exactly the targeted modules with their shapes; the prefixes model. and model.language_model. are taken
 * as equal. Errors: DT_E_IO, DT_E_FORMAT, DT_E_UNSUPPORTED (DoRA, bias, rank patterns and the like). */
dt_status dtp_lora_open(dt_lora **out, const dt_model_config *config, const char *folder, dt_err *err);
void dtp_lora_free(dt_lora *lora); /* accepts NULL */

/* rank, alpha, dropout and rslora as set; targets are not filled. */
dt_lora_options dtp_lora_settings(const dt_lora *lora);
float dtp_lora_scale(const dt_lora *lora);
double dtp_lora_exact_scale(const dt_lora *lora); /* alpha / r, or alpha / sqrt(r) */
/* Is module `index` of `layer` adapted? */
bool dtp_lora_targets(const dt_lora *lora, int64_t layer, int index);
int64_t dtp_lora_count(const dt_lora *lora); /* adapted modules */

/* ---- values ---- */

/* Start values of A [rank, in]: uniform in +-1/sqrt(in), rounded to `base` (BF16 or F32). Element i of module m
 * (m = layer * DT_MAX_MODULES + index) is word i % 4 of Philox(seed, counter {i / 4, m, 0, "LoRA"}), as
 * (word >> 8) * 2^-23 - 1 in units of the bound. B starts at 0. */
void dtp_lora_init_a(float *a, int64_t rank, int64_t in, uint64_t seed, uint32_t module, dt_dtype base);

/* Opened from a folder: has stored values. */
bool dtp_lora_has_values(const dt_lora *lora);
/* The stored values of a module of an opened adapter, widened to F32; `a` [rank, in], `b` [out, rank]. */
dt_status dtp_lora_read(const dt_lora *lora, int64_t layer, int index, float *a, float *b, dt_err *err);

/* Writes FOLDER/adapter_model.safetensors (F32) and FOLDER/adapter_config.json; the folder must exist.
 * `values` gives the A and B of an adapted module (host memory, borrowed until it is called again). */
typedef dt_status (*dt_lora_values)(void *user, int64_t layer, int index, bool b, const float **out, dt_err *err);
dt_status dtp_lora_save(const dt_lora *lora, const char *folder, const char *base_model, dt_lora_values values,
                        void *user, dt_err *err);

#endif
