#include "data/packing.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1000 }; /* new samples per planning window, as the incumbent's PACKING_BATCH_SIZE */

const char *dtp_packing_strategy_name(dt_packing_strategy strategy)
{
    static const char *const names[] = {"fullest", "emptiest", "sequential"};
    return names[strategy];
}

void dtp_packs_free(dt_packs *packs)
{
    free(packs->member);
    free(packs->start);
    *packs = (dt_packs){0};
}

/* ---- Emitting packs ---- */

typedef struct emitter {
    dt_packs *packs;
    const uint32_t *lengths;
    size_t emitted, start_capacity;
} emitter;

static void emit_sample(emitter *out, uint32_t sample)
{
    out->packs->member[out->emitted++] = sample;
}

/* Closes the pack of all samples emitted since the last one. */
static bool close_pack(emitter *out)
{
    dt_packs *packs = out->packs;
    if (!dtp_grow((void **)&packs->start, &out->start_capacity, packs->n_packs + 2, sizeof *packs->start))
        return false;
    packs->start[++packs->n_packs] = out->emitted;
    return true;
}

/* ---- Sequential: next fit in input order ---- */

static bool pack_in_order(emitter *out, size_t first, size_t end, uint32_t room)
{
    uint32_t sum = 0;
    for (size_t i = first; i < end; i++) {
        if (sum > 0 && out->lengths[i] > room - sum) {
            if (!close_pack(out))
                return false;
            sum = 0;
        }
        emit_sample(out, (uint32_t)i);
        sum += out->lengths[i];
        if (sum == room) {
            if (!close_pack(out))
                return false;
            sum = 0;
        }
    }
    return sum == 0 || close_pack(out);
}

/* ---- Bin packing in windows ---- */

/* The bins of one window as an ordered list of keys (sum of lengths, tie) so that the bin to take is found by
 * bisection. Fullest: the tie is the complement of the bin number, so that the last key not above a sum is the first
 * bin among equals. Emptiest: the tie is the bin number, so that the first key is the first bin among equals. Growing a
 * bin moves the keys between its old and new place: at most a window's worth of bins, a few KB. */
typedef struct bins {
    uint64_t *key;
    size_t count;
    bool fullest;
} bins;

static uint64_t bin_key(const bins *b, uint32_t sum, uint32_t bin)
{
    return (uint64_t)sum << 32 | (b->fullest ? ~bin : bin);
}

static uint32_t key_sum(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

static uint32_t key_bin(const bins *b, uint64_t key)
{
    return b->fullest ? ~(uint32_t)key : (uint32_t)key;
}

/* Number of keys in first..count-1 that are not above `key`, plus first. */
static size_t upper_bound(const bins *b, size_t first, uint64_t key)
{
    size_t low = first, high = b->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (b->key[middle] <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts a sample into a bin, a new one when none has room; returns the bin. */
static uint32_t place(bins *b, uint32_t length, uint32_t room)
{
    size_t at;
    bool found;
    if (b->fullest) {
        at = upper_bound(b, 0, (uint64_t)(room - length) << 32 | UINT32_MAX);
        found = at-- > 0;
    } else {
        at = 0;
        found = b->count > 0 && key_sum(b->key[0]) <= room - length;
    }
    if (!found) {
        uint32_t bin = (uint32_t)b->count;
        uint64_t key = bin_key(b, length, bin);
        at = upper_bound(b, 0, key);
        memmove(b->key + at + 1, b->key + at, (b->count - at) * sizeof *b->key);
        b->key[at] = key;
        b->count++;
        return bin;
    }
    uint32_t bin = key_bin(b, b->key[at]);
    uint64_t key = bin_key(b, key_sum(b->key[at]) + length, bin);
    size_t to = upper_bound(b, at + 1, key);
    memmove(b->key + at, b->key + at + 1, (to - at - 1) * sizeof *b->key);
    b->key[to - 1] = key;
    return bin;
}

/* Scratch of one window: the items (carried ones and 1000 new ones) in the order in which they are placed. */
typedef struct window {
    uint32_t *item, *bin; /* [capacity] */
    size_t *fill;         /* [capacity + 1] */
    uint32_t *carry;      /* [capacity] */
    size_t capacity, n_items, n_carry;
    bins bins;
} window;

static void window_free(window *w)
{
    free(w->item);
    free(w->bin);
    free(w->fill);
    free(w->carry);
    free(w->bins.key);
}

static bool window_reserve(window *w, size_t n)
{
    if (n <= w->capacity)
        return true;
    size_t grown = n + n / 2;
    const struct {
        void **array;
        size_t count, size;
    } arrays[] = {
        {(void **)&w->item, grown, sizeof *w->item},         {(void **)&w->bin, grown, sizeof *w->bin},
        {(void **)&w->fill, grown + 1, sizeof *w->fill},     {(void **)&w->carry, grown, sizeof *w->carry},
        {(void **)&w->bins.key, grown, sizeof *w->bins.key},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *moved = dtp_realloc_array(*arrays[i].array, arrays[i].count, arrays[i].size);
        if (!moved)
            return false;
        *arrays[i].array = moved;
    }
    w->capacity = grown;
    return true;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Items longest first, ties in input order, where carried items come before new ones. The carry is in that order
 * already (a bin holds its samples in order of placement), so that only the new ones need sorting. */
static void order_items(window *w, const uint32_t *lengths, size_t first, size_t end)
{
    uint64_t fresh[WINDOW];
    size_t n_fresh = end - first, taken = 0;
    for (size_t i = 0; i < n_fresh; i++)
        fresh[i] = (uint64_t)~lengths[first + i] << 32 | i;
    qsort(fresh, n_fresh, sizeof *fresh, ascending);
    w->n_items = 0;
    for (size_t i = 0; i < n_fresh; i++) {
        uint32_t sample = (uint32_t)(first + (uint32_t)fresh[i]);
        while (taken < w->n_carry && lengths[w->carry[taken]] >= lengths[sample])
            w->item[w->n_items++] = w->carry[taken++];
        w->item[w->n_items++] = sample;
    }
    while (taken < w->n_carry)
        w->item[w->n_items++] = w->carry[taken++];
}

/* Emits bins in order of creation, each in order of placement; the last bin is carried instead unless `last`. */
static bool emit_bins(emitter *out, window *w, bool last)
{
    size_t n_bins = w->bins.count, n_emit = last ? n_bins : n_bins - 1, total = 0;
    memset(w->fill, 0, (n_bins + 1) * sizeof *w->fill);
    for (size_t i = 0; i < w->n_items; i++)
        w->fill[w->bin[i] + 1]++;
    for (size_t b = 0; b < n_bins; b++)
        w->fill[b + 1] += w->fill[b];
    total = w->fill[n_emit];
    size_t base = out->emitted;
    w->n_carry = 0;
    for (size_t i = 0; i < w->n_items; i++) {
        if (w->bin[i] < n_emit)
            out->packs->member[base + w->fill[w->bin[i]]++] = w->item[i];
        else
            w->carry[w->n_carry++] = w->item[i];
    }
    for (size_t b = 0; b < n_emit; b++) {
        out->emitted = base + w->fill[b]; /* fill[b] has become the end of bin b */
        if (!close_pack(out))
            return false;
    }
    out->emitted = base + total;
    return true;
}

static bool pack_in_windows(emitter *out, window *w, size_t first, size_t end, uint32_t room)
{
    w->n_carry = 0;
    while (first < end) {
        size_t next = end - first > WINDOW ? first + WINDOW : end;
        if (!window_reserve(w, w->n_carry + (next - first)))
            return false;
        order_items(w, out->lengths, first, next);
        w->bins.count = 0;
        for (size_t i = 0; i < w->n_items; i++)
            w->bin[i] = place(&w->bins, out->lengths[w->item[i]], room);
        if (!emit_bins(out, w, next == end))
            return false;
        first = next;
    }
    return true;
}

/* ---- The plan ---- */

static void measure(dt_packs *packs, const uint32_t *lengths, uint32_t room)
{
    uint64_t total = 0;
    for (size_t p = 0; p < packs->n_packs; p++) {
        uint32_t sum = 0, count = (uint32_t)(packs->start[p + 1] - packs->start[p]);
        for (size_t i = packs->start[p]; i < packs->start[p + 1]; i++)
            sum += lengths[packs->member[i]];
        packs->max_tokens = sum > packs->max_tokens ? sum : packs->max_tokens;
        packs->max_samples = count > packs->max_samples ? count : packs->max_samples;
        total += sum;
    }
    packs->fill = (double)total / ((double)packs->n_packs * room);
}

/* Where part `part` of `parts` begins: int(numpy.linspace(0, n, parts + 1)[part]). */
static size_t part_begin(size_t n, size_t parts, size_t part)
{
    return part == parts ? n : (size_t)((double)part * ((double)n / (double)parts));
}

static dt_status check(const uint32_t *lengths, size_t n, const dt_packing_options *options, dt_err *err)
{
    if (n == 0)
        return dt_fail(err, DT_E_ARG, "packing: there are no samples to pack");
    if (n >= UINT32_MAX)
        return dt_fail(err, DT_E_ARG, "packing: %zu samples are too many, at most %u", n, UINT32_MAX - 1);
    for (size_t i = 0; i < n; i++)
        if (lengths[i] == 0 || lengths[i] > options->length)
            return dt_fail(err, DT_E_ARG, "packing: sample %zu has %u tokens, a pack takes 1 to %u", i, lengths[i],
                           options->length);
    return DT_OK;
}

dt_status dtp_packing_plan(dt_packs *packs_out, const uint32_t *lengths, size_t n, const dt_packing_options *options,
                           dt_err *err)
{
    dt_status status = check(lengths, n, options, err);
    if (status != DT_OK)
        return status;
    dt_packs packs = {.n_samples = n, .member = dtp_calloc(n, sizeof *packs.member)};
    emitter out = {.packs = &packs, .lengths = lengths};
    window w = {.bins.fullest = options->strategy == DT_PACK_FULLEST};
    bool good = packs.member && dtp_grow((void **)&packs.start, &out.start_capacity, 1, sizeof *packs.start);
    if (good)
        packs.start[0] = 0;
    size_t most = (n + WINDOW - 1) / WINDOW, parts = options->parts > 1 ? (size_t)options->parts : 1;
    parts = parts < most ? parts : most;
    for (size_t part = 0; good && part < parts; part++) {
        size_t first = part_begin(n, parts, part), end = part_begin(n, parts, part + 1);
        good = options->strategy == DT_PACK_SEQUENTIAL ? pack_in_order(&out, first, end, options->length)
                                                       : pack_in_windows(&out, &w, first, end, options->length);
    }
    window_free(&w);
    if (!good) {
        dtp_packs_free(&packs);
        return dt_fail(err, DT_E_NOMEM, "packing: out of memory for %zu samples", n);
    }
    measure(&packs, lengths, options->length);
    *packs_out = packs;
    return DT_OK;
}
