/* A tokenizer.json: refused, or a tokenizer that encodes any text and decodes what it encoded. */
#include "text/tokenizer.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char text[] = "Hello, 世界! e\xcc\x81 123\n  'll \xff<|im_end|>";

static void use(const dt_tokenizer *tokenizer)
{
    dt_encoder *encoder = NULL;
    dt_ids ids = {0};
    dt_buf back = {0};
    dt_err err = {0};
    if (dtp_encoder_create(&encoder, tokenizer, &err) != DT_OK)
        return;
    if (dtp_encode(encoder, text, sizeof text - 1, &ids, &err) == DT_OK) {
        for (size_t i = 0; i < ids.length; i++)
            if (ids.data[i] < 0 || (size_t)ids.data[i] >= dtp_tokenizer_size(tokenizer))
                __builtin_trap();
        if (dtp_decode(tokenizer, ids.data, ids.length, false, &back, &err) != DT_OK)
            __builtin_trap();
    }
    dtp_buf_free(&back);
    dtp_ids_free(&ids);
    dtp_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    dt_tokenizer *tokenizer = NULL;
    dt_err err = {0};
    if (dtp_tokenizer_open_memory(&tokenizer, (const char *)bytes, length, NULL, 0, "input", &err) != DT_OK)
        return 0;
    use(tokenizer);
    dtp_tokenizer_close(tokenizer);
    return 0;
}
