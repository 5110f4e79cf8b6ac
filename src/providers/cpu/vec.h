/* fp32 vectors for kernels that are one source compiled once per instruction set: 16 lanes with AVX-512, 8
 * with AVX2, 4 otherwise (GCC vector extensions). All functions are static inline, so that code
 * for one instruction set never leaks into objects for another.
 * Not for: matrix products (gemm.h). */
#ifndef DT_CPU_VEC_H
#define DT_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { VF = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
#elif defined(__AVX2__)
enum { VF = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(16)));
#else
enum { VF = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

VEC_INLINE vf vf_set(float x)
{
    return x - (vf){0}; /* not x + 0, which would turn -0 into 0 */
}

VEC_INLINE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

VEC_INLINE void vf_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}

/* The first n < VF elements; the other lanes are 0, and memory behind them is not touched. */
VEC_INLINE vf vf_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf r = {0};
    memcpy(&r, p, (size_t)n * sizeof(float));
    return r;
#endif
}

VEC_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    memcpy(p, &x, (size_t)n * sizeof(float));
#endif
}

/* Lane i of the result is lane from[i] of a followed by b. */
VEC_INLINE vf vf_pick(vf a, vf b, vi from)
{
#if defined(__clang__) /* has no shuffle whose mask is a value; it folds this when the mask is constant */
    vf r;
    for (int i = 0; i < VF; i++)
        r[i] = from[i] < VF ? a[from[i]] : b[from[i] - VF];
    return r;
#else
    return __builtin_shuffle(a, b, from);
#endif
}

/* a * b + c, fused where the instruction set has it. */
VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lanes of `yes` where the mask lane is all ones, of `no` where it is 0. */
VEC_INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* The larger of each lane; b where a is NaN. */
VEC_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(a > b, a, b);
}

/* Sum of all lanes, pairwise in a fixed order. */
VEC_INLINE float vf_sum(vf x)
{
    float lane[VF];
    memcpy(lane, &x, sizeof lane);
    for (int width = VF / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

VEC_INLINE float vf_max_lane(vf x)
{
    float lane[VF];
    memcpy(lane, &x, sizeof lane);
    for (int width = VF / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
}

VEC_INLINE vf vf_from_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vi) << 16);
#endif
}

/* e^x within 1.5 ulp; inf above 88.73, 0 below -103.98, subnormals between; NaN stays NaN.
 * x = n ln2 + r, |r| <= ln2/2, polynomial of Cephes' expf, then two exact scalings so that 2^n may be subnormal. */
VEC_INLINE vf vf_exp(vf x)
{
    const vf lowest = vf_set(-104.0f), highest = vf_set(89.0f), shift = vf_set(0x1.8p23f);
    x = vf_select(x < lowest, lowest, x); /* comparisons with NaN are false: it passes through */
    x = vf_select(x > highest, highest, x);
    vf shifted = vf_fma(x, vf_set(1.44269504088896341f), shift); /* round to nearest in the low bits */
    vf n = shifted - shift;
    vi exponent = (vi)shifted - (vi)shift;
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, r * r, r + vf_set(1.0f));
#if defined(__AVX512F__)
    (void)exponent;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi half = exponent >> 1, rest = exponent - half;
    return p * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23);
#endif
}

VEC_INLINE vf vf_sigmoid(vf x)
{
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x));
}

/* Loops over n floats: the body runs once per vector, the last time with left < VF when n is no multiple of it.
 * LOAD and STORE in it take the element `at` of an array, masked in that last round. */
#define FOR_EACH_VECTOR(n) for (int64_t at = 0, left = (n); left > 0; at += VF, left -= VF)
#define LOAD(p)            (left >= VF ? vf_load((p) + at) : vf_load_n((p) + at, left))
#define STORE(p, x)                                                                                                    \
    do {                                                                                                               \
        if (left >= VF)                                                                                                \
            vf_store((p) + at, (x));                                                                                   \
        else                                                                                                           \
            vf_store_n((p) + at, (x), left);                                                                           \
    } while (0)

#endif
