/* Prepares a run: from settings to everything that must be known before step 1. */
#include "train/run.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "train/run_folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ model folder and adapter */

/* Which folders the weights come from: --model, --adapters, or the checkpoint to resume. */
typedef struct dt_origin {
    const char *model, *adapter;
} dt_origin;

static dt_status find_origin(dt_run *run, dt_origin *out, dt_err *err)
{
    const dt_train_config *c = run->config;
    *out = (dt_origin){c->model, c->adapter};
    if (!c->resume_from)
        return DT_OK;
    const char *needed = !c->resume_only_model ? DT_STATE_FILE : c->full ? "config.json" : "adapter_config.json";
    dt_status st = dtp_find_checkpoint(&run->resume, c->resume_from, c->output_dir, needed, err);
    if (st != DT_OK)
        return st;
    if (!c->full)
        out->adapter = run->resume; /* its rank, alpha, dropout and targets */
    else if (c->resume_only_model)
        out->model = run->resume;
    dt_info("resuming from %s%s", run->resume, c->resume_only_model ? " (weights only)" : "");
    return DT_OK;
}

static dt_lora_options lora_options(const dt_train_config *c)
{
    dt_lora_options options;
    dtp_lora_options_default(&options);
    options.rank = c->lora_rank;
    options.alpha = c->lora_alpha;
    options.dropout = c->lora_dropout;
    options.rslora = c->rslora;
    options.targets = c->target_modules.at;
    options.n_targets = c->target_modules.count;
    options.target_regex = c->target_regex;
    return options;
}

static dt_status same_targets(const dt_run *run, const char *adapter, dt_err *err)
{
    dt_lora_options options = lora_options(run->config);
    const dt_model_config *config = dtp_model_config(run->model);
    const dt_lora *opened = dtp_model_lora(run->model);
    dt_lora *wanted = NULL;
    dt_status st = dtp_lora_create(&wanted, config, &options, err);
    for (int64_t layer = 0; st == DT_OK && layer < config->layers; layer++) {
        dt_weight_info tensors[DT_MAX_LAYER_TENSORS];
        int n;
        dtp_layer_tensors(config, layer, tensors, &n);
        for (int i = 0; i < n && st == DT_OK; i++)
            if (dtp_lora_targets(wanted, layer, i) != dtp_lora_targets(opened, layer, i))
                st = dt_fail(err, DT_E_ARG,
                             "--target_modules and the adapter %s differ at layer %lld %s; leave --target_modules out",
                             adapter, (long long)layer, tensors[i].module);
    }
    dtp_lora_free(wanted);
    return st;
}

/* A lora_* argument that the user wrote must not contradict the adapter that training goes on from. */
static dt_status check_adapter(const dt_run *run, const char *adapter, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_lora_options has = dtp_lora_settings(dtp_model_lora(run->model));
    const struct {
        const char *name;
        bool given;
        double wanted, found;
    } settings[] = {{"lora_rank", c->lora_rank_given, (double)c->lora_rank, (double)has.rank},
                    {"lora_alpha", c->lora_alpha_given, c->lora_alpha, has.alpha},
                    {"lora_dropout", c->lora_dropout_given, c->lora_dropout, has.dropout},
                    {"use_rslora", c->rslora_given, c->rslora, has.rslora}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].given && settings[i].wanted != settings[i].found)
            return dt_fail(err, DT_E_ARG, "--%s %g: the adapter %s has %g; leave the argument out", settings[i].name,
                           settings[i].wanted, adapter, settings[i].found);
    return c->targets_given ? same_targets(run, adapter, err) : DT_OK;
}

static dt_status open_model(dt_run *run, const dt_origin *origin, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_lora_options lora = lora_options(c);
    bool bf16 = run->exec->device != DT_DEVICE_CPU && !c->float32; /* the CPU computes in fp32 */
    dt_model_options options = {.folder = origin->model,
                                .adapter = c->full ? NULL : origin->adapter,
                                .tune = c->full ? DT_TUNE_FULL : DT_TUNE_LORA,
                                .lora = c->full || origin->adapter ? NULL : &lora,
                                .seed = c->seed,
                                .weight_decay = (float)c->weight_decay,
                                .activation = bf16 ? DT_BF16 : DT_F32,
                                .defer = true};
    dt_status st = dtp_model_open(&run->model, run->exec, &options, err);
    return st == DT_OK && origin->adapter ? check_adapter(run, origin->adapter, err) : st;
}

/* ------------------------------------------------------------------ text and data */

static dt_status open_text(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_template_options options = DT_TEMPLATE_OPTIONS_DEFAULT;
    dt_status st = dtp_parse_loss_strategy(c->loss_scale, &options, err);
    if (st != DT_OK)
        return st;
    char *path = dtp_path_join(c->model, "tokenizer.json");
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", c->model);
    bool there = dtp_file_exists(path);
    free(path);
    if (!there) {
        dt_info("%s has no tokenizer.json: rows must bring input_ids", c->model);
        return DT_OK;
    }
    options.train_empty_think = !c->ignore_empty_think;
    options.no_non_thinking_prefix = !c->add_non_thinking_prefix;
    options.enable_thinking = c->enable_thinking == 1;
    options.preserve_thinking = c->preserve_thinking;
    options.system = c->system;
    st = dtp_tokenizer_open(&run->tokenizer, c->model, err);
    return st == DT_OK ? dtp_template_create(&run->chat, run->tokenizer, &options, err) : st;
}

static dt_truncation truncation(const char *name)
{
    return strcmp(name, "left") == 0    ? DT_TRUNCATE_LEFT
           : strcmp(name, "right") == 0 ? DT_TRUNCATE_RIGHT
           : strcmp(name, "split") == 0 ? DT_TRUNCATE_SPLIT
                                        : DT_TRUNCATE_DELETE;
}

static int64_t longest_sample(const dt_run *run)
{
    const dt_train_config *c = run->config;
    return c->max_length ? c->max_length : dtp_model_config(run->model)->max_positions;
}

static int64_t pack_length(const dt_run *run)
{
    return run->config->packing_length ? run->config->packing_length : longest_sample(run);
}

static dt_status prepare_data(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_dataset_options options;
    dtp_dataset_options_default(&options);
    options.paths = c->dataset.at;
    options.n_paths = c->dataset.count;
    options.val_paths = c->val_dataset.at;
    options.n_val_paths = c->val_dataset.count;
    options.split_ratio = c->split_dataset_ratio;
    options.data_seed = c->data_seed;
    options.shuffle = c->dataset_shuffle;
    options.val_shuffle = c->val_dataset_shuffle;
    options.rows.columns = c->columns;
    options.rows.strict = c->strict;
    options.truncation = truncation(c->truncation_strategy);
    options.max_length = longest_sample(run);
    if (c->packing && pack_length(run) < options.max_length)
        options.max_length = pack_length(run);
    options.vocab_size = dtp_model_config(run->model)->vocab;
    options.chat = run->chat;
    options.tokenizer = run->tokenizer;
    options.threads = run->exec->threads;
    return dtp_dataset_prepare(&run->train_set, &run->val_set, &options, err);
}

static dt_status open_batches(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_loader_options options = {
        .layout = c->packing        ? DT_LAYOUT_PACKING
                  : c->padding_free ? DT_LAYOUT_PADDING_FREE
                                    : DT_LAYOUT_PADDED,
        .packing = {.strategy = strcmp(c->packing_strategy, "sequential") == 0 ? DT_PACK_SEQUENTIAL
                                : strcmp(c->packing_fit, "emptiest") == 0      ? DT_PACK_EMPTIEST
                                                                               : DT_PACK_FULLEST,
                    .length = (uint32_t)pack_length(run),
                    .parts = (int)c->packing_parts},
        .batch_size = c->batch_size,
        .accumulation = c->accumulation,
        .shuffle = c->shuffle_batches,
        .drop_last = c->drop_last,
        .data_seed = c->data_seed,
        .world = 1,
        .pad_id = run->tokenizer && dtp_tokenizer_pad(run->tokenizer) >= 0 ? dtp_tokenizer_pad(run->tokenizer) : 0,
        .prefetch = (int)c->prefetch};
    dt_status st = dtp_loader_open(&run->loader, run->train_set, &options, err);
    if (st != DT_OK)
        return st;
    run->counts = dtp_loader_count(run->loader);
    if (!run->val_set)
        return DT_OK;
    options.evaluation = true;
    options.shuffle = false;
    options.drop_last = false;
    options.batch_size = c->eval_batch_size;
    options.accumulation = 1;
    return dtp_loader_open(&run->val_loader, run->val_set, &options, err);
}

/* ------------------------------------------------------------------ steps and memory */

static dt_status count_steps(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    if (run->counts.steps == 0)
        return dt_fail(err, DT_E_ARG, "--dataset: %lld batches an epoch make no step; use fewer rows per batch",
                       (long long)run->counts.batches);
    double steps = c->max_steps > 0 ? (double)c->max_steps : ceil(c->epochs * (double)run->counts.steps);
    if (steps > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "--num_train_epochs: %g of %lld steps are more than %d steps", c->epochs,
                       (long long)run->counts.steps, INT32_MAX);
    run->max_steps = (int64_t)steps;
    uint64_t digest = 0;
    dt_status st = dtp_dataset_digest(run->train_set, &digest, err);
    if (st != DT_OK)
        return st;
    run->state = (dt_train_state){.seed = (int64_t)c->seed,
                                  .items = run->counts.n_items,
                                  .batches = run->counts.batches,
                                  .accumulation = c->accumulation,
                                  .data_seed = c->data_seed,
                                  .data_digest = (int64_t)digest};
    run->results = dtp_calloc((size_t)c->accumulation, sizeof *run->results);
    if (!run->results)
        return dt_fail(err, DT_E_NOMEM, "%lld accumulation steps: out of memory", (long long)c->accumulation);
    return dtp_schedule_init(&run->schedule, c->lr_scheduler_type, c->learning_rate, run->max_steps, c->warmup_steps,
                             c->warmup_ratio, c->lr_scheduler_kwargs, err);
}

/* P-44: the largest batch that will ever come is known now, and so is its memory. */
static dt_status plan_memory(dt_run *run, dt_err *err)
{
    static const dt_recompute recompute[] = {[DT_CHECKPOINTING_OFF] = DT_RECOMPUTE_NONE,
                                             [DT_CHECKPOINTING_ON] = DT_RECOMPUTE_ALL,
                                             [DT_CHECKPOINTING_AUTO] = DT_RECOMPUTE_AUTO};
    int64_t epochs = (run->max_steps + run->counts.steps - 1) / run->counts.steps;
    dt_loader_limits train, val = {0};
    dt_status st = dtp_loader_limit(run->loader, epochs, &train, err);
    if (st == DT_OK && run->val_loader)
        st = dtp_loader_limit(run->val_loader, 1, &val, err);
    if (st != DT_OK)
        return st;
    dt_plan_options options = {.max_tokens = train.max_tokens > val.max_tokens ? train.max_tokens : val.max_tokens,
                               .max_n_seq = train.max_n_seq > val.max_n_seq ? train.max_n_seq : val.max_n_seq,
                               .train = true,
                               .recompute = recompute[run->config->gradient_checkpointing],
                               .memory_limit = run->memory_limit,
                               .record = run->config->cuda_graph};
    st = dtp_model_plan(run->model, &options, &run->memory, err);
    if (st != DT_OK)
        dt_err_prefix(err, "the largest batch has %lld tokens: ", (long long)options.max_tokens);
    return st;
}

/* ------------------------------------------------------------------ run folder */

static dt_status open_folder(dt_run *run, dt_err *err)
{
    const dt_train_config *c = run->config;
    dt_status st = dtp_run_folder_create(&run->folder, c->output_dir, c->add_version, err);
    if (st == DT_OK)
        st = dtp_run_folder_lock(&run->folder_lock, run->folder, err);
    char *args = st == DT_OK ? dtp_path_join(run->folder, "args.json") : NULL;
    char *val = st == DT_OK ? dtp_path_join(run->folder, "val_dataset.jsonl") : NULL;
    if (st == DT_OK && (!args || !val))
        st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->folder);
    if (st == DT_OK)
        st = dtp_python_save(c->values, args, false, err);
    if (st == DT_OK && run->val_set && c->split_dataset_ratio > 0)
        st = dtp_dataset_write_rows(run->val_set, val, err);
    free(args);
    free(val);
    if (st != DT_OK)
        return st;
    dt_info("run folder %s", run->folder);
    dt_logger_options options = {.folder = run->folder,
                                 .tensorboard = c->tensorboard,
                                 .progress = c->progress,
                                 .first_step = run->first_step,
                                 .max_steps = run->max_steps};
    return dtp_logger_open(&run->logger, &options, err);
}

dt_status dtp_run_open(dt_run *run, const dt_train_config *config, dt_exec *exec, uint64_t memory_limit, dt_err *err)
{
    *run = (dt_run){.config = config, .exec = exec, .memory_limit = memory_limit, .folder_lock = -1};
    dt_origin origin;
    dt_status st = find_origin(run, &origin, err);
    if (st == DT_OK)
        st = open_model(run, &origin, err);
    if (st == DT_OK)
        st = open_text(run, err);
    if (st == DT_OK)
        st = prepare_data(run, err);
    if (st == DT_OK)
        st = open_batches(run, err);
    if (st == DT_OK)
        st = count_steps(run, err);
    if (st == DT_OK)
        st = plan_memory(run, err);
    if (st == DT_OK)
        st = dtp_model_load(run->model, err);
    if (st == DT_OK && exec->device != DT_DEVICE_CPU)
        st = dtp_run_queue_open(run, err);
    bool go_on = run->resume && !config->resume_only_model;
    if (st == DT_OK && go_on)
        st = dtp_run_resume(run, run->resume, err);
    if (st == DT_OK)
        st = dtp_run_describe(run, err);
    if (st == DT_OK)
        st = open_folder(run, err);
    if (st == DT_OK && go_on)
        st = dtp_run_resume_history(run, run->resume, err);
    return st;
}

void dtp_run_close(dt_run *run)
{
    dtp_logger_close(run->logger);
    dtp_run_queue_close(run);
    dtp_model_close(run->model);
    dtp_loader_close(run->val_loader);
    dtp_loader_close(run->loader);
    dtp_dataset_close(run->val_set);
    dtp_dataset_close(run->train_set);
    dtp_template_free(run->chat);
    dtp_tokenizer_close(run->tokenizer);
    free(run->results);
    if (run->folder_lock >= 0)
        close(run->folder_lock);
    free(run->folder);
    free(run->resume);
    free(run->last_checkpoint);
    free(run->best_checkpoint);
    *run = (dt_run){.folder_lock = -1};
}
