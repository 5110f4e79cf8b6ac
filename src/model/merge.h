/* Merging an adapter into its base: W + scale * B A, added in float64 and rounded once; `deltune export`. */
#ifndef DT_MODEL_MERGE_H
#define DT_MODEL_MERGE_H

#include <deltune/status.h>
#include <deltune/tensor.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dt_merge_options {
    const char *base, *adapter;
    const char *folder; /* appears whole or not at all; must not exist unless exist_ok */
    bool exist_ok;      /* files of an existing folder are replaced one by one */
    uint64_t max_shard_bytes;
    void (*progress)(void *user, int64_t done, int64_t total); /* modules merged; may be NULL */
    void *user;
} dt_merge_options;

/* All other tensors are copied byte for byte, companion files too. Errors: those of the readers; DT_E_ARG for a folder
 * that exists or is the base; DT_E_IO. */
dt_status dtp_merge_adapter(const dt_merge_options *options, dt_err *err);

/* Rows of out = w + scale * b a, w and out [rows, in] of `dtype`, b [rows, rank], a [rank, in]. */
void dtp_merge_rows(void *out, const void *w, dt_dtype dtype, int64_t rows, int64_t in, const float *b, const float *a,
                    int64_t rank, double scale);

#endif
