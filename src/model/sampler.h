/* Chooses the next token from logits: repetition penalty, temperature, top-k, top-p, then a draw, in the order and with
 * the meaning of transformers' generate. Greedy at temperature 0 (the lowest id wins a tie). The same seed gives the
 * same tokens. Not for: where logits come from (model/session.h) or when to stop (model/generate.h). */
#ifndef DT_MODEL_SAMPLER_H
#define DT_MODEL_SAMPLER_H

#include <deltune/status.h>
#include <stdint.h>

typedef struct dt_sampling {
    double temperature;        /* >= 0; 0 = greedy */
    int64_t top_k;             /* keep the k best; 0 = all */
    double top_p;              /* then the fewest best whose probabilities reach top_p; 0 < top_p <= 1, 1 = all */
    double repetition_penalty; /* > 0; 1 = none. Divides positive and multiplies negative logits of tokens seen */
    uint64_t seed;
} dt_sampling;
#define DT_SAMPLING_GREEDY ((dt_sampling){.top_p = 1.0, .repetition_penalty = 1.0})

typedef struct dt_sampler dt_sampler;

/* `vocab`: length of the logits. `usable`: ids from here on (padding rows of the embedding) are never chosen.
 * Errors: DT_E_ARG for a value out of range; DT_E_NOMEM. */
dt_status dtp_sampler_create(dt_sampler **out, int64_t vocab, int64_t usable, const dt_sampling *sampling, dt_err *err);
void dtp_sampler_free(dt_sampler *sampler); /* accepts NULL */

/* Tokens that the repetition penalty must know: the prompt. Chosen tokens are added by dtp_sampler_next. */
void dtp_sampler_observe(dt_sampler *sampler, const int32_t *tokens, int64_t n);
/* Forgets the tokens seen and starts the random stream again. */
void dtp_sampler_reset(dt_sampler *sampler);

/* The next token. `logits` [vocab] are scratch afterwards. Errors: DT_E_NONFINITE when the best logit is a NaN or an
 * infinity. */
dt_status dtp_sampler_next(dt_sampler *sampler, float *logits, int32_t *token_out, dt_err *err);

#endif
