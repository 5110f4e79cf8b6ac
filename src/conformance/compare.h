/* Error ratios: how far a provider's result is from the reference, for a tensor and for each of its slices.
 *
 * ratio = RMS(x - ref) / (RMS(ref) + 1e-8). Whole-tensor numbers hide a wrong short sample in a long pack, so the ratio
 * is taken per slice (sample x head) too; a slice also passes when max |x - ref| <= 1e-6. NaN fails. */
#ifndef DT_CONFORMANCE_COMPARE_H
#define DT_CONFORMANCE_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum dt_slicing {
    DT_SLICE_NONE,          /* the tensor as one */
    DT_SLICE_SEQUENCE,      /* [T, ...]: rows of each sample */
    DT_SLICE_SEQUENCE_HEAD, /* [T, heads, ...]: rows of each sample, each head */
    DT_SLICE_STATE,         /* [n_seq, ...] */
    DT_SLICE_STATE_HEAD     /* [n_seq, heads, ...] */
} dt_slicing;

typedef struct dt_comparison {
    double ratio;                /* of the whole tensor; NaN when a value is not finite */
    bool negligible;             /* no element is off by more than 1e-6: the tensor passes whatever its ratio */
    double worst_ratio;          /* of the worst slice that did not pass by its absolute error */
    int64_t worst_n, worst_head; /* that slice; -1 where the slicing has no such index */
    bool passed;
} dt_comparison;

/* How the tensor is cut, and what passes. */
typedef struct dt_comparison_rule {
    dt_slicing slicing;
    double tolerance;       /* of the whole tensor */
    double slice_tolerance; /* of a slice, relative to max(RMS(slice), slice_floor * RMS(tensor)) */
    double slice_floor;     /* 0 in fp32 checks */
    /* Rows whose entry is true form a slice of their own, which does not count in the tensor (inputs that are all zero:
     * their gradients may be a thousand times those of others); NULL = none. [rows * heads] */
    const bool *apart;
} dt_comparison_rule;

/* x and ref: `rows` x `heads` x `width` values. cu_seqlens [n_seq+1] is read for the sequence slicings only. */
dt_comparison dtp_compare(const float *x, const float *ref, int64_t rows, int64_t heads, int64_t width,
                          const int32_t *cu_seqlens, int64_t n_seq, const dt_comparison_rule *rule);

#endif
