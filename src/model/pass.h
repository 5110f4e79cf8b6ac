/* One pass over a pack: the memory it uses, the operators it calls, and the blocks it is made of.
 *
 * A pass never touches activation data: memory comes from dt_memory, numbers from operators. The same code plans: with
 * `planning` set, each operator call only reports what it would save and the workspace it needs, so that the plan
 * cannot disagree with the run. Private to the model room. */
#ifndef DT_MODEL_PASS_H
#define DT_MODEL_PASS_H

#include "model/inputs.h"
#include "model/model.h"
#include "model/store.h"
#include "operators/recorded.h"
#include <deltune/op/linear.h>
#include <deltune/op/rms_norm.h>

/* ---- memory ---- */

/* What the operators of a layer keep for their backward. */
typedef enum dt_saved_id {
    DT_S_INPUT_NORM,
    DT_S_IN,    /* projections of the mixer's input */
    DT_S_CONV,  /* linear attention */
    DT_S_GATES, /* linear attention */
    DT_S_Q_NORM,
    DT_S_K_NORM,
    DT_S_Q_ROPE,
    DT_S_K_ROPE,
    DT_S_CORE, /* delta rule or attention */
    DT_S_GATE, /* gated norm or sigmoid gate */
    DT_S_OUT,
    DT_S_POST_NORM,
    DT_S_MLP,
    DT_S_SWIGLU,
    DT_S_DOWN,
    DT_SAVED_PER_LAYER
} dt_saved_id;

/* What one layer keeps from forward to backward, [rows, ...] each. Norm outputs, the convolution's output, rotated
 * q and k, and gated values are not kept: backward computes them again. */
typedef struct dt_layer_memory {
    void *proj;    /* [proj width] qkv|z|b|a or q|k|v */
    void *core;    /* [mixer width] output of the delta rule or of attention */
    void *h1;      /* [hidden] residual stream after the mixer */
    void *gate_up; /* [2 * intermediate] */
    float *g, *beta;
    dt_saved saved[DT_SAVED_PER_LAYER];
} dt_layer_memory;

typedef struct dt_memory {
    dt_exec *exec;
    void *arena;
    size_t arena_bytes;
    size_t workspace; /* largest any operator of the plan needs */
    int64_t rows, n_seq;
    int64_t recomputed; /* layers below this share one dt_layer_memory and run again in backward */
    bool train;
    bool save_less;         /* the delta rule computes states between chunks again */
    int64_t extension;      /* columns behind each row of x, mid, dx, dmid: scratch of linear maps */
    void **h;               /* [layers + 1] residual stream before each layer and at the end; one buffer unless train */
    dt_layer_memory *layer; /* [layers] */
    dt_saved embedding, final_norm;
    void *x;   /* [hidden] normed input of a sub-block */
    void *mid; /* [intermediate or mixer width] input of down_proj and out_proj/o_proj */
    void *mix; /* convolution output, or rotated q|k */
    void *dh;  /* [hidden] gradient of the residual stream */
    void *dx;  /* [hidden] gradient of x */
    void *dmid, *dproj, *dmix;
    float *dg, *dbeta;
    /* inputs of the pack in device memory, one block from `inputs` on */
    char *inputs;
    size_t input_bytes;
    dt_step_values *values; /* devices only */
    int32_t *tokens, *targets, *positions, *cu_seqlens;
    float *weights;
    dt_step_results *results; /* devices only */
    float *row_loss;
    int32_t *stand_in; /* host: legal boundaries where the call's own are on the device, or not known yet */
    dt_input_ring ring;
    bool record;
    dt_recorded step[DT_CAPACITIES][2]; /* backward of a pack of each capacity; [1] clears the gradients first */
} dt_memory;

typedef struct dt_memory_options {
    int64_t rows, n_seq;
    bool train;
    dt_recompute recompute;
    uint64_t limit; /* bytes for arena and workspace, 0 = none */
    bool record;
} dt_memory_options;

/* Lays out, measures and reserves. DT_E_NOMEM when the limit does not hold it; *need_out is then the least need. */
dt_status dtp_memory_create(dt_memory **out, dt_model *model, const dt_memory_options *options, uint64_t *need_out,
                            dt_err *err);
/* What dtp_memory_create leaves to do while the model is not loaded. */
dt_status dtp_memory_reserve(dt_memory *memory, const dt_model *model, dt_err *err);
void dtp_memory_free(dt_memory *memory); /* accepts NULL */

/* ---- caches of generation ---- */

typedef struct dt_layer_cache {
    void *k, *v;              /* full attention: [capacity, kv_heads, head_dim] */
    void *conv, *conv_before; /* linear attention: [channels, width], after and before the tokens of a call */
    float *state, *state_before;
} dt_layer_cache;

/* ---- a pass ---- */

struct dt_model {
    dt_exec *exec;
    dt_model_config *config;
    dt_checkpoint *checkpoint;
    dt_lora *lora;
    dt_store *store;
    dt_memory *memory;
    dt_dtype activation;
    dt_tune tune;
    int64_t first_trained; /* lowest layer with something to train; layers when only outer weights are */
    char *folder;
    dt_hidden_tap tap;
    void *tap_user;
};

typedef struct dt_pass {
    dt_model *model;
    const dt_model_config *config;
    dt_memory *memory;
    dt_exec *exec;
    bool planning;
    bool keep;       /* operators save for backward */
    int64_t T, rows; /* used rows, and rows of every tensor */
    int64_t pack_T;  /* tokens of the pack: T, or fewer where calls run over all rows */
    dt_seqs seqs;
    const dt_step_values *values; /* device memory; NULL: key, and the grad_scale given */
    float dropout;
    dt_step_key key;
    dt_layer_cache *cache; /* [layers], generation only */
    int64_t cached;        /* tokens in the caches before this pass */
    dt_seqs cache_seqs;    /* boundaries of the cached keys, this pass's included */
} dt_pass;

/* Runs an operator, or, planning, notes its needs. `saved` is ignored unless the pass keeps. */
dt_status dtp_pass_forward(dt_pass *p, dt_op op, const void *args, dt_saved *saved, dt_err *err);
dt_status dtp_pass_backward(dt_pass *p, dt_op op, const void *args, dt_saved *saved, dt_err *err);

/* [rows, width] of activations, or of f32. */
dt_tensor dtp_pass_rows(const dt_pass *p, void *data, int64_t width);
dt_tensor dtp_pass_rows_f32(const dt_pass *p, float *data, int64_t width);
/* The same of x, mid, dx or dmid: rows of inputs of linear maps, or of their gradients. */
dt_tensor dtp_pass_inputs(const dt_pass *p, void *data, int64_t width);
/* Columns [from, from + width) of [rows, total] activations. */
dt_tensor dtp_pass_columns(const dt_pass *p, void *data, int64_t total, int64_t from, int64_t width);

/* Arguments of the linear maps `id` of a layer that read `x` (all of one input, in module order); y, c, dy and dx are
 * the caller's to set. */
dt_linear_args dtp_pass_linear(const dt_pass *p, const dt_layer *layer, const dt_weight_id *id, int n, dt_tensor x);
/* A zero-centred norm with the model's eps. */
dt_rms_norm_args dtp_pass_norm(const dt_pass *p, const dt_weight *weight, dt_tensor x, dt_tensor y);

/* Widths of the buffers above. */
int64_t dtp_proj_width(const dt_model_config *c, dt_layer_kind kind);
int64_t dtp_mixer_width(const dt_model_config *c, dt_layer_kind kind);
int64_t dtp_mix_width(const dt_model_config *c, dt_layer_kind kind);

/* ---- blocks ----
 * Each sub-block reads memory->x as its normed input where it needs it and adds to the residual stream.
 * Forward: h -> h1 (mixer), h1 -> out (MLP). Backward: memory->dh holds the gradient of the output on entry and that
 * of the input on return. */
/* memory->x = norm(h) */
dt_status dtp_input_norm(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, dt_err *err);
/* Through the input projections (`in` with its dy set) and the norm, when need_dx. */
dt_status dtp_input_backward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, dt_linear_args *in, bool need_dx,
                             dt_err *err);
dt_status dtp_gated_delta_net_forward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, dt_err *err);
dt_status dtp_gated_delta_net_backward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, bool need_dx,
                                       dt_err *err);
dt_status dtp_attention_forward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, dt_err *err);
dt_status dtp_attention_backward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *h, bool need_dx, dt_err *err);
/* `out` NULL: stops before down_proj (running again for backward). */
dt_status dtp_mlp_forward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, void *out, dt_err *err);
/* fresh: memory->x and memory->mid still hold this layer's values. */
dt_status dtp_mlp_backward(dt_pass *p, dt_layer *layer, dt_layer_memory *m, bool fresh, dt_err *err);

dt_status dtp_layer_forward(dt_pass *p, int64_t layer, dt_err *err);
dt_status dtp_layer_backward(dt_pass *p, int64_t layer, dt_err *err);

/* Embedding and all layers: tokens in device memory -> memory->h[layers]. */
dt_status dtp_pass_trunk(dt_pass *p, dt_err *err);
/* memory->h[layers] -> memory->x */
dt_status dtp_pass_final_norm(dt_pass *p, dt_err *err);
/* Loss, and with p->keep all gradients. */
dt_status dtp_pass_train(dt_pass *p, const float *weights, float grad_scale, dt_cross_entropy_result *result,
                         dt_err *err);

/* Workspace of dtp_model_logits for that many rows. */
dt_status dtp_model_logits_bytes(dt_model *model, int64_t rows, size_t *out, dt_err *err);

#endif
