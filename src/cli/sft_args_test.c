#include "core/test.h"

#include "cli/incumbent.h"
#include "cli/sft_args.h"
#include "train/config.h"

enum { most_words = 24 };

/* Settings from a line of arguments; --model and --dataset are put in front. */
static dt_status resolve(dt_train_config *config, const char *line, int64_t world, dt_err *err)
{
    char text[1024], *words[most_words];
    int n = 0;
    snprintf(text, sizeof text, "--model %s --dataset a.jsonl %s", DT_SOURCE_DIR, line);
    for (char *word = strtok(text, " "); word && n < most_words; word = strtok(NULL, " "))
        words[n++] = word;
    dt_args *args = NULL;
    dt_status st = dtp_args_parse(&args, dtp_sft_table, true, false, n, words, err);
    if (st != DT_OK)
        return st;
    json_t *values = json_deep_copy(dtp_args_values(args));
    st = dtp_config_resolve(config, values, dtp_args_given_names(args), world, err);
    json_decref(values);
    dtp_args_free(args);
    return st;
}

static dt_train_config resolved(const char *line, int64_t world)
{
    dt_train_config config = {0};
    dt_err err = {0};
    assert_ok(resolve(&config, line, world, &err), &err);
    return config;
}

static void defaults(void **state)
{
    (void)state;
    dt_train_config c = resolved("", 1);
    assert_false(c.full);
    assert_int_equal(c.lora_rank, 8);
    assert_true(c.lora_alpha == 32 && c.lora_dropout == 0.05);
    assert_true(c.learning_rate == 1e-4 && c.weight_decay == 0.1 && c.beta2 == 0.95 && c.epsilon == 1e-8);
    assert_int_equal(c.accumulation, 16); /* not 1 */
    assert_int_equal(c.gradient_checkpointing, DT_CHECKPOINTING_ON);
    assert_int_equal(c.eval_strategy, DT_INTERVAL_NO);
    assert_int_equal(c.save_strategy, DT_INTERVAL_STEPS);
    assert_int_equal(c.eval_steps, 500);
    assert_int_equal(c.max_shard_bytes, 5000000000);
    assert_string_equal(c.truncation_strategy, "delete");
    assert_string_equal(c.metric_for_best_model, "loss");
    assert_false(c.greater_is_better);
    assert_true(c.tensorboard && c.ignore_empty_think && c.add_non_thinking_prefix);
    assert_int_equal(c.preserve_thinking, -1);
    const char *base = strrchr(DT_SOURCE_DIR, '/') + 1;
    assert_int_equal(c.output_dir[0], '/'); /* checkpoints are read from anywhere */
    assert_non_null(strstr(c.output_dir, "/output/"));
    assert_string_equal(strrchr(c.output_dir, '/') + 1, base);
    /* what was resolved is what args.json shows */
    assert_int_equal(json_integer_value(json_object_get(c.values, "gradient_accumulation_steps")), 16);
    assert_true(json_real_value(json_object_get(c.values, "learning_rate")) == 1e-4);
    dtp_config_release(&c);
}

static void derived(void **state)
{
    (void)state;
    dt_train_config c = resolved("--tuner_type full --per_device_train_batch_size 3", 2);
    assert_true(c.full && c.learning_rate == 1e-5);
    assert_int_equal(c.accumulation, 3); /* ceil(16 / 6) */
    dtp_config_release(&c);
    c = resolved("--per_device_train_batch_size 32", 1);
    assert_int_equal(c.accumulation, 1);
    dtp_config_release(&c);
    c = resolved("--packing true --max_length 512 --gradient_checkpointing auto", 1);
    assert_true(c.packing && c.padding_free);
    assert_int_equal(c.gradient_checkpointing, DT_CHECKPOINTING_AUTO);
    assert_int_equal(c.max_length, 512);
    dtp_config_release(&c);
    c = resolved("--split_dataset_ratio 0.1 --save_strategy epoch --metric_for_best_model eval_token_acc", 1);
    assert_int_equal(c.eval_strategy, DT_INTERVAL_EPOCH); /* as saving */
    assert_true(c.greater_is_better);
    dtp_config_release(&c);
    c = resolved("--val_dataset v.jsonl --save_steps 7 --split_dataset_ratio 0.5", 1);
    assert_int_equal(c.eval_strategy, DT_INTERVAL_STEPS);
    assert_int_equal(c.eval_steps, 7);
    assert_true(c.split_dataset_ratio == 0);
    dtp_config_release(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        dt_status status;
        const char *part;
    } cases[] = {
        {"--warmup_ratio 0.1 --warmup_steps 5", DT_E_ARG, "give one of them"},
        {"--warmup_ratio 1.0", DT_E_ARG, "--warmup_ratio: 1 is outside [0, 1)"},
        {"--packing_length 512", DT_E_ARG, "without --packing"},
        {"--max_steps 0", DT_E_ARG, "--max_steps"},
        {"--gradient_accumulation_steps 0", DT_E_ARG, "--gradient_accumulation_steps: 0 is below 1"},
        {"--gradient_accumulation_steps 9223372036854775807", DT_E_ARG, "is above 2147483647"},
        {"--per_device_train_batch_size 2147483648", DT_E_ARG, "is above 2147483647"},
        {"--max_steps 4294967296", DT_E_ARG, "--max_steps: 4294967296 is above 2147483647"},
        {"--packing true --packing_length 9223372036854775807", DT_E_ARG, "is above 2147483647"},
        {"--eval_strategy steps", DT_E_ARG, "no validation data"},
        {"--early_stop_interval 3", DT_E_ARG, "--early_stop_interval"},
        {"--use_dora true", DT_E_UNSUPPORTED, "--use_dora true: not implemented here"},
        {"--streaming", DT_E_UNSUPPORTED, "--streaming true"},
        {"--freeze_vit false", DT_E_UNSUPPORTED, "--freeze_vit false"},
        {"--fsdp fsdp2", DT_E_UNSUPPORTED, "--fsdp: not implemented here"},
        {"--torch_dtype float16", DT_E_UNSUPPORTED, "float16"},
        {"--modules_to_save lm_head", DT_E_UNSUPPORTED, "--modules_to_save"},
        {"--adapters a b", DT_E_ARG, "exactly one folder, got 2"},
        {"--tuner_type full --adapters a", DT_E_ARG, "--tuner_type lora"},
        {"--learning_rate 0", DT_E_ARG, "not positive"},
        {"--max_shard_size five", DT_E_ARG, "\"five\" is not a size"},
        {"--resume_only_model true", DT_E_ARG, "needs --resume_from_checkpoint"},
        {"--metric_for_best_model rouge", DT_E_ARG, "not one of loss, token_acc"},
        {"--model no-such-folder", DT_E_ARG, "\"no-such-folder\" is not a folder"},
        {"--dataset", DT_E_ARG, "--dataset: missing"},
        {"--gradient_checkpointing maybe", DT_E_ARG, "true|false|auto"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_train_config c = {0};
        dt_err err = {0};
        assert_fails(resolve(&c, cases[i].line, 1, &err), &err, cases[i].status, cases[i].part);
    }
}

static void sizes(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    dt_err err = {0};
    assert_ok(dtp_parse_size(&bytes, "500MB", "x", &err), &err);
    assert_int_equal(bytes, 500000000);
    assert_ok(dtp_parse_size(&bytes, "1.5GiB", "x", &err), &err);
    assert_int_equal(bytes, 1610612736);
    assert_ok(dtp_parse_size(&bytes, "123", "x", &err), &err);
    assert_int_equal(bytes, 123);
    assert_fails(dtp_parse_size(&bytes, "-1GB", "x", &err), &err, DT_E_ARG, "x: \"-1GB\"");
    assert_fails(dtp_parse_size(&bytes, "", "x", &err), &err, DT_E_ARG, "not a size");
}

/* A name is ours or the reference's alone, never both; and texts fit the help. */
static void one_home_for_each_name(void **state)
{
    (void)state;
    for (dt_arg_table group = dtp_sft_table; *group; group++)
        for (size_t i = 0; i < (*group)->count; i++) {
            const dt_arg_spec *spec = &(*group)->specs[i];
            if (dtp_incumbent_find(spec->name))
                fail_msg("%s is in the table of sft and in incumbent_args.def", spec->name);
            for (dt_arg_table other = dtp_sft_table; *other; other++)
                for (size_t j = 0; j < (*other)->count; j++)
                    if (&(*other)->specs[j] != spec && strcmp((*other)->specs[j].name, spec->name) == 0)
                        fail_msg("%s is twice in the table of sft", spec->name);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults), cmocka_unit_test(derived),
                                       cmocka_unit_test(refusals), cmocka_unit_test(sizes),
                                       cmocka_unit_test(one_home_for_each_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
