/* Shows encoded rows to a person: the text the model sees, then every token with its id, targets set apart. */
#ifndef DT_CLI_TOKEN_VIEW_H
#define DT_CLI_TOKEN_VIEW_H

#include "text/template.h"

typedef struct dt_token_view {
    const dt_tokenizer *tokenizer;
    bool colour; /* targets stand out by colour in the text too */
    int columns; /* width of the terminal; lines of tokens are wrapped to it */
} dt_token_view;

/* Appends the view of one row; `title` names the row. `weights` may be NULL. Ids the tokenizer lacks show as "?". */
dt_status dtp_view_tokens(const dt_token_view *view, const char *title, const dt_ids *ids, const dt_ids *labels,
                          const float *weights, dt_buf *out, dt_err *err);

#endif
