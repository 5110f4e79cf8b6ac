#include "data/order.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

void dtp_order_free(dt_order *order)
{
    free(order->row);
    *order = (dt_order){0};
}

/* An order that grows. */
typedef struct growing {
    dt_order order;
    size_t capacity;
} growing;

static dt_status no_memory(dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "order of rows: out of memory");
}

static dt_status append(growing *to, const uint32_t *rows, size_t n, dt_err *err)
{
    if (to->order.n + n >= UINT32_MAX)
        return dt_fail(err, DT_E_ARG, "order of rows: more than %u rows; use a smaller #N", UINT32_MAX - 1);
    if (!dtp_grow((void **)&to->order.row, &to->capacity, to->order.n + n, sizeof *rows))
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        to->order.row[to->order.n++] = rows[i];
    return DT_OK;
}

/* Whole copies of the pool, then for the rest the first rows of a permutation (of the pool itself without shuffling).
 */
static dt_status append_sample(growing *to, const uint32_t *pool, size_t n_pool, size_t wanted, bool shuffle,
                               dt_mt19937 *random, dt_err *err)
{
    dt_status status = DT_OK;
    for (size_t copy = 0; status == DT_OK && copy < wanted / n_pool; copy++)
        status = append(to, pool, n_pool, err);
    size_t rest = wanted % n_pool;
    if (status != DT_OK || rest == 0)
        return status;
    if (!shuffle)
        return append(to, pool, rest, err);
    uint32_t *shuffled = dtp_calloc(n_pool, sizeof *shuffled);
    if (!shuffled)
        return no_memory(err);
    memcpy(shuffled, pool, n_pool * sizeof *pool);
    dtp_mt_shuffle(random, shuffled, n_pool); /* = pool[permutation] */
    status = append(to, shuffled, rest, err);
    free(shuffled);
    return status;
}

/* Reorders rows[0..n) by default_rng(seed).permutation(n): shuffling the rows themselves comes to the same. */
static void shuffle_rows(uint32_t *rows, size_t n, uint32_t seed)
{
    dt_pcg64 pcg;
    dtp_pcg_seed(&pcg, seed);
    dtp_pcg_shuffle(&pcg, rows, n);
}

/* The set's validation rows go to `val`; `rows` is reordered so that the training pool begins at *pool_out. */
static dt_status hold_out(growing *val, uint32_t *rows, const dt_order_set *set, size_t wanted, double ratio,
                          bool shuffle, dt_mt19937 *random, const uint32_t **pool_out, size_t *n_val_out, dt_err *err)
{
    size_t available = set->rows < wanted ? set->rows : wanted, n_val = (size_t)((double)available * ratio);
    n_val = n_val > 0 ? n_val : 1;
    if (n_val >= wanted || n_val >= set->rows)
        return dt_fail(err, DT_E_ARG,
                       "%s: %zu of its %zu rows would be validation, none is left to train on; lower "
                       "--split_dataset_ratio or use more rows",
                       set->name, n_val, available);
    uint32_t seed = dtp_mt_draw_seed(random); /* drawn without shuffling too */
    if (shuffle)
        shuffle_rows(rows, set->rows, seed);
    *n_val_out = n_val;
    *pool_out = shuffle ? rows + n_val : rows;
    return append(val, shuffle ? rows : rows + (set->rows - n_val), n_val, err);
}

static dt_status plan_set(growing *train, growing *val, const dt_order_set *set, size_t base, double ratio,
                          bool shuffle, dt_mt19937 *random, dt_err *err)
{
    if (set->rows == 0)
        return dt_fail(err, DT_E_ARG, "%s: no usable row", set->name);
    if (set->sample == 0)
        return dt_fail(err, DT_E_ARG, "%s: #0 takes no row; #N needs N >= 1", set->name);
    size_t wanted = set->sample < 0 ? set->rows : (size_t)set->sample, n_val = 0;
    if (ratio >= 1 && wanted > set->rows)
        return dt_fail(err, DT_E_ARG, "%s: #%zu asks for more validation rows than its %zu", set->name, wanted,
                       set->rows);
    if (base + set->rows >= UINT32_MAX)
        return dt_fail(err, DT_E_ARG, "%s: more than %u rows in all", set->name, UINT32_MAX - 1);
    uint32_t *rows = dtp_calloc(set->rows, sizeof *rows);
    if (!rows)
        return no_memory(err);
    for (size_t i = 0; i < set->rows; i++)
        rows[i] = (uint32_t)(base + i);
    const uint32_t *pool = rows;
    dt_status status = DT_OK;
    if (ratio >= 1)
        status = append_sample(val, rows, set->rows, wanted, shuffle, random, err);
    else if (ratio > 0)
        status = hold_out(val, rows, set, wanted, ratio, shuffle, random, &pool, &n_val, err);
    if (status == DT_OK && ratio < 1)
        status = append_sample(train, pool, set->rows - n_val, wanted - n_val, shuffle, random, err);
    free(rows);
    return status;
}

dt_status dtp_order_plan(dt_order *train_out, dt_order *val_out, const dt_order_set *sets, size_t n_sets, double ratio,
                         bool shuffle, dt_mt19937 *random, dt_err *err)
{
    growing train = {0}, val = {0};
    dt_status status = DT_OK;
    if (!(ratio >= 0 && ratio <= 1))
        return dt_fail(err, DT_E_ARG, "split_dataset_ratio is %g, expected 0 to 1", ratio);
    for (size_t i = 0, base = 0; status == DT_OK && i < n_sets; base += sets[i++].rows)
        status = plan_set(&train, &val, &sets[i], base, ratio, shuffle, random, err);
    if (status == DT_OK && shuffle && train.order.n)
        shuffle_rows(train.order.row, train.order.n, dtp_mt_draw_seed(random));
    if (status == DT_OK && shuffle && val.order.n)
        shuffle_rows(val.order.row, val.order.n, dtp_mt_draw_seed(random));
    if (status != DT_OK) {
        dtp_order_free(&train.order);
        dtp_order_free(&val.order);
        return status;
    }
    *train_out = train.order;
    *val_out = val.order;
    return DT_OK;
}
