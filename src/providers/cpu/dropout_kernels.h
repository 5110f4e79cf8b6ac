/* Dropout masks many blocks at a time; included by rows_kernels.h, once per instruction set.
 *
 * VF Philox blocks run side by side, one per 32-bit lane. Their words come out lane by lane, [word][block]; stored
 * block by block, [block][word], they are the 16-bit lanes of consecutive elements. Interleaving words 0 and 1, 2 and
 * 3, then pairs, works within 128 bits, so lane 4 L + j is given block j (VF / 4) + L: then vector j of the result
 * holds consecutive blocks. */
#include "providers/cpu/dropout.h"
#include "providers/cpu/vec.h"

enum { MASK_LANES = 8 * VF }; /* elements of one batch */

#if defined(__AVX2__)
/* Both halves of the 64-bit products of all lanes with one number. */
VEC_INLINE void multiply_wide(vi x, uint32_t by, vi *low, vi *high)
{
#if defined(__AVX512F__)
    __m512i a = (__m512i)x, m = _mm512_set1_epi64(by), even = _mm512_mul_epu32(a, m),
            odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
    *low = (vi)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    *high = (vi)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
#else
    __m256i a = (__m256i)x, m = _mm256_set1_epi64x(by), even = _mm256_mul_epu32(a, m),
            odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    *low = (vi)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = (vi)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
#endif
}

VEC_INLINE vi all(uint32_t x)
{
    return (int32_t)x - (vi){0};
}

/* dt_philox of core/philox.h for the counters c3 of VF lanes. */
VEC_INLINE void philox_lanes(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, vi c3, vi word[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    vi w0 = all(c0), w1 = all(c1), w2 = all(c2), w3 = c3;
    for (int round = 0; round < 10; round++) {
        vi low0, high0, low2, high2;
        multiply_wide(w0, 0xD2511F53u, &low0, &high0);
        multiply_wide(w2, 0xCD9E8D57u, &low2, &high2);
        w0 = high2 ^ w1 ^ all(k0);
        w2 = high0 ^ w3 ^ all(k1);
        w1 = low2;
        w3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = w0, word[1] = w1, word[2] = w2, word[3] = w3;
}

#if defined(__AVX512F__)
#define UNPACK(half, width, a, b) (vi) _mm512_unpack##half##_epi##width((__m512i)(a), (__m512i)(b))
#else
#define UNPACK(half, width, a, b) (vi) _mm256_unpack##half##_epi##width((__m256i)(a), (__m256i)(b))
#endif

VEC_INLINE void batch_lanes(const dt_dropout *d, uint64_t block, uint16_t lanes[MASK_LANES])
{
    vi counter, w[4];
#pragma GCC unroll 16
    for (int lane = 0; lane < VF; lane++)
        counter[lane] = lane % 4 * (VF / 4) + lane / 4;
    philox_lanes(d->key.seed, d->key.step, d->key.micro ^ ((uint32_t)(block >> 32) << 16), d->key.input,
                 counter + all((uint32_t)block), w);
    vi t0 = UNPACK(lo, 32, w[0], w[1]), t1 = UNPACK(hi, 32, w[0], w[1]);
    vi t2 = UNPACK(lo, 32, w[2], w[3]), t3 = UNPACK(hi, 32, w[2], w[3]);
    vi out[4] = {UNPACK(lo, 64, t0, t2), UNPACK(hi, 64, t0, t2), UNPACK(lo, 64, t1, t3), UNPACK(hi, 64, t1, t3)};
    memcpy(lanes, out, sizeof out);
}
#endif

/* The 16-bit lanes of the elements block * 8 .. block * 8 + MASK_LANES. */
VEC_INLINE void mask_lanes(const dt_dropout *d, uint64_t block, uint16_t lanes[MASK_LANES])
{
#if defined(__AVX2__)
    if ((uint32_t)block <= UINT32_MAX - VF) { /* no carry inside the batch */
        batch_lanes(d, block, lanes);
        return;
    }
#endif
    for (int i = 0; i < VF; i++) {
        uint64_t at = block + (uint64_t)i;
        dt_philox_block words = dt_philox(d->key.seed, d->key.step, d->key.micro ^ ((uint32_t)(at >> 32) << 16),
                                          d->key.input, (uint32_t)at);
        for (int j = 0; j < 8; j++)
            lanes[8 * i + j] = (uint16_t)(words.word[j / 2] >> (j % 2 * 16));
    }
}

static void dropout(float *out, const float *base, const float *in, const dt_dropout *d, uint64_t element, int64_t n)
{
    const vi threshold = (int32_t)d->threshold - (vi){0};
    uint16_t lanes[MASK_LANES];
    float factors[MASK_LANES];
    for (int64_t done = 0; done < n;) {
        uint64_t first = element + (uint64_t)done, skipped = first % 8;
        int64_t here = MASK_LANES - (int64_t)skipped < n - done ? MASK_LANES - (int64_t)skipped : n - done;
        mask_lanes(d, first / 8, lanes);
        for (int i = 0; i < MASK_LANES; i += VF) {
            vh some;
            memcpy(&some, lanes + i, sizeof some);
            vf_store(factors + i,
                     vf_select(__builtin_convertvector(some, vi) >= threshold, vf_set(d->factor), (vf){0}));
        }
        const float *keep = factors + skipped;
        for (int64_t at = 0, left = here; left > 0; at += VF, left -= VF) {
            int64_t i = done + at, width = left < VF ? left : VF;
            vf x = left >= VF ? vf_load(in + i) * vf_load(keep + at)
                              : vf_load_n(in + i, width) * vf_load_n(keep + at, width);
            if (base)
                x += left >= VF ? vf_load(base + i) : vf_load_n(base + i, width);
            if (left >= VF)
                vf_store(out + i, x);
            else
                vf_store_n(out + i, x, width);
        }
        done += here;
    }
}
