/* The parameter store: every weight of the text model, where operators read it and where its gradient goes.
 *
 * Frozen weights keep the dtype of the checkpoint (F16 is widened to F32). On the CPU they are the mapped file itself.
 * On a device each block (a layer, or the embedding, final norm and head) is one buffer in which linear maps of one
 * input are row-adjacent: qkv|z|b|a, q|k|v, gate|up; where these have adapters, their rows have scratch behind them
 * (dt_linear_args.extension). Trainable tensors are f32 in one flat buffer (trainable.h): LoRA A
 * and B, the A of one input stacked; or all weights of the text model.
 * Not for: activations (model/plan.h). */
#ifndef DT_MODEL_STORE_H
#define DT_MODEL_STORE_H

#include "model/catalogue.h"
#include "model/checkpoint.h"
#include "model/lora.h"
#include "model/trainable.h"
#include <deltune/op/linear.h>

typedef struct dt_weight {
    dt_weight_info info;
    char *name;
    dt_stored stored;
    dt_tensor value; /* as operators read it; convolution weights are [C,W] */
    dt_tensor grad;  /* F32, absent when frozen */
    int64_t segment; /* of the trainable buffer, -1 when frozen */
} dt_weight;

/* The adapters of the linear maps that read one input, in module order. */
typedef struct dt_input_lora {
    dt_tensor a, da;                                           /* stacked [R,in]; absent when none is adapted */
    dt_tensor b[DT_LINEAR_MAX_PARTS], db[DT_LINEAR_MAX_PARTS]; /* absent: that part has none */
    int64_t row[DT_LINEAR_MAX_PARTS];
    int64_t extension; /* scratch columns behind the rows of these maps */
} dt_input_lora;

typedef struct dt_layer {
    dt_layer_kind kind;
    int64_t index;
    dt_weight w[DT_LAYER_WEIGHTS]; /* by dt_weight_id; those of the other kind are zero */
    dt_input_lora lora[DT_LAYER_INPUTS];
    int64_t lora_segment[DT_MAX_MODULES][2]; /* A and B of a module, -1 without adapter */
} dt_layer;

typedef struct dt_store_options {
    dt_tune tune;
    const dt_lora *lora; /* NULL: none; with DT_TUNE_NONE applied without gradients */
    uint64_t seed;       /* start of A when the adapter brings no values */
    float weight_decay;
    bool copy;  /* block buffers also on the CPU (for tests of the device layout) */
    bool defer; /* devices: only lays out, with addresses that nobody may read; dtp_store_load follows */
} dt_store_options;

typedef struct dt_store {
    dt_exec *exec;
    const dt_model_config *config;
    const dt_checkpoint *checkpoint;
    dt_weight embedding, final_norm, head; /* head.value is the embedding's when tied */
    dt_layer *layer;
    dt_trainable trainable;
    int64_t parameters;    /* of the text model, a tied head counted once */
    uint64_t weight_bytes; /* of all values that are not in the trainable buffer */
    void **block;          /* owned device memory of frozen weights */
    size_t n_blocks;
    dt_store_options options;
    bool counting; /* laid out only */
    size_t segment_capacity, name_capacity;
} dt_store;

/* config, checkpoint, exec and lora are borrowed. Errors: DT_E_FORMAT with the names of missing or unexpected tensors,
 * DT_E_SHAPE and DT_E_DTYPE with tensor, expected and found; DT_E_NOMEM. */
dt_status dtp_store_open(dt_store **out, dt_exec *exec, const dt_model_config *config, const dt_checkpoint *checkpoint,
                         const dt_store_options *options, dt_err *err);
void dtp_store_close(dt_store *store); /* accepts NULL */
/* Allocates and fills what a deferred store has laid out; nothing to do otherwise. Errors: DT_E_NOMEM. */
dt_status dtp_store_load(dt_store *store, dt_err *err);

/* Names outside the text model that are copied when saving and otherwise left alone: mtp.*, model.visual.*, and the
 * head of a tied model. */
bool dtp_store_tolerates(const dt_model_config *config, const char *name);

/* Adam moments, zeroed; a second call zeroes them again. */
dt_status dtp_store_add_moments(dt_store *store, dt_err *err);

/* Weight decay groups: norms and biases are not decayed. */
bool dtp_decays(const char *name);

/* The widest scratch behind the rows of any linear map. */
int64_t dtp_store_extension(const dt_store *store);

/* The weight called `name`, or NULL. */
dt_weight *dtp_store_find(dt_store *store, const char *name);

#endif
