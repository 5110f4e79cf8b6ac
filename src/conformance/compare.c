#include "conformance/compare.h"

#include <math.h>

/* Running sums over one slice. */
typedef struct dt_sums {
    double error, reference, largest; /* sums of squares; largest absolute error */
    int64_t count;
} dt_sums;

static void add_row(dt_sums *s, const float *x, const float *ref, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        double d = (double)x[i] - ref[i];
        s->error += d * d;
        s->reference += (double)ref[i] * ref[i];
        s->largest = fmax(s->largest, fabs(d)); /* fmax drops NaN: the sum of squares keeps it */
    }
    s->count += width;
}

static bool tiny(const dt_sums *s)
{
    return s->largest <= 1e-6 && !isnan(s->error);
}

static double rms(double sum, int64_t count)
{
    return count ? sqrt(sum / (double)count) : 0;
}

/* Judges one slice; keeps it in `out` when it is the worst so far. */
static void judge(dt_comparison *out, const dt_sums *s, double tensor_rms, int64_t n, int64_t head,
                  const dt_comparison_rule *rule)
{
    if (s->count == 0 || tiny(s))
        return;
    double scale = fmax(rms(s->reference, s->count), rule->slice_floor * tensor_rms);
    double ratio = rms(s->error, s->count) / (scale + 1e-8);
    if (ratio <= out->worst_ratio || isnan(out->worst_ratio))
        return;
    out->worst_ratio = ratio;
    out->worst_n = n;
    out->worst_head = head;
    if (!(ratio < rule->slice_tolerance))
        out->passed = false;
}

dt_comparison dtp_compare(const float *x, const float *ref, int64_t rows, int64_t heads, int64_t width,
                          const int32_t *cu_seqlens, int64_t n_seq, const dt_comparison_rule *rule)
{
    dt_sums all = {0}; /* what is set apart may be a thousand times larger, and would hide the rest */
    for (int64_t v = 0; v < rows * heads; v++)
        if (!rule->apart || !rule->apart[v])
            add_row(&all, x + v * width, ref + v * width, width);
    double tensor_rms = rms(all.reference, all.count);
    dt_comparison out = {.ratio = rms(all.error, all.count) / (tensor_rms + 1e-8), .worst_n = -1, .worst_head = -1};
    out.negligible = tiny(&all);
    out.passed = out.ratio <= rule->tolerance || out.negligible;
    if (rule->slicing == DT_SLICE_NONE)
        return out;
    bool by_sequence = rule->slicing == DT_SLICE_SEQUENCE || rule->slicing == DT_SLICE_SEQUENCE_HEAD;
    bool by_head = rule->slicing == DT_SLICE_SEQUENCE_HEAD || rule->slicing == DT_SLICE_STATE_HEAD;
    int64_t slices = by_sequence ? n_seq : rows, head_slices = by_head ? heads : 1,
            slice_width = by_head ? width : heads * width;
    dt_sums apart = {0};
    for (int64_t n = 0; n < slices; n++)
        for (int64_t h = 0; h < head_slices; h++) {
            dt_sums slice = {0};
            int64_t begin = by_sequence ? cu_seqlens[n] : n, end = by_sequence ? cu_seqlens[n + 1] : n + 1;
            for (int64_t r = begin; r < end; r++) {
                bool is_apart = rule->apart && by_head && rule->apart[r * heads + h];
                int64_t at = (r * heads + (by_head ? h : 0)) * width;
                add_row(is_apart ? &apart : &slice, x + at, ref + at, slice_width);
            }
            judge(&out, &slice, tensor_rms, n, by_head ? h : -1, rule);
        }
    judge(&out, &apart, rms(apart.reference, apart.count), -1, -1, rule);
    return out;
}
