#include "model/session.h"
#include "core/memory.h"
#include "model/arena.h"
#include "model/pass.h"
#include "model/widen.h"
#include <stdlib.h>

/* Tokens of one pass of a prompt: bounds the scratch memory; longer prompts go on from the caches. */
enum { CHUNK = 512 };

struct dt_session {
    dt_model *model;
    dt_memory *memory;
    dt_layer_cache *cache; /* [layers] */
    void *arena;           /* of all caches, and of one row of logits */
    size_t arena_bytes;
    void *logits;
    int32_t *boundaries;                /* device memory: of the tokens of a pass, and of the cached keys */
    void *recurrent, *marked_recurrent; /* windows and states of all linear layers, and those at the mark */
    size_t recurrent_bytes;
    int64_t capacity, length, marked; /* marked: tokens at the mark, 0 = none */
    int32_t positions[CHUNK];
    void *host_logits; /* [vocab] in activation dtype */
};

/* ---- caches ---- */

static void *take(dt_cursor *c, int64_t elements, size_t size)
{
    return dtp_take(c, (size_t)elements * size);
}

/* Sets all pointers for an arena at base; returns its size. */
static size_t layout(dt_session *s, char *base)
{
    const dt_model_config *c = s->model->config;
    const size_t element = dt_dtype_size(s->model->activation);
    const int64_t window = dtp_config_conv_channels(c) * c->conv_width, kv = s->capacity * c->kv_heads * c->head_dim;
    const int64_t state = c->value_heads * c->key_dim * c->value_dim;
    dt_cursor at = {base, 0};
    void *conv_before = take(&at, window, element); /* used by one layer at a time */
    float *state_before = take(&at, state, sizeof(float));
    s->logits = take(&at, c->vocab, element);
    s->boundaries = take(&at, 4, sizeof(int32_t));
    for (int64_t i = 0; i < c->layers; i++)
        if (c->kind[i] == DT_LAYER_FULL) {
            s->cache[i].k = take(&at, kv, element);
            s->cache[i].v = take(&at, kv, element);
        }
    s->recurrent = base + at.used;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->kind[i] == DT_LAYER_LINEAR) {
            s->cache[i].conv = take(&at, window, element);
            s->cache[i].state = take(&at, state, sizeof(float));
            s->cache[i].conv_before = conv_before;
            s->cache[i].state_before = state_before;
        }
    s->recurrent_bytes = (size_t)(base + at.used - (char *)s->recurrent);
    s->marked_recurrent = dtp_take(&at, s->recurrent_bytes);
    return at.used;
}

/* ---- a pass ---- */

static dt_pass pass_of(dt_session *s, int64_t n, const int32_t cu[2], const int32_t kv_cu[2])
{
    const int32_t *device = s->model->exec->device != DT_DEVICE_CPU ? s->boundaries : NULL;
    return (dt_pass){
        .model = s->model,
        .config = s->model->config,
        .memory = s->memory,
        .exec = s->model->exec,
        .T = n,
        .rows = n,
        .pack_T = n,
        .seqs = {.cu_seqlens = cu, .cu_seqlens_device = device, .n_seq = 1, .n_seq_cap = 1, .T = n, .T_cap = n},
        .cache = s->cache,
        .cached = s->length,
        .cache_seqs = {.cu_seqlens = kv_cu,
                       .cu_seqlens_device = device ? device + 2 : NULL,
                       .n_seq = 1,
                       .n_seq_cap = 1,
                       .T = s->length + n,
                       .T_cap = s->capacity},
    };
}

/* Workspace of every shape a session runs: a chunk on a full cache, a chunk on an empty one, one token. */
static dt_status measure(dt_session *s, dt_err *err)
{
    const struct {
        int64_t n, length;
    } shapes[] = {{s->memory->rows, s->capacity - s->memory->rows}, {s->memory->rows, 0}, {1, s->capacity - 1}};
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t n = (int32_t)shapes[i].n, end = (int32_t)(shapes[i].length + n);
        const int32_t cu[2] = {0, n}, kv_cu[2] = {0, end};
        s->length = shapes[i].length;
        dt_pass p = pass_of(s, n, cu, kv_cu);
        p.planning = true;
        status = dtp_pass_trunk(&p, err);
    }
    s->length = 0;
    size_t head = 0;
    if (status == DT_OK)
        status = dtp_model_logits_bytes(s->model, 1, &head, err);
    const size_t most = head > s->memory->workspace ? head : s->memory->workspace;
    return status == DT_OK ? dt_exec_reserve(s->model->exec, most, err) : status;
}

static dt_status reserve(dt_session *s, dt_err *err)
{
    uint64_t need;
    const dt_memory_options memory = {.rows = s->capacity < CHUNK ? s->capacity : CHUNK, .n_seq = 1};
    dt_exec *exec = s->model->exec;
    s->cache = dtp_calloc((size_t)s->model->config->layers, sizeof *s->cache);
    s->host_logits = dtp_calloc((size_t)s->model->config->vocab, sizeof(float));
    if (!s->cache || !s->host_logits)
        return dt_fail(err, DT_E_NOMEM, "no memory for a session of %lld tokens", (long long)s->capacity);
    dt_status status = dtp_memory_create(&s->memory, s->model, &memory, &need, err);
    if (status != DT_OK)
        return status;
    s->arena_bytes = layout(s, DT_ARENA_COUNTING);
    status = dt_exec_alloc(exec, &s->arena, s->arena_bytes, err);
    if (status != DT_OK)
        return dt_err_prefix(err, "caches of %lld tokens: ", (long long)s->capacity);
    layout(s, s->arena);
    status = dt_exec_zero(exec, s->arena, s->arena_bytes, err);
    return status == DT_OK ? measure(s, err) : status;
}

dt_status dtp_session_open(dt_session **out, dt_model *model, int64_t max_tokens, dt_err *err)
{
    if (max_tokens < 1 || max_tokens > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "a session of %lld tokens cannot be opened", (long long)max_tokens);
    dt_session *s = dtp_calloc(1, sizeof *s);
    if (!s)
        return dt_fail(err, DT_E_NOMEM, "no memory for a session");
    s->model = model;
    s->capacity = max_tokens;
    dt_status status = reserve(s, err);
    if (status != DT_OK) {
        dtp_session_close(s);
        return status;
    }
    *out = s;
    return DT_OK;
}

void dtp_session_close(dt_session *s)
{
    if (!s)
        return;
    dt_exec_release(s->model->exec, s->arena);
    dtp_memory_free(s->memory);
    free(s->cache);
    free(s->host_logits);
    free(s);
}

dt_status dtp_session_reset(dt_session *s, dt_err *err)
{
    (void)err; /* states are read only once tokens are cached */
    s->length = s->marked = 0;
    return DT_OK;
}

dt_status dtp_session_mark(dt_session *s, dt_err *err)
{
    dt_status status = dt_exec_copy(s->model->exec, s->marked_recurrent, s->recurrent, s->recurrent_bytes, err);
    s->marked = status == DT_OK ? s->length : 0;
    return status;
}

/* Keys and values behind the mark are left: they are written again before anything reads them. */
dt_status dtp_session_rewind(dt_session *s, dt_err *err)
{
    if (s->marked == 0)
        return dt_fail(err, DT_E_ARG, "the session has no mark to rewind to");
    dt_status status = dt_exec_copy(s->model->exec, s->recurrent, s->marked_recurrent, s->recurrent_bytes, err);
    if (status == DT_OK)
        s->length = s->marked;
    return status;
}

int64_t dtp_session_marked(const dt_session *s)
{
    return s->marked;
}

/* ---- tokens ---- */

static dt_status run_chunk(dt_session *s, const int32_t *tokens, int64_t n, dt_err *err)
{
    dt_exec *exec = s->model->exec;
    const int32_t cu[4] = {0, (int32_t)n, 0, (int32_t)(s->length + n)}, *kv_cu = cu + 2;
    for (int64_t t = 0; t < n; t++)
        s->positions[t] = (int32_t)(s->length + t);
    dt_status status = dt_exec_upload(exec, s->memory->tokens, tokens, (size_t)n * sizeof *tokens, err);
    if (status == DT_OK)
        status = dt_exec_upload(exec, s->memory->positions, s->positions, (size_t)n * sizeof *s->positions, err);
    if (status == DT_OK && exec->device != DT_DEVICE_CPU)
        status = dt_exec_upload(exec, s->boundaries, cu, sizeof cu, err);
    if (status != DT_OK)
        return status;
    dt_pass p = pass_of(s, n, cu, kv_cu);
    status = dtp_pass_trunk(&p, err);
    if (status == DT_OK)
        status = dtp_pass_final_norm(&p, err);
    return status;
}

static dt_status read_logits(dt_session *s, int64_t row, float *out, dt_err *err)
{
    dt_model *m = s->model;
    const int64_t H = m->config->hidden, V = m->config->vocab;
    const size_t element = dt_dtype_size(m->activation);
    const size_t pitch = (size_t)(H + s->memory->extension) * element;
    const dt_tensor hidden = dt_tensor_2d((char *)s->memory->x + (size_t)row * pitch, m->activation, 1, H);
    dt_status status = dtp_model_logits(m, hidden, dt_tensor_2d(s->logits, m->activation, 1, V), err);
    if (status == DT_OK)
        status = dt_exec_download(m->exec, s->host_logits, s->logits, (size_t)V * element, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(m->exec, err);
    if (status == DT_OK)
        dtp_widen(out, s->host_logits, m->activation, (size_t)V);
    return status;
}

dt_status dtp_session_append(dt_session *s, const int32_t *tokens, int64_t n, float *logits, dt_err *err)
{
    if (n < 1 || n > s->capacity - s->length)
        return dt_fail(err, DT_E_ARG, "%lld tokens do not fit behind %lld in a session of %lld", (long long)n,
                       (long long)s->length, (long long)s->capacity);
    for (int64_t t = 0; t < n; t++)
        if (tokens[t] < 0 || tokens[t] >= s->model->config->vocab)
            return dt_fail(err, DT_E_ARG, "token %d is outside the vocabulary of %lld", tokens[t],
                           (long long)s->model->config->vocab);
    int64_t last = 0;
    for (int64_t t = 0; t < n; t += last) {
        last = n - t < s->memory->rows ? n - t : s->memory->rows;
        dt_status status = run_chunk(s, tokens + t, last, err);
        if (status != DT_OK)
            return status;
        s->length += last;
    }
    return logits ? read_logits(s, last - 1, logits, err) : DT_OK;
}

int64_t dtp_session_length(const dt_session *s)
{
    return s->length;
}
uint64_t dtp_session_bytes(const dt_session *s)
{
    return s->arena_bytes + s->memory->arena_bytes;
}
