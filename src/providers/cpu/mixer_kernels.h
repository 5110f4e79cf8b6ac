/* The source of dt_mixer_kernels, included once per instruction set with MIXER_KERNELS naming the table. */
#include "providers/cpu/mixer.h"
#include "providers/cpu/vec.h"

#include <math.h>

/* ---- causal convolution ---- */

/* silu'(p) = s (1 + p (1 - s)), s = sigmoid(p) */
VEC_INLINE vf silu_derivative(vf p)
{
    vf s = vf_sigmoid(p), one = vf_set(1.0f);
    return s * vf_fma(p, one - s, one);
}

/* `width` is a constant after inlining for the width that models have. */
VEC_INLINE vf convolve(const dt_conv_row *row, int width, int64_t at, int64_t left)
{
    vf p = LOAD(row->bias);
    for (int j = 0; j < width; j++)
        p = vf_fma(LOAD(row->weight + j * row->ld_weight), LOAD(row->tap[j]), p);
    return p;
}

VEC_INLINE void conv_width(const dt_conv_row *row, int width, float *y)
{
    FOR_EACH_VECTOR(row->n)
    {
        vf p = convolve(row, width, at, left);
        STORE(y, row->silu ? p * vf_sigmoid(p) : p);
    }
}

static void conv(const dt_conv_row *row, float *y)
{
    if (row->width == 4)
        conv_width(row, 4, y);
    else
        conv_width(row, row->width, y);
}

static void conv_gradient(const dt_conv_row *row, float *dp, const float *dy)
{
    FOR_EACH_VECTOR(row->n)
    {
        vf upstream = LOAD(dy);
        STORE(dp, row->silu ? upstream * silu_derivative(convolve(row, row->width, at, left)) : upstream);
    }
}

VEC_INLINE void conv_backward_width(const dt_conv_row *row, int width, float *dx, float *dp_out, const float *dy,
                                    const float *const *later, float *dweight, int64_t ld_dweight, float *dbias)
{
    FOR_EACH_VECTOR(row->n)
    {
        vf dp = LOAD(dy);
        if (row->silu)
            dp *= silu_derivative(convolve(row, width, at, left));
        STORE(dp_out, dp);
        vf sum = LOAD(row->weight + (width - 1) * row->ld_weight) * dp;
        for (int i = 1; i < width; i++)
            sum = vf_fma(LOAD(row->weight + (width - 1 - i) * row->ld_weight), LOAD(later[i]), sum);
        STORE(dx, sum);
        for (int j = 0; j < width; j++)
            STORE(dweight + j * ld_dweight, vf_fma(dp, LOAD(row->tap[j]), LOAD(dweight + j * ld_dweight)));
        STORE(dbias, LOAD(dbias) + dp);
    }
}

static void conv_backward(const dt_conv_row *row, float *dx, float *dp, const float *dy, const float *const *later,
                          float *dweight, int64_t ld_dweight, float *dbias)
{
    if (row->width == 4)
        conv_backward_width(row, 4, dx, dp, dy, later, dweight, ld_dweight, dbias);
    else
        conv_backward_width(row, row->width, dx, dp, dy, later, dweight, ld_dweight, dbias);
}

/* ---- gates ---- */

/* log(1 + e^x) = max(x, 0) + log1p(u), u = e^-|x|. log1p(u) = 2 atanh(s), s = u / (2 + u) <= 1/3, by its series: the
 * relative error stays at rounding level also where u is tiny. */
VEC_INLINE vf softplus(vf x)
{
    vf zero = {0}, u = vf_exp(vf_select(x > zero, -x, x)), s = u / (vf_set(2.0f) + u), s2 = s * s;
    vf series = vf_set(1.0f / 15.0f);
    for (int k = 13; k >= 1; k -= 2)
        series = vf_fma(series, s2, vf_set(1.0f / (float)k));
    vf tail = vf_set(2.0f) * s * series, high = vf_select(x > zero, x, zero);
    return vf_select(x > vf_set(20.0f), x, high + tail);
}

static void gates(float *g, float *beta, const float *a, const float *b, const float *rate, const float *bias,
                  int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        STORE(g, -LOAD(rate) * softplus(LOAD(a) + LOAD(bias)));
        STORE(beta, vf_sigmoid(LOAD(b)));
    }
}

static void gates_backward(float *da, float *db, const float *a, const float *b, const float *rate, const float *bias,
                           const float *dg, const float *dbeta, float *dA_log, float *dbias, int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        vf x = LOAD(a) + LOAD(bias), scaled = -LOAD(rate) * LOAD(dg), beta = vf_sigmoid(LOAD(b)), one = vf_set(1.0f);
        vf gradient = scaled * vf_select(x > vf_set(20.0f), one, vf_sigmoid(x));
        STORE(dA_log, vf_fma(scaled, softplus(x), LOAD(dA_log)));
        STORE(dbias, LOAD(dbias) + gradient);
        STORE(da, gradient);
        STORE(db, LOAD(dbeta) * beta * (one - beta));
    }
}

/* ---- gated norm ---- */

static float inverse_rms(const float *x, float eps, int64_t n)
{
    vf sum = {0};
    FOR_EACH_VECTOR(n)
    {
        vf v = LOAD(x);
        sum = vf_fma(v, v, sum);
    }
    return 1.0f / sqrtf(vf_sum(sum) / (float)n + eps);
}

static void gated_norm(float *y, const float *x, const float *z, const float *w, float eps, int64_t n)
{
    vf r = vf_set(inverse_rms(x, eps, n));
    FOR_EACH_VECTOR(n)
    {
        vf gate = LOAD(z);
        STORE(y, LOAD(x) * r * LOAD(w) * (gate * vf_sigmoid(gate)));
    }
}

/* dn = dy silu(z);  dx = r (w dn - xh mean(xh w dn));  dz = dy xh w silu'(z);  dw += dn xh;  xh = x r.
 * The first pass leaves dn in dx (which may be dy) and is done with z and dy. */
static void gated_norm_backward(float *dx, float *dz, const float *x, const float *z, const float *dy, const float *w,
                                float *dw, float eps, int64_t n)
{
    vf r = vf_set(inverse_rms(x, eps, n)), sum = {0}, one = vf_set(1.0f);
    FOR_EACH_VECTOR(n)
    {
        vf gate = LOAD(z), s = vf_sigmoid(gate), upstream = LOAD(dy), normed = LOAD(x) * r, weight = LOAD(w);
        vf dn = upstream * (gate * s);
        STORE(dz, upstream * normed * weight * (s * vf_fma(gate, one - s, one)));
        if (dw)
            STORE(dw, vf_fma(dn, normed, LOAD(dw)));
        sum = vf_fma(normed * weight, dn, sum);
        STORE(dx, dn);
    }
    vf mean = vf_set(vf_sum(sum) / (float)n);
    FOR_EACH_VECTOR(n)
    STORE(dx, r * (LOAD(w) * LOAD(dx) - LOAD(x) * r * mean));
}

const dt_mixer_kernels MIXER_KERNELS = {
    .conv = conv,
    .conv_gradient = conv_gradient,
    .conv_backward = conv_backward,
    .gates = gates,
    .gates_backward = gates_backward,
    .gated_norm = gated_norm,
    .gated_norm_backward = gated_norm_backward,
};
