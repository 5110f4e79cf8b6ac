/* What a training run promises, seen from outside: accumulation, rows without targets, evaluation, threads, saving,
 * settings of an adapter, and every file that it leaves behind. */
#include "program.h"

#include "model/safetensors.h"

static const char common[] =
    "sft --model " DT_TEST_DATA "/tiny_dense/model --threads 1 --device cpu --disable_tqdm true "
    "--add_version false --lora_rank 4 --logging_steps 1 --padding_free true";
static const char rows[] = "--dataset " DT_TEST_DATA "/tiny_dense/tokens.jsonl";

/* Trains into OUTPUT; returns its folder, the caller frees. */
static char *train(const char *output, const char *data, const char *more)
{
    char *arguments = dtp_format("%s --output_dir %s/%s %s %s", common, program_folder, output, data, more);
    program_succeeds(arguments);
    free(arguments);
    return dtp_format("%s/%s", program_folder, output);
}

/* A data file of token rows; labels equal the ids, or are all -100 where `targets` has a 0. */
static char *write_rows(const char *name, const int *lengths, const int *targets, int n)
{
    char *path = dtp_format("%s/%s", program_folder, name);
    FILE *file = fopen(path, "w");
    unsigned seed = 7;
    for (int row = 0; row < n; row++) {
        for (int part = 0; part < 2; part++) {
            fprintf(file, part ? "], \"labels\": [" : "{\"input_ids\": [");
            for (int i = 0; i < lengths[row]; i++)
                fprintf(file, "%s%d", i ? ", " : "",
                        part ? (targets && !targets[row] ? -100 : 5) : (int)(rand_r(&seed) % 500));
        }
        fprintf(file, "]}\n");
    }
    fclose(file);
    char *argument = dtp_format("--dataset %s --dataset_shuffle false --train_dataloader_shuffle false", path);
    free(path);
    return argument;
}

static dt_st *open_file(const char *folder, const char *name)
{
    char *path = dtp_path_join(folder, name);
    dt_st *file = NULL;
    dt_err err = {0};
    assert_ok(dtp_st_open(&file, path, &err), &err);
    free(path);
    return file;
}

/* Relative L2 between the tensors of two training states whose names start with `group`. */
static double state_distance(const char *folder_a, const char *folder_b, const char *group)
{
    dt_st *a = open_file(folder_a, "training_state.safetensors"),
          *b = open_file(folder_b, "training_state.safetensors");
    double difference = 0, norm = 0;
    for (size_t i = 0; i < dtp_st_count(a); i++) {
        const dt_st_tensor *x = dtp_st_at(a, i), *y = dtp_st_find(b, x->name);
        assert_non_null(y);
        if (strncmp(x->name, group, strlen(group)) != 0)
            continue;
        for (size_t j = 0; j < x->bytes / sizeof(float); j++) {
            double u = ((const float *)x->data)[j], v = ((const float *)y->data)[j];
            difference += (u - v) * (u - v);
            norm += v * v;
        }
    }
    dtp_st_close(a);
    dtp_st_close(b);
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

static double value_at(const char *folder, int line, const char *key)
{
    json_t *lines = run_log(folder);
    const json_t *value = json_object_get(json_array_get(lines, (size_t)line), key);
    if (!json_is_number(value))
        fail_msg("%s: line %d has no number %s", folder, line, key);
    double number = json_number_value(value);
    json_decref(lines);
    return number;
}

/* P-40: 8x1, 4x2 and 1x8 rows make the same update: gradients close as known-pitfalls has it, 1e-4 in fp32. */
static void accumulation_is_one_mean(void **state)
{
    (void)state;
    static const int lengths[] = {10, 400, 33, 7, 250, 90, 61, 5};
    static const int batch[] = {1, 2, 8};
    char *data = write_rows("lengths.jsonl", lengths, NULL, 8), *folder[3];
    for (int i = 0; i < 3; i++) {
        char output[16], *more = dtp_format("--per_device_train_batch_size %d --gradient_accumulation_steps %d "
                                            "--max_steps 1 --lora_dropout 0 --report_to none",
                                            batch[i], 8 / batch[i]);
        snprintf(output, sizeof output, "acc%d", i);
        folder[i] = train(output, data, more);
        free(more);
    }
    char *first = dtp_path_join(folder[0], "checkpoint-1");
    for (int i = 1; i < 3; i++) {
        char *other = dtp_path_join(folder[i], "checkpoint-1");
        assert_true(state_distance(first, other, "exp_avg/") < 1e-4);
        assert_true(state_distance(first, other, "param/") < 1e-5);
        double loss = value_at(folder[0], 0, "loss");
        assert_true(fabs(loss - value_at(folder[i], 0, "loss")) < 1e-6 * loss);
        free(other);
    }
    free(first);
    free(data);
    for (int i = 0; i < 3; i++)
        free(folder[i]);
}

/* P-41: a row without targets adds nothing; a step without any makes no update and moves the schedule. */
static void rows_without_targets(void **state)
{
    (void)state;
    static const int lengths[] = {20, 30, 25, 40}, targets[] = {1, 0, 1, 0};
    char *data = write_rows("masked.jsonl", lengths, targets, 4);
    char *folder = train("masked", data,
                         "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --max_steps 4 --save_steps 1 "
                         "--report_to none");
    char *text = program_output();
    assert_non_null(strstr(text, "step 2: no target token"));
    assert_non_null(strstr(text, "2 of 4 steps had no target token"));
    free(text);
    char *one = dtp_path_join(folder, "checkpoint-1"), *two = dtp_path_join(folder, "checkpoint-2");
    same_file(one, two, "adapter_model.safetensors");
    assert_true(state_distance(one, two, "exp_avg") == 0);
    assert_true(value_at(folder, 1, "learning_rate") < value_at(folder, 0, "learning_rate"));
    /* their loss is no number, and the mean of the run leaves them out */
    json_t *lines = run_log(folder);
    assert_true(json_is_null(json_object_get(json_array_get(lines, 1), "loss")));
    json_decref(lines);
    double mean = (value_at(folder, 0, "loss") + value_at(folder, 2, "loss")) / 2;
    assert_true(fabs(value_at(folder, 4, "train_loss") - mean) < 1e-7);
    free(one);
    free(two);
    free(folder);
    /* half a window without targets: the loss is the other half's */
    folder = train("half", data,
                   "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --max_steps 1 --report_to none "
                   "--lora_dropout 0");
    assert_true(fabs(value_at(folder, 0, "loss") - log(500)) < 2);
    free(folder);
    free(data);
    static const int none[] = {0, 0};
    data = write_rows("nothing.jsonl", lengths, none, 2);
    char *arguments = dtp_format("%s --output_dir %s/nothing %s --max_steps 1", common, program_folder, data);
    program_fails("", arguments, 1, "target");
    free(arguments);
    free(data);
}

/* P-11: one row with accumulation 8 makes one update, a checkpoint, and exit 0; announced steps are reached. */
static void tiny_data(void **state)
{
    (void)state;
    static const int length[] = {12};
    char *data = write_rows("one.jsonl", length, NULL, 1);
    char *folder =
        train("one", data, "--gradient_accumulation_steps 8 --num_train_epochs 1 --eval_steps 3 --report_to none");
    char *said = program_output();
    assert_non_null(strstr(said, "--eval_steps is not used: no validation data"));
    free(said);
    assert_true(in_folder(folder, "checkpoint-1/adapter_model.safetensors"));
    assert_false(in_folder(folder, "checkpoint-2"));
    free(folder);
    free(data);
}

/* P-10: neither batch size nor packing changes the evaluation; P-14: nor does what was evaluated before. */
static void evaluation(void **state)
{
    (void)state;
    static const char *const layouts[] = {
        "--per_device_eval_batch_size 1",
        "--per_device_eval_batch_size 4",
        "--packing true --max_length 128",
        "--packing true --max_length 512",
    };
    double loss[4], accuracy[4];
    for (int i = 0; i < 4; i++) {
        char output[16], *more = dtp_format("--val_dataset %s/tiny_dense/tokens.jsonl --max_steps 1 --warmup_steps 1 "
                                            "--eval_steps 1 --report_to none %s",
                                            DT_TEST_DATA, layouts[i]);
        snprintf(output, sizeof output, "eval%d", i);
        char *folder = train(output, rows, more);
        loss[i] = value_at(folder, 1, "eval_loss");
        accuracy[i] = value_at(folder, 1, "eval_token_acc");
        free(folder);
        free(more);
        assert_true(fabs(loss[i] - loss[0]) < 1e-5 * loss[0]);
        assert_true(accuracy[i] == accuracy[0]);
    }
    /* the learning rate of step 1 of 1 with warm-up is 0, so that two evaluations see the same weights */
    char *folder = train("twice", rows,
                         "--split_dataset_ratio 0.2 --max_steps 2 --warmup_steps 2 --eval_steps 1 "
                         "--learning_rate 1e-30 --report_to none");
    assert_true(value_at(folder, 1, "eval_loss") == value_at(folder, 3, "eval_loss"));
    free(folder);
}

/* The best checkpoint stays although the limit would drop it; early stopping ends the run. */
static void best_checkpoint(void **state)
{
    (void)state;
    char *folder = train("best", rows,
                         "--split_dataset_ratio 0.2 --max_steps 12 --eval_steps 1 --save_steps 1 --save_total_limit 1 "
                         "--learning_rate 1.0 --early_stop_interval 3 --per_device_train_batch_size 4 "
                         "--gradient_accumulation_steps 1 --report_to none --warmup_steps 1");
    /* the first step has rate 0 and the second ruins the weights: step 1 stays the best */
    assert_true(in_folder(folder, "checkpoint-1"));
    assert_true(in_folder(folder, "checkpoint-4"));
    assert_false(in_folder(folder, "checkpoint-2"));
    assert_false(in_folder(folder, "checkpoint-3"));
    assert_false(in_folder(folder, "checkpoint-5"));
    dt_err err = {0};
    char *path = dtp_path_join(folder, "checkpoint-4/trainer_state.json");
    json_t *trainer_state = NULL;
    assert_ok(dtp_json_load(&trainer_state, path, 0, &err), &err);
    const char *best = json_string_value(json_object_get(trainer_state, "best_model_checkpoint"));
    assert_string_equal(dtp_path_base(best), "checkpoint-1");
    double metric = json_real_value(json_object_get(trainer_state, "best_metric"));
    assert_true(fabs(metric - value_at(folder, 1, "eval_loss")) < 0.6e-8); /* the log is rounded */
    json_decref(trainer_state);
    free(path);
    free(folder);
}

/* P-83 and P-94: saving, evaluating, recomputing and the number of threads change no bit; nor do log lines,
 * which make the host wait for a device. */
static void nothing_else_changes_the_result(void **state)
{
    (void)state;
    static const char *const variants[] = {"--save_steps 500",
                                           "--save_steps 1",
                                           "--threads 2",
                                           ("--val_dataset " DT_TEST_DATA "/tiny_dense/tokens.jsonl --eval_steps 1"),
                                           "--dataloader_prefetch_factor 0",
                                           "--logging_steps 5",
                                           "--gradient_checkpointing false",
                                           "--on_nonfinite skip"};
    char *first = NULL;
    for (int i = 0; i < 8; i++) {
        char output[16],
            *more = dtp_format("--max_steps 6 --gradient_accumulation_steps 2 --report_to none %s", variants[i]);
        snprintf(output, sizeof output, "same%d", i);
        char *folder = train(output, rows, more), *checkpoint = dtp_path_join(folder, "checkpoint-6");
        if (first) {
            same_file(first, checkpoint, "adapter_model.safetensors");
            assert_true(state_distance(first, checkpoint, "exp_avg") == 0);
        } else
            first = dtp_strdup(checkpoint);
        free(checkpoint);
        free(folder);
        free(more);
    }
    free(first);
}

/* A replayed step has the bits of its calls: nothing of another step (a dropout mask, a rate, a scale) is frozen in it.
 */
static void recordings_change_no_bit(void **state)
{
    (void)state;
    static const char more[] = "--max_steps 3 --gradient_accumulation_steps 2 --per_device_train_batch_size 2 "
                               "--lora_dropout 0.3 --report_to none --torch_dtype bfloat16";
    char *calls = dtp_format("%s --cuda_graph false", more);
    char *a = train("recorded", rows, more), *b = train("calls", rows, calls);
    char *x = dtp_path_join(a, "checkpoint-3"), *y = dtp_path_join(b, "checkpoint-3");
    same_file(x, y, "training_state.safetensors");
    same_file(x, y, "adapter_model.safetensors");
    json_t *first = run_log(a), *second = run_log(b);
    for (size_t i = 0; i < 3; i++)
        for (const char *const *key = (const char *const[]){"loss", "grad_norm", NULL}; *key; key++)
            assert_true(json_equal(json_object_get(json_array_get(first, i), *key),
                                   json_object_get(json_array_get(second, i), *key)));
    json_decref(first);
    json_decref(second);
    free(x);
    free(y);
    free(a);
    free(b);
    free(calls);
}

/* Settings come from the adapter; an explicit one that differs is refused with both values. */
static void continues_an_adapter(void **state)
{
    (void)state;
    char *base =
        dtp_format("sft --model %s/tiny_dense/model --adapters %s/tiny_dense/adapter_init %s --threads 1 "
                   "--device cpu --output_dir %s/adapter --padding_free true --max_steps 1 --disable_tqdm true",
                   DT_TEST_DATA, DT_TEST_DATA, rows, program_folder);
    static const struct {
        const char *more, *part;
    } refused[] = {
        {"--lora_rank 16", "--lora_rank 16: the adapter"},
        {"--lora_alpha 32", "has 8"},
        {"--use_rslora true", "--use_rslora 1"},
        {"--target_modules q_proj", "differ at layer"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char *arguments = dtp_format("%s %s", base, refused[i].more);
        program_fails("", arguments, 2, refused[i].part);
        free(arguments);
    }
    char *arguments = dtp_format("%s --lora_rank 4 --lora_alpha 8 --target_modules all-linear", base);
    program_succeeds(arguments);
    free(arguments);
    free(base);
}

/* trainer.md §8 and §9: the files and their keys. */
static void files(void **state)
{
    (void)state;
    char *folder = train("files", rows,
                         "--max_steps 2 --gradient_accumulation_steps 1 --lora_alpha 16 "
                         "--split_dataset_ratio 0.1 --eval_steps 2");
    static const char *const names[] = {"args.json",
                                        "logging.jsonl",
                                        "runs",
                                        "checkpoint-2/adapter_model.safetensors",
                                        "checkpoint-2/adapter_config.json",
                                        "checkpoint-2/additional_config.json",
                                        "checkpoint-2/args.json",
                                        "checkpoint-2/README.md",
                                        "checkpoint-2/trainer_state.json",
                                        "checkpoint-2/training_state.safetensors",
                                        "val_dataset.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!in_folder(folder, names[i]))
            fail_msg("%s is missing", names[i]);
    dt_err err = {0};
    char *path = dtp_path_join(folder, "args.json");
    json_t *args = NULL;
    assert_ok(dtp_json_load(&args, path, 0, &err), &err);
    assert_int_equal(json_integer_value(json_object_get(args, "lora_alpha")), 16);
    assert_true(json_real_value(json_object_get(args, "learning_rate")) == 1e-4); /* resolved, not null */
    json_decref(args);
    free(path);

    dt_st *adapter = open_file(folder, "checkpoint-2/adapter_model.safetensors");
    assert_string_equal(dtp_st_metadata(adapter, "format"), "pt");
    assert_int_equal(dtp_st_count(adapter), 2 * 31); /* P-80 */
    for (size_t i = 0; i < dtp_st_count(adapter); i++)
        assert_string_equal(dtp_st_at(adapter, i)->dtype_name, "F32"); /* P-84 */
    const dt_st_tensor *a =
        dtp_st_find(adapter, "base_model.model.model.layers.0.linear_attn.in_proj_qkv.lora_A.weight"); /* P-86 */
    assert_true(a && a->rank == 2 && a->shape[0] == 4);
    dtp_st_close(adapter);

    json_t *lines = run_log(folder);
    size_t n = json_array_size(lines);
    assert_int_equal(n, 5); /* two steps, one evaluation, the end, the summary */
    static const char *const ending[] = {"train_runtime",
                                         "train_samples_per_second",
                                         "train_steps_per_second",
                                         "total_flos",
                                         "train_loss",
                                         "epoch",
                                         "global_step/max_steps",
                                         "elapsed_time",
                                         "remaining_time",
                                         "memory(GiB)",
                                         "train_speed(s/it)"};
    const char *key;
    json_t *value;
    size_t k = 0;
    json_object_foreach(json_array_get(lines, 3), key, value)
    {
        assert_string_equal(key, ending[k++]);
    }
    const json_t *summary = json_array_get(lines, 4);
    static const char *const summarised[] = {"model_parameter_info",  "train_dataset",         "val_dataset",
                                             "last_model_checkpoint", "best_model_checkpoint", "best_metric",
                                             "global_step",           "log_history",           "memory"};
    for (size_t i = 0; i < sizeof summarised / sizeof summarised[0]; i++)
        assert_non_null(json_object_get(summary, summarised[i]));
    json_decref(lines);
    free(folder);
}

/* One line of error, no matter what; a name of the reference is told apart from an unknown one. */
static void usage(void **state)
{
    (void)state;
    program_fails("", "sft --learning_rte 1", 2, "nearest: --learning_rate");
    program_fails("", "sft --galore_rank 8", 2, "not implemented here");
    program_fails("", "export --adapters a --quant_bits 4", 2, "not implemented here");
    program_fails("", "infer --adapters a --infer_backend vllm", 2,
                  "--infer_backend: not implemented here; leave it out");
    program_fails("", "infer --adapters a --merge_lora true --prompt x", 1,
                  "a/adapter_config.json"); /* as in the reference */
    program_fails("", "sft --dataset x.jsonl", 2, "--model: missing");
    char *arguments = dtp_format("%s --output_dir %s/none --dataset no-such.jsonl", common, program_folder);
    program_fails("", arguments, 1, "no-such.jsonl");
    free(arguments);
    static const struct {
        const char *more, *part;
    } wrong[] = {
        {"--use_dora true", "--use_dora true: not implemented here"},
        {"--threads -1", "--threads: -1 is outside 0..4096"},
        {"--threads 99999", "--threads: 99999 is outside 0..4096"},
        {"--num_train_epochs 1e300", "--num_train_epochs: 1e+300 of 60 steps"},
        {"--loss_scale react", "loss_scale \"react\" is not implemented here"}, /* rows of tokens do not use it */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        arguments = dtp_format("%s --output_dir %s/none %s --gradient_accumulation_steps 1 %s", common, program_folder,
                               rows, wrong[i].more);
        program_fails("", arguments, 2, wrong[i].part);
        free(arguments);
    }
    arguments = dtp_format("%s --output_dir %s/none %s --device cuda:99", common, program_folder, rows);
    program_fails("", arguments, 1, "cuda");
    char *text = program_output();
    assert_true(strchr(text, '\n') == text + strlen(text) - 1);
    free(text);
    free(arguments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_is_one_mean),
        cmocka_unit_test(rows_without_targets),
        cmocka_unit_test(tiny_data),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(best_checkpoint),
        cmocka_unit_test(nothing_else_changes_the_result),
        cmocka_unit_test(recordings_change_no_bit),
        cmocka_unit_test(continues_an_adapter),
        cmocka_unit_test(files),
        cmocka_unit_test(usage),
    };
    program_filter();
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
