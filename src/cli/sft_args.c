/* The arguments of `deltune sft`: the one table from which parsing, --help, args.json and docs/training.md are made.
 * Names and defaults are those of the reference trainer; the last group is ours. What they mean is in train/config.c.
 */
#include "cli/sft_args.h"

#include "cli/device.h"
#include "cli/template_args.h"
#include "train/schedule.h"

static const dt_arg_spec model_specs[] = {
    {"model", DT_ARG_STRING, NULL, NULL, "Folder of the Qwen3.5 checkpoint (required)."},
    {"model_type", DT_ARG_STRING, NULL, NULL, "Checked against config.json when given: qwen3_5."},
    {"template", DT_ARG_STRING, NULL, NULL, "Chat template; qwen3_5 is the only one."},
    {"torch_dtype", DT_ARG_STRING, NULL, "bfloat16|float16|float32",
     "Precision on devices that compute in bfloat16; float32 is the checking mode. A CPU always computes in float32. "
     "Default: that of config.json."},
};
static const dt_arg_group model_group = DT_ARG_GROUP("Model", model_specs);

static const dt_arg_spec tuner_specs[] = {
    {"tuner_type", DT_ARG_STRING, "lora", "lora|full", "Train low-rank adapters, or all weights of the text model."},
    {"adapters", DT_ARG_LIST, "", NULL,
     "One adapter folder to continue from: its A and B, rank, alpha, dropout and targets, a fresh optimiser, step 0."},
    {"lora_rank", DT_ARG_INT, "8", NULL, "Rank r of the adapters."},
    {"lora_alpha", DT_ARG_INT, "32", NULL, "Scale of the adapters: alpha / r."},
    {"lora_dropout", DT_ARG_FLOAT, "0.05", NULL, "Dropout on the input of A; one mask per adapted input."},
    {"lora_bias", DT_ARG_STRING, "none", "none|all", "Only none is implemented."},
    {"lora_dtype", DT_ARG_STRING, NULL, "float16|bfloat16|float32", "Only float32 is implemented."},
    {"use_rslora", DT_ARG_BOOL, "false", NULL, "Scale alpha / sqrt(r) instead of alpha / r."},
    {"use_dora", DT_ARG_BOOL, "false", NULL, "Only false is implemented."},
    {"init_weights", DT_ARG_STRING, "true", NULL, "A uniform in +-1/sqrt(inputs), B zero; only true is implemented."},
    {"target_modules", DT_ARG_LIST, "all-linear", NULL,
     "Modules to adapt, by the end of their name (q_proj, layers.1.mlp.up_proj), or all-linear."},
    {"target_regex", DT_ARG_STRING, NULL, NULL,
     "Modules to adapt, as a regular expression that matches the whole name; wins over target_modules."},
    {"target_parameters", DT_ARG_LIST, "", NULL, "Not implemented."},
    {"modules_to_save", DT_ARG_LIST, "", NULL, "Not implemented."},
    {"freeze_llm", DT_ARG_BOOL, "false", NULL, "Only false is implemented."},
    {"freeze_vit", DT_ARG_BOOL, "true", NULL, "The vision tower is never run; only true is implemented."},
    {"freeze_aligner", DT_ARG_BOOL, "true", NULL, "As freeze_vit."},
    {"freeze_parameters", DT_ARG_LIST, "", NULL, "Not implemented."},
    {"trainable_parameters", DT_ARG_LIST, "", NULL, "Not implemented."},
};
static const dt_arg_group tuner_group = DT_ARG_GROUP("What is trained", tuner_specs);

static const dt_arg_spec data_specs[] = {
    {"dataset", DT_ARG_LIST, "", NULL,
     "Files (.jsonl .json .csv .txt) or folders, each PATH or PATH#N for N rows (required)."},
    {"val_dataset", DT_ARG_LIST, "", NULL, "Validation data, named like dataset."},
    {"split_dataset_ratio", DT_ARG_FLOAT, "0.0", NULL,
     "Part of dataset set aside for validation when val_dataset is not given."},
    {"data_seed", DT_ARG_INT, "42", NULL, "Seed of sampling, split and order."},
    {"dataset_shuffle", DT_ARG_BOOL, "true", NULL, "Shuffle the rows once, before packing."},
    {"val_dataset_shuffle", DT_ARG_BOOL, "false", NULL, "The same for validation rows."},
    {"streaming", DT_ARG_BOOL, "false", NULL, "Only false is implemented; large files are streamed anyway."},
    {"strict", DT_ARG_BOOL, "false", NULL, "Stop at the first bad row instead of skipping and counting it."},
    {"columns", DT_ARG_JSON, NULL, NULL, "Columns to rename first: '{\"old\": \"new\"}'."},
    {"max_length", DT_ARG_INT, NULL, NULL, "Longest sample in tokens. Default: what the model can hold."},
    {"truncation_strategy", DT_ARG_STRING, NULL, "delete|left|right|split",
     "A longer sample is dropped and counted, cut to its last or first tokens, or cut in pieces. Default: delete."},
    {"packing", DT_ARG_BOOL, "false", NULL, "Join samples into rows of up to packing_length tokens."},
    {"packing_length", DT_ARG_INT, NULL, NULL, "Tokens of a packed row. Default: max_length."},
    {"packing_strategy", DT_ARG_STRING, "binpack", "binpack|sequential",
     "Best fit in windows of 1000 samples, or next fit in the order of the data."},
    {"packing_fit", DT_ARG_STRING, "fullest", "fullest|emptiest",
     "Which bin with room binpack takes: the fullest (binpacking up to 1.5.2), or the emptiest (2.0)."},
    {"packing_num_proc", DT_ARG_INT, "1", NULL, "Contiguous parts of the data that are packed on their own."},
    {"padding_free", DT_ARG_BOOL, "false", NULL, "Join the samples of a batch into one row without padding."},
    {"train_dataloader_shuffle", DT_ARG_BOOL, "true", NULL, "Permute the batches of every epoch."},
    {"group_by_length", DT_ARG_BOOL, "false", NULL, "Only false is implemented."},
    {"dataloader_drop_last", DT_ARG_BOOL, "false", NULL, "Leave out the short last batch of an epoch."},
    {"dataloader_prefetch_factor", DT_ARG_INT, NULL, NULL, "Batches prepared ahead of use. Default: 2."},
};
static const dt_arg_group data_group = DT_ARG_GROUP("Data", data_specs);

static const dt_arg_spec training_specs[] = {
    {"seed", DT_ARG_INT, "42", NULL, "Seed of adapters and dropout."},
    {"learning_rate", DT_ARG_FLOAT, NULL, NULL, "Highest learning rate. Default: 1e-4, for full 1e-5."},
    {"lr_scheduler_type", DT_ARG_STRING, "cosine", DT_SCHEDULE_NAMES, "How the learning rate falls."},
    {"lr_scheduler_kwargs", DT_ARG_JSON, NULL, NULL,
     "Options of the schedule: num_cycles, power, lr_end, min_lr, min_lr_rate, timescale."},
    {"warmup_ratio", DT_ARG_FLOAT, "0.0", NULL, "Part of the steps during which the rate rises from 0."},
    {"warmup_steps", DT_ARG_INT, "0", NULL, "The same in steps."},
    {"num_train_epochs", DT_ARG_FLOAT, "3.0", NULL, "Passes over the data."},
    {"max_steps", DT_ARG_INT, "-1", NULL, "Optimiser steps; when positive it wins over num_train_epochs."},
    {"max_epochs", DT_ARG_INT, NULL, NULL, "Stop, evaluate and save after this many passes whatever max_steps says."},
    {"per_device_train_batch_size", DT_ARG_INT, "1", NULL, "Rows (packs or samples) of a batch."},
    {"per_device_eval_batch_size", DT_ARG_INT, "1", NULL, "The same for validation."},
    {"gradient_accumulation_steps", DT_ARG_INT, NULL, NULL,
     "Batches of an optimiser step. Default: ceil(16 / batch size / ranks)."},
    {"gradient_checkpointing", DT_ARG_BOOL, "true", "true|false|auto",
     "Recompute activations in backward: always, never, or as far as memory requires."},
    {"weight_decay", DT_ARG_FLOAT, "0.1", NULL, "Of all trained tensors but norms and biases."},
    {"adam_beta1", DT_ARG_FLOAT, "0.9", NULL, "Decay of the first moment."},
    {"adam_beta2", DT_ARG_FLOAT, "0.95", NULL, "Decay of the second moment."},
    {"adam_epsilon", DT_ARG_FLOAT, "1e-8", NULL, "Added after the bias-corrected root."},
    {"max_grad_norm", DT_ARG_FLOAT, "1.0", NULL, "Gradients are scaled down to this 2-norm; 0 turns it off."},
    {"average_tokens_across_devices", DT_ARG_BOOL, "true", NULL,
     "Every target token weighs the same on one rank and on many; false changes nothing on one."},
    {"router_aux_loss_coef", DT_ARG_FLOAT, "0.0", NULL, "Of mixture-of-experts models only."},
    {"acc_strategy", DT_ARG_STRING, "token", "token|seq", "What token_acc counts; only token is implemented."},
    {"sequence_parallel_size", DT_ARG_INT, "1", NULL, "Only 1 is implemented."},
    {"fsdp", DT_ARG_STRING, NULL, NULL, "Not implemented."},
    {"deepspeed", DT_ARG_STRING, NULL, NULL, "Not implemented."},
};
static const dt_arg_group training_group = DT_ARG_GROUP("Training", training_specs);

static const dt_arg_spec output_specs[] = {
    {"output_dir", DT_ARG_STRING, NULL, NULL, "Default: output/NAME-OF-THE-MODEL."},
    {"add_version", DT_ARG_BOOL, "true", NULL, "Put each run into its own folder vN-TIME below output_dir."},
    {"logging_steps", DT_ARG_INT, "5", NULL, "Steps between two lines of the log."},
    {"logging_first_step", DT_ARG_BOOL, "true", NULL, "Log step 1 too."},
    {"report_to", DT_ARG_LIST, "tensorboard", "tensorboard|none", "Curves beside logging.jsonl: runs/ and images/."},
    {"disable_tqdm", DT_ARG_BOOL, "false", NULL, "No progress bar."},
    {"save_strategy", DT_ARG_STRING, "steps", "steps|epoch|no", "When checkpoints are written."},
    {"save_steps", DT_ARG_INT, "500", NULL, "Steps between two checkpoints."},
    {"save_total_limit", DT_ARG_INT, NULL, NULL, "Checkpoints to keep: the newest, and the best one."},
    {"save_only_model", DT_ARG_BOOL, "false", NULL, "Leave out what resuming needs."},
    {"max_shard_size", DT_ARG_STRING, "5GB", NULL, "Largest weight file of a full checkpoint."},
    {"safe_serialization", DT_ARG_BOOL, "true", NULL, "Only true is implemented."},
    {"eval_strategy", DT_ARG_STRING, NULL, "steps|epoch|no",
     "When validation data is evaluated. Default: save_strategy, or no without validation data."},
    {"eval_steps", DT_ARG_INT, NULL, NULL, "Steps between two evaluations. Default: save_steps."},
    {"metric_for_best_model", DT_ARG_STRING, NULL, NULL, "loss or token_acc. Default: loss."},
    {"greater_is_better", DT_ARG_BOOL, NULL, NULL, "Default: false for loss, else true."},
    {"early_stop_interval", DT_ARG_INT, NULL, NULL, "Stop after this many saves without a better metric."},
    {"resume_from_checkpoint", DT_ARG_STRING, NULL, NULL,
     "A checkpoint-N folder to go on from, or latest: the newest complete one below output_dir."},
    {"resume_only_model", DT_ARG_BOOL, "false", NULL, "Take the weights only: fresh optimiser, step 0."},
    {"ignore_data_skip", DT_ARG_BOOL, "false", NULL, "Resume at the start of the epoch instead of within it."},
};
static const dt_arg_group output_group = DT_ARG_GROUP("Output", output_specs);

static const dt_arg_spec own_specs[] = {
    {"on_nonfinite", DT_ARG_STRING, "stop", "stop|skip",
     "A NaN or infinity in loss or gradients stops the run, or skips the update and is counted."},
    {"cuda_graph", DT_ARG_BOOL, "true", NULL,
     "Record the calls of a training step on a GPU once and replay them; false queues each call, with the same bits."},
    {"self_test", DT_ARG_BOOL, NULL, NULL,
     "First compare one call of every operator with the CPU on the very device. Default: true, on a CPU false."},
    {"memory_limit", DT_ARG_STRING, NULL, NULL,
     "Memory the run may use, such as 12GiB. Default: what is free on the device, or on a CPU what "
     "machine, cgroup and ulimit leave."},
    {"ignore_args_error", DT_ARG_BOOL, "false", NULL, "Unknown argument names only warn."},
};
static const dt_arg_group own_group = DT_ARG_GROUP("Behaviour", own_specs);

const dt_arg_group *const dtp_sft_table[] = {
    &model_group,          &tuner_group, &data_group, &dtp_template_arguments, &training_group, &output_group,
    &dtp_device_arguments, &own_group,   NULL,
};
