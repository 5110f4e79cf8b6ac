/* Which rows of which data set are used, and in which order: sampling (#N), validation split and shuffles, drawn from
 * one RandomState exactly as the incumbent draws them (docs/data-formats.md, "Order"). Only numbers of rows, no rows.
 * Not for: the order of an epoch (data/loader.h). */
#ifndef DT_DATA_ORDER_H
#define DT_DATA_ORDER_H

#include "core/rng.h"
#include <deltune/status.h>

typedef struct dt_order_set {
    const char *name; /* for errors */
    size_t rows;      /* usable rows */
    int64_t sample;   /* N of "#N", negative when not given */
} dt_order_set;

/* Row numbers count through all sets: row r of set s is (rows of the sets before s) + r. */
typedef struct dt_order {
    uint32_t *row;
    size_t n;
} dt_order;
void dtp_order_free(dt_order *order); /* accepts a zeroed struct */

/* `ratio` 0..1 of each set goes to validation. `random` is advanced. Errors: DT_E_ARG (an empty set, #N that leaves
 * nothing to train on, more validation rows than there are), DT_E_NOMEM. */
dt_status dtp_order_plan(dt_order *train_out, dt_order *val_out, const dt_order_set *sets, size_t n_sets, double ratio,
                         bool shuffle, dt_mt19937 *random, dt_err *err);

#endif
