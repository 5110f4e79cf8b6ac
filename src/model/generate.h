/* Generation: a prompt in, tokens out, on one session whose caches are used again as far as the next prompt begins like
 * this one (the next turn of a conversation). Not for: text (text/tokenizer.h), conversations (cli/infer.c). */
#ifndef DT_MODEL_GENERATE_H
#define DT_MODEL_GENERATE_H

#include "model/sampler.h"
#include "model/session.h"

/* What generation_config.json says; absent fields stay as transformers has them. */
typedef struct dt_generation_config {
    bool do_sample;
    double temperature, top_p, repetition_penalty;
    int64_t top_k, max_new_tokens; /* max_new_tokens 0 = not given */
    int32_t stop[8];               /* eos_token_id: one or a list */
    size_t n_stop;
} dt_generation_config;

/* FOLDER/generation_config.json; a missing file gives the defaults. Errors: DT_E_FORMAT, DT_E_IO. */
dt_status dtp_generation_config_load(dt_generation_config *out, const char *folder, dt_err *err);

typedef enum dt_finish {
    DT_FINISH_STOP,     /* a stop token came (it is not handed out) */
    DT_FINISH_LENGTH,   /* max_new_tokens, or the context is full */
    DT_FINISH_CANCELLED /* the sink asked to stop */
} dt_finish;

typedef struct dt_generator dt_generator;

typedef struct dt_generator_options {
    int64_t context; /* tokens of prompt and answer together */
    int64_t usable;  /* ids from here on are never produced: the tokenizer's size */
    dt_sampling sampling;
    const int32_t *stop; /* borrowed */
    size_t n_stop;
} dt_generator_options;

/* Borrows the model. Errors: those of the session and the sampler. */
dt_status dtp_generator_open(dt_generator **out, dt_model *model, const dt_generator_options *options, dt_err *err);
void dtp_generator_close(dt_generator *generator); /* accepts NULL */

/* Gets each token as it is chosen; sets *stop to end there. */
typedef dt_status (*dt_token_sink)(void *user, int32_t token, bool *stop, dt_err *err);

/* Answers `prompt`, which is the whole context, not only what is new. The random stream starts again at the seed.
 * `keep`: so many tokens of the prompt will begin the next prompt too, whatever the answer; 0 = not known. It costs a
 * copy of the recurrent states. max_new_tokens 0: as many as fit.
 * Errors: DT_E_ARG for an empty prompt or one that leaves no room; DT_E_NONFINITE; those of session and sink. */
dt_status dtp_generator_run(dt_generator *generator, const int32_t *prompt, int64_t n, int64_t keep,
                            int64_t max_new_tokens, dt_token_sink sink, void *user, dt_finish *finish_out, dt_err *err);

/* Tokens that the last run read anew; the others were still in the caches. */
int64_t dtp_generator_read(const dt_generator *generator);

#endif
