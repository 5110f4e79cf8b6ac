/* What is trained, as the optimiser sees it. */
#ifndef DT_MODEL_TRAINABLE_H
#define DT_MODEL_TRAINABLE_H

#include <deltune/op/optimizer.h>

typedef enum dt_tune {
    DT_TUNE_NONE, /* inference and evaluation */
    DT_TUNE_LORA,
    DT_TUNE_FULL /* all text weights, fp32 masters; vision and extra prediction head stay as they are */
} dt_tune;

/* One flat f32 buffer and three of the same layout, in device memory. */
typedef struct dt_trainable {
    int64_t count; /* elements; 0 when nothing is trained */
    float *param, *grad, *m, *v;
    const dt_param_segment *segments; /* one per tensor, covering [0,count) in order */
    const char *const
        *names; /* of the segments: "model.layers.0.mlp.up_proj.lora_A.weight", or the weight's own name */
    int64_t n_segments;
} dt_trainable;

#endif
