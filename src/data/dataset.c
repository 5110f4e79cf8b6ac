#include "data/dataset.h"

#include "core/log.h"
#include "data/cache.h"
#include "data/dataset_impl.h"
#include "data/order.h"
#include "data/scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void dtp_dataset_options_default(dt_dataset_options *options)
{
    *options = (dt_dataset_options){.data_seed = 42, .shuffle = true, .max_length = 262144};
}

static dt_status no_memory(dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "data set: out of memory");
}

/* ---- What train and validation share ---- */

static void shared_release(dt_shared *shared)
{
    if (!shared || --shared->references > 0)
        return;
    for (size_t i = 0; i < shared->n_sets; i++)
        dtp_scanned_close(&shared->sets[i]);
    free(shared->sets);
    free(shared->columns);
    dtp_table_close(&shared->table);
    free(shared);
}

void dtp_dataset_close(dt_dataset *dataset)
{
    if (!dataset)
        return;
    shared_release(dataset->shared);
    free(dataset->sample);
    free(dataset->row);
    free(dataset);
}

static dt_status scan_all(dt_shared *shared, dt_scanner *scanner, const char *const *paths, size_t n_paths, dt_err *err)
{
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < n_paths; i++) {
        status = dtp_source_open(&shared->sets[shared->n_sets].source, paths[i], err);
        if (status == DT_OK)
            status = dtp_scan(scanner, &shared->sets[shared->n_sets++], err);
    }
    return status;
}

static dt_status plan(const dt_shared *shared, double ratio, bool shuffle, uint32_t seed, dt_order *train,
                      dt_order *val, dt_err *err)
{
    dt_order_set *sets = dtp_calloc(shared->n_sets, sizeof *sets);
    if (!sets)
        return no_memory(err);
    for (size_t i = 0; i < shared->n_sets; i++)
        sets[i] = (dt_order_set){.name = shared->sets[i].source.path,
                                 .rows = shared->sets[i].n_rows,
                                 .sample = shared->sets[i].source.sample};
    dt_mt19937 random;
    dtp_mt_seed(&random, seed);
    dt_status status = dtp_order_plan(train, val, sets, shared->n_sets, ratio, shuffle, &random, err);
    free(sets);
    return status;
}

/* Encodes the rows that sampled sets contribute: only those that an order names. */
static dt_status encode_sampled(dt_shared *shared, dt_scanner *scanner, const dt_order *train, const dt_order *val,
                                dt_err *err)
{
    uint8_t *wanted = dtp_calloc(shared->table.n_rows, 1);
    dt_status status = wanted ? DT_OK : no_memory(err);
    for (size_t i = 0; wanted && i < train->n; i++)
        wanted[train->row[i]] = 1;
    for (size_t i = 0; wanted && i < val->n; i++)
        wanted[val->row[i]] = 1;
    for (size_t i = 0; status == DT_OK && i < shared->n_sets; i++)
        if (shared->sets[i].source.sample >= 0)
            status = dtp_scan_wanted(scanner, &shared->sets[i], wanted + shared->sets[i].first_row, err);
    free(wanted);
    return status;
}

/* ---- One data set of an order ---- */

static void count_row(dt_dataset_stats *stats, uint8_t outcome)
{
    stats->selected++;
    switch (outcome & DT_OUTCOME_MASK) {
    case DT_ROW_CUT: stats->truncated++; break;
    case DT_ROW_TOO_LONG: stats->too_long++; break;
    case DT_ROW_EMPTY: stats->empty++; break;
    case DT_ROW_FAILED: stats->failed++; break;
    default: break;
    }
    stats->assistant_first += (outcome & DT_ROW_ASSISTANT_FIRST) != 0;
    stats->control_text += (outcome & DT_ROW_CONTROL_TEXT) != 0;
}

static void count_sample(dt_dataset_stats *stats, const dt_sample *sample)
{
    int64_t length = sample->length;
    stats->min_length = stats->samples == 0 || length < stats->min_length ? length : stats->min_length;
    stats->max_length = length > stats->max_length ? length : stats->max_length;
    stats->samples++;
    stats->tokens += length;
    stats->targets += sample->targets;
    stats->without_targets += sample->targets == 0;
}

static void count_spread(dt_dataset *d)
{
    dt_dataset_stats *stats = &d->stats;
    if (d->n == 0)
        return;
    double mean = (double)stats->tokens / (double)d->n, sum = 0;
    for (size_t i = 0; i < d->n; i++) {
        double difference = (double)dtp_dataset_length(d, i) - mean;
        sum += difference * difference;
    }
    stats->mean_length = mean;
    stats->std_length = sqrt(sum / (double)d->n);
}

/* The samples of the rows of `order`, which the data set takes over. */
static dt_status select_samples(dt_dataset **out, dt_shared *shared, dt_order *order, dt_err *err)
{
    const dt_table *t = &shared->table;
    dt_dataset *d = dtp_calloc(1, sizeof *d);
    size_t capacity = 0;
    if (!d)
        return no_memory(err);
    *d = (dt_dataset){.shared = shared, .row = order->row, .n_rows = order->n};
    *order = (dt_order){0};
    shared->references++;
    d->stats.rows = (int64_t)t->n_rows + t->bad;
    d->stats.bad = t->bad;
    d->stats.dropped_keys = t->dropped_keys;
    for (size_t i = 0; i < d->n_rows; i++) {
        uint32_t row = d->row[i];
        count_row(&d->stats, t->outcome[row]);
        for (size_t s = t->row_sample[row]; s < t->n_samples && t->sample_row[s] == row; s++) {
            if (d->n >= UINT32_MAX - 1 || !dtp_grow((void **)&d->sample, &capacity, d->n + 1, sizeof *d->sample)) {
                dtp_dataset_close(d);
                return no_memory(err);
            }
            d->sample[d->n++] = (uint32_t)s;
            count_sample(&d->stats, &t->sample[s]);
        }
    }
    count_spread(d);
    *out = d;
    return DT_OK;
}

/* ---- Preparing ---- */

static dt_status build(dt_shared *shared, const dt_dataset_options *o, const char *const *paths, size_t n_paths,
                       double ratio, bool shuffle, dt_order *train, dt_order *val, dt_err *err)
{
    dt_scanner *scanner = NULL;
    bool sampled = false;
    shared->sets = dtp_calloc(n_paths, sizeof *shared->sets);
    shared->columns = dtp_strdup(o->rows.columns ? o->rows.columns : "");
    if (!shared->sets || !shared->columns)
        return no_memory(err);
    dt_status status = dtp_scanner_open(&scanner, &shared->table, o, err);
    if (status == DT_OK)
        status = scan_all(shared, scanner, paths, n_paths, err);
    if (status == DT_OK)
        status = plan(shared, ratio, shuffle, o->data_seed, train, val, err);
    for (size_t i = 0; i < shared->n_sets; i++)
        sampled |= shared->sets[i].source.sample >= 0;
    if (status == DT_OK && sampled)
        status = encode_sampled(shared, scanner, train, val, err);
    dtp_scanner_close(scanner);
    return status;
}

/* Reads `paths` and makes the training part (ratio < 1) and the validation part (ratio > 0) of them. */
static dt_status prepare(dt_dataset **train_out, dt_dataset **val_out, const dt_dataset_options *o,
                         const char *const *paths, size_t n_paths, double ratio, bool shuffle, dt_err *err)
{
    dt_order train = {0}, val = {0};
    dt_shared *shared = dtp_calloc(1, sizeof *shared);
    if (!shared)
        return no_memory(err);
    shared->references = 1;
    dt_status status = build(shared, o, paths, n_paths, ratio, shuffle, &train, &val, err);
    if (status == DT_OK && train.n)
        status = select_samples(train_out, shared, &train, err);
    if (status == DT_OK && val.n)
        status = select_samples(val_out, shared, &val, err);
    if (status == DT_OK && *val_out)
        (*val_out)->is_val = true;
    dtp_order_free(&train);
    dtp_order_free(&val);
    shared_release(shared);
    return status;
}

static dt_status check_options(const dt_dataset_options *o, dt_err *err)
{
    if (o->max_length < 1 || o->max_length > DT_SAMPLE_MAX)
        return dt_fail(err, DT_E_ARG, "max_length is %lld, expected 1 to %d", (long long)o->max_length, DT_SAMPLE_MAX);
    if (!(o->split_ratio >= 0 && o->split_ratio <= 1))
        return dt_fail(err, DT_E_ARG, "split_dataset_ratio is %g, expected 0 to 1", o->split_ratio);
    if (o->n_paths + o->n_val_paths == 0)
        return dt_fail(err, DT_E_ARG, "no data set is named; use --dataset FILE");
    return DT_OK;
}

static dt_status check_samples(const dt_dataset *d, const char *what, bool needs_targets, dt_err *err)
{
    const dt_dataset_stats *s = &d->stats;
    if (s->samples == 0)
        return dt_fail(err, DT_E_FORMAT,
                       "%s: none of %lld rows is left (%lld bad, %lld too long, %lld empty, %lld not encoded)", what,
                       (long long)(s->selected + s->bad), (long long)s->bad, (long long)s->too_long,
                       (long long)s->empty, (long long)s->failed);
    if (needs_targets && s->targets == 0)
        return dt_fail(err, DT_E_FORMAT,
                       "%s: no sample has a token to train on (all labels are -100); check the roles of the "
                       "messages and the labels",
                       what);
    return DT_OK;
}

static void summarise(const dt_dataset *d, const char *what, int64_t max_length)
{
    const dt_dataset_stats *s = &d->stats;
    char lengths[200];
    dtp_dataset_length_line(d, lengths, sizeof lengths);
    dt_info("%s: %lld samples from %lld rows, %lld tokens, %lld of them targets; lengths %s", what,
            (long long)s->samples, (long long)s->selected, (long long)s->tokens, (long long)s->targets, lengths);
    const struct {
        int64_t count;
        const char *what;
    } notes[] = {
        {s->too_long, "rows dropped: longer than the limit"},
        {s->truncated, "rows cut to the limit"},
        {s->empty, "rows dropped: no tokens"},
        {s->failed, "rows dropped: could not be encoded"},
        {s->without_targets, "samples kept without any target"},
        {s->assistant_first, "conversations start with the assistant: an empty user turn was added"},
        {s->control_text, "rows have control tokens as text in a user or system message"},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (notes[i].count > 0)
            dt_warning("%s: %lld %s", what, (long long)notes[i].count, notes[i].what);
    if (s->too_long + s->truncated > 0)
        dt_info("%s: the limit is %lld tokens, the smaller of max_length and packing_length", what,
                (long long)max_length);
}

static dt_status finish(const dt_dataset *train, const dt_dataset *val, const dt_dataset_options *o, dt_err *err)
{
    dt_status status = train ? check_samples(train, "training data", true, err) : DT_OK;
    if (status == DT_OK && val)
        status = check_samples(val, "validation data", false, err);
    const dt_dataset *any = train ? train : val;
    if (any && any->stats.bad > 0)
        dt_warning("data: %lld of %lld rows were bad and skipped", (long long)any->stats.bad,
                   (long long)any->stats.rows);
    if (any && any->stats.dropped_keys > 0)
        dt_info("data: %lld unknown message keys were ignored", (long long)any->stats.dropped_keys);
    if (train)
        summarise(train, "training data", o->max_length);
    if (val)
        summarise(val, "validation data", o->max_length);
    return status;
}

static dt_status prepare_all(dt_dataset **train, dt_dataset **val, const dt_dataset_options *options, dt_err *err)
{
    double ratio = options->split_ratio;
    dt_status status = DT_OK;
    if (options->n_val_paths && ratio > 0) {
        dt_info("split_dataset_ratio %g is not used: there is a val_dataset", ratio);
        ratio = 0;
    }
    if (options->n_paths)
        status = prepare(train, val, options, options->paths, options->n_paths, ratio, options->shuffle, err);
    if (status == DT_OK && options->n_val_paths)
        status = prepare(train, val, options, options->val_paths, options->n_val_paths, 1, options->val_shuffle, err);
    return status;
}

static dt_status prepare_cached(dt_dataset **train, dt_dataset **val, const dt_dataset_options *options, dt_err *err)
{
    char *path;
    bool found;
    dt_status status = dtp_cache_path(&path, options, err);
    if (status != DT_OK)
        return status;
    status = dtp_cache_load(train, val, path, options, &found, err);
    if (status == DT_OK && found)
        dt_info("data: prepared data is taken from %s", path);
    if (status == DT_OK && !found)
        status = prepare_all(train, val, options, err);
    if (status == DT_OK && !found)
        status = dtp_cache_save(*train, *val, path, err);
    free(path);
    return status;
}

dt_status dtp_dataset_prepare(dt_dataset **train_out, dt_dataset **val_out, const dt_dataset_options *options,
                              dt_err *err)
{
    dt_dataset *train = NULL, *val = NULL;
    dt_status status = check_options(options, err);
    if (status == DT_OK)
        status = (options->cache_folder ? prepare_cached : prepare_all)(&train, &val, options, err);
    if (status == DT_OK)
        status = finish(train, val, options, err);
    if (status != DT_OK) {
        dtp_dataset_close(train);
        dtp_dataset_close(val);
        return status;
    }
    *train_out = train;
    *val_out = val;
    return DT_OK;
}

/* ---- Reading ---- */

size_t dtp_dataset_size(const dt_dataset *d)
{
    return d->n;
}

const dt_dataset_stats *dtp_dataset_statistics(const dt_dataset *d)
{
    return &d->stats;
}

void dtp_dataset_length_line(const dt_dataset *d, char *out, size_t n)
{
    const dt_dataset_stats *s = &d->stats;
    snprintf(out, n, "%.6f\u00b1%.6f, min=%.6f, max=%.6f, size=%lld", s->mean_length, s->std_length,
             (double)s->min_length, (double)s->max_length, (long long)s->samples);
}

static const dt_sample *sample_at(const dt_dataset *d, size_t index)
{
    return &d->shared->table.sample[d->sample[index]];
}

uint32_t dtp_dataset_length(const dt_dataset *d, size_t index)
{
    return sample_at(d, index)->length;
}

uint32_t dtp_dataset_targets(const dt_dataset *d, size_t index)
{
    return sample_at(d, index)->targets;
}

bool dtp_dataset_has_weights(const dt_dataset *d, size_t index)
{
    return sample_at(d, index)->flags & DT_SAMPLE_WEIGHTS;
}

void dtp_dataset_origin(const dt_dataset *d, size_t index, const char **file, int64_t *line)
{
    const dt_table *t = &d->shared->table;
    size_t row = t->sample_row[d->sample[index]], f = 0;
    while (f + 1 < t->n_files && t->file_row[f + 1] <= row)
        f++;
    *file = t->file[f];
    *line = t->row_line[row];
}

dt_status dtp_dataset_read(const dt_dataset *d, size_t index, int32_t *ids, int32_t *labels, float *weights,
                           dt_err *err)
{
    uint32_t on_stack[2048], *words = on_stack;
    const dt_sample *sample = sample_at(d, index);
    size_t n = dtp_sample_words(sample);
    if (n > sizeof on_stack / sizeof *on_stack && !(words = dtp_calloc(n, sizeof *words)))
        return no_memory(err);
    dt_status status = dtp_token_store_read(d->shared->table.store,
                                            dtp_table_place(&d->shared->table, d->sample[index]), words, n, err);
    if (status == DT_OK)
        dtp_sample_unpack(sample, words, ids, labels, weights);
    if (words != on_stack)
        free(words);
    return status;
}

dt_status dtp_dataset_digest(const dt_dataset *d, uint64_t *out, dt_err *err)
{
    XXH3_state_t hash;
    uint32_t *words = NULL;
    size_t capacity = 0;
    dt_status status = DT_OK;
    XXH3_64bits_reset(&hash);
    for (size_t i = 0; i < d->n && status == DT_OK; i++) {
        const dt_sample *sample = sample_at(d, i);
        size_t n = dtp_sample_words(sample);
        if (!dtp_grow((void **)&words, &capacity, n, sizeof *words)) {
            status = no_memory(err);
            break;
        }
        status = dtp_token_store_read(d->shared->table.store, dtp_table_place(&d->shared->table, d->sample[i]), words,
                                      n, err);
        const uint32_t shape[] = {sample->length, sample->flags};
        XXH3_64bits_update(&hash, shape, sizeof shape);
        XXH3_64bits_update(&hash, words, n * sizeof *words);
    }
    free(words);
    if (status == DT_OK)
        *out = XXH3_64bits_digest(&hash);
    return status;
}
