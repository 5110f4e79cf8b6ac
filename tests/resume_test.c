/* k + k steps equal 2k steps bit for bit: weights, moments, losses; within an epoch, at its end, with accumulation. */
#include "program.h"

enum { last = 20 };

typedef struct dt_variant {
    const char *name, *arguments;
} dt_variant;

/* 60 rows in batches of 2, 4 batches a step: 8 steps an epoch, the last of two batches; dropout is on. */
static const char common[] = "sft --model " DT_TEST_DATA "/tiny_dense/model --dataset " DT_TEST_DATA
                             "/tiny_dense/tokens.jsonl --threads 1 --device cpu --report_to none --disable_tqdm true "
                             "--learning_rate 1e-3 --max_steps 20 --logging_steps 3 --save_steps 2 --warmup_ratio 0.1 "
                             "--per_device_train_batch_size 2 --gradient_accumulation_steps 4";

static void run(const char *output, const dt_variant *variant, const char *more)
{
    char *arguments =
        dtp_format("%s --output_dir %s/%s %s %s", common, program_folder, output, variant->arguments, more);
    program_succeeds(arguments);
    free(arguments);
}

/* Every line of `resumed` stands in `whole` too, but for times, memory and the two closing lines. */
static void same_lines(const char *whole_run, const char *resumed_run, int first_step)
{
    static const char *const keys[] = {"loss", "grad_norm", "learning_rate", "token_acc", "epoch"};
    json_t *whole = run_log(whole_run), *resumed = run_log(resumed_run);
    size_t n = json_array_size(resumed) - 2, skip_lines = json_array_size(whole) - 2 - n;
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            const json_t *a = json_object_get(json_array_get(whole, skip_lines + i), keys[k]);
            const json_t *b = json_object_get(json_array_get(resumed, i), keys[k]);
            if (!json_equal(a, b))
                fail_msg("resumed after step %d: line %zu: %s is %.17g, was %.17g", first_step, i, keys[k],
                         json_real_value(b), json_real_value(a));
        }
    /* the mean loss of the whole run, not of its second half */
    const json_t *a = json_object_get(json_array_get(whole, skip_lines + n), "train_loss");
    const json_t *b = json_object_get(json_array_get(resumed, n), "train_loss");
    assert_true(json_is_real(a) && json_equal(a, b));
    json_decref(whole);
    json_decref(resumed);
}

static void resumes_exactly(void **state)
{
    const dt_variant *variant = *state;
    run(variant->name, variant, "");
    char *whole = run_folder(variant->name, 0), *end = dtp_format("%s/checkpoint-%d", whole, last);
    /* 8 ends the first epoch with a short window; 10 is in the middle of the second */
    static const int starts[] = {2, 8, 10};
    for (int i = 0; i < 3; i++) {
        char *output = dtp_format("%s-%d", variant->name, starts[i]);
        char *resume = dtp_format("--resume_from_checkpoint %s/checkpoint-%d", whole, starts[i]);
        run(output, variant, resume);
        char *second = run_folder(output, 0), *second_end = dtp_format("%s/checkpoint-%d", second, last);
        same_file(end, second_end, "training_state.safetensors");
        same_file(end, second_end,
                  in_folder(end, "adapter_model.safetensors") ? "adapter_model.safetensors" : "model.safetensors");
        same_lines(whole, second, starts[i]);
        free(second_end);
        free(second);
        free(resume);
        free(output);
    }
    free(end);
    free(whole);
}

/* "latest" takes the newest complete checkpoint, and the history goes on. */
static void latest(void **state)
{
    (void)state;
    static const dt_variant variant = {"latest", "--padding_free true --lora_rank 4"};
    run("latest", &variant, "--max_steps 4");
    run("latest", &variant, "--max_steps 6 --resume_from_checkpoint latest");
    char *second = run_folder("latest", 1), *path = dtp_format("%s/checkpoint-6/trainer_state.json", second);
    dt_err err = {0};
    json_t *trainer_state = NULL;
    assert_ok(dtp_json_load(&trainer_state, path, 0, &err), &err);
    const json_t *history = json_object_get(trainer_state, "log_history");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(history, 0), "step")), 1);
    assert_int_equal(json_integer_value(json_object_get(trainer_state, "global_step")), 6);
    json_decref(trainer_state);
    free(path);
    free(second);
}

static void refusals(void **state)
{
    (void)state;
    static const dt_variant variant = {"refuse", "--padding_free true --lora_rank 4"};
    run("refuse", &variant, "--max_steps 4");
    char *first = run_folder("refuse", 0);
    static const struct {
        const char *more, *part;
        int code;
    } cases[] = {
        {"--gradient_accumulation_steps 2", "was made with 4 accumulation steps, this run has 2", 2},
        {"--data_seed 7", "was made with 42 as data_seed, this run has 7", 2}, /* other rows would be skipped */
        {"--lora_rank 8", "--lora_rank 8: the adapter", 2},
        {"--max_steps 4", "is at step 4 of 4 already", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *arguments = dtp_format("%s --output_dir %s/refuse2 --padding_free true "
                                     "--resume_from_checkpoint %s/checkpoint-4 %s",
                                     common, program_folder, first, cases[i].more);
        program_fails("", arguments, cases[i].code, cases[i].part);
        free(arguments);
    }
    char *arguments = dtp_format("%s --output_dir %s/refuse2 --resume_from_checkpoint latest", common, program_folder);
    program_fails("", arguments, 1, "no checkpoint-N");
    free(arguments);
    /* other contents in as many rows, and the way past it */
    char *other =
        dtp_format("sed '3s/\"input_ids\": \\[[0-9]*/\"input_ids\": [5/' %s/tiny_dense/tokens.jsonl >%s/other.jsonl",
                   DT_TEST_DATA, program_folder);
    assert_int_equal(system(other), 0);
    free(other);
    arguments = dtp_format("%s --output_dir %s/refuse2 --padding_free true --dataset %s/other.jsonl "
                           "--resume_from_checkpoint %s/checkpoint-4",
                           common, program_folder, program_folder, first);
    program_fails("", arguments, 2, "was made with other samples");
    free(arguments);
    arguments = dtp_format("%s --output_dir %s/refuse3 --padding_free true --dataset %s/other.jsonl "
                           "--resume_from_checkpoint %s/checkpoint-4 --ignore_data_skip true --max_steps 5",
                           common, program_folder, program_folder, first);
    program_succeeds(arguments);
    free(arguments);
    /* a damaged state is refused, and named */
    char *damaged = dtp_format("%s/checkpoint-4/training_state.safetensors", first);
    assert_int_equal(truncate(damaged, 1000), 0);
    arguments = dtp_format("%s --output_dir %s/refuse2 --padding_free true --resume_from_checkpoint %s/checkpoint-4",
                           common, program_folder, first);
    program_fails("", arguments, 1, "training_state.safetensors");
    free(arguments);
    free(damaged);
    free(first);
}

/* Weights only: step 0 again, fresh moments, and it needs no training state. */
static void only_the_model(void **state)
{
    (void)state;
    static const dt_variant variant = {"weights", "--padding_free true --lora_rank 4"};
    run("weights", &variant, "--max_steps 2 --save_only_model true");
    char *first = run_folder("weights", 0);
    char *checkpoint = dtp_format("%s/checkpoint-2", first);
    assert_false(in_folder(checkpoint, "training_state.safetensors"));
    assert_true(in_folder(checkpoint, "adapter_model.safetensors"));
    char *more = dtp_format("--resume_from_checkpoint %s --resume_only_model true --max_steps 2", checkpoint);
    run("weights2", &variant, more);
    char *second = run_folder("weights2", 0);
    json_t *lines = run_log(second);
    assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "global_step/max_steps")), "1/2");
    json_decref(lines);
    free(more);
    free(checkpoint);
    free(first);
    free(second);
}

int main(void)
{
    static dt_variant lora = {"lora", "--padding_free true --lora_rank 4"};
    static dt_variant packed = {"packed",
                                "--packing true --max_length 128 --lora_rank 4 --per_device_train_batch_size 1 "
                                "--gradient_accumulation_steps 3"};
    static dt_variant full = {"full", "--tuner_type full --gradient_checkpointing false --max_grad_norm 0.5"};
    const struct CMUnitTest tests[] = {
        {"lora", resumes_exactly, NULL, NULL, &lora},
        {"packed", resumes_exactly, NULL, NULL, &packed},
        {"full", resumes_exactly, NULL, NULL, &full},
        cmocka_unit_test(latest),
        cmocka_unit_test(refusals),
        cmocka_unit_test(only_the_model),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
