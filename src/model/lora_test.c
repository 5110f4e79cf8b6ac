#include "model/model_testing.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "model/safetensors.h"

/* Six layers, the fourth full; 12 so that "layers.1" could be mistaken for "layers.10". */
static dt_model_config *make_config(bool multimodal, bool tied, int layers)
{
    char text[1024];
    dt_err err = {0};
    dt_model_config *c;
    const char *flat =
        "\"num_hidden_layers\":%d,\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":3,"
        "\"num_key_value_heads\":1,\"head_dim\":32,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,"
        "\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,\"vocab_size\":50,\"rope_theta\":1e7";
    char fields[768];
    snprintf(fields, sizeof fields, flat, layers); /* NOLINT: constant format */
    if (multimodal)
        snprintf(text, sizeof text, "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":%s,\"text_config\":{%s}}",
                 tied ? "true" : "false", fields);
    else
        snprintf(text, sizeof text, "{\"model_type\":\"qwen3_5_text\",\"tie_word_embeddings\":%s,%s}",
                 tied ? "true" : "false", fields);
    assert_ok(dtp_config_parse(&c, text, strlen(text), "config.json", &err), &err);
    return c;
}

static dt_lora *choose(const dt_model_config *c, dt_lora_options o)
{
    dt_err err = {0};
    dt_lora *lora;
    assert_ok(dtp_lora_create(&lora, c, &o, &err), &err);
    return lora;
}

/* P-80: all linear maps of linear and full layers, nothing else. */
static void test_all_linear(void **state)
{
    (void)state;
    dt_lora_options o;
    dtp_lora_options_default(&o);
    assert_true(o.rank == 8 && o.alpha == 32 && o.dropout == 0.05 && !o.rslora);
    for (int multimodal = 0; multimodal < 2; multimodal++) {
        dt_model_config *c = make_config(multimodal, true, 4);
        dt_lora *lora = choose(c, o);
        assert_int_equal(dtp_lora_count(lora), 3 * (5 + 3) + (4 + 3));
        assert_true(dtp_lora_scale(lora) == 4);
        dtp_lora_free(lora);
        o.rslora = true;
        lora = choose(c, o);
        assert_true(fabs(dtp_lora_exact_scale(lora) - 32 / sqrt(8)) < 1e-15);
        dtp_lora_free(lora);
        o.rslora = false;
        dtp_config_free(c);
    }
}

static int64_t count(const dt_model_config *c, const char *const *targets, size_t n, const char *regex,
                     const char *const *exclude, size_t n_exclude)
{
    dt_lora *lora = choose(c, (dt_lora_options){.rank = 2,
                                                .alpha = 4,
                                                .targets = targets,
                                                .n_targets = n,
                                                .target_regex = regex,
                                                .exclude = exclude,
                                                .n_exclude = n_exclude});
    int64_t adapted = dtp_lora_count(lora);
    dtp_lora_free(lora);
    return adapted;
}
#define LIST(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void test_names(void **state)
{
    (void)state;
    dt_model_config *c = make_config(false, true, 12);
    assert_int_equal(count(c, LIST("q_proj", "v_proj"), NULL, NULL, 0), 6);
    assert_int_equal(count(c, LIST("layers.1.mlp.up_proj"), NULL, NULL, 0), 1);
    assert_int_equal(count(c, LIST("model.layers.1.mlp.up_proj", "layers.10.mlp.up_proj"), NULL, NULL, 0), 2);
    assert_int_equal(count(c, LIST("mlp.down_proj"), NULL, NULL, 0), 12);
    assert_int_equal(count(c, LIST("all-linear", "q_proj"), NULL, NULL, 0), 9 * 8 + 3 * 7);
    assert_int_equal(count(c, NULL, 0, ".*layers\\.(1|3)\\.mlp\\.(up|gate)_proj", NULL, 0), 4);
    assert_int_equal(count(c, NULL, 0, "model(?=\\.).*\\.o_proj", NULL, 0), 3);
    assert_int_equal(count(c, NULL, 0, NULL, LIST("mlp.up_proj", "in_proj_a")), 9 * 6 + 3 * 6);
    dtp_config_free(c);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *target, *regex, *part;
    } cases[] = {
        {"qq_proj", NULL, "'qq_proj' matches no module"},
        {"proj", NULL, "matches no module"}, /* no part of a name is a name */
        {"", NULL, "matches no module"},
        {"lm_head", NULL, "lm_head, which cannot be adapted (embedding and head share one weight"}, /* P-85 */
        {"embed_tokens", NULL, "cannot be adapted"},
        {"conv1d", NULL, "conv1d, which is no linear map"},
        {"A_log", NULL, "no linear map"},
        {NULL, "q_proj", "selects no module"}, /* the whole name is matched */
        {NULL, ".*(", "target_regex '.*('"},
        {NULL, ".*", "which is no linear map"},
        {NULL, ".*lm_head|.*q_proj", "lm_head, which cannot be adapted"},
        {NULL, "(([a-z_.0-9]+)*)*j[a-z]{9}", "cannot be matched"},
    };
    dt_model_config *c = make_config(false, true, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        dt_lora *lora = NULL;
        dt_lora_options o = {.rank = 8,
                             .alpha = 16,
                             .target_regex = cases[i].regex,
                             .targets = &cases[i].target,
                             .n_targets = cases[i].target != NULL};
        assert_fails(dtp_lora_create(&lora, c, &o, &err), &err, DT_E_ARG, cases[i].part);
        assert_null(lora);
    }
    static const struct {
        dt_lora_options o;
        const char *part;
    } numbers[] = {
        {{.rank = 0, .alpha = 1}, "lora_rank"},
        {{.rank = 8, .alpha = 0}, "lora_alpha"},
        {{.rank = 8, .alpha = NAN}, "lora_alpha"},
        {{.rank = 8, .alpha = 1, .dropout = 1}, "lora_dropout"},
        {{.rank = 8, .alpha = 1, .dropout = -0.1}, "lora_dropout"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        dt_err err = {0};
        dt_lora *lora = NULL;
        assert_fails(dtp_lora_create(&lora, c, &numbers[i].o, &err), &err, DT_E_ARG, numbers[i].part);
    }
    dtp_config_free(c);
}

/* Start values: inside +-1/sqrt(in), spread over it, on the bf16 grid, different between modules, the same again. */
static void test_start_values(void **state)
{
    (void)state;
    enum { R = 8, N = 1000 };
    static float a[R * N], b[R * N];
    dtp_lora_init_a(a, R, N, 7, 3, DT_BF16);
    dtp_lora_init_a(b, R, N, 7, 3, DT_BF16);
    assert_memory_equal(a, b, sizeof a);
    dtp_lora_init_a(b, R, N, 7, 4, DT_BF16);
    double bound = 1 / sqrt(N), sum = 0, squares = 0;
    int same = 0;
    for (int i = 0; i < R * N; i++) {
        assert_true(fabs(a[i]) <= bound * 1.004);
        assert_true(dt_bf16_to_f32(dt_f32_to_bf16(a[i])) == a[i]);
        sum += a[i];
        squares += (double)a[i] * a[i];
        same += a[i] == b[i];
    }
    assert_true(same < R * N / 50);
    assert_true(fabs(sum / (R * N)) < 4 * bound / sqrt(3.0 * R * N));
    assert_true(fabs(squares / (R * N) / (bound * bound / 3) - 1) < 0.05);
    dtp_lora_init_a(b, R, N, 7, 3, DT_F32);
    assert_true(relative_l2(a, b, R * N) < 0.004 && memcmp(a, b, sizeof a) != 0);
}

/* ---- adapter folders ---- */

static dt_status numbered(void *user, int64_t layer, int index, bool b, const float **out, dt_err *err)
{
    static float values[4096];
    (void)user, (void)err;
    for (int i = 0; i < 4096; i++)
        values[i] = (float)(layer * 1000 + index * 100 + b * 10) + (float)i / 4096;
    *out = values;
    return DT_OK;
}

static json_t *read_json(const char *folder, const char *name)
{
    dt_err err = {0};
    json_t *root;
    char *path = dtp_path_join(folder, name);
    assert_ok(dtp_json_load(&root, path, 0, &err), &err);
    free(path);
    return root;
}

static void write_json(const char *folder, json_t *root)
{
    dt_err err = {0};
    char *path = dtp_path_join(folder, "adapter_config.json");
    assert_ok(dtp_python_save(root, path, true, &err), &err);
    json_decref(root);
    free(path);
}

/* P-81, P-82, P-86: written with the base's prefix, read into either layout, the same modules and values. */
static void test_round_trip_between_layouts(void **state)
{
    (void)state;
    for (int from = 0; from < 2; from++) {
        dt_err err = {0};
        char *folder = temporary_folder(), *path = dtp_path_join(folder, "adapter_model.safetensors");
        dt_model_config *base = make_config(from, true, 4), *other = make_config(!from, true, 4);
        dt_lora *lora = choose(base, (dt_lora_options){.rank = 3, .alpha = 6, .dropout = 0.1});
        assert_ok(dtp_lora_save(lora, folder, "some/base", numbered, NULL, &err), &err);
        dtp_lora_free(lora);
        dt_st *st;
        dt_tensor t;
        assert_ok(dtp_st_open(&st, path, &err), &err);
        assert_string_equal(dtp_st_metadata(st, "format"), "pt");
        assert_int_equal(dtp_st_count(st), 62);
        char name[256];
        snprintf(name, sizeof name, "base_model.model.%slayers.2.linear_attn.in_proj_qkv.lora_B.weight",
                 dtp_config_prefix(base));
        assert_ok(dtp_st_get(st, name, &t, &err), &err);
        assert_true(t.dtype == DT_F32 && t.shape[0] == 2 * 2 * 8 + 4 * 8 && t.shape[1] == 3);
        dtp_st_close(st);

        json_t *root = read_json(folder, "adapter_config.json");
        assert_int_equal(json_is_string(json_object_get(root, "target_modules")), from);
        assert_int_equal(json_integer_value(json_object_get(root, "lora_alpha")), 6);
        assert_string_equal(json_string_value(json_object_get(root, "base_model_name_or_path")), "some/base");
        json_decref(root);

        const dt_model_config *configs[2] = {base, other};
        for (int i = 0; i < 2; i++) {
            assert_ok(dtp_lora_open(&lora, configs[i], folder, &err), &err);
            assert_int_equal(dtp_lora_count(lora), 31);
            assert_true(dtp_lora_settings(lora).rank == 3 && dtp_lora_settings(lora).dropout == 0.1);
            static float a[4096], b[4096];
            const float *expected;
            assert_ok(dtp_lora_read(lora, 3, 1, a, b, &err), &err); /* k_proj: [32, 64] */
            numbered(NULL, 3, 1, false, &expected, NULL);
            assert_memory_equal(a, expected, 3 * 64 * sizeof *a);
            numbered(NULL, 3, 1, true, &expected, NULL);
            assert_memory_equal(b, expected, 32 * 3 * sizeof *a);
            /* Saved again, it is an adapter of the layout it was read into. */
            char *again = temporary_folder();
            assert_ok(dtp_lora_save(lora, again, "b", numbered, NULL, &err), &err);
            dtp_lora_free(lora);
            assert_ok(dtp_lora_open(&lora, configs[i], again, &err), &err);
            assert_int_equal(dtp_lora_count(lora), 31);
            dtp_lora_free(lora);
            remove_folder(again);
        }
        dtp_config_free(base);
        dtp_config_free(other);
        free(path);
        remove_folder(folder);
    }
}

/* P-81: the adapter of the tiny model with one name changed, added or removed. */
typedef enum { RENAME, WRONG_SHAPE, DROP, TWICE, DAMAGES } damage;

static void write_damaged(const char *folder, damage kind)
{
    dt_err err = {0};
    dt_st *st;
    static dt_st_spec specs[64];
    static char renamed[256];
    assert_ok(dtp_st_open(&st, TINY_ADAPTER "/adapter_model.safetensors", &err), &err);
    size_t n = 0;
    for (size_t i = 0; i < dtp_st_count(st); i++) {
        const dt_st_tensor *t = dtp_st_at(st, i);
        if (i == 5 && kind == DROP)
            continue;
        specs[n] = (dt_st_spec){.name = t->name, .dtype = t->dtype_name, .rank = t->rank, .data = t->data};
        memcpy(specs[n].shape, t->shape, sizeof t->shape);
        if (i == 5 && kind == RENAME) {
            snprintf(renamed, sizeof renamed, "%s2", t->name);
            specs[n].name = renamed;
        }
        if (i == 5 && kind == WRONG_SHAPE) {
            specs[n].shape[0] = t->shape[1];
            specs[n].shape[1] = t->shape[0];
        }
        n++;
        if (i == 5 && kind == TWICE) { /* the other prefix of the same module */
            specs[n] = specs[n - 1];
            snprintf(renamed, sizeof renamed, "base_model.model.model.language_model.%s",
                     t->name + strlen("base_model.model.model."));
            specs[n++].name = renamed;
        }
    }
    char *path = dtp_path_join(folder, "adapter_model.safetensors");
    assert_ok(dtp_st_write(path, specs, n, NULL, 0, NULL, NULL, &err), &err);
    free(path);
    dtp_st_close(st);
}

static void test_damaged_adapters(void **state)
{
    (void)state;
    static const struct {
        dt_status status;
        const char *part;
    } expected[DAMAGES] = {
        [RENAME] = {DT_E_FORMAT, "belongs to no linear map"},
        [WRONG_SHAPE] = {DT_E_SHAPE, "expected shape ["},
        [DROP] = {DT_E_FORMAT, "is missing"},
        [TWICE] = {DT_E_FORMAT, "are for the same module"},
    };
    dt_err err = {0};
    dt_model_config *c;
    assert_ok(dtp_config_load(&c, TINY "/config.json", &err), &err);
    dt_lora *none = NULL;
    assert_fails(dtp_lora_open(&none, c, TINY, &err), &err, DT_E_IO, "/model: has no adapter_config.json");
    for (int kind = 0; kind < DAMAGES; kind++) {
        char *folder = temporary_folder(), *config = dtp_path_join(folder, "adapter_config.json");
        assert_ok(dtp_copy_file(TINY_ADAPTER "/adapter_config.json", config, &err), &err);
        write_damaged(folder, (damage)kind);
        dt_lora *lora = NULL;
        assert_fails(dtp_lora_open(&lora, c, folder, &err), &err, expected[kind].status, expected[kind].part);
        assert_null(lora);
        free(config);
        remove_folder(folder);
    }
    dtp_config_free(c);
}

static void test_unsupported_settings(void **state)
{
    (void)state;
    static const struct {
        const char *change;
        dt_status status;
        const char *part;
    } cases[] = {
        {"{\"peft_type\":\"IA3\"}", DT_E_UNSUPPORTED, "peft_type: expected \"LORA\", found \"IA3\""},
        {"{\"use_dora\":true}", DT_E_UNSUPPORTED, "use_dora"},
        {"{\"bias\":\"all\"}", DT_E_UNSUPPORTED, "bias"},
        {"{\"rank_pattern\":{\"q_proj\":4}}", DT_E_UNSUPPORTED, "rank_pattern"},
        {"{\"modules_to_save\":[\"lm_head\"]}", DT_E_UNSUPPORTED, "modules_to_save"},
        {"{\"layers_to_transform\":[1]}", DT_E_UNSUPPORTED, "layers_to_transform"},
        {"{\"init_lora_weights\":\"pissa\"}", DT_E_UNSUPPORTED, "init_lora_weights"},
        {"{\"target_modules\":[]}", DT_E_FORMAT, "target_modules"},
        {"{\"target_modules\":[7]}", DT_E_FORMAT, "target_modules[0]"},
        {"{\"target_modules\":[\"q_proj\"]}", DT_E_FORMAT, "is not among the target_modules"},
        {"{\"target_modules\":[\"nothing\"]}", DT_E_ARG, "'nothing' matches no module"},
        {"{\"r\":5}", DT_E_SHAPE, "expected shape ["},
        {"{\"r\":\"4\"}", DT_E_FORMAT, "r is a string"},
    };
    dt_err err = {0};
    dt_model_config *c;
    assert_ok(dtp_config_load(&c, TINY "/config.json", &err), &err);
    char *folder = temporary_folder(), *weights = dtp_path_join(folder, "adapter_model.safetensors");
    assert_ok(dtp_copy_file(TINY_ADAPTER "/adapter_model.safetensors", weights, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = read_json(TINY_ADAPTER, "adapter_config.json"), *change = json_loads(cases[i].change, 0, NULL);
        json_object_update(root, change);
        json_decref(change);
        write_json(folder, root);
        dt_lora *lora = NULL;
        assert_fails(dtp_lora_open(&lora, c, folder, &err), &err, cases[i].status, cases[i].part);
        assert_null(lora);
    }
    free(weights);
    remove_folder(folder);
    dtp_config_free(c);
}

/* A freshly made adapter changes nothing (B = 0); a saved one read back gives the same bits. */
static void test_adapter_in_the_model(void **state)
{
    (void)state;
    fixture f = open_fixture();
    dt_err err = {0};
    char *folder = temporary_folder();
    static sample_pack p;
    static const int lengths[] = {20, 9};
    dt_cross_entropy_result plain, fresh, trained, again;
    make_pack(&p, 3, lengths, 0, 2, 512);
    dt_model *m = open_model(&f, (dt_model_options){.tune = DT_TUNE_NONE});
    plan(m, 29, 2, false, DT_RECOMPUTE_NONE);
    assert_ok(dtp_model_evaluate(m, &p.pack, &plain, NULL, &err), &err);
    dtp_model_close(m);

    dt_lora_options o;
    dtp_lora_options_default(&o);
    m = open_model(&f, (dt_model_options){.tune = DT_TUNE_LORA, .lora = &o, .seed = 1});
    plan(m, 29, 2, true, DT_RECOMPUTE_NONE);
    assert_ok(dtp_model_evaluate(m, &p.pack, &fresh, NULL, &err), &err);
    assert_true(fresh.loss == plain.loss);
    const dt_trainable *t = dtp_model_trainable(m);
    for (int64_t i = 0; i < t->count; i++)
        t->param[i] += 0.001f * (float)(i % 11);
    assert_ok(dtp_model_evaluate(m, &p.pack, &trained, NULL, &err), &err);
    assert_true(trained.loss != plain.loss);
    assert_ok(dtp_model_save_adapter(m, folder, &err), &err);
    dtp_model_close(m);

    for (int tune = DT_TUNE_NONE; tune <= DT_TUNE_LORA; tune++) {
        m = open_model(&f, (dt_model_options){.tune = (dt_tune)tune, .adapter = folder});
        plan(m, 29, 2, tune == DT_TUNE_LORA, DT_RECOMPUTE_NONE);
        assert_ok(dtp_model_evaluate(m, &p.pack, &again, NULL, &err), &err);
        assert_true(again.loss == trained.loss);
        dtp_model_close(m);
    }
    remove_folder(folder);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_linear),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_start_values),
        cmocka_unit_test(test_round_trip_between_layouts),
        cmocka_unit_test(test_damaged_adapters),
        cmocka_unit_test(test_unsupported_settings),
        cmocka_unit_test(test_adapter_in_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
