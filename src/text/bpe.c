#include "text/bpe.h"
#include <stdlib.h>
#include <string.h>

#define NO_MERGE DT_BPE_LIMIT
#define EMPTY    UINT64_MAX

/* Pieces up to this many bytes are merged in a flat array; scanning it is quadratic, but fastest while short. */
enum { SHORT_PIECE = 96 };

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)left << 21 | (uint64_t)right;
}

static inline size_t first_slot(const dt_bpe *bpe, uint64_t key)
{
    return key * 0x9E3779B97F4A7C15u >> bpe->shift;
}

static inline uint32_t pair_rank(const dt_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    size_t mask = SIZE_MAX >> bpe->shift;
    for (size_t i = first_slot(bpe, key);; i = (i + 1) & mask) {
        uint64_t slot = bpe->slots[i];
        if (slot >> 21 == key)
            return (uint32_t)slot & DT_BPE_LIMIT;
        if (slot == EMPTY)
            return NO_MERGE;
    }
}

dt_status dtp_bpe_init(dt_bpe *bpe, size_t n_merges, dt_err *err)
{
    unsigned bits = 4;
    while (((size_t)1 << bits) < 2 * n_merges + 1)
        bits++;
    bpe->shift = 64 - bits;
    bpe->n_merges = n_merges;
    bpe->slots = dtp_realloc_array(NULL, (size_t)1 << bits, sizeof *bpe->slots);
    bpe->merged = dtp_calloc(n_merges, sizeof *bpe->merged);
    bpe->byte_rank = dtp_calloc(65536, sizeof *bpe->byte_rank);
    if (!bpe->slots || !bpe->merged || !bpe->byte_rank)
        return dt_fail(err, DT_E_NOMEM, "out of memory for %zu merges", n_merges);
    memset(bpe->slots, 0xFF, ((size_t)1 << bits) * sizeof *bpe->slots);
    return DT_OK;
}

void dtp_bpe_add(dt_bpe *bpe, uint32_t rank, int32_t left, int32_t right, int32_t merged)
{
    uint64_t key = pair_key(left, right);
    size_t mask = SIZE_MAX >> bpe->shift, i = first_slot(bpe, key);
    while (bpe->slots[i] != EMPTY && bpe->slots[i] >> 21 != key)
        i = (i + 1) & mask;
    bpe->slots[i] = key << 21 | rank;
    bpe->merged[rank] = merged;
}

void dtp_bpe_finish(dt_bpe *bpe)
{
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            bpe->byte_rank[a << 8 | b] = pair_rank(bpe, bpe->byte_id[a], bpe->byte_id[b]);
}

void dtp_bpe_free(dt_bpe *bpe)
{
    free(bpe->slots);
    free(bpe->merged);
    free(bpe->byte_rank);
    *bpe = (dt_bpe){0};
}

void dtp_bpe_scratch_free(dt_bpe_scratch *scratch)
{
    free(scratch->links);
    free(scratch->heap);
    *scratch = (dt_bpe_scratch){0};
}

static size_t encode_short(const dt_bpe *bpe, const unsigned char *piece, size_t n, int32_t *out)
{
    uint32_t rank[SHORT_PIECE]; /* rank[i]: of the pair (out[i], out[i + 1]) */
    for (size_t i = 0; i < n; i++)
        out[i] = bpe->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = bpe->byte_rank[piece[i] << 8 | piece[i + 1]];
    for (;;) {
        size_t at = 0;
        uint32_t lowest = NO_MERGE;
        for (size_t i = 0; i + 1 < n; i++) {
            at = rank[i] < lowest ? i : at;
            lowest = rank[i] < lowest ? rank[i] : lowest;
        }
        if (lowest == NO_MERGE)
            return n;
        out[at] = bpe->merged[lowest];
        n--;
        memmove(out + at + 1, out + at + 2, (n - at - 1) * sizeof *out);
        if (at + 1 < n) {
            memmove(rank + at + 1, rank + at + 2, (n - at - 2) * sizeof *rank);
            rank[at] = pair_rank(bpe, out[at], out[at + 1]);
        }
        if (at > 0)
            rank[at - 1] = pair_rank(bpe, out[at - 1], out[at]);
    }
}

/* A binary heap of rank << 32 | position: the lowest rank first, leftmost on ties. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t value = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= value)
            break;
        heap[i] = heap[child];
    }
    heap[i] = value;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > value; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = value;
}

/* Symbols in a linked list; a heap entry is stale when its rank is no longer that of its position. */
static size_t encode_long(const dt_bpe *bpe, dt_bpe_scratch *scratch, const unsigned char *piece, size_t n,
                          int32_t *out)
{
    uint32_t *previous = scratch->links, *next = previous + n, *rank = next + n;
    uint64_t *heap = scratch->heap;
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = bpe->byte_id[piece[i]];
        previous[i] = (uint32_t)i - 1;
        next[i] = (uint32_t)i + 1;
        rank[i] = i + 1 < n ? bpe->byte_rank[piece[i] << 8 | piece[i + 1]] : NO_MERGE;
        if (rank[i] != NO_MERGE)
            heap[n_heap++] = (uint64_t)rank[i] << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(heap, n_heap, i);

    while (n_heap) {
        uint32_t lowest = (uint32_t)(heap[0] >> 32), at = (uint32_t)heap[0];
        heap[0] = heap[--n_heap];
        sift_down(heap, n_heap, 0);
        if (rank[at] != lowest)
            continue;
        uint32_t eaten = next[at], after = next[eaten];
        out[at] = bpe->merged[lowest];
        rank[eaten] = NO_MERGE;
        next[at] = after;
        rank[at] = NO_MERGE;
        if (after < n) {
            previous[after] = at;
            rank[at] = pair_rank(bpe, out[at], out[after]);
            if (rank[at] != NO_MERGE)
                heap_push(heap, &n_heap, (uint64_t)rank[at] << 32 | at);
        }
        if (at > 0) {
            uint32_t before = previous[at];
            rank[before] = pair_rank(bpe, out[before], out[at]);
            if (rank[before] != NO_MERGE)
                heap_push(heap, &n_heap, (uint64_t)rank[before] << 32 | before);
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < n; i = next[i])
        out[count++] = out[i];
    return count;
}

dt_status dtp_bpe_encode(const dt_bpe *bpe, dt_bpe_scratch *scratch, const unsigned char *piece, size_t n, int32_t *out,
                         size_t *n_out, dt_err *err)
{
    if (n <= SHORT_PIECE) {
        *n_out = encode_short(bpe, piece, n, out);
        return DT_OK;
    }
    /* Each of at most n - 1 merges pushes two entries after popping one. */
    if (!dtp_grow((void **)&scratch->links, &scratch->links_capacity, 3 * n, sizeof *scratch->links) ||
        !dtp_grow((void **)&scratch->heap, &scratch->heap_capacity, 2 * n, sizeof *scratch->heap))
        return dt_fail(err, DT_E_NOMEM, "out of memory for a piece of %zu bytes", n);
    *n_out = encode_long(bpe, scratch, piece, n, out);
    return DT_OK;
}
