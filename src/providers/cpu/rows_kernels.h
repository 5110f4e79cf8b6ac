/* The source of dt_row_kernels, included once per instruction set with ROW_KERNELS naming the table. */
#include "providers/cpu/dropout_kernels.h"
#include "providers/cpu/rows.h"
#include "providers/cpu/vec.h"

#include <math.h>

static void from_bf16(float *out, const uint16_t *in, int64_t n)
{
    int64_t i = 0;
    for (; i + VF <= n; i += VF)
        vf_store(out + i, vf_from_bf16(in + i));
    for (; i < n; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(out + i, &bits, 4);
    }
}

static void add(float *out, const float *a, const float *b, int64_t n)
{
    FOR_EACH_VECTOR(n)
    STORE(out, LOAD(a) + LOAD(b));
}

static float dot(const float *a, const float *b, int64_t n)
{
    vf sum0 = {0}, sum1 = {0};
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        sum0 = vf_fma(vf_load(a + i), vf_load(b + i), sum0);
        sum1 = vf_fma(vf_load(a + i + VF), vf_load(b + i + VF), sum1);
    }
    a += i;
    b += i;
    FOR_EACH_VECTOR(n - i)
    sum0 = vf_fma(LOAD(a), LOAD(b), sum0);
    return vf_sum(sum0 + sum1);
}

static float inverse_rms(const float *x, float eps, int64_t n)
{
    return 1 / sqrtf(dot(x, x, n) / (float)n + eps);
}

static void rms_norm(float *y, const float *x, const float *w, float eps, int64_t n)
{
    vf r = vf_set(inverse_rms(x, eps, n));
    FOR_EACH_VECTOR(n)
    STORE(y, LOAD(x) * r * LOAD(w));
}

static void rms_norm_backward(float *dx, const float *x, const float *dy, const float *w, const float *residual,
                              float *dw, float eps, int64_t n)
{
    float inverse = inverse_rms(x, eps, n);
    vf r = vf_set(inverse), sum = {0};
    FOR_EACH_VECTOR(n)
    sum = vf_fma(LOAD(dy) * LOAD(w), LOAD(x), sum);
    vf mean = vf_set(vf_sum(sum) * inverse / (float)n);
    FOR_EACH_VECTOR(n)
    {
        vf normed = LOAD(x) * r, upstream = LOAD(dy);
        if (dw)
            STORE(dw, vf_fma(upstream, normed, LOAD(dw)));
        vf out = r * (upstream * LOAD(w) - normed * mean);
        if (residual)
            out += LOAD(residual);
        STORE(dx, out);
    }
}

static void sigmoid_gate(float *y, const float *x, const float *g, int64_t n)
{
    FOR_EACH_VECTOR(n)
    STORE(y, LOAD(x) * vf_sigmoid(LOAD(g)));
}

static void sigmoid_gate_backward(float *dx, float *dg, const float *x, const float *g, const float *dy, int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        vf value = LOAD(x), s = vf_sigmoid(LOAD(g)), upstream = LOAD(dy);
        STORE(dx, upstream * s);
        STORE(dg, upstream * value * s * (vf_set(1) - s));
    }
}

static void swiglu(float *y, const float *x, const float *g, int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        vf gate = LOAD(g);
        STORE(y, LOAD(x) * (gate * vf_sigmoid(gate)));
    }
}

static void swiglu_backward(float *dx, float *dg, const float *x, const float *g, const float *dy, int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        vf value = LOAD(x), gate = LOAD(g), s = vf_sigmoid(gate), upstream = LOAD(dy);
        STORE(dx, upstream * (gate * s));
        STORE(dg, upstream * value * s * vf_fma(gate, vf_set(1) - s, vf_set(1)));
    }
}

static void rotate(float *out_a, float *out_b, const float *a, const float *b, const float *cosine, const float *sine,
                   int64_t half)
{
    FOR_EACH_VECTOR(half)
    {
        vf first = LOAD(a), second = LOAD(b), c = LOAD(cosine), s = LOAD(sine);
        STORE(out_a, first * c - second * s);
        STORE(out_b, second * c + first * s);
    }
}

static float maximum(const float *x, int64_t n)
{
    vf best = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + VF <= n; i += VF)
        best = vf_max(vf_load(x + i), best);
    float result = vf_max_lane(best);
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

static float exp_shifted(float *x, float shift, int64_t n)
{
    vf sum = {0}, offset = vf_set(shift);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        vf e = vf_exp(vf_load(x + i) - offset);
        vf_store(x + i, e);
        sum += e;
    }
    float tail[VF] = {0};
    if (i < n) {
        vf_store_n(x + i, vf_exp(vf_load_n(x + i, n - i) - offset), n - i);
        memcpy(tail, x + i, (size_t)(n - i) * sizeof(float));
        sum += vf_load(tail);
    }
    return vf_sum(sum);
}

static void exp_scaled(float *x, float shift, float factor, int64_t n)
{
    vf offset = vf_set(shift);
    FOR_EACH_VECTOR(n)
    STORE(x, vf_exp(LOAD(x) - offset) * factor);
}

static void scale(float *x, float factor, int64_t n)
{
    FOR_EACH_VECTOR(n)
    STORE(x, LOAD(x) * factor);
}

static void softmax_backward(float *dp, const float *p, float mean, float factor, int64_t n)
{
    FOR_EACH_VECTOR(n)
    STORE(dp, LOAD(p) * (LOAD(dp) - mean) * factor);
}

VEC_INLINE vf vf_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    float lane[VF];
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < VF; i++)
        lane[i] = sqrtf(lane[i]);
    return vf_load(lane);
#endif
}

static void adamw(float *param, float *m, float *v, const float *grad, const dt_adamw_scalars *s, int64_t n)
{
    FOR_EACH_VECTOR(n)
    {
        vf g = LOAD(grad) * s->grad_scale;
        vf first = vf_fma(LOAD(m), vf_set(s->beta1), g * s->rest1);
        vf second = vf_fma(LOAD(v), vf_set(s->beta2), g * g * s->rest2);
        STORE(m, first);
        STORE(v, second);
        STORE(param, LOAD(param) * s->decay - s->step_size * first / (vf_sqrt(second) * s->root_scale + s->eps));
    }
}

static double sum_of_squares(const float *x, int64_t n)
{
    double lane[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)x[i + j] * x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += (double)x[i] * x[i];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

const dt_row_kernels ROW_KERNELS = {
    .from_bf16 = from_bf16,
    .add = add,
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .sigmoid_gate = sigmoid_gate,
    .sigmoid_gate_backward = sigmoid_gate_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .rotate = rotate,
    .maximum = maximum,
    .exp_shifted = exp_shifted,
    .exp_scaled = exp_scaled,
    .scale = scale,
    .dot = dot,
    .softmax_backward = softmax_backward,
    .dropout = dropout,
    .adamw = adamw,
    .sum_of_squares = sum_of_squares,
};
