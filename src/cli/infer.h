/* What the three ways of `deltune infer` share: a conversation goes in, an answer comes out.
 * infer.c opens and answers; infer_chat.c talks on a terminal; infer_dataset.c answers the rows of files. */
#ifndef DT_CLI_INFER_H
#define DT_CLI_INFER_H

#include "cli/args.h"
#include "model/generate.h"
#include "text/template.h"

typedef struct dt_infer {
    const dt_args *args;
    json_t *trained;                           /* args.json of the adapter's run, or an empty object */
    const char *model_folder, *adapter_folder; /* adapter NULL = none */
    char *model_owned;
    dt_ctx *ctx;
    dt_exec *exec;
    dt_model *model;
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    dt_template *chat;
    dt_generator *generator;
    int32_t stop[10];
    size_t n_stop;
    int64_t max_new_tokens; /* 0 = as many as fit */
    bool conversation;      /* the next prompt will begin with this one's turns */
    /* of the answer being made */
    dt_encoded prompt;
    dt_stream_decoder stream;
    FILE *echo; /* where characters go as they come; NULL = nowhere */
    size_t echoed;
    dt_buf response;
} dt_infer;

/* Answers a conversation whose last message is the user's; the text is in infer->response. `echo` may be NULL. */
dt_status dtp_infer_answer(dt_infer *infer, const dt_conversation *conversation, FILE *echo, dt_finish *finish_out,
                           dt_err *err);

/* SIGINT came; clears the mark. While answering it ends the answer (DT_FINISH_CANCELLED). */
bool dtp_infer_interrupted(void);

/* The value of a string argument: the command line's, else that of the adapter's run, else NULL. */
const char *dtp_infer_setting(const dt_infer *infer, const char *name);

/* Each returns what a command's run function returns. */
int dtp_infer_chat(dt_infer *infer, dt_err *err);
int dtp_infer_dataset(dt_infer *infer, dt_err *err);

#endif
