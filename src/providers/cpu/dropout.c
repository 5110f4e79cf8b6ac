#include "providers/cpu/dropout.h"

#include "providers/cpu/rows.h"

void dtp_dropout_apply(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, float *out)
{
    dtp_row_kernels()->dropout(out, NULL, in, d, (uint64_t)(row * d->width + column), n);
}

void dtp_dropout_add(const dt_dropout *d, int64_t row, int64_t column, int64_t n, const float *in, const float *base,
                     float *out)
{
    dtp_row_kernels()->dropout(out, base, in, d, (uint64_t)(row * d->width + column), n);
}
