/* The model of one rank: weights, trainable parameters, activations planned once, forward and backward over a pack.
 *
 * dtp_model_open maps the checkpoint and sets up what is trained; dtp_model_plan reserves the memory of the largest
 * pack before step 1; after that no call allocates. Everything numeric runs through operators (deltune/operators.h) on
 * the given dt_exec, which the model borrows for its life; calls on one model come from one thread at a time.
 * Not for: the optimiser step (train/), token-by-token generation (model/session.h). */
#ifndef DT_MODEL_MODEL_H
#define DT_MODEL_MODEL_H

#include "model/config.h"
#include "model/lora.h"
#include "model/trainable.h"
#include <deltune/op/cross_entropy.h>

typedef struct dt_model dt_model;

typedef struct dt_model_options {
    const char *folder;  /* config.json and weights */
    const char *adapter; /* adapter folder or NULL; with DT_TUNE_LORA training goes on from it, with DT_TUNE_NONE it is
                            applied */
    dt_tune tune;
    const dt_lora_options *lora; /* new adapters; NULL when `adapter` is given */
    uint64_t seed;               /* LoRA start values */
    float weight_decay;          /* of the decay group (norms and biases get 0) */
    dt_dtype activation;         /* DT_F32, or DT_BF16 where the device computes in it */
    bool defer; /* devices: planned first, then loaded with dtp_model_load, so that a run that cannot fit says so at
                   once */
} dt_model_options;

/* Errors: those of the config, checkpoint and adapter readers; DT_E_NOMEM. */
dt_status dtp_model_open(dt_model **out, dt_exec *exec, const dt_model_options *options, dt_err *err);
void dtp_model_close(dt_model *model); /* accepts NULL */
/* Brings a deferred model to its device and reserves its plan, if there is one. Nothing to do otherwise. */
dt_status dtp_model_load(dt_model *model, dt_err *err);

const dt_model_config *dtp_model_config(const dt_model *model);
/* NULL without LoRA. */
const dt_lora *dtp_model_lora(const dt_model *model);

/* ---- what is trained ---- */

/* Stable until close; m and v exist (zeroed) from dtp_model_plan with train on. */
const dt_trainable *dtp_model_trainable(const dt_model *model);
/* Parameters of the text model, a tied head counted once. */
int64_t dtp_model_parameters(const dt_model *model);

/* ---- memory ---- */

typedef enum dt_recompute {
    DT_RECOMPUTE_NONE,
    DT_RECOMPUTE_ALL, /* keeps the input of each layer, runs the layer again in backward */
    DT_RECOMPUTE_AUTO /* recomputes as many layers as memory_limit requires */
} dt_recompute;

typedef struct dt_plan_options {
    int64_t max_tokens, max_n_seq; /* of the largest pack */
    bool train;                    /* false: evaluation only, two layers' worth of memory */
    dt_recompute recompute;
    uint64_t memory_limit; /* bytes for all of dt_plan_report.total; 0 = no limit */
    bool record;           /* dtp_model_queue_backward replays recordings, where the device can */
} dt_plan_options;

typedef struct dt_plan_report {
    uint64_t weights;     /* of the text model as held in memory; mapped files count */
    uint64_t trainable;   /* parameters, gradients, Adam moments */
    uint64_t activations; /* the arena */
    uint64_t workspace;   /* largest operator workspace */
    uint64_t total;
    int64_t layers_recomputed;
    int64_t max_tokens; /* rounded up to 64 */
} dt_plan_report;

/* Plans and reserves; may be called again with other sizes (frees the old arena). A deferred model is planned only.
 * Errors: DT_E_NOMEM when memory_limit does not hold it even with every layer recomputed (or as asked), naming need and
 * limit; *report_out is filled in this case too. */
dt_status dtp_model_plan(dt_model *model, const dt_plan_options *options, dt_plan_report *report_out, dt_err *err);

/* ---- running ---- */

/* One row of T packed tokens; host memory, borrowed for the call. */
typedef struct dt_pack {
    int64_t T, n_seq;
    const int32_t *tokens, *positions; /* [T] */
    const int32_t *targets;            /* [T] the token that row t must predict, < 0 none */
    const float *weights;              /* [T] loss weights, NULL = 1 */
    const int32_t *cu_seqlens;         /* [n_seq+1] */
} dt_pack;

typedef struct dt_step_key { /* dropout: same key, same mask */
    uint64_t seed;
    uint32_t step, micro;
} dt_step_key;

/* Clears the gradients. */
dt_status dtp_model_zero_grad(dt_model *model, dt_err *err);
/* Adds the gradients of loss * grad_scale to trainable.grad. `result` is host memory, valid after
 * dt_exec_synchronize (result->loss is the raw sum). Errors: DT_E_ARG for a pack outside the plan, boundaries that are
 * not strictly increasing from 0 to T, token ids outside the vocabulary (CPU), and the operators' own. */
dt_status dtp_model_backward(dt_model *model, const dt_pack *pack, float grad_scale, dt_step_key key,
                             dt_cross_entropy_result *result, dt_err *err);

/* What a step leaves in device memory. */
typedef struct dt_step_results {
    dt_cross_entropy_result loss; /* of the last backward or evaluation */
    dt_grad_norm_result norm;     /* the optimiser's to fill */
} dt_step_results;
/* Devices only: dtp_model_backward without waiting. Queues the copy of pack and values to the device, then the clearing
 * of the gradients when asked, forward and backward; the result lies in dtp_model_results. The host waits only when it
 * is several calls ahead; pack and values are its own again on return. */
dt_status dtp_model_queue_backward(dt_model *model, const dt_pack *pack, const dt_step_values *values, bool clear,
                                   dt_err *err);
/* Before step 1: runs and records a backward of the largest pack without targets, so that the first step is as fast as
 * the others. `accumulates`: the one that does not clear the gradients too. Leaves zero gradients, and values with
 * which the optimiser changes nothing (rate 0). Needs n_seq <= tokens in the plan. */
dt_status dtp_model_rehearse(dt_model *model, bool accumulates, dt_err *err);
/* In device memory, with the plan's lifetime; NULL on the CPU. The values are those of the last queued backward. */
dt_step_results *dtp_model_results(dt_model *model);
const dt_step_values *dtp_model_values(const dt_model *model);

/* Loss and correct predictions without dropout, gradients or any state left behind. row_loss [T] is host memory,
 * optional: unweighted cross-entropy of each row, 0 without target. */
dt_status dtp_model_evaluate(dt_model *model, const dt_pack *pack, dt_cross_entropy_result *result, float *row_loss,
                             dt_err *err);

/* Called during forward with hidden states [T,hidden] (device memory, activation dtype): index 0 the embeddings, i the
 * output of layer i-1 (i < layers), `layers` the output of the final norm. For checks; NULL turns it off. */
typedef void (*dt_hidden_tap)(void *user, int64_t index, const dt_tensor *hidden);
void dtp_model_set_tap(dt_model *model, dt_hidden_tap tap, void *user);
/* logits [n,vocab] (device memory, activation dtype) of n rows of hidden states after the final norm. */
dt_status dtp_model_logits(dt_model *model, dt_tensor hidden, dt_tensor logits, dt_err *err);

/* ---- saving ---- */

/* adapter_model.safetensors and adapter_config.json into an existing folder. */
dt_status dtp_model_save_adapter(dt_model *model, const char *folder, dt_err *err);
/* Weights with the base's tensor names and dtypes: trained tensors rounded once, all others (also mtp.* and
 * model.visual.*) byte for byte; plus config.json and the other files of the base folder that are no weights. The
 * folder must exist and must not be the base's own. max_shard_bytes 0: the base's number of files is not kept, one
 * file. */
dt_status dtp_model_save_full(dt_model *model, const char *folder, uint64_t max_shard_bytes, dt_err *err);

#endif
