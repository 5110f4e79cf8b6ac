/* Plans which samples share a pack. Deterministic, no random numbers, no tokens: only lengths.
 *
 * Windows of 1000 lengths, as `swift sft --packing true`: in each window the samples, longest first, go to the fullest
 * (best fit) or emptiest bin with room; the last bin created is carried into the next window. `sequential` keeps the
 * order of the input: next fit. Every sample appears in exactly one pack and no pack exceeds the limit.
 * Not for: assembling tokens (data/loader.h). Source of the rules: docs/data-formats.md, "Packing". */
#ifndef DT_DATA_PACKING_H
#define DT_DATA_PACKING_H

#include <deltune/status.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dt_packing_strategy {
    DT_PACK_FULLEST,   /* binpack, best-fit decreasing (binpacking <= 1.5.2); the default */
    DT_PACK_EMPTIEST,  /* binpack, least loaded bin (binpacking >= 2.0.0) */
    DT_PACK_SEQUENTIAL /* next fit in input order */
} dt_packing_strategy;

/* "fullest", "emptiest", "sequential". */
const char *dtp_packing_strategy_name(dt_packing_strategy strategy);

typedef struct dt_packing_options {
    dt_packing_strategy strategy;
    uint32_t length; /* tokens a pack may hold, >= every sample */
    int parts; /* packing_num_proc: contiguous parts packed on their own; 0 or 1 = one. Capped at ceil(n / 1000) */
} dt_packing_options;

/* Pack p holds samples member[start[p]] .. member[start[p + 1] - 1], in this order. */
typedef struct dt_packs {
    uint32_t *member; /* [n_samples] */
    size_t *start;    /* [n_packs + 1] */
    size_t n_packs, n_samples;
    uint32_t max_tokens, max_samples; /* of the largest pack, each on its own */
    double fill;                      /* mean tokens per pack / length, 0..1 */
} dt_packs;

/* `lengths` [n], each 1..options->length. Errors: DT_E_ARG (a length out of range, named), DT_E_NOMEM. */
dt_status dtp_packing_plan(dt_packs *packs_out, const uint32_t *lengths, size_t n, const dt_packing_options *options,
                           dt_err *err);
void dtp_packs_free(dt_packs *packs); /* accepts a zeroed struct */

#endif
