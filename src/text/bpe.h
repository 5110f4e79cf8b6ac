/* Byte-level BPE over one piece of text: repeatedly the merge of lowest rank, leftmost on ties.
 * Not for: cutting text into pieces (text/split.h), the cache of known words (text/tokenizer.c). */
#ifndef DT_TEXT_BPE_H
#define DT_TEXT_BPE_H

#include "core/memory.h"

/* Ids and ranks share a 64-bit slot of the merge table, 21 bits each. */
#define DT_BPE_LIMIT ((1u << 21) - 1)

typedef struct dt_bpe {
    int32_t byte_id[256];
    uint32_t *byte_rank; /* [65536] rank of the merge of two single bytes, or DT_BPE_LIMIT */
    int32_t *merged;     /* [n_merges] id that a merge makes, by rank */
    size_t n_merges;
    uint64_t *slots; /* left << 42 | right << 21 | rank, open addressing; all ones = empty */
    unsigned shift;  /* 64 - log2(slots) */
} dt_bpe;

/* An empty table for n_merges merges; byte_id must be set before the first dtp_bpe_add. n_merges < DT_BPE_LIMIT. */
dt_status dtp_bpe_init(dt_bpe *bpe, size_t n_merges, dt_err *err);
/* Adds the merge of that rank; a pair added again takes the later rank, as in the reference. Ids < DT_BPE_LIMIT. */
void dtp_bpe_add(dt_bpe *bpe, uint32_t rank, int32_t left, int32_t right, int32_t merged);
/* After the last merge. */
void dtp_bpe_finish(dt_bpe *bpe);
void dtp_bpe_free(dt_bpe *bpe);

/* Memory for long pieces; zero-initialise. */
typedef struct dt_bpe_scratch {
    uint32_t *links; /* previous, next and rank of every symbol */
    uint64_t *heap;
    size_t links_capacity, heap_capacity;
} dt_bpe_scratch;
void dtp_bpe_scratch_free(dt_bpe_scratch *scratch);

/* Writes the ids of a piece of n >= 1 bytes to out, which has room for n (< 2^32) ids; *n_out is how many. */
dt_status dtp_bpe_encode(const dt_bpe *bpe, dt_bpe_scratch *scratch, const unsigned char *piece, size_t n, int32_t *out,
                         size_t *n_out, dt_err *err);

#endif
