/* The flat buffer of trainable tensors: its segments, start values, and the views operators use. */
#include "core/memory.h"
#include "model/arena.h"
#include "model/store_private.h"
#include "model/widen.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One part of a dotted name: is it "norm", or does it end in "_norm"? */
static bool is_norm_part(const char *part, size_t n)
{
    return (n == 4 && !strncasecmp(part, "norm", 4)) || (n >= 5 && !strncasecmp(part + n - 5, "_norm", 5));
}

bool dtp_decays(const char *name)
{
    if (strcasestr(name, "bias") || strcasestr(name, "layernorm") || strcasestr(name, "rmsnorm"))
        return false;
    for (const char *part = name; *part;) {
        size_t n = strcspn(part, ".");
        if (is_norm_part(part, n))
            return false;
        part += n + (part[n] == '.');
    }
    return true;
}

/* ---- segments ---- */

typedef struct {
    dt_store *store;
    dt_param_segment *segment;
    char **name;
    float weight_decay;
} builder;

static dt_status add_segment(builder *b, const char *name, const char *suffix, int64_t count, int64_t *index_out,
                             dt_err *err)
{
    dt_trainable *t = &b->store->trainable;
    size_t n = (size_t)t->n_segments;
    char *copy = dtp_format("%s%s", name, suffix);
    if (!copy || !dtp_grow((void **)&b->segment, &b->store->segment_capacity, n + 1, sizeof *b->segment) ||
        !dtp_grow((void **)&b->name, &b->store->name_capacity, n + 1, sizeof *b->name)) {
        free(copy);
        return dt_fail(err, DT_E_NOMEM, "no memory for the list of trainable tensors");
    }
    b->name[n] = copy;
    b->segment[n] = (dt_param_segment){t->count, count, dtp_decays(copy) ? b->weight_decay : 0};
    *index_out = t->n_segments++;
    t->count += count;
    return DT_OK;
}

static dt_status list_weights(builder *b, dt_err *err)
{
    dt_store *s = b->store;
    dt_status status =
        add_segment(b, s->embedding.name, "", dtp_weight_count(&s->embedding.info), &s->embedding.segment, err);
    for (int64_t i = 0; i < s->config->layers; i++)
        for (int id = 0; status == DT_OK && id < DT_LAYER_WEIGHTS; id++) {
            dt_weight *w = &s->layer[i].w[id];
            if (w->name)
                status = add_segment(b, w->name, "", dtp_weight_count(&w->info), &w->segment, err);
        }
    if (status == DT_OK)
        status = add_segment(b, s->final_norm.name, "", s->config->hidden, &s->final_norm.segment, err);
    if (status == DT_OK && !s->config->tied)
        status = add_segment(b, s->head.name, "", dtp_weight_count(&s->head.info), &s->head.segment, err);
    return status;
}

/* Per input: the A of all its modules (stacked), then their B. */
static dt_status list_adapters(builder *b, const dt_lora *lora, dt_err *err)
{
    dt_store *s = b->store;
    int64_t rank = dtp_lora_settings(lora).rank;
    dt_status status = DT_OK;
    for (int64_t i = 0; i < s->config->layers; i++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        char name[DT_MAX_NAME];
        int modules;
        dtp_layer_tensors(s->config, i, info, &modules);
        memset(s->layer[i].lora_segment, -1, sizeof s->layer[i].lora_segment);
        for (int input = 0; input < DT_LAYER_INPUTS; input++)
            for (int kind = 0; kind < 2; kind++)
                for (int m = 0; status == DT_OK && m < modules; m++) {
                    if (info[m].input != input || !dtp_lora_targets(lora, i, m))
                        continue;
                    dtp_module_name(name, s->config, i, &info[m]);
                    status = add_segment(b, name, kind ? ".lora_B.weight" : ".lora_A.weight",
                                         rank * info[m].shape[kind ? 0 : 1], &s->layer[i].lora_segment[m][kind], err);
                }
    }
    return status;
}

/* ---- values ---- */

static dt_status put_segment(dt_store *s, int64_t segment, const float *values, dt_err *err)
{
    const dt_param_segment *p = &s->trainable.segments[segment];
    dt_status status =
        dt_exec_upload(s->exec, s->trainable.param + p->offset, values, (size_t)p->count * sizeof(float), err);
    return status == DT_OK ? dt_exec_synchronize(s->exec, err) : status;
}

static dt_status put_weight(dt_store *s, const dt_weight *w, float *room, dt_err *err)
{
    const dt_st_tensor *t = w->stored.tensor;
    dtp_widen(room, t->data, t->dtype, (size_t)dtp_weight_count(&w->info));
    return put_segment(s, w->segment, room, err);
}

static dt_status put_weights(dt_store *s, float *room, dt_err *err)
{
    dt_status status = put_weight(s, &s->embedding, room, err);
    for (int64_t i = 0; i < s->config->layers; i++)
        for (int id = 0; status == DT_OK && id < DT_LAYER_WEIGHTS; id++)
            if (s->layer[i].w[id].name)
                status = put_weight(s, &s->layer[i].w[id], room, err);
    if (status == DT_OK)
        status = put_weight(s, &s->final_norm, room, err);
    if (status == DT_OK && !s->config->tied)
        status = put_weight(s, &s->head, room, err);
    return status;
}

static dt_status put_adapter(dt_store *s, const dt_store_options *o, int64_t layer, int m, const dt_weight_info *info,
                             float *a, float *b, dt_err *err)
{
    const int64_t *segment = s->layer[layer].lora_segment[m];
    int64_t rank = dtp_lora_settings(o->lora).rank;
    dt_status status = DT_OK;
    if (dtp_lora_has_values(o->lora)) {
        status = dtp_lora_read(o->lora, layer, m, a, b, err);
    } else {
        dtp_lora_init_a(a, rank, info->shape[1], o->seed, (uint32_t)(layer * DT_MAX_MODULES + m),
                        s->layer[layer].w[info->id].stored.tensor->dtype);
        memset(b, 0, (size_t)(rank * info->shape[0]) * sizeof *b);
    }
    if (status == DT_OK)
        status = put_segment(s, segment[0], a, err);
    return status == DT_OK ? put_segment(s, segment[1], b, err) : status;
}

static dt_status put_adapters(dt_store *s, const dt_store_options *o, float *a, float *b, dt_err *err)
{
    dt_status status = DT_OK;
    for (int64_t i = 0; i < s->config->layers; i++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        int modules;
        dtp_layer_tensors(s->config, i, info, &modules);
        for (int m = 0; status == DT_OK && m < modules; m++)
            if (dtp_lora_targets(o->lora, i, m))
                status = put_adapter(s, o, i, m, &info[m], a, b, err);
    }
    return status;
}

/* ---- views ---- */

/* [rows, columns] of the flat buffer at a segment; absent when the buffer is. */
static dt_tensor flat_view(const dt_store *s, float *base, int64_t segment, int64_t rows, int64_t columns)
{
    return base ? dt_tensor_2d(base + s->trainable.segments[segment].offset, DT_F32, rows, columns) : (dt_tensor){0};
}

static void view_weight(dt_store *s, dt_weight *w)
{
    int64_t offset = s->trainable.segments[w->segment].offset;
    const int64_t *n = w->info.shape;
    float *base[2] = {s->trainable.param + offset, s->trainable.grad + offset};
    dt_tensor *view[2] = {&w->value, &w->grad};
    for (int i = 0; i < 2; i++)
        *view[i] = w->info.rank == 1 ? dt_tensor_1d(base[i], DT_F32, n[0])
                                     : dt_tensor_2d(base[i], DT_F32, n[0], w->info.rank == 3 ? n[2] : n[1]);
}

static void view_weights(dt_store *s)
{
    view_weight(s, &s->embedding);
    view_weight(s, &s->final_norm);
    if (!s->config->tied)
        view_weight(s, &s->head);
    for (int64_t i = 0; i < s->config->layers; i++)
        for (int id = 0; id < DT_LAYER_WEIGHTS; id++)
            if (s->layer[i].w[id].name)
                view_weight(s, &s->layer[i].w[id]);
}

static void view_input(dt_store *s, dt_layer *layer, int input, int64_t rank)
{
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    dt_input_lora *l = &layer->lora[input];
    int modules, part = 0, first = -1;
    int64_t rows = 0;
    dtp_layer_tensors(s->config, layer->index, info, &modules);
    for (int m = 0; m < modules; m++) {
        if (info[m].input != input)
            continue;
        if (layer->lora_segment[m][0] >= 0) {
            if (first < 0)
                first = m;
            l->row[part] = rows;
            rows += rank;
            l->b[part] = flat_view(s, s->trainable.param, layer->lora_segment[m][1], info[m].shape[0], rank);
            l->db[part] = flat_view(s, s->trainable.grad, layer->lora_segment[m][1], info[m].shape[0], rank);
        }
        part++;
    }
    if (first >= 0) {
        l->a = flat_view(s, s->trainable.param, layer->lora_segment[first][0], rows, info[first].shape[1]);
        l->da = flat_view(s, s->trainable.grad, layer->lora_segment[first][0], rows, info[first].shape[1]);
    }
}

/* ---- life ---- */

static int64_t largest_segment(const dt_trainable *t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_segments; i++)
        n = t->segments[i].count > n ? t->segments[i].count : n;
    return n;
}

dt_status dtp_store_list_trainable(dt_store *s, dt_err *err)
{
    const dt_store_options *o = &s->options;
    builder b = {.store = s, .weight_decay = o->weight_decay};
    dt_status status = o->lora ? list_adapters(&b, o->lora, err) : list_weights(&b, err);
    s->trainable.segments = b.segment; /* owned from here on, also half-built */
    s->trainable.names = (const char *const *)b.name;
    return status;
}

static dt_status allocate(dt_store *s, dt_err *err)
{
    dt_trainable *t = &s->trainable;
    size_t bytes = (size_t)t->count * sizeof(float);
    void *param = NULL, *grad = NULL;
    dt_status status = dt_exec_alloc(s->exec, &param, bytes, err);
    t->param = param;
    if (status == DT_OK && s->options.tune != DT_TUNE_NONE)
        status = dt_exec_alloc(s->exec, &grad, bytes, err);
    t->grad = grad;
    return status == DT_OK && grad ? dt_exec_zero(s->exec, grad, bytes, err) : status;
}

static dt_status put_values(dt_store *s, dt_err *err)
{
    const dt_store_options *o = &s->options;
    size_t room = (size_t)largest_segment(&s->trainable);
    float *first = dtp_calloc(room, sizeof *first), *second = dtp_calloc(room, sizeof *second);
    dt_status status = !first || !second ? dt_fail(err, DT_E_NOMEM, "no memory for start values of trainable tensors")
                       : o->lora         ? put_adapters(s, o, first, second, err)
                                         : put_weights(s, first, err);
    free(first);
    free(second);
    return status;
}

dt_status dtp_store_load_trainable(dt_store *s, dt_err *err)
{
    const dt_lora *lora = s->options.lora;
    dt_status status = s->counting ? DT_OK : allocate(s, err);
    if (status == DT_OK && !s->counting)
        status = put_values(s, err);
    if (status != DT_OK)
        return status;
    if (s->counting) {
        s->trainable.param = (float *)(void *)DT_ARENA_COUNTING;
        s->trainable.grad = s->options.tune != DT_TUNE_NONE ? s->trainable.param : NULL;
    }
    if (!lora)
        view_weights(s);
    for (int64_t i = 0; lora && i < s->config->layers; i++)
        for (int input = 0; input < DT_LAYER_INPUTS; input++)
            view_input(s, &s->layer[i], input, dtp_lora_settings(lora).rank);
    if (s->counting)
        s->trainable.param = s->trainable.grad = NULL;
    return DT_OK;
}

void dtp_store_free_trainable(dt_store *s)
{
    dt_trainable *t = &s->trainable;
    dt_exec_release(s->exec, t->param);
    dt_exec_release(s->exec, t->grad);
    dt_exec_release(s->exec, t->m);
    dt_exec_release(s->exec, t->v);
    for (int64_t i = 0; i < t->n_segments; i++)
        free((char *)(uintptr_t)t->names[i]);
    free((void *)(uintptr_t)t->names);
    free((void *)(uintptr_t)t->segments);
}

dt_status dtp_store_add_moments(dt_store *s, dt_err *err)
{
    float **moment[2] = {&s->trainable.m, &s->trainable.v};
    size_t bytes = (size_t)s->trainable.count * sizeof(float);
    for (int i = 0; i < 2; i++) {
        void *memory = *moment[i];
        dt_status status = memory ? DT_OK : dt_exec_alloc(s->exec, &memory, bytes, err);
        *moment[i] = memory;
        if (status == DT_OK)
            status = dt_exec_zero(s->exec, memory, bytes, err);
        if (status != DT_OK)
            return status;
    }
    return DT_OK;
}
