/* The tensors of a text model by name and shape: the one list that reading, saving, LoRA and initialisation share. */
#ifndef DT_MODEL_CATALOGUE_H
#define DT_MODEL_CATALOGUE_H

#include "model/config.h"
#include <stdio.h>

typedef enum dt_weight_id {
    /* linear attention layers */
    DT_W_QKV,
    DT_W_Z,
    DT_W_B,
    DT_W_A,
    DT_W_OUT,
    DT_W_CONV,
    DT_W_A_LOG,
    DT_W_DT_BIAS,
    DT_W_GATED_NORM,
    /* full attention layers */
    DT_W_Q,
    DT_W_K,
    DT_W_V,
    DT_W_O,
    DT_W_Q_NORM,
    DT_W_K_NORM,
    /* every layer */
    DT_W_GATE,
    DT_W_UP,
    DT_W_DOWN,
    DT_W_INPUT_NORM,
    DT_W_POST_NORM,
    DT_LAYER_WEIGHTS,
    /* outside the layers */
    DT_W_EMBEDDING = DT_LAYER_WEIGHTS,
    DT_W_FINAL_NORM,
    DT_W_HEAD
} dt_weight_id;

/* What the linear maps of a layer read; layer * 4 + input is the input number of the dropout key. */
enum { DT_INPUT_NONE = -1, DT_INPUT_MIXER, DT_INPUT_MIXER_OUT, DT_INPUT_MLP, DT_INPUT_MLP_DOWN, DT_LAYER_INPUTS };

typedef struct dt_weight_info {
    dt_weight_id id;
    const char *module; /* inside its layer: "self_attn.q_proj" */
    const char *suffix; /* ".weight" or "" */
    int32_t input;      /* DT_INPUT_*; DT_INPUT_NONE = no linear map */
    int32_t rank;
    int64_t shape[3]; /* linear maps: [out, in] */
} dt_weight_info;

enum { DT_MAX_LAYER_TENSORS = 14, DT_MAX_MODULES = 8 };

/* The tensors of a layer, linear maps first and by input (qkv z b a | out | gate up | down, or q k v | o | gate up |
 * down); returns their number, *modules_out the number of linear maps. The position of a linear map in this list is the
 * "module index" used elsewhere. */
int dtp_layer_tensors(const dt_model_config *config, int64_t layer, dt_weight_info out[DT_MAX_LAYER_TENSORS],
                      int *modules_out);
/* Embedding, final norm, and the head unless it is tied; returns their number (2 or 3). */
int dtp_outer_tensors(const dt_model_config *config, dt_weight_info out[3]);

enum { DT_MAX_NAME = 160 };
/* Full names: "model.layers.3.self_attn.q_proj" and with suffix; layer < 0 for the outer tensors. */
void dtp_module_name(char out[DT_MAX_NAME], const dt_model_config *config, int64_t layer, const dt_weight_info *info);
void dtp_tensor_name(char out[DT_MAX_NAME], const dt_model_config *config, int64_t layer, const dt_weight_info *info);

int64_t dtp_weight_count(const dt_weight_info *info); /* elements */

#endif
