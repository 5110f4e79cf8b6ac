#include "model/save.h"
#include "core/memory.h"
#include "model/companions.h"
#include "model/pass.h"
#include "model/widen.h"
#include <stdlib.h>
#include <string.h>

/* ---- a checkpoint with some tensors replaced ---- */

typedef struct {
    const dt_checkpoint *checkpoint;
    const dt_replacement *replacement;
} copy;

static dt_status emit_replacement(void *user, size_t index, dt_st_sink *sink, dt_err *err)
{
    const copy *c = user;
    return c->replacement->emit(c->replacement->user, dtp_checkpoint_at(c->checkpoint, index), sink, err);
}

dt_status dtp_save_checkpoint(const dt_checkpoint *checkpoint, const char *base, const char *folder,
                              uint64_t max_shard_bytes, const dt_replacement *replacement, dt_err *err)
{
    copy c = {checkpoint, replacement};
    const size_t n = dtp_checkpoint_count(checkpoint);
    if (dtp_same_folder(base, folder))
        return dt_fail(err, DT_E_ARG, "%s: is the folder of the base model, which is never overwritten", folder);
    dt_st_spec *specs = dtp_calloc(n ? n : 1, sizeof *specs);
    if (!specs)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for the list of %zu tensors", folder, n);
    for (size_t i = 0; i < n; i++) {
        const dt_st_tensor *t = dtp_checkpoint_at(checkpoint, i).tensor;
        specs[i] = (dt_st_spec){.name = t->name, .dtype = t->dtype_name, .rank = t->rank};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
        if (!replacement->covers(replacement->user, t->name))
            specs[i].data = t->data;
    }
    dt_status status = dtp_st_write_sharded(folder, specs, n, max_shard_bytes ? max_shard_bytes : UINT64_MAX / 2,
                                            emit_replacement, &c, err);
    free(specs);
    return status == DT_OK ? dtp_copy_companions(base, folder, err) : status;
}

/* ---- a fully tuned model ---- */

typedef struct {
    dt_model *model;
    float *wide;
    void *narrow;
} full;

/* The trained weight that a name stands for; a tied head that the base stores anyway follows the embedding. */
static const dt_weight *trained(const dt_model *m, const char *name)
{
    const dt_weight *w = dtp_store_find(m->store, name);
    if (!w && m->config->tied && !strcmp(name, "lm_head.weight"))
        w = &m->store->embedding;
    return w && w->segment >= 0 ? w : NULL;
}

static bool covers_trained(void *user, const char *name)
{
    return trained(((full *)user)->model, name) != NULL;
}

static dt_status emit_trained(void *user, dt_stored stored, dt_st_sink *sink, dt_err *err)
{
    full *f = user;
    const dt_trainable *t = &f->model->store->trainable;
    const dt_param_segment *segment = &t->segments[trained(f->model, stored.tensor->name)->segment];
    const size_t n = (size_t)segment->count;
    dt_status status = dt_exec_download(f->model->exec, f->wide, t->param + segment->offset, n * sizeof *f->wide, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(f->model->exec, err);
    if (status != DT_OK)
        return status;
    dtp_narrow(f->narrow, stored.tensor->dtype, f->wide, n);
    return dtp_st_put(sink, f->narrow, stored.tensor->bytes, err);
}

static int64_t largest_segment(const dt_trainable *t)
{
    int64_t n = 1;
    for (int64_t i = 0; i < t->n_segments; i++)
        n = t->segments[i].count > n ? t->segments[i].count : n;
    return n;
}

dt_status dtp_model_save_full(dt_model *model, const char *folder, uint64_t max_shard_bytes, dt_err *err)
{
    const size_t n = (size_t)largest_segment(&model->store->trainable);
    full f = {model, dtp_calloc(n, sizeof(float)), dtp_calloc(n, sizeof(float))};
    const dt_replacement replacement = {covers_trained, emit_trained, &f};
    dt_status status;
    if (model->tune != DT_TUNE_FULL)
        status = dt_fail(err, DT_E_ARG,
                         "a full checkpoint is saved from full tuning only (merge adapters with `deltune export`)");
    else if (!f.wide || !f.narrow)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory to convert a tensor of %zu elements", folder, n);
    else
        status = dtp_save_checkpoint(model->checkpoint, model->folder, folder, max_shard_bytes, &replacement, err);
    free(f.wide);
    free(f.narrow);
    return status;
}

/* ---- an adapter ---- */

typedef struct {
    dt_model *model;
    float *room;
} adapter;

static dt_status adapter_values(void *user, int64_t layer, int index, bool b, const float **out, dt_err *err)
{
    adapter *a = user;
    const dt_trainable *t = &a->model->store->trainable;
    const dt_param_segment *segment = &t->segments[a->model->store->layer[layer].lora_segment[index][b]];
    dt_status status = dt_exec_download(a->model->exec, a->room, t->param + segment->offset,
                                        (size_t)segment->count * sizeof *a->room, err);
    *out = a->room;
    return status == DT_OK ? dt_exec_synchronize(a->model->exec, err) : status;
}

dt_status dtp_model_save_adapter(dt_model *model, const char *folder, dt_err *err)
{
    if (!model->lora)
        return dt_fail(err, DT_E_ARG, "%s: the model has no adapter to save", folder);
    adapter a = {model, dtp_calloc((size_t)largest_segment(&model->store->trainable), sizeof(float))};
    if (!a.room)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory to save the adapter", folder);
    dt_status status = dtp_lora_save(model->lora, folder, model->folder, adapter_values, &a, err);
    free(a.room);
    return status;
}
