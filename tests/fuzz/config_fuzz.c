/* A model's config.json: refused, or a config whose sizes are usable. */
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    dt_model_config *config = NULL;
    dt_err err = {0};
    if (dtp_config_parse(&config, (const char *)bytes, length, "input", &err) != DT_OK)
        return 0;
    if (config->layers <= 0 || config->hidden <= 0 || config->vocab <= 0 || dtp_config_conv_channels(config) <= 0)
        __builtin_trap();
    for (int64_t i = 0; i < config->layers; i++)
        if (config->kind[i] != DT_LAYER_LINEAR && config->kind[i] != DT_LAYER_FULL)
            __builtin_trap();
    dtp_config_free(config);
    return 0;
}
