/* The exact generators that fix the order of training data: MT19937 as numpy's RandomState and torch's CPU generator
 * use it, PCG64 seeded by SeedSequence as numpy's default_rng uses it, and the permutations drawn from them.
 * Not for: dropout and weight init (core/philox.h), which must be recomputable at any index.
 * Sources: Matsumoto & Nishimura, ACM TOMACS 8(1), 1998; O'Neill, "PCG", HMC-CS-2014-0905; numpy and torch, whose
 * published outputs rng_test.c repeats. */
#ifndef DT_CORE_RNG_H
#define DT_CORE_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* MT19937. One value type serves numpy.random.RandomState(seed) and torch.Generator().manual_seed(seed). */
typedef struct dt_mt19937 {
    uint32_t state[624];
    uint32_t next;
} dt_mt19937;

void dtp_mt_seed(dt_mt19937 *mt, uint32_t seed);
uint32_t dtp_mt_u32(dt_mt19937 *mt);
/* Uniform on 0..maximum (inclusive), by masking and rejection as numpy does it. */
uint32_t dtp_mt_bounded(dt_mt19937 *mt, uint32_t maximum);
/* RandomState.randint(0, 2**31 - 1): the seed that numpy's users hand to the next generator. */
uint32_t dtp_mt_draw_seed(dt_mt19937 *mt);
/* RandomState.shuffle(values), n < 2^32; and RandomState.permutation(n), the shuffle of 0 .. n - 1. */
void dtp_mt_shuffle(dt_mt19937 *mt, uint32_t *values, size_t n);
void dtp_mt_permutation(dt_mt19937 *mt, size_t n, uint32_t *out);

/* torch.randperm(n, generator=Generator().manual_seed(seed)) on the CPU, n < 2^32 / 20: above it torch draws 64-bit
 * numbers. */
#define DT_TORCH_RANDPERM_MAX 214748364u
void dtp_torch_randperm(uint64_t seed, size_t n, uint32_t *out);

/* PCG64 (XSL-RR 128/64). 128-bit numbers are pairs so that no compiler extension shows in the interface. */
typedef struct dt_pcg64 {
    uint64_t state_high, state_low, inc_high, inc_low;
    uint32_t spare; /* high half of the last 64-bit output, when has_spare */
    bool has_spare;
} dt_pcg64;

/* numpy.random.default_rng(seed) for seeds below 2^64. */
void dtp_pcg_seed(dt_pcg64 *pcg, uint64_t seed);
uint64_t dtp_pcg_u64(dt_pcg64 *pcg);
uint32_t dtp_pcg_u32(dt_pcg64 *pcg);
uint32_t dtp_pcg_bounded(dt_pcg64 *pcg, uint32_t maximum);
/* Generator.random(): 53 bits on [0, 1). */
double dtp_pcg_double(dt_pcg64 *pcg);
/* Generator.shuffle(values) and Generator.permutation(n), n < 2^32. */
void dtp_pcg_shuffle(dt_pcg64 *pcg, uint32_t *values, size_t n);
void dtp_pcg_permutation(dt_pcg64 *pcg, size_t n, uint32_t *out);

#endif
