#include "train/config.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ access to the values */

static json_t *value_of(const dt_train_config *c, const char *name)
{
    json_t *value = json_object_get(c->values, name);
    assert(value); /* every name read here is in the table of sft */
    return value;
}

static bool flag(const dt_train_config *c, const char *name)
{
    return json_is_true(value_of(c, name));
}
static const char *text(const dt_train_config *c, const char *name)
{
    return json_string_value(value_of(c, name));
}
static double number(const dt_train_config *c, const char *name)
{
    return json_number_value(value_of(c, name));
}

static int64_t integer(const dt_train_config *c, const char *name, int64_t when_absent)
{
    const json_t *value = value_of(c, name);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : when_absent;
}

/* -1 when the argument was not given. */
static int tristate(const dt_train_config *c, const char *name)
{
    const json_t *value = value_of(c, name);
    return json_is_null(value) ? -1 : json_is_true(value);
}

static dt_status strings(dt_strings *out, const dt_train_config *c, const char *name, dt_err *err)
{
    const json_t *list = value_of(c, name);
    size_t n = json_array_size(list);
    out->at = dtp_calloc(n ? n : 1, sizeof *out->at);
    if (!out->at)
        return dt_fail(err, DT_E_NOMEM, "--%s: out of memory", name);
    out->count = n;
    for (size_t i = 0; i < n; i++)
        out->at[i] = json_string_value(json_array_get(list, i));
    return DT_OK;
}

/* Writes a resolved value back, so that args.json shows it. */
static void resolve(dt_train_config *c, const char *name, json_t *value)
{
    json_object_set_new(c->values, name, value);
}

/* Checkpoints name these folders and are read from anywhere, so paths are made absolute. */
static dt_status make_absolute(dt_train_config *c, const char *name, dt_err *err)
{
    const char *path = text(c, name);
    if (!path || *path == '/')
        return DT_OK;
    char *here = getcwd(NULL, 0), *full = here ? dtp_path_join(here, path) : NULL;
    free(here);
    if (!full)
        return dt_fail(err, DT_E_NOMEM, "--%s: out of memory", name);
    char *real = realpath(full, NULL); /* without . and .., if it is there already */
    resolve(c, name, json_string(real ? real : full));
    free(real);
    free(full);
    return DT_OK;
}

/* Counts of tokens, rows and steps stay below 2^31, so that products and sums of two of them fit. */
static dt_status at_least(const dt_train_config *c, const char *name, int64_t least, dt_err *err)
{
    const json_t *value = value_of(c, name);
    long long count = json_integer_value(value);
    if (json_is_integer(value) && count < least)
        return dt_fail(err, DT_E_ARG, "--%s: %lld is below %lld", name, count, (long long)least);
    if (json_is_integer(value) && count > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "--%s: %lld is above %d", name, count, INT32_MAX);
    return DT_OK;
}

static dt_status within(const dt_train_config *c, const char *name, double low, double below, dt_err *err)
{
    double x = number(c, name);
    if (!(x >= low && x < below))
        return dt_fail(err, DT_E_ARG, "--%s: %g is outside [%g, %g)", name, x, low, below);
    return DT_OK;
}

static dt_status missing(dt_err *err, const char *what, const char *instead)
{
    return dt_fail(err, DT_E_UNSUPPORTED, "%s: not implemented here; %s", what, instead);
}

/* ------------------------------------------------------------------ what the reference has and deltune lacks */

static dt_status refuse_missing(const dt_train_config *c, dt_err *err)
{
    static const struct {
        const char *name, *only, *instead; /* `only`: the one value there is */
    } texts[] = {
        {"lora_bias", "none", "biases are not trained"},
        {"init_weights", "true", "A starts uniform, B at zero"},
        {"lora_dtype", "float32", "adapters are trained and saved in float32"},
        {"acc_strategy", "token", "token_acc counts tokens"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *value = text(c, texts[i].name);
        if (value && strcmp(value, texts[i].only) != 0)
            return dt_fail(err, DT_E_UNSUPPORTED, "--%s %s: not implemented here; %s", texts[i].name, value,
                           texts[i].instead);
    }
    static const struct {
        const char *name;
        bool only;
        const char *instead;
    } flags[] = {
        {"use_dora", false, "leave it out for plain LoRA"},
        {"streaming", false, "files of any size are streamed anyway; leave it out"},
        {"group_by_length", false, "use --packing true for even batches"},
        {"freeze_llm", false, "the language model is the only part that is trained"},
        {"freeze_vit", true, "the vision tower is never run"},
        {"freeze_aligner", true, "the vision tower is never run"},
        {"safe_serialization", true, "weights are written as safetensors"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flag(c, flags[i].name) != flags[i].only)
            return dt_fail(err, DT_E_UNSUPPORTED, "--%s %s: not implemented here; %s", flags[i].name,
                           flags[i].only ? "false" : "true", flags[i].instead);
    static const char *const lists[] = {"modules_to_save", "target_parameters", "freeze_parameters",
                                        "trainable_parameters"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (json_array_size(value_of(c, lists[i])) > 0)
            return dt_fail(err, DT_E_UNSUPPORTED, "--%s: not implemented here; choose modules with --target_modules",
                           lists[i]);
    if (text(c, "fsdp") || text(c, "deepspeed"))
        return missing(err, text(c, "fsdp") ? "--fsdp" : "--deepspeed", "run on one device");
    if (integer(c, "sequence_parallel_size", 1) != 1)
        return missing(err, "--sequence_parallel_size", "leave it at 1");
    const char *dtype = text(c, "torch_dtype");
    if (dtype && strcmp(dtype, "float16") == 0)
        return missing(err, "--torch_dtype float16", "use bfloat16 or float32");
    return DT_OK;
}

/* ------------------------------------------------------------------ groups of settings */

static dt_status resolve_model(dt_train_config *c, const json_t *given, dt_err *err)
{
    c->model = text(c, "model");
    if (!c->model)
        return dt_fail(err, DT_E_ARG, "--model: missing; give the folder of a Qwen3.5 checkpoint");
    if (!dtp_is_folder(c->model))
        return dt_fail(
            err, DT_E_ARG,
            "--model: \"%s\" is not a folder; download the checkpoint first (hf download ID --local-dir DIR)",
            c->model);
    dt_status st = make_absolute(c, "model", err);
    if (st != DT_OK)
        return st;
    c->model = text(c, "model");
    const char *template_name = text(c, "template"), *type = text(c, "model_type");
    if (template_name && strcmp(template_name, "qwen3_5") != 0)
        return dt_fail(err, DT_E_UNSUPPORTED, "--template %s: not implemented here; the template is qwen3_5",
                       template_name);
    if (type && strncmp(type, "qwen3_5", 7) != 0)
        return dt_fail(err, DT_E_UNSUPPORTED, "--model_type %s: not implemented here; qwen3_5 is", type);
    c->full = strcmp(text(c, "tuner_type"), "full") == 0;
    c->float32 = text(c, "torch_dtype") && strcmp(text(c, "torch_dtype"), "float32") == 0;
    const json_t *adapters = value_of(c, "adapters");
    if (json_array_size(adapters) > 1)
        return dt_fail(err, DT_E_ARG, "--adapters: sft takes exactly one folder, got %zu", json_array_size(adapters));
    c->adapter = json_string_value(json_array_get(adapters, 0));
    if (c->adapter && c->full)
        return dt_fail(err, DT_E_ARG, "--adapters goes with --tuner_type lora, not full");
    if (c->adapter && !dtp_is_folder(c->adapter))
        return dt_fail(err, DT_E_ARG, "--adapters: \"%s\" is not a folder", c->adapter);
    c->lora_rank = integer(c, "lora_rank", 8);
    c->lora_alpha = number(c, "lora_alpha");
    c->lora_dropout = number(c, "lora_dropout");
    c->rslora = flag(c, "use_rslora");
    c->lora_rank_given = json_object_get(given, "lora_rank") != NULL;
    c->lora_alpha_given = json_object_get(given, "lora_alpha") != NULL;
    c->lora_dropout_given = json_object_get(given, "lora_dropout") != NULL;
    c->rslora_given = json_object_get(given, "use_rslora") != NULL;
    c->targets_given = json_object_get(given, "target_modules") || json_object_get(given, "target_regex");
    c->target_regex = text(c, "target_regex");
    const json_t *checkpointing = value_of(c, "gradient_checkpointing");
    c->gradient_checkpointing = json_is_string(checkpointing) ? DT_CHECKPOINTING_AUTO
                                : json_is_true(checkpointing) ? DT_CHECKPOINTING_ON
                                                              : DT_CHECKPOINTING_OFF;
    st = at_least(c, "lora_rank", 1, err);
    if (st == DT_OK)
        st = within(c, "lora_dropout", 0, 1, err);
    return st == DT_OK ? strings(&c->target_modules, c, "target_modules", err) : st;
}

static dt_status resolve_data(dt_train_config *c, dt_err *err)
{
    dt_status st = strings(&c->dataset, c, "dataset", err);
    if (st == DT_OK)
        st = strings(&c->val_dataset, c, "val_dataset", err);
    if (st != DT_OK)
        return st;
    if (c->dataset.count == 0)
        return dt_fail(err, DT_E_ARG, "--dataset: missing; give one or more .jsonl, .json, .csv or .txt files");
    c->split_dataset_ratio = number(c, "split_dataset_ratio");
    if (!(c->split_dataset_ratio >= 0 && c->split_dataset_ratio < 1))
        return dt_fail(err, DT_E_ARG, "--split_dataset_ratio: %g is outside [0, 1); 1 would leave nothing to train on",
                       c->split_dataset_ratio);
    if (c->val_dataset.count && c->split_dataset_ratio > 0) {
        dt_warning("--split_dataset_ratio %g is not used: --val_dataset is given", c->split_dataset_ratio);
        c->split_dataset_ratio = 0;
        resolve(c, "split_dataset_ratio", json_real(0));
    }
    int64_t seed = integer(c, "data_seed", 42);
    if (seed < 0 || seed > UINT32_MAX)
        return dt_fail(err, DT_E_ARG, "--data_seed: %lld is outside 0..2^32-1", (long long)seed);
    c->data_seed = (uint32_t)seed;
    c->dataset_shuffle = flag(c, "dataset_shuffle");
    c->val_dataset_shuffle = flag(c, "val_dataset_shuffle");
    c->strict = flag(c, "strict");
    const json_t *columns = value_of(c, "columns");
    if (json_is_object(columns) && !(c->columns = json_dumps(columns, 0)))
        return dt_fail(err, DT_E_NOMEM, "--columns: out of memory");
    c->max_length = integer(c, "max_length", 0);
    c->truncation_strategy = text(c, "truncation_strategy");
    if (!c->truncation_strategy) {
        c->truncation_strategy = "delete";
        resolve(c, "truncation_strategy", json_string("delete"));
    }
    c->prefetch = integer(c, "dataloader_prefetch_factor", 2);
    c->drop_last = flag(c, "dataloader_drop_last");
    c->shuffle_batches = flag(c, "train_dataloader_shuffle");
    st = at_least(c, "max_length", 1, err);
    return st == DT_OK ? at_least(c, "dataloader_prefetch_factor", 0, err) : st;
}

static dt_status resolve_packing(dt_train_config *c, dt_err *err)
{
    c->packing = flag(c, "packing");
    c->padding_free = flag(c, "padding_free") || c->packing;
    c->packing_length = integer(c, "packing_length", 0);
    c->packing_strategy = text(c, "packing_strategy");
    c->packing_fit = text(c, "packing_fit");
    c->packing_parts = integer(c, "packing_num_proc", 1);
    dt_status st = at_least(c, "packing_length", 1, err);
    if (st == DT_OK)
        st = at_least(c, "packing_num_proc", 1, err);
    if (st != DT_OK)
        return st;
    if (!c->packing && c->packing_length)
        return dt_fail(err, DT_E_ARG, "--packing_length: has no effect without --packing true");
    resolve(c, "padding_free", json_boolean(c->padding_free));
    return DT_OK;
}

static void resolve_template(dt_train_config *c)
{
    c->system = text(c, "system");
    c->loss_scale = text(c, "loss_scale");
    c->enable_thinking = tristate(c, "enable_thinking");
    c->preserve_thinking = tristate(c, "preserve_thinking");
    c->add_non_thinking_prefix = flag(c, "add_non_thinking_prefix");
    c->ignore_empty_think = !flag(c, "disable_ignore_empty_think");
}

static dt_status resolve_batches(dt_train_config *c, int64_t world, dt_err *err)
{
    static const char *const positive[] = {"per_device_train_batch_size", "per_device_eval_batch_size",
                                           "gradient_accumulation_steps", "max_epochs"};
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        dt_status st = at_least(c, positive[i], 1, err);
        if (st != DT_OK)
            return st;
    }
    c->batch_size = integer(c, "per_device_train_batch_size", 1);
    c->eval_batch_size = integer(c, "per_device_eval_batch_size", 1);
    c->accumulation = integer(c, "gradient_accumulation_steps", 0);
    if (c->accumulation == 0) { /* a global batch of at least 16 */
        int64_t global = c->batch_size * world;
        c->accumulation = (16 + global - 1) / global;
        resolve(c, "gradient_accumulation_steps", json_integer(c->accumulation));
    }
    c->epochs = number(c, "num_train_epochs");
    c->max_steps = integer(c, "max_steps", -1);
    c->max_epochs = integer(c, "max_epochs", 0);
    dt_status st = at_least(c, "max_steps", INT64_MIN, err);
    if (st != DT_OK)
        return st;
    if (c->max_steps == 0)
        return dt_fail(err, DT_E_ARG, "--max_steps: 0 trains nothing; leave it out to train for --num_train_epochs");
    if (c->max_steps < 0 && !(c->epochs > 0))
        return dt_fail(err, DT_E_ARG, "--num_train_epochs: %g trains nothing", c->epochs);
    return DT_OK;
}

static dt_status resolve_optimiser(dt_train_config *c, const json_t *given, dt_err *err)
{
    c->learning_rate =
        json_is_null(value_of(c, "learning_rate")) ? (c->full ? 1e-5 : 1e-4) : number(c, "learning_rate");
    resolve(c, "learning_rate", json_real(c->learning_rate));
    if (!(c->learning_rate > 0))
        return dt_fail(err, DT_E_ARG, "--learning_rate: %g is not positive", c->learning_rate);
    c->weight_decay = number(c, "weight_decay");
    c->beta1 = number(c, "adam_beta1");
    c->beta2 = number(c, "adam_beta2");
    c->epsilon = number(c, "adam_epsilon");
    c->max_grad_norm = number(c, "max_grad_norm");
    c->lr_scheduler_type = text(c, "lr_scheduler_type");
    c->lr_scheduler_kwargs = value_of(c, "lr_scheduler_kwargs");
    c->warmup_ratio = number(c, "warmup_ratio");
    c->warmup_steps = integer(c, "warmup_steps", 0);
    if (json_object_get(given, "warmup_ratio") && json_object_get(given, "warmup_steps") && c->warmup_steps > 0 &&
        c->warmup_ratio > 0)
        return dt_fail(err, DT_E_ARG, "--warmup_ratio and --warmup_steps are both set; give one of them");
    dt_status st = within(c, "warmup_ratio", 0, 1, err);
    if (st == DT_OK)
        st = at_least(c, "warmup_steps", 0, err);
    if (st == DT_OK)
        st = within(c, "adam_beta1", 0, 1, err);
    if (st == DT_OK)
        st = within(c, "adam_beta2", 0, 1, err);
    if (st == DT_OK && !(c->weight_decay >= 0))
        st = dt_fail(err, DT_E_ARG, "--weight_decay: %g is negative", c->weight_decay);
    if (st == DT_OK && !(c->epsilon > 0))
        st = dt_fail(err, DT_E_ARG, "--adam_epsilon: %g is not positive", c->epsilon);
    c->seed = (uint64_t)integer(c, "seed", 42);
    c->skip_nonfinite = strcmp(text(c, "on_nonfinite"), "skip") == 0;
    c->cuda_graph = flag(c, "cuda_graph");
    return st;
}

static dt_interval interval(const char *name)
{
    return strcmp(name, "steps") == 0   ? DT_INTERVAL_STEPS
           : strcmp(name, "epoch") == 0 ? DT_INTERVAL_EPOCH
                                        : DT_INTERVAL_NO;
}

static dt_status resolve_best(dt_train_config *c, dt_err *err)
{
    const char *metric = text(c, "metric_for_best_model");
    if (!metric)
        metric = "loss";
    c->metric_for_best_model = strncmp(metric, "eval_", 5) == 0 ? metric + 5 : metric;
    bool loss = strcmp(c->metric_for_best_model, "loss") == 0;
    if (!loss && strcmp(c->metric_for_best_model, "token_acc") != 0)
        return dt_fail(err, DT_E_ARG, "--metric_for_best_model: \"%s\" is not one of loss, token_acc", metric);
    int greater = tristate(c, "greater_is_better");
    c->greater_is_better = greater < 0 ? !loss : greater;
    resolve(c, "greater_is_better", json_boolean(c->greater_is_better));
    c->early_stop_interval = integer(c, "early_stop_interval", 0);
    dt_status st = at_least(c, "early_stop_interval", INT64_MIN, err);
    if (st != DT_OK)
        return st;
    if (c->early_stop_interval > 0 && (c->eval_strategy == DT_INTERVAL_NO || c->save_strategy == DT_INTERVAL_NO))
        return dt_fail(err, DT_E_ARG, "--early_stop_interval: needs validation data, evaluation and saving");
    return DT_OK;
}

static dt_status resolve_saving(dt_train_config *c, dt_err *err)
{
    static const char *const positive[] = {"logging_steps", "save_steps", "eval_steps", "save_total_limit"};
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        dt_status st = at_least(c, positive[i], 1, err);
        if (st != DT_OK)
            return st;
    }
    c->logging_steps = integer(c, "logging_steps", 5);
    c->logging_first_step = flag(c, "logging_first_step");
    c->progress = !flag(c, "disable_tqdm");
    const json_t *reports = value_of(c, "report_to");
    for (size_t i = 0; i < json_array_size(reports); i++)
        c->tensorboard |= strcmp(json_string_value(json_array_get(reports, i)), "tensorboard") == 0;
    c->save_strategy = interval(text(c, "save_strategy"));
    c->save_steps = integer(c, "save_steps", 500);
    c->save_total_limit = integer(c, "save_total_limit", 0);
    c->save_only_model = flag(c, "save_only_model");

    bool validation = c->val_dataset.count > 0 || c->split_dataset_ratio > 0;
    const char *strategy = text(c, "eval_strategy");
    if (strategy && strcmp(strategy, "no") != 0 && !validation)
        return dt_fail(err, DT_E_ARG,
                       "--eval_strategy %s: no validation data; give --val_dataset or --split_dataset_ratio", strategy);
    if (!strategy)
        strategy = validation ? text(c, "save_strategy") : "no";
    const json_t *eval_steps = value_of(c, "eval_steps");
    if (!validation && eval_steps && !json_is_null(eval_steps))
        dt_warning("--eval_steps is not used: no validation data (--val_dataset or --split_dataset_ratio)");
    c->eval_strategy = interval(strategy);
    resolve(c, "eval_strategy", json_string(strategy));
    c->eval_steps = integer(c, "eval_steps", c->save_steps);
    resolve(c, "eval_steps", json_integer(c->eval_steps));

    dt_status st = dtp_parse_size(&c->max_shard_bytes, text(c, "max_shard_size"), "--max_shard_size", err);
    return st == DT_OK ? resolve_best(c, err) : st;
}

static dt_status resolve_output(dt_train_config *c, dt_err *err)
{
    c->add_version = flag(c, "add_version");
    if (!text(c, "output_dir")) {
        char *folder = dtp_format("output/%s", dtp_path_base(c->model));
        if (!folder)
            return dt_fail(err, DT_E_NOMEM, "--output_dir: out of memory");
        char *slash = strchr(folder + strlen("output/"), '/'); /* the model's own trailing slash */
        if (slash)
            *slash = '\0';
        resolve(c, "output_dir", json_string(folder));
        free(folder);
    }
    dt_status st = make_absolute(c, "output_dir", err);
    if (st != DT_OK)
        return st;
    c->output_dir = text(c, "output_dir");
    c->resume_from = text(c, "resume_from_checkpoint");
    c->resume_only_model = flag(c, "resume_only_model");
    c->ignore_data_skip = flag(c, "ignore_data_skip");
    if (!c->resume_from && c->resume_only_model)
        return dt_fail(err, DT_E_ARG, "--resume_only_model: needs --resume_from_checkpoint");
    if (c->resume_from && c->adapter)
        return dt_fail(err, DT_E_ARG, "--adapters and --resume_from_checkpoint both name an adapter; give one of them");
    return DT_OK;
}

dt_status dtp_config_resolve(dt_train_config *out, json_t *values, const json_t *given, int64_t world, dt_err *err)
{
    dt_train_config c = {.values = json_incref(values)};
    dt_status st = refuse_missing(&c, err);
    if (st == DT_OK)
        st = resolve_model(&c, given, err);
    if (st == DT_OK)
        st = resolve_data(&c, err);
    if (st == DT_OK)
        st = resolve_packing(&c, err);
    if (st == DT_OK)
        st = resolve_batches(&c, world, err);
    if (st == DT_OK)
        st = resolve_optimiser(&c, given, err);
    if (st == DT_OK)
        st = resolve_saving(&c, err);
    if (st == DT_OK)
        st = resolve_output(&c, err);
    if (st != DT_OK) {
        dtp_config_release(&c);
        return st;
    }
    resolve_template(&c);
    *out = c;
    return DT_OK;
}

void dtp_config_release(dt_train_config *c)
{
    free(c->dataset.at);
    free(c->val_dataset.at);
    free(c->target_modules.at);
    free(c->columns);
    json_decref(c->values);
    *c = (dt_train_config){0};
}

dt_status dtp_parse_size(uint64_t *out, const char *written, const char *where, dt_err *err)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},        {"GB", 1e9},
                 {"TB", 1e12}, {"KIB", 1024}, {"MIB", 1048576}, {"GIB", 1073741824}};
    char *end = NULL;
    double value = written ? strtod(written, &end) : -1;
    for (size_t i = 0; end && end != written && i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(end, units[i].suffix) == 0 && value >= 0 && value * units[i].factor < 0x1p63) {
            *out = (uint64_t)(value * units[i].factor);
            return DT_OK;
        }
    return dt_fail(err, DT_E_ARG, "%s: \"%s\" is not a size such as 5GB or 500MB", where, written ? written : "");
}
