/* What lora.c (choice of modules) and adapter.c (adapter folders) share. */
#ifndef DT_MODEL_LORA_PRIVATE_H
#define DT_MODEL_LORA_PRIVATE_H

#include "model/lora.h"
#include <jansson.h>

struct dt_lora {
    const dt_model_config *config;
    dt_lora_options settings; /* numbers only */
    bool any_prefix;          /* target_regex may be written for either prefix (an adapter of the other layout) */
    bool *adapted;            /* [layers][DT_MAX_MODULES] */
    int64_t count;
    json_t *target_modules, *exclude_modules; /* as written to adapter_config.json; exclude may be NULL */

    dt_st *file;                      /* of an opened adapter, else NULL */
    const dt_st_tensor *(*stored)[2]; /* [layers * DT_MAX_MODULES] A and B there */
};

/* dtp_lora_create with the choice of taking model. and model.language_model. as equal. */
dt_status dtp_lora_choose(dt_lora **out, const dt_model_config *config, const dt_lora_options *options, bool any_prefix,
                          dt_err *err);

#endif
