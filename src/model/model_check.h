/* Compares a model with a reference case: one batch forward and backward against stored hidden states, logits, loss and
 * gradients (golden/<model>/, docs/numerics.md). Used by `deltune check --model-case`. */
#ifndef DT_MODEL_MODEL_CHECK_H
#define DT_MODEL_MODEL_CHECK_H

#include <deltune/exec.h>

/* How the samples of the batch reach the model. All must give the same numbers. */
typedef enum dt_case_layout {
    DT_CASE_PACK,         /* one row, longest sample first, as the packer orders them */
    DT_CASE_PADDING_FREE, /* one row, in file order */
    DT_CASE_PADDED,       /* one row, each sample padded on the right to the longest */
    DT_CASE_SINGLE        /* one sample after the other, gradients accumulated */
} dt_case_layout;

/* "pack", "padding_free", "padded", "single"; false for anything else. */
bool dtp_case_layout_by_name(const char *name, dt_case_layout *out);

typedef struct dt_model_case_row {
    char name[160]; /* "hidden_states[2]", "logits", "grad.model.norm.weight", ... */
    double error;   /* relative L2; of the loss: relative difference */
    double tolerance;
    bool passed;
} dt_model_case_row;

typedef struct dt_model_case_report {
    dt_model_case_row *row;
    size_t n_rows, capacity;
    bool passed;
} dt_model_case_report;

/* Runs the case in FOLDER (model/, tokens.jsonl, expected.json, expected_first_batch.safetensors and, when they are
 * there, adapter_init/ and expected_lora_grads.safetensors). A mismatch is in the report, not an error. Errors:
 * whatever reading the case or the model reports. */
dt_status dtp_model_case_run(dt_model_case_report *out, dt_exec *exec, const char *folder, dt_case_layout layout,
                             dt_dtype activation, dt_err *err);
void dtp_model_case_free(dt_model_case_report *report);

#endif
