/* What a training run of the 4B shape needs on a GPU, planned with the real kernels' sizes on the emulated device. The
 * checkpoint is a sparse file of zeros that nobody reads: a deferred model is planned before it is loaded. */
#include "core/file.h"
#include "core/test.h"
#include "model/catalogue.h"
#include "model/model.h"

#include <deltune/dispatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/deltune-plan-XXXXXX";

#define THREE_LINEAR "\"linear_attention\", \"linear_attention\", \"linear_attention\", "
#define FOUR         THREE_LINEAR "\"full_attention\""
static const char config_4b[] =
    "{\"architectures\": [\"Qwen3_5ForCausalLM\"], \"model_type\": \"qwen3_5_text\", \"dtype\": \"bfloat16\","
    " \"vocab_size\": 248320, \"hidden_size\": 2560, \"intermediate_size\": 9216, \"num_hidden_layers\": 32,"
    " \"layer_types\": [" FOUR ", " FOUR ", " FOUR ", " FOUR ", " FOUR ", " FOUR ", " FOUR ", " FOUR "],"
    " \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 256, \"linear_num_key_heads\": 16,"
    " \"linear_num_value_heads\": 32, \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128,"
    " \"linear_conv_kernel_dim\": 4, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06,"
    " \"max_position_embeddings\": 32768, \"tie_word_embeddings\": true, \"attention_bias\": false,"
    " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25,"
    " \"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10]}}";

/* ---- a checkpoint of the right size ---- */

static void add_tensors(dt_buf *header, uint64_t *end, const dt_model_config *config, int64_t layer,
                        const dt_weight_info *info, int n)
{
    for (int i = 0; i < n; i++) {
        char name[DT_MAX_NAME];
        dtp_tensor_name(name, config, layer, &info[i]);
        const uint64_t bytes = (uint64_t)dtp_weight_count(&info[i]) * 2;
        dtp_buf_printf(header, "%s\"%s\": {\"dtype\": \"BF16\", \"shape\": [", header->length > 1 ? "," : "", name);
        for (int d = 0; d < info[i].rank; d++)
            dtp_buf_printf(header, "%s%lld", d ? "," : "", (long long)info[i].shape[d]);
        dtp_buf_printf(header, "], \"data_offsets\": [%llu, %llu]}", (unsigned long long)*end,
                       (unsigned long long)(*end + bytes));
        *end += bytes;
    }
}

static int make_checkpoint(void **state)
{
    (void)state;
    char path[128];
    dt_err err = {0};
    dt_model_config *config = NULL;
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    dt_buf header = {0};
    uint64_t bytes = 0;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(dtp_write_file(path, config_4b, strlen(config_4b), &err), &err);
    assert_ok(dtp_config_load(&config, path, &err), &err);
    dtp_buf_puts(&header, "{");
    add_tensors(&header, &bytes, config, -1, info, dtp_outer_tensors(config, info));
    for (int64_t layer = 0; layer < config->layers; layer++) {
        int modules, n = dtp_layer_tensors(config, layer, info, &modules);
        add_tensors(&header, &bytes, config, layer, info, n);
    }
    dtp_buf_puts(&header, "}");
    while (header.length % 8)
        dtp_buf_puts(&header, " ");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    const uint64_t length = header.length;
    bool written = file && fwrite(&length, 8, 1, file) == 1 && fwrite(header.data, header.length, 1, file) == 1;
    written = written && fclose(file) == 0 && truncate(path, (off_t)(8 + header.length + bytes)) == 0;
    dtp_buf_free(&header);
    dtp_config_free(config);
    return written ? 0 : -1;
}

static int remove_checkpoint(void **state)
{
    (void)state;
    return dtp_remove_tree(folder, NULL);
}

/* ---- plans ---- */

typedef struct fixture {
    dt_ctx *ctx;
    dt_exec *exec;
    dt_model *model;
} fixture;

static fixture open_folder(const char *model, dt_tune tune)
{
    fixture f = {0};
    dt_err err = {0};
    dt_lora_options lora;
    dtp_lora_options_default(&lora);
    assert_ok(dt_ctx_create(&f.ctx, &err), &err);
    assert_ok(dt_ctx_load_plugin(f.ctx, DT_EMULATED_PLUGIN, 0, NULL, &err), &err);
    assert_ok(dt_exec_create(&f.exec, f.ctx, DT_DEVICE_CUDA, 0, 1, &err), &err);
    const dt_model_options options = {.folder = model,
                                      .tune = tune,
                                      .lora = tune == DT_TUNE_LORA ? &lora : NULL,
                                      .activation = DT_BF16,
                                      .defer = true};
    assert_ok(dtp_model_open(&f.model, f.exec, &options, &err), &err);
    return f;
}

static fixture open_model(dt_tune tune)
{
    return open_folder(folder, tune);
}

static void close_model(fixture *f)
{
    dtp_model_close(f->model);
    dt_exec_free(f->exec);
    dt_ctx_free(f->ctx);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 0x1p30;
}

static dt_plan_report plan(fixture *f, int64_t tokens, dt_recompute recompute, double limit)
{
    dt_err err = {0};
    dt_plan_report r;
    const dt_plan_options o = {.max_tokens = tokens,
                               .max_n_seq = tokens / 60, /* samples of 60 to 280 tokens, 170 on average */
                               .train = true,
                               .recompute = recompute,
                               .memory_limit = (uint64_t)(limit * 0x1p30)};
    assert_ok(dtp_model_plan(f->model, &o, &r, &err), &err);
    print_message("%lld tokens: weights %.2f + trained %.2f + activations %.2f + workspace %.2f = %.2f GiB, "
                  "%lld layers recomputed\n",
                  (long long)tokens, gib(r.weights), gib(r.trainable), gib(r.activations), gib(r.workspace),
                  gib(r.total), (long long)r.layers_recomputed);
    return r;
}

/* The goals for one card: without recomputation 10 GiB at 512 tokens a step and 32 at 8,192; with it 12. */
static void the_4b_shape(void **state)
{
    (void)state;
    fixture f = open_model(DT_TUNE_LORA);
    assert_true(gib(plan(&f, 512, DT_RECOMPUTE_NONE, 0).total) < 10);
    assert_true(gib(plan(&f, 512, DT_RECOMPUTE_ALL, 0).total) < 9);
    assert_true(gib(plan(&f, 8192, DT_RECOMPUTE_NONE, 0).total) < 32);
    assert_true(gib(plan(&f, 8192, DT_RECOMPUTE_ALL, 0).total) < 12);
    assert_int_equal(dt_exec_memory_usage(f.exec).peak, 0); /* planned, not allocated */
    close_model(&f);
}

/* What is planned is what is then allocated, no more and no less. */
static void the_plan_holds(void **state)
{
    (void)state;
    static const dt_tune tunes[] = {DT_TUNE_LORA, DT_TUNE_FULL};
    for (int i = 0; i < 2; i++) {
        fixture f = open_folder(DT_TEST_DATA "/tiny_dense/model", tunes[i]);
        dt_err err = {0};
        const dt_plan_report r = plan(&f, 128, DT_RECOMPUTE_NONE, 0);
        assert_ok(dtp_model_load(f.model, &err), &err);
        assert_ok(dtp_model_rehearse(f.model, false, &err), &err);
        assert_int_equal(dt_exec_memory_usage(f.exec).peak, r.total);
        close_model(&f);
    }
}

/* auto recomputes as few layers as fit: one less would not. */
static void the_least_recomputation(void **state)
{
    (void)state;
    fixture f = open_model(DT_TUNE_LORA);
    assert_int_equal(plan(&f, 8192, DT_RECOMPUTE_AUTO, 100).layers_recomputed, 0);
    dt_plan_report some = plan(&f, 8192, DT_RECOMPUTE_AUTO, 20);
    assert_true(some.layers_recomputed > 0 && some.layers_recomputed < 32);
    assert_true(gib(some.total) <= 20);
    dt_plan_report one_less = plan(&f, 8192, DT_RECOMPUTE_AUTO, 21);
    assert_true(one_less.layers_recomputed < some.layers_recomputed && gib(one_less.total) > 20);
    close_model(&f);
}

static void refusals_name_the_remedy(void **state)
{
    (void)state;
    fixture f = open_model(DT_TUNE_LORA);
    dt_err err = {0};
    dt_plan_report r;
    dt_plan_options o = {.max_tokens = 8192,
                         .max_n_seq = 50,
                         .train = true,
                         .recompute = DT_RECOMPUTE_NONE,
                         .memory_limit = 20ull << 30};
    assert_fails(dtp_model_plan(f.model, &o, &r, &err), &err, DT_E_NOMEM, "let gradient_checkpointing be true or auto");
    assert_true(gib(r.total) > 20);
    o.recompute = DT_RECOMPUTE_AUTO;
    o.memory_limit = 9ull << 30;
    assert_fails(dtp_model_plan(f.model, &o, &r, &err), &err, DT_E_NOMEM, "lower max_length or packing_length");
    o.memory_limit = 6ull << 30;
    assert_fails(dtp_model_plan(f.model, &o, &r, &err), &err, DT_E_NOMEM, "use a smaller model");
    close_model(&f);
    f = open_model(DT_TUNE_FULL);
    o.memory_limit = 40ull << 30;
    assert_fails(dtp_model_plan(f.model, &o, &r, &err), &err, DT_E_NOMEM, "train adapters instead of all weights");
    close_model(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_4b_shape),
        cmocka_unit_test(the_plan_holds),
        cmocka_unit_test(the_least_recomputation),
        cmocka_unit_test(refusals_name_the_remedy),
    };
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
