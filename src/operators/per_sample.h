/* The "safe varlen" wrapper: one call per sample, for an entry that cannot pack. Slow and right.
 * Installed as a wrapping override; works for every operator that takes a boundary list. */
#ifndef DT_OPERATORS_PER_SAMPLE_H
#define DT_OPERATORS_PER_SAMPLE_H

#include <deltune/provider.h>

/* The wrapper's operator set, or NULL for operators without samples. */
const dt_op_set *dtp_per_sample_set(dt_op op);

#endif
