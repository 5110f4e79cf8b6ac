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

/* In the functions below width and rows are constants after inlining for the shape that matters: 4 taps, 4 rows. */
#define CONV_CALL(function, c, ...)                                                                                    \
    do {                                                                                                               \
        if ((c)->width == 4 && (c)->rows == 4)                                                                         \
            function(c, 4, 4, __VA_ARGS__);                                                                            \
        else                                                                                                           \
            function(c, (c)->width, (c)->rows, __VA_ARGS__);                                                           \
    } while (0)

typedef struct {
    vf in[CONV_MAX_ROWS + CONV_MAX_WIDTH - 1], weight[CONV_MAX_WIDTH], p[CONV_MAX_ROWS];
} conv_window;

VEC_INLINE void convolve(const dt_conv_rows *c, int width, int rows, conv_window *w, int64_t at, int64_t left)
{
    for (int i = 0; i < rows + width - 1; i++)
        w->in[i] = LOAD(c->in[i]);
    for (int j = 0; j < width; j++)
        w->weight[j] = LOAD(c->weight + j * c->ld_weight);
    vf bias = LOAD(c->bias);
    for (int r = 0; r < rows; r++) {
        w->p[r] = bias;
        for (int j = 0; j < width; j++)
            w->p[r] = vf_fma(w->weight[j], w->in[r + j], w->p[r]);
    }
}

VEC_INLINE void conv_rows(const dt_conv_rows *c, int width, int rows, float *y, int64_t ldy)
{
    FOR_EACH_VECTOR(c->n)
    {
        conv_window w;
        convolve(c, width, rows, &w, at, left);
        for (int r = 0; r < rows; r++)
            STORE(y + r * ldy, c->silu ? w.p[r] * vf_sigmoid(w.p[r]) : w.p[r]);
    }
}

static void conv(const dt_conv_rows *c, float *y, int64_t ldy)
{
    CONV_CALL(conv_rows, c, y, ldy);
}

static void conv_gradient(const dt_conv_rows *c, float *dp, int64_t ld_dp, const float *dy, int64_t ld_dy)
{
    FOR_EACH_VECTOR(c->n)
    {
        conv_window w;
        convolve(c, c->width, c->rows, &w, at, left);
        for (int r = 0; r < c->rows; r++) {
            vf upstream = LOAD(dy + r * ld_dy);
            STORE(dp + r * ld_dp, c->silu ? upstream * silu_derivative(w.p[r]) : upstream);
        }
    }
}

VEC_INLINE void conv_backward_rows(const dt_conv_rows *c, int width, int rows, float *dx, int64_t ld_dx,
                                   const float *dy, int64_t ld_dy, float *later, int64_t ld_later, float *dweight,
                                   int64_t ld_dweight, float *dbias)
{
    FOR_EACH_VECTOR(c->n)
    {
        conv_window w;
        vf dp[CONV_MAX_ROWS + CONV_MAX_WIDTH - 1], total = LOAD(dbias);
        convolve(c, width, rows, &w, at, left);
        for (int r = 0; r < rows; r++) {
            dp[r] = LOAD(dy + r * ld_dy);
            if (c->silu)
                dp[r] *= silu_derivative(w.p[r]);
            total += dp[r];
        }
        for (int i = 0; i < width - 1; i++)
            dp[rows + i] = LOAD(later + i * ld_later);
        for (int r = 0; r < rows; r++) {
            vf sum = w.weight[width - 1] * dp[r];
            for (int i = 1; i < width; i++)
                sum = vf_fma(w.weight[width - 1 - i], dp[r + i], sum);
            STORE(dx + r * ld_dx, sum);
        }
        for (int i = 0; i < width - 1; i++)
            STORE(later + i * ld_later, dp[i]);
        for (int j = 0; j < width; j++) {
            vf sum = LOAD(dweight + j * ld_dweight);
            for (int r = 0; r < rows; r++)
                sum = vf_fma(dp[r], w.in[r + j], sum);
            STORE(dweight + j * ld_dweight, sum);
        }
        STORE(dbias, total);
    }
}

static void conv_backward(const dt_conv_rows *c, float *dx, int64_t ld_dx, const float *dy, int64_t ld_dy, float *later,
                          int64_t ld_later, float *dweight, int64_t ld_dweight, float *dbias)
{
    CONV_CALL(conv_backward_rows, c, dx, ld_dx, dy, ld_dy, later, ld_later, dweight, ld_dweight, dbias);
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
