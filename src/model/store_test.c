#include "model/model_testing.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "model/checkpoint.h"
#include "model/store.h"
#include "model/widen.h"

/* ---- checkpoints made from the committed one with a few changes ---- */

typedef struct {
    const char *drop;         /* this tensor is left out */
    const char *change;       /* this one gets another name, shape or dtype: */
    const char *name, *dtype; /* NULL: as it was */
    int64_t columns;          /* 0: as it was */
    const char *add;          /* an extra [3] F32 tensor */
    bool f16;                 /* all tensors as F16 */
} recipe;

static void write_checkpoint(const char *folder, const recipe *r, uint64_t max_shard)
{
    dt_err err = {0};
    dt_checkpoint *base;
    dt_st_spec specs[64];
    static const float extra[3];
    size_t n = 0;
    assert_ok(dtp_checkpoint_open(&base, TINY, &err), &err);
    void *converted[64] = {NULL};
    for (size_t i = 0; i < dtp_checkpoint_count(base); i++) {
        const dt_st_tensor *t = dtp_checkpoint_at(base, i).tensor;
        if (r->drop && !strcmp(t->name, r->drop))
            continue;
        dt_st_spec *s = &specs[n];
        *s = (dt_st_spec){.name = t->name, .dtype = t->dtype_name, .rank = t->rank, .data = t->data};
        memcpy(s->shape, t->shape, sizeof t->shape);
        if (r->change && !strcmp(t->name, r->change)) {
            s->name = r->name ? r->name : s->name;
            s->dtype = r->dtype ? r->dtype : s->dtype;
            s->shape[t->rank - 1] = r->columns ? r->columns : s->shape[t->rank - 1];
        }
        if (r->f16) {
            const size_t count = t->bytes / 2;
            float *wide = malloc(count * sizeof *wide);
            dtp_widen(wide, t->data, t->dtype, count);
            converted[n] = malloc(t->bytes);
            dtp_narrow(converted[n], DT_F16, wide, count);
            free(wide);
            s->dtype = "F16";
            s->data = converted[n];
        }
        n++;
    }
    if (r->add)
        specs[n++] = (dt_st_spec){r->add, "F32", 1, {3}, extra};
    assert_ok(dtp_st_write_sharded(folder, specs, n, max_shard, NULL, NULL, &err), &err);
    for (size_t i = 0; i < n; i++)
        free(converted[i]);
    dtp_checkpoint_close(base);
}

/* Opens the store of the tiny configuration on a folder; the caller checks the status. */
typedef struct {
    fixture f;
    dt_model_config *config;
    dt_checkpoint *checkpoint;
    dt_store *store;
} opened;

static dt_status open_store(opened *o, const char *folder, dt_store_options options, dt_err *err)
{
    *o = (opened){.f = open_fixture()};
    assert_ok(dtp_config_load(&o->config, TINY "/config.json", err), err);
    dt_status status = dtp_checkpoint_open(&o->checkpoint, folder, err);
    return status == DT_OK ? dtp_store_open(&o->store, o->f.exec, o->config, o->checkpoint, &options, err) : status;
}

static void close_store(opened *o)
{
    dtp_store_close(o->store);
    dtp_checkpoint_close(o->checkpoint);
    dtp_config_free(o->config);
    close_fixture(&o->f);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char up[] = "model.layers.2.mlp.up_proj.weight";
    static const struct {
        recipe r;
        dt_status status;
        const char *part;
    } cases[] = {
        {{.drop = up},
         DT_E_FORMAT,
         "1 tensor of this model missing from the checkpoint: model.layers.2.mlp.up_proj.weight"},
        {{.add = "model.layers.2.mlp.side_proj.weight"},
         DT_E_FORMAT,
         "no place for: model.layers.2.mlp.side_proj.weight"},
        {{.change = up, .name = "model.layers.4.mlp.up_proj.weight"}, DT_E_FORMAT, "missing"},
        {{.change = "model.norm.weight", .dtype = "I16"},
         DT_E_DTYPE,
         "model.norm.weight: expected BF16, F32 or F16, found I16"},
        {{.change = "model.layers.0.linear_attn.dt_bias", .columns = 3},
         DT_E_SHAPE,
         "config.json makes it [4], the file has [3]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        char *folder = temporary_folder();
        opened o;
        write_checkpoint(folder, &cases[i].r, UINT64_MAX / 2);
        assert_fails(open_store(&o, folder, (dt_store_options){0}, &err), &err, cases[i].status, cases[i].part);
        close_store(&o);
        remove_folder(folder);
    }
}

/* mtp.*, model.visual.* and the head of a tied model are no mistakes. */
static void test_tolerated(void **state)
{
    (void)state;
    static const char *const names[] = {"mtp.fc.weight", "model.visual.merger.norm.weight", "lm_head.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dt_err err = {0};
        char *folder = temporary_folder();
        opened o;
        write_checkpoint(folder, &(recipe){.add = names[i]}, 300000);
        assert_ok(open_store(&o, folder, (dt_store_options){0}, &err), &err);
        assert_true(dtp_checkpoint_files(o.checkpoint) > 3);
        assert_null(dtp_store_find(o.store, names[i]));
        assert_ptr_equal(o.store->head.value.data, o.store->embedding.value.data);
        close_store(&o);
        remove_folder(folder);
    }
}

static void test_index_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *name, *file, *part;
    } cases[] = {
        {"model.norm.weight", "../model-00001-of-00004.safetensors", "expected the name of a file in this folder"},
        {"model.norm.weight", "missing.safetensors", "missing.safetensors"},
        {"model.nowhere.weight", NULL, "weight_map says tensor model.nowhere.weight is in"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        dt_checkpoint *c = NULL;
        char *folder = temporary_folder(), *path = dtp_path_join(folder, "model.safetensors.index.json");
        write_checkpoint(folder, &(recipe){0}, 500000);
        json_t *index;
        assert_ok(dtp_json_load(&index, path, 0, &err), &err);
        json_t *map = json_object_get(index, "weight_map");
        const char *file = cases[i].file ? cases[i].file : json_string_value(json_object_get(map, "model.norm.weight"));
        json_object_set_new(map, cases[i].name, json_string(file));
        assert_ok(dtp_python_save(index, path, false, &err), &err);
        json_decref(index);
        assert_true(dtp_checkpoint_open(&c, folder, &err) != DT_OK);
        assert_non_null(strstr(err.text, cases[i].part));
        assert_null(c);
        free(path);
        remove_folder(folder);
    }
}

/* Mapped, not copied; and the block buffers of a device hold the same values, inputs row-adjacent. */
static void test_mapped_and_blocks(void **state)
{
    (void)state;
    dt_err err = {0};
    opened mapped, copied;
    assert_ok(open_store(&mapped, TINY, (dt_store_options){0}, &err), &err);
    assert_ok(open_store(&copied, TINY, (dt_store_options){.copy = true}, &err), &err);
    assert_int_equal(mapped.store->n_blocks, 0);
    assert_int_equal(copied.store->n_blocks, 5);
    for (size_t i = 0; i < dtp_checkpoint_count(mapped.checkpoint); i++) {
        const dt_st_tensor *t = dtp_checkpoint_at(mapped.checkpoint, i).tensor;
        assert_ptr_equal(dtp_store_find(mapped.store, t->name)->value.data, t->data);
        const dt_weight *w = dtp_store_find(copied.store, t->name);
        assert_ptr_not_equal(w->value.data, t->data);
        assert_memory_equal(w->value.data, t->data, t->bytes);
    }
    const dt_weight *linear = copied.store->layer[0].w, *full = copied.store->layer[3].w;
    static const struct {
        dt_weight_id first, second;
    } adjacent[] = {{DT_W_QKV, DT_W_Z},   {DT_W_Z, DT_W_B}, {DT_W_B, DT_W_A},
                    {DT_W_GATE, DT_W_UP}, {DT_W_Q, DT_W_K}, {DT_W_K, DT_W_V}};
    for (size_t i = 0; i < sizeof adjacent / sizeof *adjacent; i++) {
        const dt_weight *layer = adjacent[i].first >= DT_W_Q && adjacent[i].first <= DT_W_V ? full : linear;
        const dt_tensor *a = &layer[adjacent[i].first].value, *b = &layer[adjacent[i].second].value;
        assert_ptr_equal((const char *)a->data + dt_tensor_numel(a) * 2, b->data);
    }
    close_store(&mapped);
    close_store(&copied);
}

static void check_rows(const dt_weight *w, int64_t extension)
{
    const uint16_t *stored = w->stored.tensor->data, *row = w->value.data;
    const int64_t rows = w->value.shape[0], width = w->value.shape[1];
    assert_int_equal(w->value.stride[0], width + extension);
    for (int64_t i = 0; i < rows; i++, row += width + extension, stored += width) {
        assert_memory_equal(row, stored, (size_t)width * 2);
        for (int64_t k = width; k < width + extension; k++)
            assert_int_equal(row[k], 0);
    }
}

/* On a device, rows of adapted maps have room behind them for the adapters of their input, in steps of 64 up to 128. */
static void test_scratch_behind_adapted_rows(void **state)
{
    (void)state;
    static const char *const without[] = {"down_proj"};
    static const struct {
        int64_t rank, mixer, mixer_out, mlp, widest;
    } cases[] = {{8, 64, 64, 64, 64}, {24, 128, 64, 64, 128}, {64, 0, 64, 128, 128}, {256, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        opened o;
        dt_lora *lora;
        dt_model_config *config;
        dt_lora_options options;
        dtp_lora_options_default(&options);
        options.rank = cases[i].rank;
        options.exclude = without;
        options.n_exclude = 1;
        assert_ok(dtp_config_load(&config, TINY "/config.json", &err), &err);
        assert_ok(dtp_lora_create(&lora, config, &options, &err), &err);
        assert_ok(open_store(&o, TINY, (dt_store_options){.copy = true, .lora = lora, .tune = DT_TUNE_LORA}, &err),
                  &err);
        assert_int_equal(dtp_store_extension(o.store), cases[i].widest);
        const dt_weight *w = o.store->layer[0].w;
        check_rows(&w[DT_W_QKV], cases[i].mixer);
        check_rows(&w[DT_W_A], cases[i].mixer);
        check_rows(&w[DT_W_OUT], cases[i].mixer_out);
        check_rows(&w[DT_W_GATE], cases[i].mlp);
        check_rows(&w[DT_W_UP], cases[i].mlp);
        check_rows(&w[DT_W_DOWN], 0);
        assert_ptr_equal((uint16_t *)w[DT_W_GATE].value.data +
                             w[DT_W_GATE].value.shape[0] * w[DT_W_GATE].value.stride[0],
                         w[DT_W_UP].value.data);
        close_store(&o);
        dtp_lora_free(lora);
        dtp_config_free(config);
    }
}

/* F16 files are widened without loss; odd header lengths (unaligned data) are copied. */
static void test_f16_and_unaligned(void **state)
{
    (void)state;
    dt_err err = {0};
    opened plain, half, odd;
    char *folder = temporary_folder(), *shifted = temporary_folder();
    write_checkpoint(folder, &(recipe){.f16 = true}, UINT64_MAX / 2);
    assert_ok(open_store(&plain, TINY, (dt_store_options){0}, &err), &err);
    assert_ok(open_store(&half, folder, (dt_store_options){0}, &err), &err);
    const dt_tensor *w = &half.store->final_norm.value;
    assert_int_equal(w->dtype, DT_F32);
    for (int64_t i = 0; i < w->shape[0]; i++)
        assert_true(fabsf(((float *)w->data)[i] - dt_bf16_to_f32(((uint16_t *)plain.store->final_norm.value.data)[i])) <
                    1e-6f);

    /* The same file with one space more in its header. */
    char *from = dtp_path_join(TINY, "model.safetensors"), *to = dtp_path_join(shifted, "model.safetensors"), *bytes;
    size_t length;
    assert_ok(dtp_read_file(from, 0, &bytes, &length, &err), &err);
    uint64_t header;
    memcpy(&header, bytes, 8);
    char *longer = malloc(length + 1);
    memcpy(longer, bytes, 8 + header);
    longer[8 + header] = ' ';
    memcpy(longer + 9 + header, bytes + 8 + header, length - 8 - header);
    header++;
    memcpy(longer, &header, 8);
    assert_ok(dtp_write_file(to, longer, length + 1, &err), &err);
    assert_ok(open_store(&odd, shifted, (dt_store_options){0}, &err), &err);
    assert_true((uintptr_t)odd.store->final_norm.value.data % 2 == 0);
    assert_memory_equal(odd.store->final_norm.value.data, plain.store->final_norm.value.data, 256);
    free(bytes);
    free(longer);
    free(from);
    free(to);
    close_store(&plain);
    close_store(&half);
    close_store(&odd);
    remove_folder(folder);
    remove_folder(shifted);
}

static void test_trainable_layout(void **state)
{
    (void)state;
    dt_err err = {0};
    opened o;
    assert_ok(open_store(&o, TINY, (dt_store_options){.tune = DT_TUNE_FULL, .weight_decay = 0.1f}, &err), &err);
    const dt_trainable *t = &o.store->trainable;
    assert_int_equal(t->count, o.store->parameters);
    assert_int_equal(t->n_segments, dtp_checkpoint_count(o.checkpoint));
    int64_t at = 0;
    for (int64_t i = 0; i < t->n_segments; i++) {
        assert_int_equal(t->segments[i].offset, at);
        at += t->segments[i].count;
        assert_true(t->segments[i].weight_decay == (dtp_decays(t->names[i]) ? 0.1f : 0));
    }
    assert_int_equal(at, t->count);
    assert_null(t->m);
    assert_ok(dtp_store_add_moments(o.store, &err), &err);
    for (int64_t i = 0; i < t->count; i++)
        assert_true(t->m[i] == 0 && t->v[i] == 0 && t->grad[i] == 0);
    close_store(&o);
}

static void test_decay_groups(void **state)
{
    (void)state;
    static const char *const no[] = {"model.layers.0.input_layernorm.weight",
                                     "model.norm.weight",
                                     "model.layers.0.linear_attn.norm.weight",
                                     "model.layers.0.linear_attn.dt_bias",
                                     "model.layers.3.self_attn.q_norm.weight",
                                     "x.MyRMSNorm.weight",
                                     "a.Norm"};
    static const char *const yes[] = {"model.embed_tokens.weight",
                                      "lm_head.weight",
                                      "model.layers.0.linear_attn.A_log",
                                      "model.layers.0.linear_attn.conv1d.weight",
                                      "model.layers.0.mlp.up_proj.weight",
                                      "model.layers.0.mlp.up_proj.lora_A.weight",
                                      "model.normal.weight"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(dtp_decays(no[i]));
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        assert_true(dtp_decays(yes[i]));
}

/* P-42, P-22: the counts that follow from the shape. */
static void test_published_sizes(void **state)
{
    (void)state;
    static const struct {
        int64_t H, L, I, nh, kv, nv, parameters, tensors, modules, lora;
        bool tied;
    } models[] = {
        {1024, 24, 3584, 8, 2, 16, 752393024, 320, 186, 5411328, true},
        {2560, 32, 9216, 16, 4, 32, 4205751296, 426, 248, 16232448, true},
        {4096, 32, 12288, 16, 4, 32, 8953803264, 427, 248, 21639168, false},
        {5120, 64, 17408, 24, 4, 48, 26895998464, 851, 496, 58363904, false},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char text[512];
        dt_err err = {0};
        dt_model_config *c;
        snprintf(
            text, sizeof text,
            "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"intermediate_size\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"linear_num_value_heads\":%d,\"rope_theta\":1e7,"
            "\"tie_word_embeddings\":%s}",
            (int)models[i].H, (int)models[i].L, (int)models[i].I, (int)models[i].nh, (int)models[i].kv,
            (int)models[i].nv, models[i].tied ? "true" : "false");
        assert_ok(dtp_config_parse(&c, text, strlen(text), "c", &err), &err);
        dt_weight_info outer[3], info[DT_MAX_LAYER_TENSORS];
        int64_t tensors = dtp_outer_tensors(c, outer), parameters = 0, modules = 0, lora = 0;
        for (int64_t k = 0; k < tensors; k++)
            parameters += dtp_weight_count(&outer[k]);
        for (int64_t layer = 0; layer < c->layers; layer++) {
            int m, n = dtp_layer_tensors(c, layer, info, &m);
            tensors += n;
            modules += m;
            for (int k = 0; k < n; k++)
                parameters += dtp_weight_count(&info[k]);
            for (int k = 0; k < m; k++)
                lora += 8 * (info[k].shape[0] + info[k].shape[1]);
        }
        assert_int_equal(tensors, models[i].tensors);
        assert_int_equal(parameters, models[i].parameters);
        assert_int_equal(modules, models[i].modules);
        assert_int_equal(lora, models[i].lora);
        dtp_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tolerated),
        cmocka_unit_test(test_index_refusals),
        cmocka_unit_test(test_mapped_and_blocks),
        cmocka_unit_test(test_scratch_behind_adapted_rows),
        cmocka_unit_test(test_f16_and_unaligned),
        cmocka_unit_test(test_trainable_layout),
        cmocka_unit_test(test_decay_groups),
        cmocka_unit_test(test_published_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
