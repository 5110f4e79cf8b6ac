#include "data/sample.h"

#include <string.h>

static size_t mask_words(size_t n)
{
    return (n + 31) / 32;
}

bool dtp_sample_pack(dt_buf *words, const int32_t *ids, const int32_t *labels, const float *weights, size_t n,
                     dt_sample *sample_out)
{
    dt_sample sample = {.length = (uint32_t)n};
    bool weighted = false;
    for (size_t i = 1; i < n; i++) {
        bool target = labels[i] != DT_LABEL_IGNORE;
        sample.targets += target;
        sample.flags |= target && labels[i] != ids[i] ? DT_SAMPLE_OWN_LABELS : 0;
        weighted |= weights && target && weights[i] != 1;
    }
    sample.flags |= weighted ? DT_SAMPLE_WEIGHTS : 0;
    dtp_buf_append(words, ids, n * sizeof *ids);
    if (sample.flags & DT_SAMPLE_OWN_LABELS) {
        const int32_t ignore = DT_LABEL_IGNORE;
        dtp_buf_append(words, &ignore, sizeof ignore);
        dtp_buf_append(words, labels + 1, (n - 1) * sizeof *labels);
    } else {
        for (size_t first = 0; first < n; first += 32) {
            uint32_t bits = 0;
            for (size_t i = first > 0 ? first : 1; i < n && i < first + 32; i++)
                bits |= (uint32_t)(labels[i] != DT_LABEL_IGNORE) << (i - first);
            dtp_buf_append(words, &bits, sizeof bits);
        }
    }
    if (weighted)
        dtp_buf_append(words, weights, n * sizeof *weights);
    *sample_out = sample;
    return !words->failed;
}

size_t dtp_sample_words(const dt_sample *sample)
{
    size_t n = sample->length;
    return n + (sample->flags & DT_SAMPLE_OWN_LABELS ? n : mask_words(n)) + (sample->flags & DT_SAMPLE_WEIGHTS ? n : 0);
}

void dtp_sample_unpack(const dt_sample *sample, const uint32_t *words, int32_t *ids, int32_t *labels, float *weights)
{
    size_t n = sample->length;
    memcpy(ids, words, n * sizeof *ids);
    words += n;
    if (sample->flags & DT_SAMPLE_OWN_LABELS) {
        memcpy(labels, words, n * sizeof *labels);
        words += n;
    } else {
        for (size_t i = 0; i < n; i++)
            labels[i] = words[i / 32] >> (i % 32) & 1 ? ids[i] : DT_LABEL_IGNORE;
        words += mask_words(n);
    }
    if (weights && sample->flags & DT_SAMPLE_WEIGHTS)
        memcpy(weights, words, n * sizeof *weights);
    else if (weights)
        for (size_t i = 0; i < n; i++)
            weights[i] = 1;
}

bool dtp_sample_piece(dt_truncation truncation, size_t n, size_t max_length, size_t i, size_t *first, size_t *length)
{
    *first = 0;
    *length = n < max_length ? n : max_length;
    if (n <= max_length)
        return i == 0;
    switch (truncation) {
    case DT_TRUNCATE_DELETE: return false;
    case DT_TRUNCATE_LEFT: *first = n - max_length; return i == 0;
    case DT_TRUNCATE_RIGHT: return i == 0;
    case DT_TRUNCATE_SPLIT: break;
    }
    if (i > (n - 1) / max_length)
        return false;
    *first = i * max_length;
    *length = n - *first < max_length ? n - *first : max_length;
    return true;
}
