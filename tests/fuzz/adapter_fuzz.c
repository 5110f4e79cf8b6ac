/* An adapter folder: adapter_config.json up to the first zero byte, then adapter_model.safetensors. Refused, or A and B
 * of every targeted module can be read. */
#include "model/lora.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char model[] =
    "{\"model_type\":\"qwen3_5_text\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":24,"
    "\"num_hidden_layers\":2,\"layer_types\":[\"linear_attention\",\"full_attention\"],\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,"
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-6,"
    "\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000,"
    "\"partial_rotary_factor\":0.25}}";

static void read_all(const dt_lora *lora, const dt_model_config *config)
{
    dt_weight_info tensors[DT_MAX_LAYER_TENSORS];
    int64_t rank = dtp_lora_settings(lora).rank;
    for (int64_t layer = 0; layer < config->layers; layer++) {
        int n = 0;
        dtp_layer_tensors(config, layer, tensors, &n);
        for (int i = 0; i < n; i++) {
            if (!dtp_lora_targets(lora, layer, i))
                continue;
            float *a = dtp_calloc((size_t)(rank * tensors[i].shape[1]), sizeof *a);
            float *b = dtp_calloc((size_t)(rank * tensors[i].shape[0]), sizeof *b);
            if (a && b && dtp_lora_read(lora, layer, i, a, b, NULL) != DT_OK)
                __builtin_trap(); /* opening has checked everything */
            free(a);
            free(b);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static dt_model_config *config;
    dt_err err = {0};
    if (!config && dtp_config_parse(&config, model, sizeof model - 1, "model", &err) != DT_OK)
        __builtin_trap();
    const uint8_t *zero = length ? memchr(bytes, 0, length) : NULL;
    size_t text = zero ? (size_t)(zero - bytes) : length;
    size_t rest = zero ? text + 1 : length;
    fill_file("adapter_config.json", bytes, text);
    fill_file("adapter_model.safetensors", bytes + rest, length - rest);
    dt_lora *lora = NULL;
    if (dtp_lora_open(&lora, config, scratch(), &err) == DT_OK)
        read_all(lora, config);
    dtp_lora_free(lora);
    return 0;
}
