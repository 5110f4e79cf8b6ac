/* Fuzz target: bytes as config.json. An accepted one must keep the promises the model relies on. */
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    dt_err err = {0};
    dt_model_config *c;
    if (dtp_config_parse(&c, (const char *)bytes, length, "fuzz", &err) != DT_OK)
        return 0;
    bool good = c->layers > 0 && c->heads % c->kv_heads == 0 && c->value_heads % c->key_heads == 0 &&
                c->rotary_dim >= 2 && c->rotary_dim % 2 == 0 && c->rotary_dim <= c->head_dim && c->rope_theta > 0 &&
                dtp_config_conv_channels(c) > 0;
    if (!good)
        __builtin_trap();
    dtp_config_free(c);
    return 0;
}
