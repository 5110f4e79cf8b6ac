#include "data/loader.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The order of items in one epoch. The window (consumer) and the assembling thread each keep their own. */
typedef struct epoch_order {
    int64_t epoch; /* -1: none yet */
    uint32_t *item;
} epoch_order;

/* A batch and the arrays it points into, which only grow. */
typedef struct slot_memory {
    dt_batch batch;
    int32_t *tokens, *labels, *target, *positions, *cu_seqlens, *lengths;
    float *weights;
    uint32_t *samples;
    size_t token_capacity, seq_capacity;
    dt_status status; /* of assembling it */
    dt_err err;
} slot_memory;

struct dt_loader {
    const dt_dataset *dataset;
    dt_loader_options options;
    dt_packs packs; /* layout packing */
    dt_loader_counts counts;
    int64_t per_rank; /* items of a rank and epoch; evaluation: of this rank */
    epoch_order plan_order, build_order;

    int64_t next_epoch, next_batch; /* of the next window */
    int64_t micro_left;             /* of the current window */

    slot_memory *slots; /* ring; the consumer holds slot `taken` until its next call */
    int n_slots;
    bool holding, running, stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t built, taken; /* batches assembled and handed out since the last seek */
    int64_t build_epoch, build_batch;
};

/* ---- Items ---- */

static size_t item_begin(const dt_loader *l, size_t item)
{
    return l->options.layout == DT_LAYOUT_PACKING ? l->packs.start[item] : item;
}

static size_t item_end(const dt_loader *l, size_t item)
{
    return l->options.layout == DT_LAYOUT_PACKING ? l->packs.start[item + 1] : item + 1;
}

static uint32_t sample_of(const dt_loader *l, size_t index)
{
    return l->options.layout == DT_LAYOUT_PACKING ? l->packs.member[index] : (uint32_t)index;
}

/* Sums over the samples of one item. */
typedef struct item_sums {
    int64_t tokens, targets, n_seq, longest;
} item_sums;

static void add_item(const dt_loader *l, size_t item, item_sums *sums)
{
    for (size_t i = item_begin(l, item); i < item_end(l, item); i++) {
        uint32_t sample = sample_of(l, i), length = dtp_dataset_length(l->dataset, sample);
        sums->tokens += length;
        sums->targets += dtp_dataset_targets(l->dataset, sample);
        sums->n_seq++;
        sums->longest = length > sums->longest ? length : sums->longest;
    }
}

/* Tokens of a batch with these sums, pads included. */
static int64_t batch_tokens(const dt_loader *l, const item_sums *sums)
{
    return l->options.layout == DT_LAYOUT_PADDED ? sums->longest * sums->n_seq : sums->tokens;
}

/* ---- Order of an epoch ---- */

static dt_status prepare_order(const dt_loader *l, epoch_order *order, int64_t epoch, dt_err *err)
{
    if (order->epoch == epoch)
        return DT_OK;
    size_t n = (size_t)l->counts.n_used;
    if (!order->item && !(order->item = dtp_calloc(n, sizeof *order->item)))
        return dt_fail(err, DT_E_NOMEM, "loader: out of memory for the order of %zu items", n);
    if (l->options.shuffle && !l->options.evaluation)
        dtp_torch_randperm((uint64_t)l->options.data_seed + (uint64_t)epoch, n, order->item);
    else
        for (size_t i = 0; i < n; i++)
            order->item[i] = (uint32_t)i;
    order->epoch = epoch;
    return DT_OK;
}

/* Item k of a rank; false when that rank has no such item in the batch. */
static bool rank_item(const dt_loader *l, const epoch_order *order, int rank, int64_t k, uint32_t *item)
{
    int64_t at = rank + k * l->options.world;
    if (at >= l->counts.n_used || (!l->options.evaluation && k >= l->per_rank))
        return false;
    *item = order->item[at];
    return true;
}

static item_sums sum_batch(const dt_loader *l, const epoch_order *order, int rank, int64_t batch)
{
    item_sums sums = {0};
    uint32_t item;
    for (int64_t k = batch * l->options.batch_size; k < (batch + 1) * l->options.batch_size; k++)
        if (rank_item(l, order, rank, k, &item))
            add_item(l, item, &sums);
    return sums;
}

/* ---- Opening ---- */

static dt_status plan_packs(dt_loader *l, dt_err *err)
{
    size_t n = dtp_dataset_size(l->dataset);
    uint32_t *lengths = dtp_calloc(n, sizeof *lengths);
    if (!lengths)
        return dt_fail(err, DT_E_NOMEM, "loader: out of memory for %zu lengths", n);
    for (size_t i = 0; i < n; i++)
        lengths[i] = dtp_dataset_length(l->dataset, i);
    dt_status status = dtp_packing_plan(&l->packs, lengths, n, &l->options.packing, err);
    free(lengths);
    return status;
}

static dt_status check_options(const dt_dataset *dataset, const dt_loader_options *o, dt_err *err)
{
    if (dtp_dataset_size(dataset) == 0)
        return dt_fail(err, DT_E_ARG, "loader: the data set has no samples");
    if (o->batch_size < 1 || o->accumulation < 1)
        return dt_fail(err, DT_E_ARG, "loader: batch size %lld and accumulation %lld must be at least 1",
                       (long long)o->batch_size, (long long)o->accumulation);
    if (o->world < 1 || o->rank < 0 || o->rank >= o->world)
        return dt_fail(err, DT_E_ARG, "loader: rank %d of %d", o->rank, o->world);
    if (o->pad_id < 0)
        return dt_fail(err, DT_E_ARG, "loader: pad id %d is negative", o->pad_id);
    return DT_OK;
}

/* How many items, batches and steps an epoch has. */
static dt_status count(dt_loader *l, dt_err *err)
{
    const dt_loader_options *o = &l->options;
    const char *what = o->layout == DT_LAYOUT_PACKING ? "packs" : "samples";
    int64_t n = o->layout == DT_LAYOUT_PACKING ? (int64_t)l->packs.n_packs : (int64_t)dtp_dataset_size(l->dataset);
    if (n < o->world && !o->evaluation)
        return dt_fail(err, DT_E_ARG,
                       "%lld %s are too few for %d ranks: each needs at least one; use fewer ranks or more data",
                       (long long)n, what, o->world);
    if (n >= DT_TORCH_RANDPERM_MAX)
        return dt_fail(err, DT_E_ARG, "%lld %s are too many, at most %u", (long long)n, what,
                       DT_TORCH_RANDPERM_MAX - 1);
    int64_t per_rank = o->evaluation ? (n - o->rank + o->world - 1) / o->world : n / o->world;
    int64_t used = o->evaluation ? n : per_rank * o->world, size = o->batch_size;
    int64_t batches = o->drop_last && !o->evaluation ? per_rank / size : (per_rank + size - 1) / size;
    if (batches == 0 && !o->evaluation)
        return dt_fail(err, DT_E_ARG, "%lld %s a rank do not fill one batch of %lld, and drop_last leaves out the rest",
                       (long long)per_rank, what, (long long)size);
    l->per_rank = per_rank;
    l->counts = (dt_loader_counts){.n_items = n,
                                   .n_used = used,
                                   .n_unused = n - used,
                                   .batches = batches,
                                   .steps = (batches + o->accumulation - 1) / o->accumulation,
                                   .fill = o->layout == DT_LAYOUT_PACKING ? l->packs.fill : 1};
    return DT_OK;
}

static void announce(const dt_loader *l)
{
    const dt_loader_options *o = &l->options;
    const char *what = o->layout == DT_LAYOUT_PACKING ? "packs" : "samples";
    if (o->layout == DT_LAYOUT_PACKING)
        dt_info(
            "packing: %zu samples in %zu packs of at most %u tokens (%s), %.2f%% full; largest: %u tokens, %u samples",
            l->packs.n_samples, l->packs.n_packs, o->packing.length, dtp_packing_strategy_name(o->packing.strategy),
            100 * l->packs.fill, l->packs.max_tokens, l->packs.max_samples);
    if (l->counts.n_unused > 0)
        dt_warning("%lld of %lld %s are never used: %d ranks get %lld each, and the rest of the division is left out",
                   (long long)l->counts.n_unused, (long long)l->counts.n_items, what, o->world, (long long)l->per_rank);
    int64_t dropped = l->per_rank - l->counts.batches * o->batch_size;
    if (o->drop_last && !o->evaluation && dropped > 0)
        dt_warning("drop_last: %lld %s of each rank are left out at the end of an epoch", (long long)dropped, what);
}

dt_status dtp_loader_open(dt_loader **out, const dt_dataset *dataset, const dt_loader_options *options, dt_err *err)
{
    dt_status status = check_options(dataset, options, err);
    if (status != DT_OK)
        return status;
    dt_loader *l = dtp_calloc(1, sizeof *l);
    if (!l)
        return dt_fail(err, DT_E_NOMEM, "loader: out of memory");
    *l = (dt_loader){.dataset = dataset, .options = *options, .plan_order.epoch = -1, .build_order.epoch = -1};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    int prefetch = options->prefetch < 0 ? 2 : options->prefetch;
    l->n_slots = prefetch + 1; /* one is in the hands of the consumer */
    l->slots = dtp_calloc((size_t)l->n_slots, sizeof *l->slots);
    if (!l->slots)
        status = dt_fail(err, DT_E_NOMEM, "loader: out of memory");
    if (status == DT_OK && options->layout == DT_LAYOUT_PACKING)
        status = plan_packs(l, err);
    if (status == DT_OK)
        status = count(l, err);
    if (status != DT_OK) {
        dtp_loader_close(l);
        return status;
    }
    announce(l);
    *out = l;
    return DT_OK;
}

dt_loader_counts dtp_loader_count(const dt_loader *l)
{
    return l->counts;
}

const dt_packs *dtp_loader_packs(const dt_loader *l)
{
    return l->options.layout == DT_LAYOUT_PACKING ? &l->packs : NULL;
}

/* ---- Limits ---- */

static void raise_limits(const dt_loader *l, const item_sums *sums, dt_loader_limits *limits)
{
    int64_t tokens = batch_tokens(l, sums);
    limits->max_tokens = tokens > limits->max_tokens ? tokens : limits->max_tokens;
    limits->max_n_seq = sums->n_seq > limits->max_n_seq ? sums->n_seq : limits->max_n_seq;
    limits->max_targets = sums->targets > limits->max_targets ? sums->targets : limits->max_targets;
    limits->max_sequence = sums->longest > limits->max_sequence ? sums->longest : limits->max_sequence;
}

/* Batches of one item: every item that is used comes by in each epoch. */
static void limit_single(const dt_loader *l, dt_loader_limits *limits)
{
    for (int64_t i = 0; i < l->counts.n_used; i++) {
        item_sums sums = {0};
        add_item(l, (size_t)i, &sums);
        raise_limits(l, &sums, limits);
    }
}

dt_status dtp_loader_limit(const dt_loader *l, int64_t epochs, dt_loader_limits *out, dt_err *err)
{
    dt_loader_limits limits = {0};
    epoch_order order = {.epoch = -1};
    dt_status status = DT_OK;
    if (l->options.batch_size == 1) {
        limit_single(l, &limits);
        *out = limits;
        return DT_OK;
    }
    if (!l->options.shuffle || l->options.evaluation)
        epochs = 1; /* all are alike */
    for (int64_t e = 0; status == DT_OK && e < epochs; e++) {
        status = prepare_order(l, &order, e, err);
        for (int64_t b = 0; status == DT_OK && b < l->counts.batches; b++)
            for (int rank = 0; rank < l->options.world; rank++) {
                item_sums sums = sum_batch(l, &order, rank, b);
                raise_limits(l, &sums, &limits);
            }
    }
    free(order.item);
    if (status == DT_OK)
        *out = limits;
    return status;
}

/* ---- Assembling a batch ---- */

static bool reserve(slot_memory *s, size_t tokens, size_t n_seq)
{
    if (tokens > s->token_capacity) {
        size_t n = tokens + tokens / 4;
        int32_t **arrays[] = {&s->tokens, &s->labels, &s->target, &s->positions};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
            free(*arrays[i]);
            *arrays[i] = dtp_alloc_aligned(n * sizeof(int32_t));
        }
        free(s->weights);
        s->weights = dtp_alloc_aligned(n * sizeof *s->weights);
        s->token_capacity = s->tokens && s->labels && s->target && s->positions && s->weights ? n : 0;
    }
    if (n_seq > s->seq_capacity) {
        size_t n = n_seq + n_seq / 4;
        free(s->cu_seqlens);
        free(s->lengths);
        free(s->samples);
        s->cu_seqlens = dtp_calloc(n + 1, sizeof *s->cu_seqlens);
        s->lengths = dtp_calloc(n, sizeof *s->lengths);
        s->samples = dtp_calloc(n, sizeof *s->samples);
        s->seq_capacity = s->cu_seqlens && s->lengths && s->samples ? n : 0;
    }
    return s->token_capacity >= tokens && s->seq_capacity >= n_seq;
}

/* Puts one sample at token `at`, in a sequence of `extent` tokens: the rest is padding. */
static dt_status put_sample(const dt_loader *l, slot_memory *s, uint32_t sample, size_t at, size_t extent, dt_err *err)
{
    size_t length = dtp_dataset_length(l->dataset, sample);
    int32_t *tokens = s->tokens + at, *labels = s->labels + at, *target = s->target + at,
            *positions = s->positions + at;
    float *weights = s->weights + at;
    dt_status status = dtp_dataset_read(l->dataset, sample, tokens, labels, weights, err);
    if (status != DT_OK)
        return status;
    for (size_t t = length; t < extent; t++) {
        tokens[t] = l->options.pad_id;
        labels[t] = DT_LABEL_IGNORE;
        weights[t] = 0;
    }
    for (size_t t = 0; t < extent; t++) {
        positions[t] = (int32_t)t;
        bool has_target = t + 1 < length && labels[t + 1] != DT_LABEL_IGNORE;
        target[t] = has_target ? labels[t + 1] : -1;
        weights[t] = has_target ? weights[t + 1] : 0; /* of the label it belongs to */
        s->batch.n_targets += has_target;
    }
    return DT_OK;
}

static dt_status build_batch(const dt_loader *l, const epoch_order *order, int64_t batch, slot_memory *s, dt_err *err)
{
    item_sums sums = sum_batch(l, order, l->options.rank, batch);
    int64_t T = batch_tokens(l, &sums);
    uint32_t item;
    size_t at = 0, seq = 0;
    bool weighted = false;
    if (T > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "batch %lld has %lld tokens, at most %d", (long long)batch, (long long)T,
                       INT32_MAX);
    if (!reserve(s, (size_t)T, (size_t)sums.n_seq))
        return dt_fail(err, DT_E_NOMEM, "loader: out of memory for a batch of %lld tokens", (long long)T);
    s->batch = (dt_batch){.T = T, .n_seq = sums.n_seq, .epoch = order->epoch, .index = batch};
    s->cu_seqlens[0] = 0;
    for (int64_t k = batch * l->options.batch_size; k < (batch + 1) * l->options.batch_size; k++) {
        if (!rank_item(l, order, l->options.rank, k, &item))
            continue;
        s->batch.n_rows++;
        for (size_t i = item_begin(l, item); i < item_end(l, item); i++, seq++) {
            uint32_t sample = sample_of(l, i), length = dtp_dataset_length(l->dataset, sample);
            size_t extent = l->options.layout == DT_LAYOUT_PADDED ? (size_t)sums.longest : length;
            dt_status status = put_sample(l, s, sample, at, extent, err);
            if (status != DT_OK)
                return status;
            weighted |= dtp_dataset_has_weights(l->dataset, sample);
            at += extent;
            s->samples[seq] = sample;
            s->lengths[seq] = (int32_t)length;
            s->cu_seqlens[seq + 1] = (int32_t)at;
        }
    }
    s->batch.tokens = s->tokens;
    s->batch.labels = s->labels;
    s->batch.target = s->target;
    s->batch.positions = s->positions;
    s->batch.weights = weighted ? s->weights : NULL;
    s->batch.cu_seqlens = s->cu_seqlens;
    s->batch.lengths = s->lengths;
    s->batch.samples = s->samples;
    return DT_OK;
}

/* Assembles the batch at (build_epoch, build_batch) into the next slot and moves on. */
static void build_next(dt_loader *l)
{
    slot_memory *s = &l->slots[l->built % l->n_slots];
    s->err = (dt_err){0};
    s->status = prepare_order(l, &l->build_order, l->build_epoch, &s->err);
    if (s->status == DT_OK)
        s->status = build_batch(l, &l->build_order, l->build_batch, s, &s->err);
    if (++l->build_batch == l->counts.batches) {
        l->build_batch = 0;
        l->build_epoch++;
    }
}

/* ---- The thread that assembles ahead ---- */

static void *build_ahead(void *user)
{
    dt_loader *l = user;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        /* An evaluation ends after one epoch; the slot the consumer holds (taken - 1) is not touched. */
        bool finished = l->options.evaluation && l->build_epoch > 0;
        if (l->stop)
            break;
        if (finished || l->built - (l->taken - l->holding) >= l->n_slots) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        build_next(l);
        pthread_mutex_lock(&l->lock);
        l->built++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void stop_thread(dt_loader *l)
{
    if (!l->running)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->running = l->stop = false;
}

/* The next assembled batch: from the thread, or made here when nothing is assembled ahead. */
static slot_memory *take_slot(dt_loader *l)
{
    if (l->n_slots == 1 || (!l->running && pthread_create(&l->thread, NULL, build_ahead, l) != 0)) {
        l->holding = false;
        build_next(l);
        l->built++;
    } else {
        l->running = true;
        pthread_mutex_lock(&l->lock);
        l->holding = false; /* what was handed out before is free again */
        pthread_cond_broadcast(&l->changed);
        while (l->built == l->taken)
            pthread_cond_wait(&l->changed, &l->lock);
        l->holding = true;
        l->taken++;
        pthread_mutex_unlock(&l->lock);
        return &l->slots[(l->taken - 1) % l->n_slots];
    }
    l->holding = true;
    return &l->slots[l->taken++ % l->n_slots];
}

/* ---- Windows and batches ---- */

dt_status dtp_loader_next_window(dt_loader *l, dt_window *window_out, bool *more, dt_err *err)
{
    if (l->micro_left > 0)
        return dt_fail(err, DT_E_ARG, "loader: %lld micro-batches of the window are left", (long long)l->micro_left);
    bool ended = l->options.evaluation && (l->next_epoch > 0 || l->counts.batches == 0);
    if (more)
        *more = !ended;
    if (ended)
        return more ? DT_OK : dt_fail(err, DT_E_ARG, "loader: the evaluation has ended");
    dt_status status = prepare_order(l, &l->plan_order, l->next_epoch, err);
    if (status != DT_OK)
        return status;
    int64_t left = l->counts.batches - l->next_batch,
            n = l->options.accumulation < left ? l->options.accumulation : left;
    dt_window window = {.epoch = l->next_epoch, .first = l->next_batch, .n_micro = n};
    for (int64_t b = window.first; b < window.first + n; b++)
        for (int rank = 0; rank < l->options.world; rank++) {
            item_sums sums = sum_batch(l, &l->plan_order, rank, b);
            window.n_targets += sums.targets;
            window.n_tokens += sums.tokens;
            window.n_seq += sums.n_seq;
        }
    l->micro_left = n;
    l->next_batch += n;
    if (l->next_batch == l->counts.batches) {
        l->next_batch = 0;
        l->next_epoch++;
    }
    *window_out = window;
    return DT_OK;
}

dt_status dtp_loader_next(dt_loader *l, dt_batch *batch_out, dt_err *err)
{
    if (l->micro_left == 0)
        return dt_fail(err, DT_E_ARG, "loader: start a window first");
    const slot_memory *s = take_slot(l);
    if (s->status != DT_OK)
        return dt_fail(err, s->status, "%s", s->err.text);
    l->micro_left--;
    *batch_out = s->batch;
    return DT_OK;
}

void dtp_loader_position(const dt_loader *l, int64_t *epoch, int64_t *batch)
{
    *epoch = l->next_epoch;
    *batch = l->next_batch;
}

dt_status dtp_loader_seek(dt_loader *l, int64_t epoch, int64_t batch, dt_err *err)
{
    bool whole_epoch = batch == l->counts.batches;
    if (epoch < 0 || batch < 0 || batch > l->counts.batches || (!whole_epoch && batch % l->options.accumulation != 0))
        return dt_fail(
            err, DT_E_ARG, "loader: there is no window at epoch %lld, batch %lld (%lld batches, windows of %lld)",
            (long long)epoch, (long long)batch, (long long)l->counts.batches, (long long)l->options.accumulation);
    stop_thread(l);
    l->next_epoch = l->build_epoch = whole_epoch ? epoch + 1 : epoch;
    l->next_batch = l->build_batch = whole_epoch ? 0 : batch;
    l->micro_left = 0;
    l->built = l->taken = 0;
    l->holding = false;
    return DT_OK;
}

void dtp_loader_close(dt_loader *l)
{
    if (!l)
        return;
    stop_thread(l);
    for (int i = 0; l->slots && i < l->n_slots; i++) {
        slot_memory *s = &l->slots[i];
        free(s->tokens);
        free(s->labels);
        free(s->target);
        free(s->positions);
        free(s->weights);
        free(s->cu_seqlens);
        free(s->lengths);
        free(s->samples);
    }
    free(l->slots);
    free(l->plan_order.item);
    free(l->build_order.item);
    dtp_packs_free(&l->packs);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l);
}
