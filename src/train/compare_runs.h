/* Two runs of the same recipe, step by step: how far are their losses apart, and does the distance grow? */
#ifndef DT_TRAIN_COMPARE_RUNS_H
#define DT_TRAIN_COMPARE_RUNS_H

#include "train/run_log.h"

typedef struct dt_run_pair {
    const dt_run_point *a, *b;
    double difference, relative; /* loss of B minus loss of A; the same over loss A */
    bool finite;                 /* losses and gradient norms of both */
} dt_run_pair;

/* Steps that one run logged and the other did not. */
typedef struct dt_run_missing {
    size_t count;
    int64_t first; /* valid when count > 0 */
} dt_run_missing;

typedef struct dt_run_comparison {
    dt_run_pair *pairs; /* the common steps */
    size_t count;
    dt_run_missing only_a, only_b;
    size_t not_finite; /* pairs; they are left out of the figures below */
    int64_t first_not_finite;
    double mean;                    /* of |relative| */
    size_t largest;                 /* index of the largest |relative| */
    double drift;                   /* slope of the least-squares line through `relative`, times its length */
    double first_tenth, last_tenth; /* means of `relative` */
} dt_run_comparison;

/* Borrows the logs. Errors: DT_E_FORMAT when no step is common; DT_E_NOMEM. */
dt_status dtp_compare_runs(dt_run_comparison *out, const dt_run_log *a, const dt_run_log *b, dt_err *err);
/* The same steps, all values finite, and mean and |drift| at most `threshold`. */
bool dtp_runs_agree(const dt_run_comparison *c, double threshold);
void dtp_run_comparison_free(dt_run_comparison *c);

#endif
