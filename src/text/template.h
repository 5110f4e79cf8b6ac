/* The chat template `qwen3_5`: a conversation becomes text, token ids and labels, byte for byte and label for label
 * as the incumbent trainer encodes it for fine-tuning (docs/text.md).
 * Not for: reading rows (data/rows.h fills the conversation), truncation and packing (data/). */
#ifndef DT_TEXT_TEMPLATE_H
#define DT_TEXT_TEMPLATE_H

#include "text/tokenizer.h"

#define DT_LABEL_IGNORE (-100)

typedef enum dt_role {
    DT_ROLE_SYSTEM,
    DT_ROLE_USER,
    DT_ROLE_ASSISTANT,
    DT_ROLE_TOOL_CALL,     /* refused for now, so that a row says why */
    DT_ROLE_TOOL_RESPONSE, /* also "tool" */
} dt_role;

/* "system", "user" ...: the canonical name. */
const char *dtp_role_name(dt_role role);

/* One message as the row has it: neither stripped nor merged. */
typedef struct dt_message {
    dt_role role;
    char *content; /* UTF-8, owned by the conversation, NUL-terminated (and may contain NUL) */
    size_t length;
    bool has_loss, loss; /* key "loss": train this assistant message or not, whatever --loss_scale says */
    bool has_loss_scale; /* key "loss_scale": the weight of its tokens where it is trained at all, >= 0; switches the
                            empty-think rule off */
    double loss_scale;
} dt_message;

/* Zero-initialise. A leading system message is the row's system text; an empty one means "no system turn", also when
 * the options name a default. */
typedef struct dt_conversation {
    dt_message *messages;
    size_t count, capacity;
    bool has_tools; /* the row brings tool definitions: refused for now */
} dt_conversation;

/* Appends a message with a copy of the content; returns it for the loss keys, NULL when out of memory. */
dt_message *dtp_conversation_add(dt_conversation *conversation, dt_role role, const char *content, size_t length);
void dtp_conversation_clear(dt_conversation *conversation); /* keeps the array for the next row */
void dtp_conversation_free(dt_conversation *conversation);

typedef enum dt_loss_strategy { DT_LOSS_DEFAULT, DT_LOSS_LAST_ROUND, DT_LOSS_ALL } dt_loss_strategy;

typedef struct dt_template_options {
    dt_loss_strategy loss;       /* --loss_scale */
    bool all_but_empty_think;    /* --loss_scale all+ignore_empty_think */
    bool train_empty_think;      /* --disable_ignore_empty_think true: empty think blocks carry loss */
    bool no_non_thinking_prefix; /* --add_non_thinking_prefix false */
    bool enable_thinking;        /* --enable_thinking: generation prompt only */
    int preserve_thinking;       /* --preserve_thinking: 1 true, 0 false, -1 not given (training keeps the reasoning
                                    of earlier turns unless last_round; generation drops it) */
    const char *system; /* --system, for rows without one: a text in which the two characters \n are a newline, or the
                           name of a .txt file. Not stripped. NULL = none. Borrowed during dtp_template_create. */
} dt_template_options;
#define DT_TEMPLATE_OPTIONS_DEFAULT ((dt_template_options){.preserve_thinking = -1})

/* --loss_scale: "default", "last_round", "all", each also with "+ignore_empty_think": that is on for the first two
 * anyway (unless train_empty_think), and leaves empty think blocks out of "all". DT_E_ARG names the choices. */
dt_status dtp_parse_loss_strategy(const char *text, dt_template_options *options, dt_err *err);

typedef struct dt_template dt_template;

/* The tokenizer must know <|im_start|> and <|im_end|>, and outlive the template. Immutable, shared by threads.
 * DT_E_UNSUPPORTED (another kind of tokenizer), DT_E_IO (a system file), DT_E_NOMEM. */
dt_status dtp_template_create(dt_template **out, const dt_tokenizer *tokenizer, const dt_template_options *options,
                              dt_err *err);
void dtp_template_free(dt_template *chat); /* accepts NULL */

typedef enum dt_template_mode {
    DT_TEMPLATE_TRAIN,
    DT_TEMPLATE_GENERATE, /* the last message must be the user's; labels mean nothing */
} dt_template_mode;

/* What one row becomes. Zero-initialise; reused by the next call, which replaces everything. */
typedef struct dt_encoded {
    dt_ids ids;
    dt_ids labels;  /* as long as ids; DT_LABEL_IGNORE or the id; labels[0] is always ignored */
    float *weights; /* [ids.length], 0 where ignored; meaningful only when has_weights */
    size_t weights_capacity;
    bool has_weights; /* some weight is neither 0 nor 1 */
    dt_buf text;      /* the rendered text */
    size_t n_targets; /* labels that are not ignored */
    size_t n_control; /* special tokens found in system and user content (P-66); they do not move the labels */
    bool added_user;  /* the conversation started with the assistant and got an empty user turn */
} dt_encoded;
void dtp_encoded_clear(dt_encoded *encoded); /* keeps the memory */
void dtp_encoded_free(dt_encoded *encoded);

/* A conversation that ends with the user ends in the generation prompt; in training that part carries no loss.
 * DT_E_UNSUPPORTED for tool messages and tools, DT_E_FORMAT for a conversation that cannot be rendered (no message, a
 * system message that is not the first, no question to generate for, a bad loss_scale), DT_E_NOMEM. The encoder's
 * tokenizer must be the template's. */
dt_status dtp_template_encode(const dt_template *chat, dt_encoder *encoder, const dt_conversation *conversation,
                              dt_template_mode mode, dt_encoded *out, dt_err *err);

/* Text as it stands: every token is a target but the first. */
dt_status dtp_encode_plain(dt_encoder *encoder, const char *text, size_t length, dt_encoded *out, dt_err *err);

#endif
