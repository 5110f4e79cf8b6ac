#include "providers/cpu/dropout.h"

/* Eight factors (0 or 1 / (1 - p)) of the mask block that holds element `first`. */
static void block_factors(const dt_dropout *d, uint64_t first, float factors[8])
{
    uint32_t mask = dt_dropout_mask8(d->key, first / 8, d->threshold);
    for (int i = 0; i < 8; i++)
        factors[i] = (mask >> i) & 1 ? d->factor : 0.0f;
}

void dtp_dropout_apply(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, float *out)
{
    uint64_t element = (uint64_t)(row * d->width + column);
    float factors[8];
    for (int64_t i = 0; i < n;) {
        block_factors(d, element + (uint64_t)i, factors);
        for (int lane = (int)((element + (uint64_t)i) % 8); lane < 8 && i < n; lane++, i++)
            out[i] = in[i] * factors[lane];
    }
}

void dtp_dropout_add(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, const float *base,
                     float *out)
{
    uint64_t element = (uint64_t)(row * d->width + column);
    float factors[8];
    for (int64_t i = 0; i < n;) {
        block_factors(d, element + (uint64_t)i, factors);
        for (int lane = (int)((element + (uint64_t)i) % 8); lane < 8 && i < n; lane++, i++)
            out[i] = (base ? base[i] : 0) + in[i] * factors[lane];
    }
}
