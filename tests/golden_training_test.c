/* Whole training runs of the reference cases through the finished program: the loss and gradient norm of every step and
 * the final adapter, as padding-free batches and row by row with as much accumulation. */
#include "program.h"

#include "model/safetensors.h"

static const double norm_tolerance = 1e-3, adapter_tolerance = 1e-3;

static void near(const char *what, int step, double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected)))
        fail_msg("%s of step %d: %.9g, expected %.9g within %g", what, step, value, expected, tolerance);
}

static double number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value))
        fail_msg("no number \"%s\"", name);
    return json_number_value(value);
}

/* The log shows the rate of the next step; the reference file the rate that was used. */
static void check_log(const char *run, const json_t *expected, bool bf16)
{
    json_t *lines = run_log(run);
    const json_t *steps = json_object_get(expected, "log");
    size_t n = json_array_size(steps);
    assert_true(json_array_size(lines) > n);
    for (size_t i = 0; i < n; i++) {
        const json_t *want = json_array_get(steps, i), *got = json_array_get(lines, i);
        int step = (int)i + 1;
        near("loss", step, number(got, "loss"), number(want, "loss"), bf16 ? 1e-2 : 1e-4);
        if (!bf16)
            near("grad_norm", step, number(got, "grad_norm"), number(want, "grad_norm"), norm_tolerance);
        if (i + 1 < n) {
            double next = number(json_array_get(steps, i + 1), "learning_rate");
            assert_true(fabs(number(got, "learning_rate") - next) <= 0.5000001e-8); /* rounded to 8 decimals */
        }
    }
    json_decref(lines);
}

/* Relative L2 over all tensors together. */
static void check_adapter(const char *folder, const char *expected_folder)
{
    dt_st *got = NULL, *want = NULL;
    dt_err err = {0};
    char *path = dtp_path_join(folder, "adapter_model.safetensors");
    assert_ok(dtp_st_open(&got, path, &err), &err);
    free(path);
    path = dtp_path_join(expected_folder, "adapter_model.safetensors");
    assert_ok(dtp_st_open(&want, path, &err), &err);
    free(path);
    assert_int_equal(dtp_st_count(got), dtp_st_count(want));
    double difference = 0, norm = 0;
    for (size_t i = 0; i < dtp_st_count(want); i++) {
        const dt_st_tensor *w = dtp_st_at(want, i), *g = dtp_st_find(got, w->name);
        if (!g || g->bytes != w->bytes || g->dtype != DT_F32 || w->dtype != DT_F32)
            fail_msg("%s is missing, or of another shape or dtype", w->name);
        const float *a = g->data, *b = w->data;
        for (size_t j = 0; j < w->bytes / sizeof(float); j++) {
            difference += ((double)a[j] - b[j]) * ((double)a[j] - b[j]);
            norm += (double)b[j] * b[j];
        }
    }
    double ratio = sqrt(difference / norm);
    print_message("adapter: relative L2 %.2e\n", ratio);
    if (!(ratio <= adapter_tolerance))
        fail_msg("adapter: relative L2 %.3e, allowed %.0e", ratio, adapter_tolerance);
    dtp_st_close(got);
    dtp_st_close(want);
}

typedef struct dt_case {
    const char *folder, *name;
    bool single; /* row by row with accumulation, else batches of per_step rows */
    bool bf16;   /* on devices only; the reference cases were computed in float32 */
} dt_case;

static void train(void **state)
{
    const dt_case *c = *state;
    if (!dtp_is_folder(c->folder)) {
        print_message("skipped: %s is not there\n", c->folder);
        skip();
    }
    if (c->bf16 && strcmp(device_name(), "cpu") == 0) {
        print_message("skipped: a CPU computes in float32\n");
        skip();
    }
    dt_err err = {0};
    json_t *expected = NULL;
    char *path = dtp_path_join(c->folder, "expected.json");
    assert_ok(dtp_json_load(&expected, path, 0, &err), &err);
    free(path);
    int per_step = (int)number(expected, "per_step"), steps = (int)number(expected, "steps");
    char arguments[2048];
    snprintf(arguments, sizeof arguments,
             "sft --model %s/model --adapters %s/adapter_init --dataset %s/tokens.jsonl --output_dir %s/%s --threads 1 "
             "--dataset_shuffle false --train_dataloader_shuffle false --padding_free true --device cpu "
             "--per_device_train_batch_size %d --gradient_accumulation_steps %d --max_steps %d "
             "--learning_rate %.17g --warmup_steps %d --lr_scheduler_type %s --torch_dtype %s --weight_decay %.17g "
             "--adam_beta1 %.17g "
             "--adam_beta2 %.17g --adam_epsilon %.17g --max_grad_norm %.17g --logging_steps 1 --report_to none",
             c->folder, c->folder, c->folder, program_folder, c->name, c->single ? 1 : per_step,
             c->single ? per_step : 1, steps, number(expected, "learning_rate"), (int)number(expected, "warmup_steps"),
             json_string_value(json_object_get(expected, "lr_scheduler_type")), c->bf16 ? "bfloat16" : "float32",
             number(expected, "weight_decay"), number(expected, "adam_beta1"), number(expected, "adam_beta2"),
             number(expected, "adam_epsilon"), number(expected, "max_grad_norm"));
    program_succeeds(arguments);
    char *run = run_folder(c->name, 0), *checkpoint = dtp_format("%s/checkpoint-%d", run, steps);
    char *final = dtp_path_join(c->folder, "adapter_final");
    check_log(run, expected, c->bf16);
    if (!c->bf16)
        check_adapter(checkpoint, final);
    free(final);
    free(checkpoint);
    free(run);
    json_decref(expected);
}

int main(void)
{
    static dt_case cases[] = {
        {DT_TEST_DATA "/tiny_dense", "tiny_batch", false, false},
        {DT_TEST_DATA "/tiny_dense", "tiny_single", true, false},
        {DT_TEST_DATA "/tiny_dense", "tiny_bf16", false, true},
        {DT_SHARED_DIR "/golden/real_heads", "real_batch", false, false},
        {DT_SHARED_DIR "/golden/real_heads", "real_single", true, false},
        {DT_SHARED_DIR "/golden/tiny_dense_multimodal", "multimodal_batch", false, false},
        {DT_SHARED_DIR "/golden/tiny_dense_multimodal", "multimodal_single", true, false},
    };
    enum { n_cases = sizeof cases / sizeof cases[0] };
    struct CMUnitTest tests[n_cases];
    for (int i = 0; i < n_cases; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, train, NULL, NULL, &cases[i]};
    program_filter();
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
