/* Batches for training and evaluation: epoch order, rank split, accumulation windows, assembly ahead of use.
 *
 * A data set's samples become *items* (packs, or single samples); per epoch the items are permuted with
 * torch.randperm(data_seed + epoch), dealt to the ranks, cut into micro-batches and grouped into accumulation windows.
 * The same settings give the same batches on every machine; a position (epoch, batch) is all that resuming needs.
 * The model always receives one row of T tokens with cu_seqlens, whatever the layout. */
#ifndef DT_DATA_LOADER_H
#define DT_DATA_LOADER_H

#include "data/dataset.h"
#include "data/packing.h"

typedef enum dt_layout {
    DT_LAYOUT_PACKING,      /* items are packs; the packs of a batch are joined into one row */
    DT_LAYOUT_PADDING_FREE, /* items are samples; the samples of a batch are joined into one row */
    DT_LAYOUT_PADDED /* items are samples, each padded on the right to the longest of the batch. A padded sample is one
                      * sequence of Lmax tokens: attention, convolution and recurrence are causal, so what stands
                      * after a sample cannot reach it, and pad positions are no targets. Same results as
                      * DT_LAYOUT_PADDING_FREE, which does less work. */
} dt_layout;

/* One micro-batch of one rank. Arrays are borrowed until the next dtp_loader_next or _seek of the same loader. */
typedef struct dt_batch {
    int64_t T;                 /* tokens, pads included */
    int64_t n_seq;             /* sequences = samples; none is empty */
    const int32_t *tokens;     /* [T] */
    const int32_t *labels;     /* [T] as prepared: label of this very token, -100 none */
    const int32_t *target;     /* [T] label of token t + 1, -1 none; never across the end of a sequence */
    const float *weights;      /* [T] loss weight of target[t]; NULL when all are 1 */
    const int32_t *positions;  /* [T] 0.. in each sequence */
    const int32_t *cu_seqlens; /* [n_seq + 1] */
    const int32_t *lengths;  /* [n_seq] real tokens of a sequence; < its extent only where DT_LAYOUT_PADDED padded it */
    const uint32_t *samples; /* [n_seq] index in the data set (dtp_dataset_read) */
    int64_t n_targets;       /* target[t] >= 0 */
    int64_t n_rows;          /* items in this batch (packs, or samples): rows of the batch as the user counts them */
    int64_t epoch, index;    /* which epoch, which batch of it */
} dt_batch;

/* One optimiser step. */
typedef struct dt_window {
    int64_t epoch, first;    /* of its first micro-batch */
    int64_t n_micro;         /* accumulation, or fewer at the end of an epoch */
    int64_t n_targets;       /* N: target tokens over all ranks and micro-batches, known without reading a token */
    int64_t n_tokens, n_seq; /* tokens (without pads) and samples over all ranks */
} dt_window;

typedef struct dt_loader_options {
    dt_layout layout;
    dt_packing_options packing; /* layout packing only */
    int64_t batch_size;         /* items per rank and micro-batch, >= 1 */
    int64_t accumulation;       /* micro-batches per step, >= 1 */
    bool shuffle, drop_last;
    uint32_t data_seed;
    int rank, world;
    int32_t pad_id;
    bool evaluation; /* file order, every item used once (no tail is cut off), ranks may differ by one item */
    int prefetch;    /* micro-batches assembled ahead by a thread; 0 = none, default 2 when negative */
} dt_loader_options;

typedef struct dt_loader_counts {
    int64_t n_items;          /* packs or samples */
    int64_t n_used, n_unused; /* items used in an epoch over all ranks, and the tail that never is (n mod world) */
    int64_t batches;          /* B: micro-batches per rank and epoch */
    int64_t steps;            /* optimiser steps per epoch: ceil(B / accumulation) */
    double fill;              /* packing: mean pack fill, else 1 */
} dt_loader_counts;

/* The largest micro-batch of any rank over the first `epochs` epochs: what the memory plan needs before step 1. */
typedef struct dt_loader_limits {
    int64_t max_tokens, max_n_seq, max_targets, max_sequence;
} dt_loader_limits;

typedef struct dt_loader dt_loader;

/* The data set is borrowed and must outlive the loader. Announces packs, fill and the unused tail on the log.
 * Errors: DT_E_ARG: no samples; fewer items than ranks; pad_id or sizes out of range. */
dt_status dtp_loader_open(dt_loader **out, const dt_dataset *dataset, const dt_loader_options *options, dt_err *err);
void dtp_loader_close(dt_loader *loader); /* accepts NULL */

dt_loader_counts dtp_loader_count(const dt_loader *loader);
dt_status dtp_loader_limit(const dt_loader *loader, int64_t epochs, dt_loader_limits *out, dt_err *err);

/* Starts the next window; its micro-batches then come from dtp_loader_next, n_micro of them. Training loaders go on to
 * the next epoch for ever; at the end of an evaluation *more is false and window_out untouched. `more` may be NULL. */
dt_status dtp_loader_next_window(dt_loader *loader, dt_window *window_out, bool *more, dt_err *err);
dt_status dtp_loader_next(dt_loader *loader, dt_batch *batch_out, dt_err *err);

/* Where the next window starts: store it in a checkpoint, hand it to dtp_loader_seek to go on there. `batch` is a
 * multiple of accumulation; batch == B counts as (epoch + 1, 0). */
void dtp_loader_position(const dt_loader *loader, int64_t *epoch, int64_t *batch);
dt_status dtp_loader_seek(dt_loader *loader, int64_t epoch, int64_t batch, dt_err *err);

/* The packs, NULL for other layouts; borrowed. */
const dt_packs *dtp_loader_packs(const dt_loader *loader);

#endif
