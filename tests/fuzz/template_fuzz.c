/* Any conversation: what the template promises of its text, ids and labels holds, or the row is refused.
 * Input: a byte of options, then messages, each a byte of role and loss keys and a text up to a byte 0x1E. */
#include "text/template.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static dt_tokenizer *tokenizer;
static dt_encoder *encoder;

static void open_sample(void)
{
    dt_err err = {0};
    if (dtp_tokenizer_open(&tokenizer, DT_SOURCE_DIR "/data/sample", &err) != DT_OK ||
        dtp_encoder_create(&encoder, tokenizer, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static void read_messages(const uint8_t *p, const uint8_t *end, dt_conversation *conversation)
{
    while (p < end) {
        uint8_t flags = *p++;
        const uint8_t *stop = memchr(p, 0x1E, (size_t)(end - p));
        if (!stop)
            stop = end;
        dt_message *message =
            dtp_conversation_add(conversation, (dt_role)(flags % 5), (const char *)p, (size_t)(stop - p));
        if (!message)
            abort();
        message->has_loss = flags & 0x08;
        message->loss = flags & 0x10;
        message->has_loss_scale = flags & 0x20;
        message->loss_scale = (flags >> 6) / 2.0;
        p = stop < end ? stop + 1 : end;
    }
}

static void check(const dt_encoded *e, dt_template_mode mode)
{
    size_t n_targets = 0;
    if (e->labels.length != e->ids.length || !e->ids.length || e->labels.data[0] != DT_LABEL_IGNORE)
        abort();
    for (size_t i = 0; i < e->ids.length; i++) {
        bool target = e->labels.data[i] != DT_LABEL_IGNORE;
        if (target != (e->weights[i] > 0) || (target && e->labels.data[i] != e->ids.data[i]))
            abort();
        n_targets += target;
    }
    if (n_targets != e->n_targets)
        abort();
    const char *start = "<|im_start|>", *stop = mode == DT_TEMPLATE_GENERATE ? "\n" : "";
    size_t n = e->text.length, n_stop = strlen(stop);
    if (memcmp(e->text.data, start, strlen(start)) != 0 || memcmp(e->text.data + n - n_stop, stop, n_stop) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (!tokenizer)
        open_sample();
    if (length == 0)
        return 0;
    uint8_t o = bytes[0];
    dt_template_options options = {
        .loss = (dt_loss_strategy)(o % 3),
        .train_empty_think = o & 0x04,
        .no_non_thinking_prefix = o & 0x08,
        .enable_thinking = o & 0x10,
        .preserve_thinking = (o >> 5 & 3) % 3 - 1,
        .system = o & 0x80 ? " \xE4\xBD\xA0 system\n" : NULL,
    };
    dt_template *chat = NULL;
    dt_conversation conversation = {0};
    dt_encoded out = {0};
    read_messages(bytes + 1, bytes + length, &conversation);
    if (dtp_template_create(&chat, tokenizer, &options, NULL) != DT_OK)
        abort();
    for (dt_template_mode mode = DT_TEMPLATE_TRAIN; mode <= DT_TEMPLATE_GENERATE; mode++)
        if (dtp_template_encode(chat, encoder, &conversation, mode, &out, NULL) == DT_OK)
            check(&out, mode);
    dtp_encoded_free(&out);
    dtp_conversation_free(&conversation);
    dtp_template_free(chat);
    return 0;
}
