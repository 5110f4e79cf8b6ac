/* The candidates are a max-heap: building it is linear, and only as many are taken out as top-k and top-p keep, so that
 * a vocabulary of 248,320 need not be sorted. */
#include "model/sampler.h"
#include "core/memory.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct dt_sampler {
    dt_sampling sampling;
    int64_t usable;
    unsigned char *seen; /* [usable] */
    candidate *heap;     /* [usable]; taken candidates lie behind the heap's end, best last */
    uint32_t draws;
};

static dt_status check(int64_t vocab, int64_t usable, const dt_sampling *s, dt_err *err)
{
    if (usable < 1 || usable > vocab || vocab > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "sampler: %lld usable of %lld tokens", (long long)usable, (long long)vocab);
    if (!(s->temperature >= 0.0) || !isfinite(s->temperature))
        return dt_fail(err, DT_E_ARG, "temperature is %g, must be 0 (greedy) or positive", s->temperature);
    if (s->top_k < 0)
        return dt_fail(err, DT_E_ARG, "top_k is %lld, must be 0 (all) or positive", (long long)s->top_k);
    if (!(s->top_p > 0.0 && s->top_p <= 1.0))
        return dt_fail(err, DT_E_ARG, "top_p is %g, must be above 0 and at most 1", s->top_p);
    if (!(s->repetition_penalty > 0.0) || !isfinite(s->repetition_penalty))
        return dt_fail(err, DT_E_ARG, "repetition_penalty is %g, must be positive", s->repetition_penalty);
    return DT_OK;
}

dt_status dtp_sampler_create(dt_sampler **out, int64_t vocab, int64_t usable, const dt_sampling *sampling, dt_err *err)
{
    dt_status status = check(vocab, usable, sampling, err);
    if (status != DT_OK)
        return status;
    dt_sampler *sampler = dtp_calloc(1, sizeof *sampler);
    if (!sampler)
        return dt_fail(err, DT_E_NOMEM, "sampler: out of memory");
    sampler->sampling = *sampling;
    sampler->usable = usable;
    sampler->seen = dtp_calloc((size_t)usable, sizeof *sampler->seen);
    sampler->heap = dtp_calloc((size_t)usable, sizeof *sampler->heap);
    if (!sampler->seen || !sampler->heap) {
        dtp_sampler_free(sampler);
        return dt_fail(err, DT_E_NOMEM, "sampler: out of memory for %lld tokens", (long long)usable);
    }
    *out = sampler;
    return DT_OK;
}

void dtp_sampler_free(dt_sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->seen);
    free(sampler->heap);
    free(sampler);
}

void dtp_sampler_observe(dt_sampler *sampler, const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] >= 0 && tokens[i] < sampler->usable)
            sampler->seen[tokens[i]] = 1;
}

void dtp_sampler_reset(dt_sampler *sampler)
{
    memset(sampler->seen, 0, (size_t)sampler->usable);
    sampler->draws = 0;
}

/* ---- the heap ---- */

static bool better(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *heap, int64_t n, int64_t at)
{
    candidate moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && better(heap[child + 1], heap[child]))
            child++;
        if (!better(heap[child], moved))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void build_heap(candidate *heap, int64_t n)
{
    for (int64_t at = n / 2; at-- > 0;)
        sift_down(heap, n, at);
}

/* Moves the best of heap[0..n) to heap[n-1]. */
static candidate take_best(candidate *heap, int64_t n)
{
    candidate best = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = best;
    sift_down(heap, n - 1, 0);
    return best;
}

/* ---- choosing ---- */

static void penalise_seen(const dt_sampler *sampler, float *logits)
{
    float penalty = (float)sampler->sampling.repetition_penalty;
    if (penalty == 1.0f)
        return;
    for (int64_t id = 0; id < sampler->usable; id++)
        if (sampler->seen[id])
            logits[id] = logits[id] < 0.0f ? logits[id] * penalty : logits[id] / penalty;
}

/* Lowest id of the largest logit; -1 when nothing is comparable (all NaN). */
static int64_t largest(const float *logits, int64_t n)
{
    int64_t best = -1;
    for (int64_t id = 0; id < n; id++)
        if (best < 0 ? !isnan(logits[id]) : logits[id] > logits[best])
            best = id;
    return best;
}

/* Uniform in [0, 1) from 53 random bits. */
static double draw(dt_sampler *sampler)
{
    dt_philox_block block = dt_philox(sampler->sampling.seed, sampler->draws++, 0, 0, 0x73616d70u); /* "samp" */
    return (double)((uint64_t)block.word[0] << 21 ^ block.word[1] >> 11) * 0x1p-53;
}

/* exp((logit - best) / temperature): the weight of a candidate, 1 for the best. */
static double weight_of(const dt_sampler *sampler, float logit, float best)
{
    return exp(((double)logit - (double)best) / sampler->sampling.temperature);
}

static int32_t sample(dt_sampler *sampler, const float *logits, float best)
{
    const dt_sampling *s = &sampler->sampling;
    candidate *heap = sampler->heap;
    int64_t n = sampler->usable, left = n;
    int64_t keep = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (int64_t id = 0; id < n; id++)
        heap[id] = (candidate){logits[id], (int32_t)id};
    build_heap(heap, n);

    /* top-p counts probabilities among what top-k kept */
    double total = 0.0;
    if (keep < n) {
        for (int64_t i = 0; i < keep; i++, left--)
            total += weight_of(sampler, take_best(heap, left).logit, best);
    } else {
        for (int64_t i = 0; i < n; i++)
            total += weight_of(sampler, heap[i].logit, best);
    }

    /* Walk from the best down to the end of the nucleus, then draw inside it. */
    double enough = s->top_p * total, mass = 0.0;
    int64_t kept = 0;
    while (kept < keep && (kept == 0 || mass < enough)) {
        if (left > n - kept - 1)
            take_best(heap, left--);
        mass += weight_of(sampler, heap[n - 1 - kept].logit, best);
        kept++;
    }
    double point = draw(sampler) * mass;
    for (int64_t i = 0; i < kept - 1; i++) {
        point -= weight_of(sampler, heap[n - 1 - i].logit, best);
        if (point < 0.0)
            return heap[n - 1 - i].id;
    }
    return heap[n - kept].id;
}

dt_status dtp_sampler_next(dt_sampler *sampler, float *logits, int32_t *token_out, dt_err *err)
{
    for (int64_t id = 0; id < sampler->usable; id++)
        if (isnan(logits[id]))
            return dt_fail(err, DT_E_NONFINITE, "the logit of token %lld is not a number", (long long)id);
    penalise_seen(sampler, logits);
    int64_t best = largest(logits, sampler->usable);
    if (best < 0 || isinf(logits[best]))
        return dt_fail(err, DT_E_NONFINITE, "the largest logit is not finite");
    int32_t token = sampler->sampling.temperature == 0.0 ? (int32_t)best : sample(sampler, logits, logits[best]);
    sampler->seen[token] = 1;
    *token_out = token;
    return DT_OK;
}
