/* The saved adapter means the same to transformers + peft: logits of one sample there and here.
 * The Python that has them is $DT_REFERENCE_PYTHON, else python3; without the packages the test is skipped. */
#include "program.h"

#include "model/model.h"

enum { tokens = 48 };

typedef struct dt_capture {
    dt_model *model;
    int64_t layers, vocab;
    float *logits; /* [tokens, vocab] */
    dt_status status;
} dt_capture;

static void capture(void *user, int64_t index, const dt_tensor *hidden)
{
    dt_capture *c = user;
    if (index == c->layers)
        c->status = dtp_model_logits(c->model, *hidden, dt_tensor_2d(c->logits, DT_F32, tokens, c->vocab), NULL);
}

/* Logits of the first `tokens` ids with the adapter applied, into `path`. */
static void write_logits(const char *model_folder, const char *adapter, const int32_t *ids, const char *path)
{
    dt_err err = {0};
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_model *model = NULL;
    assert_ok(dt_ctx_create(&ctx, &err), &err);
    assert_ok(dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 1, &err), &err);
    dt_model_options options = {.folder = model_folder, .adapter = adapter, .tune = DT_TUNE_NONE, .activation = DT_F32};
    assert_ok(dtp_model_open(&model, exec, &options, &err), &err);
    dt_plan_report report;
    assert_ok(dtp_model_plan(model, &(dt_plan_options){.max_tokens = tokens, .max_n_seq = 1}, &report, &err), &err);
    const dt_model_config *config = dtp_model_config(model);
    dt_capture c = {model, config->layers, config->vocab, calloc((size_t)tokens * (size_t)config->vocab, 4),
                    DT_E_INTERNAL};
    int32_t positions[tokens], targets[tokens], boundaries[2] = {0, tokens};
    for (int i = 0; i < tokens; i++) {
        positions[i] = i;
        targets[i] = -1;
    }
    targets[0] = ids[1]; /* a loss needs a target */
    dtp_model_set_tap(model, capture, &c);
    dt_pack pack = {
        .T = tokens, .n_seq = 1, .tokens = ids, .positions = positions, .targets = targets, .cu_seqlens = boundaries};
    dt_cross_entropy_result result;
    assert_ok(dtp_model_evaluate(model, &pack, &result, NULL, &err), &err);
    assert_int_equal(c.status, DT_OK);
    assert_ok(dtp_write_file(path, c.logits, (size_t)tokens * (size_t)config->vocab * 4, &err), &err);
    free(c.logits);
    dtp_model_close(model);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
}

static void same_logits(void **state)
{
    const char *folder = *state;
    char *model = dtp_path_join(folder, "model");
    if (!dtp_is_folder(model)) {
        print_message("skipped: %s is not there\n", model);
        skip();
    }
    char *arguments =
        dtp_format("sft --model %s --dataset %s/tokens.jsonl --output_dir %s/%s --threads 1 --device cpu "
                   "--max_steps 6 --learning_rate 2e-2 --gradient_accumulation_steps 2 --padding_free true "
                   "--add_version false --report_to none",
                   model, folder, program_folder, dtp_path_base(folder));
    program_succeeds(arguments);
    char *adapter = dtp_format("%s/%s/checkpoint-6", program_folder, dtp_path_base(folder));
    char *logits = dtp_format("%s/logits", program_folder), *ids_file = dtp_format("%s/ids", program_folder);
    int32_t ids[tokens];
    FILE *file = fopen(ids_file, "w");
    for (int i = 0; i < tokens; i++) {
        ids[i] = (i * 37 + 11) % 500;
        fprintf(file, "%s%d", i ? ", " : "[", ids[i]);
    }
    fprintf(file, "]");
    fclose(file);
    write_logits(model, adapter, ids, logits);
    const char *python = getenv("DT_REFERENCE_PYTHON");
    char *command = dtp_format("%s %s/tests/peft_logits.py %s %s %s %s 2>%s/python", python ? python : "python3",
                               DT_SOURCE_DIR, model, adapter, ids_file, logits, program_folder);
    fflush(stdout);
    int code = WEXITSTATUS(system(command));
    free(command);
    free(adapter);
    free(logits);
    free(ids_file);
    free(arguments);
    free(model);
    if (code == 77 || code == 127)
        skip();
    assert_int_equal(code, 0);
}

int main(void)
{
    static char tiny[] = DT_TEST_DATA "/tiny_dense", multimodal[] = DT_SHARED_DIR "/golden/tiny_dense_multimodal";
    const struct CMUnitTest tests[] = {{"tiny", same_logits, NULL, NULL, tiny},
                                       {"multimodal", same_logits, NULL, NULL, multimodal}};
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
