/* The memory of a pass: measured with a planning pass, laid out in one arena, reserved once. */
#include "core/memory.h"
#include "model/arena.h"
#include "model/pass.h"
#include <stdlib.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

typedef struct {
    const dt_model_config *config;
    size_t element;
    bool has[2]; /* layer kinds in this model */
} shape;

static shape shape_of(const dt_model *model)
{
    shape s = {model->config, dt_dtype_size(model->activation), {false, false}};
    for (int64_t i = 0; i < s.config->layers; i++)
        s.has[s.config->kind[i]] = true;
    return s;
}

/* The larger width of both kinds that the model has. */
static int64_t widest(const shape *s, int64_t (*width)(const dt_model_config *, dt_layer_kind))
{
    return larger(s->has[DT_LAYER_LINEAR] ? width(s->config, DT_LAYER_LINEAR) : 0,
                  s->has[DT_LAYER_FULL] ? width(s->config, DT_LAYER_FULL) : 0);
}

static void place_layer(dt_memory *m, const shape *s, int64_t layer, dt_cursor *c)
{
    const dt_model_config *config = s->config;
    const dt_layer_kind kind = config->kind[layer];
    const size_t row = (size_t)m->rows * s->element, gates = (size_t)(m->rows * config->value_heads) * sizeof(float);
    dt_layer_memory *l = &m->layer[layer];
    l->proj = dtp_take(c, row * (size_t)dtp_proj_width(config, kind));
    l->core = dtp_take(c, row * (size_t)dtp_mixer_width(config, kind));
    l->gate_up = dtp_take(c, row * (size_t)(2 * config->intermediate));
    l->h1 = m->train ? dtp_take(c, row * (size_t)config->hidden)
                     : m->h[0]; /* without backward the residual stream is updated in place */
    if (kind == DT_LAYER_LINEAR) {
        l->g = dtp_take(c, gates);
        l->beta = dtp_take(c, gates);
    }
    for (int i = 0; i < DT_SAVED_PER_LAYER; i++)
        if (i != DT_S_DOWN)
            l->saved[i].data = dtp_take(c, l->saved[i].bytes);
}

static void place_inputs(dt_memory *m, dt_cursor *c)
{
    const size_t row = (size_t)m->rows * 4;
    const bool device = m->exec->device != DT_DEVICE_CPU;
    m->inputs = c->base + c->used;
    m->values = device ? dtp_take(c, sizeof *m->values) : NULL;
    m->tokens = dtp_take(c, row);
    m->targets = dtp_take(c, row);
    m->positions = dtp_take(c, row);
    m->weights = dtp_take(c, row);
    m->cu_seqlens = dtp_take(c, (size_t)(m->n_seq + 1) * 4);
    m->input_bytes = (size_t)(c->base + c->used - m->inputs);
    m->results = device ? dtp_take(c, sizeof *m->results) : NULL;
    m->row_loss = dtp_take(c, row);
}

static void place_work(dt_memory *m, const shape *s, dt_cursor *c)
{
    const dt_model_config *config = s->config;
    const size_t row = (size_t)m->rows * s->element;
    const size_t hidden = row * (size_t)config->hidden, scratch = row * (size_t)m->extension;
    const size_t mid = row * (size_t)larger(config->intermediate, widest(s, dtp_mixer_width)) + scratch;
    const size_t mix = row * (size_t)widest(s, dtp_mix_width);
    m->x = dtp_take(c, hidden + scratch);
    m->mid = dtp_take(c, mid);
    m->mix = dtp_take(c, mix);
    if (!m->train)
        return;
    m->dh = dtp_take(c, hidden);
    m->dx = dtp_take(c, hidden + scratch);
    m->dmid = dtp_take(c, mid);
    m->dmix = dtp_take(c, mix);
    m->dproj = dtp_take(c, row * (size_t)widest(s, dtp_proj_width));
    m->dg = dtp_take(c, (size_t)(m->rows * config->value_heads) * sizeof(float));
    m->dbeta = dtp_take(c, (size_t)(m->rows * config->value_heads) * sizeof(float));
}

/* Sets every pointer for an arena at `base`; returns its size. */
static size_t layout(dt_memory *m, const shape *s, char *base)
{
    const int64_t L = s->config->layers, shared = m->train ? m->recomputed : L;
    const size_t hidden = (size_t)(m->rows * s->config->hidden) * s->element;
    dt_cursor c = {base, 0};
    place_inputs(m, &c);
    place_work(m, s, &c);
    for (int64_t i = 0; i <= L; i++)
        m->h[i] = i == 0 || m->train ? dtp_take(&c, hidden) : m->h[0];
    m->embedding.data = dtp_take(&c, m->embedding.bytes);
    m->final_norm.data = dtp_take(&c, m->final_norm.bytes);
    /* down_proj does not run again, so what it keeps must outlive the layers after it. */
    for (int64_t i = 0; i < L; i++)
        m->layer[i].saved[DT_S_DOWN].data = dtp_take(&c, m->layer[i].saved[DT_S_DOWN].bytes);
    /* Layers that run again lie over each other. */
    size_t start = c.used, end = c.used;
    for (int64_t i = 0; i < shared; i++) {
        c.used = start;
        place_layer(m, s, i, &c);
        end = c.used > end ? c.used : end;
    }
    c.used = end;
    for (int64_t i = shared; i < L; i++)
        place_layer(m, s, i, &c);
    return c.used;
}

/* The optimiser shares the workspace, which must not move once a step is recorded. */
static dt_status measure_update(dt_pass *p, dt_err *err)
{
    const dt_trainable *t = &p->model->store->trainable;
    const dt_tensor all = dt_tensor_1d(NULL, DT_F32, t->count);
    const dt_grad_norm_args norm = {DT_GRAD_NORM_ARGS, .grad = all, .segments = t->segments,
                                    .n_segments = t->n_segments};
    const dt_adamw_args adamw = {DT_ADAMW_ARGS,
                                 .param = all,
                                 .grad = all,
                                 .m = all,
                                 .v = all,
                                 .segments = t->segments,
                                 .n_segments = t->n_segments,
                                 .step = 1};
    dt_status status = dtp_pass_forward(p, DT_OP_GRAD_NORM, &norm, NULL, err);
    return status == DT_OK ? dtp_pass_forward(p, DT_OP_ADAMW, &adamw, NULL, err) : status;
}

/* Runs the pass without computing: fills the sizes of what operators save, and the workspace. */
static dt_status measure(dt_memory *m, dt_model *model, dt_err *err)
{
    dtp_stand_in(m, m->rows); /* sizes depend on rows and n_seq only */
    dt_pass p = {
        .model = model,
        .config = model->config,
        .memory = m,
        .exec = m->exec,
        .planning = true,
        .keep = m->train,
        .T = m->rows,
        .rows = m->rows,
        .pack_T = m->rows,
        .values = m->values,
        .seqs = {.cu_seqlens = m->stand_in, .n_seq = m->n_seq, .n_seq_cap = m->n_seq, .T = m->rows, .T_cap = m->rows},
    };
    if (m->exec->device != DT_DEVICE_CPU)
        p.seqs.cu_seqlens_device = m->cu_seqlens;
    if (m->train && model->lora)
        p.dropout = (float)dtp_lora_settings(model->lora).dropout;
    static const float some_weights; /* loss weights may come */
    dt_status status = dtp_pass_train(&p, &some_weights, 1, NULL, err);
    return status == DT_OK && m->train ? measure_update(&p, err) : status;
}

static dt_memory *new_memory(dt_model *model, const dt_memory_options *o)
{
    dt_memory *m = dtp_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->exec = model->exec;
    m->rows = o->rows;
    m->n_seq = o->n_seq;
    m->train = o->train;
    m->extension = dtp_store_extension(model->store);
    m->h = dtp_calloc((size_t)model->config->layers + 1, sizeof *m->h);
    m->layer = dtp_calloc((size_t)model->config->layers, sizeof *m->layer);
    m->record = o->record;
    m->stand_in = dtp_calloc((size_t)o->n_seq + 1, sizeof *m->stand_in);
    if (m->h && m->layer && m->stand_in)
        return m;
    dtp_memory_free(m);
    return NULL;
}

static bool fits(dt_memory *m, const shape *s, const dt_memory_options *o)
{
    return !o->limit || layout(m, s, DT_ARENA_COUNTING) + m->workspace <= o->limit;
}

/* Measures, and chooses how many layers run again: none or all as asked, or the fewest that fit. Of the delta rule less
 * is saved, which costs much memory for little time, unless `auto` finds room for all of it. */
static dt_status choose_recompute(dt_memory *m, dt_model *model, const shape *s, const dt_memory_options *o,
                                  dt_err *err)
{
    const int64_t L = s->config->layers;
    m->recomputed = o->recompute == DT_RECOMPUTE_ALL ? L : 0;
    m->save_less = o->train && o->recompute != DT_RECOMPUTE_AUTO;
    dt_status status = measure(m, model, err);
    if (status != DT_OK || o->recompute != DT_RECOMPUTE_AUTO || fits(m, s, o))
        return status;
    m->save_less = true;
    status = measure(m, model, err);
    while (status == DT_OK && m->recomputed < L && !fits(m, s, o))
        m->recomputed++;
    return status;
}

dt_status dtp_memory_reserve(dt_memory *m, const dt_model *model, dt_err *err)
{
    const shape shape_of_model = shape_of(model), *s = &shape_of_model;
    m->arena_bytes = layout(m, s, DT_ARENA_COUNTING);
    dt_status status = dt_exec_alloc(m->exec, &m->arena, m->arena_bytes, err);
    if (status != DT_OK)
        return dt_err_prefix(err, "activations of %lld tokens: ", (long long)m->rows);
    layout(m, s, m->arena);
    dt_cursor c = {m->arena, 0};
    place_inputs(m, &c); /* also rows behind the pack hold valid token ids */
    status = dt_exec_zero(m->exec, m->arena, c.used, err);
    if (status == DT_OK && m->exec->device != DT_DEVICE_CPU)
        status = dtp_ring_open(&m->ring, m->exec, m->input_bytes, err);
    return status == DT_OK ? dt_exec_reserve(m->exec, m->workspace, err) : status;
}

dt_status dtp_memory_create(dt_memory **out, dt_model *model, const dt_memory_options *o, uint64_t *need_out,
                            dt_err *err)
{
    const shape s = shape_of(model);
    dt_memory *m = new_memory(model, o);
    if (!m)
        return dt_fail(err, DT_E_NOMEM, "no memory to plan activations");
    layout(m, &s, DT_ARENA_COUNTING);
    dt_status status = choose_recompute(m, model, &s, o, err);
    if (status == DT_OK) {
        *need_out = layout(m, &s, DT_ARENA_COUNTING) + m->workspace;
        if (o->limit && *need_out > o->limit)
            status = dt_fail(err, DT_E_NOMEM, "%lld tokens need %llu bytes of activations and workspace, %llu are left",
                             (long long)m->rows, (unsigned long long)*need_out, (unsigned long long)o->limit);
    }
    if (status == DT_OK && !model->store->counting)
        status = dtp_memory_reserve(m, model, err);
    if (status != DT_OK) {
        dtp_memory_free(m);
        return status;
    }
    *out = m;
    return DT_OK;
}

void dtp_memory_free(dt_memory *m)
{
    if (!m)
        return;
    for (int i = 0; i < DT_CAPACITIES; i++)
        for (int clear = 0; clear < 2; clear++)
            dtp_recorded_release(&m->step[i][clear], m->exec);
    dtp_ring_close(&m->ring, m->exec);
    dt_exec_release(m->exec, m->arena);
    free(m->h);
    free(m->layer);
    free(m->stand_in);
    free(m);
}
