#include "core/rng.h"

#include <assert.h>

/* ---- MT19937 ---- */

void dtp_mt_seed(dt_mt19937 *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        mt->state[i] = 1812433253u * (mt->state[i - 1] ^ (mt->state[i - 1] >> 30)) + i;
    mt->next = 624;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
}

static void refill(dt_mt19937 *mt)
{
    uint32_t *s = mt->state;
    for (int i = 0; i < 624; i++)
        s[i] = s[(i + 397) % 624] ^ twist(s[i], s[(i + 1) % 624]);
    mt->next = 0;
}

uint32_t dtp_mt_u32(dt_mt19937 *mt)
{
    if (mt->next == 624)
        refill(mt);
    uint32_t y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Smallest 2^k - 1 that is at least `maximum`. */
static uint32_t mask_of(uint32_t maximum)
{
    uint32_t mask = maximum;
    for (int shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    return mask;
}

uint32_t dtp_mt_bounded(dt_mt19937 *mt, uint32_t maximum)
{
    uint32_t mask = mask_of(maximum), value;
    if (maximum == 0)
        return 0; /* numpy draws nothing here */
    do
        value = dtp_mt_u32(mt) & mask;
    while (value > maximum);
    return value;
}

uint32_t dtp_mt_draw_seed(dt_mt19937 *mt)
{
    return dtp_mt_bounded(mt, 2147483646u);
}

static void identity(size_t n, uint32_t *out)
{
    assert(n <= UINT32_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
}

static void swap(uint32_t *values, size_t i, size_t j)
{
    uint32_t value = values[i];
    values[i] = values[j];
    values[j] = value;
}

void dtp_mt_shuffle(dt_mt19937 *mt, uint32_t *values, size_t n)
{
    for (size_t i = n; i-- > 1;)
        swap(values, i, dtp_mt_bounded(mt, (uint32_t)i));
}

void dtp_mt_permutation(dt_mt19937 *mt, size_t n, uint32_t *out)
{
    identity(n, out);
    dtp_mt_shuffle(mt, out, n);
}

void dtp_torch_randperm(uint64_t seed, size_t n, uint32_t *out)
{
    assert(n < DT_TORCH_RANDPERM_MAX);
    dt_mt19937 mt;
    dtp_mt_seed(&mt, (uint32_t)seed); /* torch keeps the low 32 bits */
    identity(n, out);
    for (size_t i = 0; i + 1 < n; i++)
        swap(out, i, i + dtp_mt_u32(&mt) % (uint32_t)(n - i));
}

/* ---- SeedSequence ---- */

static uint32_t hash_mix(uint32_t value, uint32_t *hash)
{
    value ^= *hash;
    *hash *= 0x931e8875u;
    value *= *hash;
    return value ^ (value >> 16);
}

/* Four 64-bit words for PCG64 from a seed, as SeedSequence(seed).generate_state(4, uint64). */
static void seed_sequence(uint64_t seed, uint64_t words[4])
{
    uint32_t entropy[4] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, pool[4], hash = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++)
        pool[i] = hash_mix(entropy[i], &hash);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (from != to) {
                uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hash_mix(pool[from], &hash);
                pool[to] = mixed ^ (mixed >> 16);
            }
    uint32_t half[8];
    hash = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t value = pool[i % 4] ^ hash;
        hash *= 0x58f38dedu;
        value *= hash;
        half[i] = value ^ (value >> 16);
    }
    for (int i = 0; i < 4; i++)
        words[i] = half[2 * i] | (uint64_t)half[2 * i + 1] << 32;
}

/* ---- PCG64 ---- */

typedef unsigned __int128 u128;

static u128 join(uint64_t high, uint64_t low)
{
    return (u128)high << 64 | low;
}

static void step(dt_pcg64 *pcg)
{
    u128 multiplier = join(2549297995355413924u, 4865540595714422341u);
    u128 state = join(pcg->state_high, pcg->state_low) * multiplier + join(pcg->inc_high, pcg->inc_low);
    pcg->state_high = (uint64_t)(state >> 64);
    pcg->state_low = (uint64_t)state;
}

void dtp_pcg_seed(dt_pcg64 *pcg, uint64_t seed)
{
    uint64_t word[4];
    seed_sequence(seed, word);
    u128 inc = join(word[2], word[3]) << 1 | 1;
    *pcg = (dt_pcg64){.inc_high = (uint64_t)(inc >> 64), .inc_low = (uint64_t)inc};
    step(pcg);
    u128 state = join(pcg->state_high, pcg->state_low) + join(word[0], word[1]);
    pcg->state_high = (uint64_t)(state >> 64);
    pcg->state_low = (uint64_t)state;
    step(pcg);
}

uint64_t dtp_pcg_u64(dt_pcg64 *pcg)
{
    step(pcg);
    uint64_t value = pcg->state_high ^ pcg->state_low;
    unsigned rotation = (unsigned)(pcg->state_high >> 58);
    return value >> rotation | value << (-rotation & 63);
}

uint32_t dtp_pcg_u32(dt_pcg64 *pcg)
{
    pcg->has_spare = !pcg->has_spare;
    if (!pcg->has_spare)
        return pcg->spare;
    uint64_t both = dtp_pcg_u64(pcg);
    pcg->spare = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

uint32_t dtp_pcg_bounded(dt_pcg64 *pcg, uint32_t maximum)
{
    uint32_t mask = mask_of(maximum), value;
    if (maximum == 0)
        return 0;
    do
        value = dtp_pcg_u32(pcg) & mask;
    while (value > maximum);
    return value;
}

double dtp_pcg_double(dt_pcg64 *pcg)
{
    return (double)(dtp_pcg_u64(pcg) >> 11) * (1.0 / 9007199254740992.0);
}

void dtp_pcg_shuffle(dt_pcg64 *pcg, uint32_t *values, size_t n)
{
    for (size_t i = n; i-- > 1;)
        swap(values, i, dtp_pcg_bounded(pcg, (uint32_t)i));
}

void dtp_pcg_permutation(dt_pcg64 *pcg, size_t n, uint32_t *out)
{
    identity(n, out);
    dtp_pcg_shuffle(pcg, out, n);
}
