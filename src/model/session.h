/* Generation: one stream of tokens with its caches (keys and values, convolution window, recurrent state).
 *
 * prefill and step may alternate; after any sequence of calls the state is that of all tokens so far, and logits equal
 * those of a forward over them from scratch. Nothing is allocated after open. A session borrows its model, which must
 * not be planned, trained or evaluated while the session runs a call; several sessions of one model may exist. */
#ifndef DT_MODEL_SESSION_H
#define DT_MODEL_SESSION_H

#include "model/model.h"

typedef struct dt_session dt_session;

/* max_tokens: positions the caches can hold, prompt and answer together. */
dt_status dtp_session_open(dt_session **out, dt_model *model, int64_t max_tokens, dt_err *err);
void dtp_session_close(dt_session *session); /* accepts NULL */
/* Forgets all tokens. */
dt_status dtp_session_reset(dt_session *session, dt_err *err);

/* Remembers this point, and forgets the one remembered before: a recurrent state cannot be taken back token by token.
 * Rewinding to it forgets the tokens behind it, as often as wanted; a reset forgets the point. */
dt_status dtp_session_mark(dt_session *session, dt_err *err);
/* Errors: DT_E_ARG when nothing is marked. */
dt_status dtp_session_rewind(dt_session *session, dt_err *err);
/* Tokens at the mark, 0 without one. */
int64_t dtp_session_marked(const dt_session *session);

/* Appends n >= 1 tokens. logits [vocab], host memory, may be NULL: the distribution after the last one.
 * Errors: DT_E_ARG when the caches are full or a token is outside the vocabulary. */
dt_status dtp_session_append(dt_session *session, const int32_t *tokens, int64_t n, float *logits, dt_err *err);
/* Tokens so far. */
int64_t dtp_session_length(const dt_session *session);
/* Bytes of caches and scratch. */
uint64_t dtp_session_bytes(const dt_session *session);

#endif
