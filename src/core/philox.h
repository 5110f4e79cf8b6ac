/* Philox-4x32-10: the counter-based generator behind every random number that must be recomputable
 * (dropout masks, LoRA init, random weights). The same definition compiles for the CPU and for CUDA.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef DT_CORE_PHILOX_H
#define DT_CORE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define DT_HOST_DEVICE __host__ __device__
#else
#define DT_HOST_DEVICE
#endif

typedef struct dt_philox_block {
    uint32_t word[4];
} dt_philox_block;

DT_HOST_DEVICE static inline dt_philox_block dt_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    dt_philox_block out = {{c0, c1, c2, c3}};
    return out;
}

/* Dropout of LoRA inputs. Element `index` of adapted input `input` (a number unique in the model: layer * 4 + input
 * of the layer) in micro-batch `micro` of optimiser step `step`. Eight elements share one Philox block: 16-bit lanes,
 * element kept when its lane >= round(p * 65536). */
typedef struct dt_dropout_key {
    uint64_t seed; /* process seed + rank */
    uint32_t step, micro, input;
} dt_dropout_key;

DT_HOST_DEVICE static inline uint32_t dt_dropout_threshold(float p)
{
    return (uint32_t)(p * 65536.0f + 0.5f);
}

/* Bit i (0..7) set = element block*8 + i is kept. The element index runs row-major over [T, n]. */
DT_HOST_DEVICE static inline uint32_t dt_dropout_mask8(dt_dropout_key key, uint64_t block, uint32_t threshold)
{
    dt_philox_block r =
        dt_philox(key.seed, key.step, key.micro ^ ((uint32_t)(block >> 32) << 16), key.input, (uint32_t)block);
    uint32_t mask = 0;
    for (int i = 0; i < 4; i++) {
        mask |= (uint32_t)((r.word[i] & 0xffffu) >= threshold) << (2 * i);
        mask |= (uint32_t)((r.word[i] >> 16) >= threshold) << (2 * i + 1);
    }
    return mask;
}

#endif
