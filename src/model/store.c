#include "model/store.h"
#include "core/memory.h"
#include "model/arena.h"
#include "model/store_private.h"
#include "model/upload_rows.h"
#include "model/widen.h"
#include <stdlib.h>
#include <string.h>

/* ---- walking over all weights ---- */

typedef dt_status (*weight_fn)(dt_store *s, dt_weight *w, void *user, dt_err *err);

static dt_status each_weight(dt_store *s, weight_fn fn, void *user, dt_err *err)
{
    dt_status status = fn(s, &s->embedding, user, err);
    for (int64_t i = 0; status == DT_OK && i < s->config->layers; i++)
        for (int id = 0; status == DT_OK && id < DT_LAYER_WEIGHTS; id++)
            if (s->layer[i].w[id].name)
                status = fn(s, &s->layer[i].w[id], user, err);
    if (status == DT_OK)
        status = fn(s, &s->final_norm, user, err);
    if (status == DT_OK && !s->config->tied)
        status = fn(s, &s->head, user, err);
    return status;
}

typedef struct {
    const char *name;
    dt_weight *found;
} name_search;

static dt_status match_name(dt_store *s, dt_weight *w, void *user, dt_err *err)
{
    name_search *search = user;
    (void)s, (void)err;
    if (!strcmp(w->name, search->name))
        search->found = w;
    return DT_OK;
}

dt_weight *dtp_store_find(dt_store *store, const char *name)
{
    name_search search = {name, NULL};
    each_weight(store, match_name, &search, NULL);
    return search.found;
}

/* ---- matching the checkpoint ---- */

static dt_status set_weight(dt_store *s, dt_weight *w, int64_t layer, const dt_weight_info *info, dt_err *err)
{
    char name[DT_MAX_NAME];
    dtp_tensor_name(name, s->config, layer, info);
    w->info = *info;
    w->segment = -1;
    w->stored = dtp_checkpoint_find(s->checkpoint, name);
    w->name = dtp_strdup(name);
    s->parameters += dtp_weight_count(info);
    return w->name ? DT_OK : dt_fail(err, DT_E_NOMEM, "no memory for the name of %s", name);
}

static dt_status name_weights(dt_store *s, dt_err *err)
{
    dt_weight *outer_weight[] = {&s->embedding, &s->final_norm, &s->head};
    dt_weight_info outer[3], info[DT_MAX_LAYER_TENSORS];
    dt_status status = DT_OK;
    for (int i = 0, n = dtp_outer_tensors(s->config, outer); status == DT_OK && i < n; i++)
        status = set_weight(s, outer_weight[i], -1, &outer[i], err);
    for (int64_t layer = 0; layer < s->config->layers; layer++) {
        s->layer[layer].kind = s->config->kind[layer];
        s->layer[layer].index = layer;
        int modules, n = dtp_layer_tensors(s->config, layer, info, &modules);
        for (int i = 0; status == DT_OK && i < n; i++)
            status = set_weight(s, &s->layer[layer].w[info[i].id], layer, &info[i], err);
    }
    return status;
}

/* Collects names for an error text: the first few, then how many more. */
typedef struct {
    char text[640];
    size_t n;
} name_list;

static void add_name(name_list *list, const char *name)
{
    size_t used = strlen(list->text);
    if (list->n++ < 8)
        snprintf(list->text + used, sizeof list->text - used, "%s%s", used ? ", " : "", name);
}

static dt_status collect_missing(dt_store *s, dt_weight *w, void *user, dt_err *err)
{
    (void)s, (void)err;
    if (!w->stored.tensor)
        add_name(user, w->name);
    return DT_OK;
}

bool dtp_store_tolerates(const dt_model_config *config, const char *name)
{
    return !strncmp(name, "mtp.", 4) || !strncmp(name, "model.visual.", 13) ||
           (config->tied && !strcmp(name, "lm_head.weight"));
}

static void shape_text(char out[96], int rank, const int64_t *shape)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < rank && used < 80; i++)
        used += (size_t)snprintf(out + used, 96 - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
}

static dt_status check_stored(dt_store *s, dt_weight *w, void *user, dt_err *err)
{
    const dt_st_tensor *t = w->stored.tensor;
    const char *path = dtp_st_path(w->stored.file);
    (void)s, (void)user;
    bool same = t->rank == w->info.rank;
    for (int i = 0; same && i < t->rank; i++)
        same = t->shape[i] == w->info.shape[i];
    if (!same) {
        char expected[96], found[96];
        shape_text(expected, w->info.rank, w->info.shape);
        shape_text(found, t->rank, t->shape);
        return dt_fail(err, DT_E_SHAPE, "%s: tensor %s: config.json makes it [%s], the file has [%s]", path, w->name,
                       expected, found);
    }
    if (t->dtype != DT_BF16 && t->dtype != DT_F32 && t->dtype != DT_F16)
        return dt_fail(err, DT_E_DTYPE, "%s: tensor %s: expected BF16, F32 or F16, found %s", path, w->name,
                       t->dtype_name);
    return DT_OK;
}

static dt_status match_checkpoint(dt_store *s, dt_err *err)
{
    name_list missing = {0}, extra = {0};
    dt_status status = name_weights(s, err);
    if (status != DT_OK)
        return status;
    const char *where =
        dtp_checkpoint_count(s->checkpoint) ? dtp_st_path(dtp_checkpoint_at(s->checkpoint, 0).file) : "the checkpoint";
    each_weight(s, collect_missing, &missing, NULL);
    if (missing.n)
        return dt_fail(err, DT_E_FORMAT, "%s: %zu tensor%s of this model missing from the checkpoint: %s%s", where,
                       missing.n, missing.n == 1 ? "" : "s", missing.text, missing.n > 8 ? ", ..." : "");
    for (size_t i = 0; i < dtp_checkpoint_count(s->checkpoint); i++) {
        const char *name = dtp_checkpoint_at(s->checkpoint, i).tensor->name;
        if (!dtp_store_tolerates(s->config, name) && !dtp_store_find(s, name))
            add_name(&extra, name);
    }
    if (extra.n)
        return dt_fail(err, DT_E_FORMAT, "%s: %zu tensor%s in the checkpoint that config.json has no place for: %s%s",
                       where, extra.n, extra.n == 1 ? "" : "s", extra.text, extra.n > 8 ? ", ..." : "");
    return each_weight(s, check_stored, NULL, err);
}

/* ---- frozen weights ---- */

/* F16 has no arithmetic here; it widens to F32 without loss. */
static dt_dtype held_dtype(const dt_weight *w)
{
    return w->stored.tensor->dtype == DT_F16 ? DT_F32 : w->stored.tensor->dtype;
}

static size_t held_bytes(const dt_weight *w)
{
    return (size_t)dtp_weight_count(&w->info) * dt_dtype_size(held_dtype(w));
}

/* `extension`: elements between the rows of a matrix. */
static dt_tensor weight_view(const dt_weight *w, void *data, dt_dtype dtype, int64_t extension)
{
    const int64_t *n = w->info.shape;
    if (w->info.rank == 1)
        return dt_tensor_1d(data, dtype, n[0]);
    const int64_t width = w->info.rank == 3 ? n[2] : n[1];
    return dt_tensor_slice(dt_tensor_2d(data, dtype, n[0], width + extension), 1, 0, width);
}

/* ---- scratch behind the rows of adapted maps ----
 * It comes in steps of 64 columns, in which products advance. Where the adapters of an input need more than 128, zeros
 * would be most of what their block-diagonal form multiplies with: then they stay apart. */
enum { EXTENSION_STEP = 64, EXTENSION_MOST = 128 };

static void set_extensions(dt_store *s, dt_layer *layer, const dt_lora *lora)
{
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    int modules;
    dtp_layer_tensors(s->config, layer->index, info, &modules);
    for (int input = 0; input < DT_LAYER_INPUTS; input++) {
        int64_t rank = 0;
        bool bf16 = true;
        for (int m = 0; m < modules; m++) {
            if (info[m].input != input)
                continue;
            bf16 = bf16 && held_dtype(&layer->w[info[m].id]) == DT_BF16;
            if (dtp_lora_targets(lora, layer->index, m))
                rank += dtp_lora_settings(lora).rank;
        }
        const int64_t room = (rank + EXTENSION_STEP - 1) / EXTENSION_STEP * EXTENSION_STEP;
        layer->lora[input].extension = bf16 && room <= EXTENSION_MOST ? room : 0;
    }
}

int64_t dtp_store_extension(const dt_store *s)
{
    int64_t widest = 0;
    for (int64_t i = 0; i < s->config->layers; i++)
        for (int input = 0; input < DT_LAYER_INPUTS; input++)
            if (s->layer[i].lora[input].extension > widest)
                widest = s->layer[i].lora[input].extension;
    return widest;
}

/* The scratch behind the rows of a weight of `layer` (NULL: an outer weight, which has none). */
static int64_t extension_of(const dt_layer *layer, const dt_weight *w)
{
    return layer && w->info.input != DT_INPUT_NONE ? layer->lora[w->info.input].extension : 0;
}

static size_t placed_bytes(const dt_layer *layer, const dt_weight *w)
{
    const int64_t extension = extension_of(layer, w);
    return held_bytes(w) + (extension ? (size_t)(w->info.shape[0] * extension) * dt_dtype_size(held_dtype(w)) : 0);
}

static dt_status add_block(dt_store *s, size_t bytes, char **out, dt_err *err)
{
    if (s->counting) {
        *out = DT_ARENA_COUNTING;
        return DT_OK;
    }
    void **blocks = dtp_realloc_array(s->block, s->n_blocks + 1, sizeof *blocks);
    if (!blocks)
        return dt_fail(err, DT_E_NOMEM, "no memory for the list of weight blocks");
    s->block = blocks;
    void *memory;
    dt_status status = dt_exec_alloc(s->exec, &memory, bytes, err);
    if (status == DT_OK)
        *out = s->block[s->n_blocks++] = memory;
    return status;
}

/* `u`: through page-locked buffers; NULL in host memory. */
static dt_status upload_weight(dt_store *s, dt_row_upload *u, dt_weight *w, void *to, dt_err *err)
{
    const dt_st_tensor *t = w->stored.tensor;
    w->value = weight_view(w, to, held_dtype(w), 0);
    if (s->counting)
        return DT_OK;
    const size_t row = t->bytes / (size_t)t->shape[0];
    if (t->dtype != DT_F16 && u)
        return dtp_upload_rows(u, to, row, t->data, row, t->shape[0], err);
    if (t->dtype != DT_F16)
        return dt_exec_upload(s->exec, to, t->data, t->bytes, err);
    float *wide = dtp_calloc((size_t)dtp_weight_count(&w->info), sizeof *wide);
    if (!wide)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory to widen it", w->name);
    dtp_widen(wide, t->data, t->dtype, (size_t)dtp_weight_count(&w->info));
    dt_status status = dt_exec_upload(s->exec, to, wide, held_bytes(w), err);
    if (status == DT_OK)
        status = dt_exec_synchronize(s->exec, err); /* `wide` is read until then */
    free(wide);
    return status;
}

/* The mapped bytes in place; a copy only of what cannot be read there. */
static dt_status place_mapped(dt_store *s, dt_weight *w, void *user, dt_err *err)
{
    const dt_st_tensor *t = w->stored.tensor;
    (void)user;
    s->weight_bytes += held_bytes(w);
    if (t->dtype != DT_F16 && (uintptr_t)t->data % dt_dtype_size(t->dtype) == 0) {
        w->value = weight_view(w, (void *)(uintptr_t)t->data, t->dtype, 0);
        return DT_OK;
    }
    char *memory;
    dt_status status = add_block(s, held_bytes(w), &memory, err);
    return status == DT_OK ? upload_weight(s, NULL, w, memory, err) : status;
}

enum { BLOCK_ALIGNMENT = 256 };

/* Offsets of the weights of a block: linear maps of one input follow each other without a gap. Returns the size. */
static size_t layout_block(const dt_layer *layer, dt_weight *const *w, int n, size_t *offset)
{
    size_t end = 0;
    for (int i = 0; i < n; i++) {
        bool adjacent = i && w[i]->info.input != DT_INPUT_NONE && w[i]->info.input == w[i - 1]->info.input &&
                        held_dtype(w[i]) == held_dtype(w[i - 1]);
        if (!adjacent)
            end = (end + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
        offset[i] = end;
        end += placed_bytes(layer, w[i]);
    }
    return end;
}

static dt_status upload_extended(dt_store *s, dt_row_upload *u, dt_weight *w, void *to, int64_t extension, dt_err *err)
{
    w->value = weight_view(w, to, DT_BF16, extension);
    if (s->counting)
        return DT_OK;
    return dtp_upload_rows(u, to, (size_t)w->value.stride[0] * 2, w->stored.tensor->data, (size_t)w->value.shape[1] * 2,
                           w->value.shape[0], err);
}

/* `layer` NULL: the outer weights. */
static dt_status place_block(dt_store *s, dt_row_upload *u, const dt_layer *layer, dt_weight *const *w, int n,
                             dt_err *err)
{
    size_t offset[DT_MAX_LAYER_TENSORS];
    char *memory = NULL;
    size_t bytes = layout_block(layer, w, n, offset);
    dt_status status = add_block(s, bytes, &memory, err);
    for (int i = 0; status == DT_OK && i < n; i++) {
        const int64_t extension = extension_of(layer, w[i]);
        status = extension ? upload_extended(s, u, w[i], memory + offset[i], extension, err)
                           : upload_weight(s, u, w[i], memory + offset[i], err);
    }
    s->weight_bytes += bytes;
    return status;
}

static dt_status place_blocks(dt_store *s, const dt_lora *lora, dt_err *err)
{
    dt_weight *outer[] = {&s->embedding, &s->final_norm, &s->head};
    dt_row_upload upload = {.exec = s->exec};
    dt_status status = place_block(s, &upload, NULL, outer, s->config->tied ? 2 : 3, err);
    for (int64_t i = 0; status == DT_OK && i < s->config->layers; i++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        dt_weight *w[DT_MAX_LAYER_TENSORS];
        int modules, n = dtp_layer_tensors(s->config, i, info, &modules);
        for (int k = 0; k < n; k++)
            w[k] = &s->layer[i].w[info[k].id];
        if (lora)
            set_extensions(s, &s->layer[i], lora);
        status = place_block(s, &upload, &s->layer[i], w, n, err);
    }
    const dt_status ended = dtp_upload_rows_end(&upload, status == DT_OK ? err : NULL);
    return status == DT_OK ? ended : status;
}

/* ---- life ---- */

static dt_status place(dt_store *s, dt_err *err)
{
    const dt_store_options *o = &s->options;
    dt_status status = DT_OK;
    s->weight_bytes = 0;
    if (o->tune != DT_TUNE_FULL)
        status = s->exec->device == DT_DEVICE_CPU && !o->copy ? each_weight(s, place_mapped, NULL, err)
                                                              : place_blocks(s, o->lora, err);
    if (status == DT_OK && s->trainable.count)
        status = dtp_store_load_trainable(s, err);
    if (s->config->tied) {
        s->head.info = s->embedding.info;
        s->head.value = s->embedding.value;
        s->head.grad = s->embedding.grad;
        s->head.segment = s->embedding.segment;
    }
    return status;
}

static dt_status build(dt_store *s, dt_err *err)
{
    dt_status status = match_checkpoint(s, err);
    if (status == DT_OK && (s->options.tune == DT_TUNE_FULL || s->options.lora))
        status = dtp_store_list_trainable(s, err);
    return status == DT_OK ? place(s, err) : status;
}

dt_status dtp_store_load(dt_store *s, dt_err *err)
{
    if (!s->counting)
        return DT_OK;
    s->counting = false;
    return place(s, err);
}

dt_status dtp_store_open(dt_store **out, dt_exec *exec, const dt_model_config *config, const dt_checkpoint *checkpoint,
                         const dt_store_options *options, dt_err *err)
{
    dt_store *s = dtp_calloc(1, sizeof *s);
    if (s)
        s->layer = dtp_calloc((size_t)config->layers, sizeof *s->layer);
    if (!s || !s->layer) {
        free(s);
        return dt_fail(err, DT_E_NOMEM, "no memory for a parameter store of %lld layers", (long long)config->layers);
    }
    s->exec = exec;
    s->config = config;
    s->checkpoint = checkpoint;
    s->options = *options;
    s->counting = options->defer && exec->device != DT_DEVICE_CPU;
    dt_status status = build(s, err);
    if (status != DT_OK) {
        dtp_store_close(s);
        return status;
    }
    *out = s;
    return DT_OK;
}

void dtp_store_close(dt_store *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_blocks; i++)
        dt_exec_release(s->exec, s->block[i]);
    free(s->block);
    for (int64_t i = 0; i < s->config->layers; i++)
        for (int id = 0; id < DT_LAYER_WEIGHTS; id++)
            free(s->layer[i].w[id].name);
    free(s->layer);
    free(s->embedding.name);
    free(s->final_norm.name);
    free(s->head.name);
    dtp_store_free_trainable(s);
    free(s);
}
