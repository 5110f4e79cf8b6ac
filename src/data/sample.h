/* One encoded sample: its compact form in a store, and how long samples are cut.
 * Compact: the ids; then one bit a token (its label is its id) or, when a label differs from its id, the labels; then,
 * when some weight is not 1, the weights as floats. */
#ifndef DT_DATA_SAMPLE_H
#define DT_DATA_SAMPLE_H

#include "core/memory.h"
#include "text/template.h"

typedef enum dt_truncation {
    DT_TRUNCATE_DELETE, /* a sample longer than max_length is dropped and counted */
    DT_TRUNCATE_LEFT,   /* keeps the last max_length tokens */
    DT_TRUNCATE_RIGHT,  /* keeps the first max_length tokens */
    DT_TRUNCATE_SPLIT   /* pieces of max_length tokens, each a sample */
} dt_truncation;

enum { DT_SAMPLE_OWN_LABELS = 1, DT_SAMPLE_WEIGHTS = 2, DT_SAMPLE_MAX = (1 << 30) - 1 /* tokens */ };

/* Describes a sample; the words follow elsewhere. */
typedef struct dt_sample {
    uint32_t length;
    uint32_t targets : 30, flags : 2;
} dt_sample;

/* Appends the words of ids[0..n) to `words` (whole uint32) and describes them. labels[0] becomes DT_LABEL_IGNORE.
 * `weights` may be NULL. False when out of memory. */
bool dtp_sample_pack(dt_buf *words, const int32_t *ids, const int32_t *labels, const float *weights, size_t n,
                     dt_sample *sample_out);
size_t dtp_sample_words(const dt_sample *sample);
/* Expands the words of a sample; `weights` may be NULL. */
void dtp_sample_unpack(const dt_sample *sample, const uint32_t *words, int32_t *ids, int32_t *labels, float *weights);

/* Which parts of a sample of n tokens are kept: piece `i` is tokens *first .. *first + *length - 1; false when there is
 * no piece i. DELETE keeps nothing of a sample that is too long. */
bool dtp_sample_piece(dt_truncation truncation, size_t n, size_t max_length, size_t i, size_t *first, size_t *length);

#endif
