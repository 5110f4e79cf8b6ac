/* Settings of a training run: the arguments of `deltune sft` with every default filled in and every combination
 * checked.
 *
 * dtp_config_resolve reads one JSON object (the argument table's values) and writes the resolved values back into it,
 * so that args.json says what ran, not what was typed. Not for: parsing (cli/args.h), or what needs the model or the
 * data to be known (train/run.h). */
#ifndef DT_TRAIN_CONFIG_H
#define DT_TRAIN_CONFIG_H

#include <deltune/tensor.h>
#include <jansson.h>

typedef enum dt_interval { DT_INTERVAL_NO, DT_INTERVAL_STEPS, DT_INTERVAL_EPOCH } dt_interval;
typedef enum dt_checkpointing { DT_CHECKPOINTING_OFF, DT_CHECKPOINTING_ON, DT_CHECKPOINTING_AUTO } dt_checkpointing;

/* Strings and lists are borrowed from `values`, which lives as long as the settings. */
typedef struct dt_strings {
    const char **at;
    size_t count;
} dt_strings;

typedef struct dt_train_config {
    json_t *values;

    /* model and tuner */
    const char *model;
    bool full;           /* tuner_type full, else lora */
    const char *adapter; /* continue from this adapter folder; NULL = new adapters */
    int64_t lora_rank;
    double lora_alpha, lora_dropout;
    bool rslora;
    bool lora_rank_given, lora_alpha_given, lora_dropout_given, rslora_given, targets_given; /* written by the user */
    dt_strings target_modules;
    const char *target_regex;
    dt_checkpointing gradient_checkpointing;
    bool float32; /* torch_dtype float32: the checking mode on devices that compute in bf16 */

    /* data */
    dt_strings dataset, val_dataset;
    double split_dataset_ratio;
    uint32_t data_seed;
    bool dataset_shuffle, val_dataset_shuffle, strict;
    char *columns;      /* JSON text, owned; NULL = none */
    int64_t max_length; /* 0 = the model's maximum */
    const char *truncation_strategy;
    bool packing, padding_free;
    int64_t packing_length;       /* 0 = max_length */
    const char *packing_strategy; /* "binpack" or "sequential" */
    const char *packing_fit;      /* "fullest" or "emptiest" */
    int64_t packing_parts;        /* packing_num_proc */
    int64_t prefetch;
    bool drop_last, shuffle_batches;

    /* template */
    const char *system, *loss_scale;
    int enable_thinking, preserve_thinking; /* -1 = not given */
    bool add_non_thinking_prefix, ignore_empty_think;

    /* optimiser */
    double learning_rate, weight_decay, beta1, beta2, epsilon, max_grad_norm;
    const char *lr_scheduler_type;
    const json_t *lr_scheduler_kwargs;
    double warmup_ratio;
    int64_t warmup_steps;
    double epochs;      /* num_train_epochs */
    int64_t max_steps;  /* <= 0: from epochs */
    int64_t max_epochs; /* 0 = none */
    int64_t batch_size, eval_batch_size, accumulation;
    uint64_t seed;
    bool skip_nonfinite;
    bool cuda_graph; /* steps on a device are recorded once and replayed */

    /* output */
    const char *output_dir; /* without version folder */
    bool add_version;
    int64_t logging_steps;
    bool logging_first_step, tensorboard, progress;
    dt_interval save_strategy, eval_strategy;
    int64_t save_steps, eval_steps;
    int64_t save_total_limit; /* 0 = all */
    bool save_only_model;
    uint64_t max_shard_bytes;
    const char *metric_for_best_model; /* with "eval_" in front */
    bool greater_is_better;
    int64_t early_stop_interval; /* 0 = off */
    const char *resume_from;     /* folder or "latest"; NULL = start afresh */
    bool resume_only_model, ignore_data_skip;
} dt_train_config;

/* `values`: every argument of the table of `sft`; changed in place and referenced. `given`: object whose keys are the
 * names the user wrote. `world`: number of ranks.
 * Errors: DT_E_ARG for values out of range and combinations that cannot be; DT_E_UNSUPPORTED for values of the
 * reference that are not implemented here. The text names the argument and what to do. */
dt_status dtp_config_resolve(dt_train_config *out, json_t *values, const json_t *given, int64_t world, dt_err *err);
void dtp_config_release(dt_train_config *config); /* accepts a zeroed struct */

/* "5GB", "500MB", "123456": decimal units, as the reference reads max_shard_size. */
dt_status dtp_parse_size(uint64_t *out, const char *text, const char *where, dt_err *err);

#endif
