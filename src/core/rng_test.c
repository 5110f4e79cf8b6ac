#include "core/test.h"

#include "core/rng.h"

/* CRC-32 (zlib's) of little-endian words: compares whole permutations with one number printed by numpy and torch. */
static uint32_t crc32_words(const uint32_t *words, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8) {
            crc ^= words[i] >> shift & 0xff;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    return ~crc;
}

static void expect(const uint32_t *got, const uint32_t *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], expected[i]);
}

static void published_values(void **state)
{
    (void)state;
    dt_mt19937 mt;
    uint32_t out[10];
    dtp_mt_seed(&mt, 42);
    dtp_mt_permutation(&mt, 10, out);
    expect(out, (const uint32_t[]){8, 1, 5, 0, 7, 2, 9, 4, 3, 6}, 10);
    dtp_torch_randperm(42, 10, out);
    expect(out, (const uint32_t[]){2, 6, 1, 8, 4, 5, 0, 9, 3, 7}, 10);

    dt_pcg64 pcg;
    dtp_pcg_seed(&pcg, 42);
    dtp_pcg_permutation(&pcg, 10, out);
    expect(out, (const uint32_t[]){5, 6, 0, 7, 3, 2, 4, 9, 1, 8}, 10);
    dtp_pcg_seed(&pcg, 3);
    dtp_pcg_permutation(&pcg, 5, out);
    expect(out, (const uint32_t[]){4, 2, 1, 3, 0}, 5);
    dtp_pcg_seed(&pcg, (1ull << 40) + 5); /* a seed of two words */
    dtp_pcg_permutation(&pcg, 10, out);
    expect(out, (const uint32_t[]){8, 1, 2, 5, 3, 0, 9, 7, 4, 6}, 10);
}

static void seeds_and_doubles(void **state)
{
    (void)state;
    dt_mt19937 mt;
    dtp_mt_seed(&mt, 42);
    uint32_t seeds[4];
    for (int i = 0; i < 4; i++)
        seeds[i] = dtp_mt_draw_seed(&mt);
    expect(seeds, (const uint32_t[]){1608637542, 1273642419, 1935803228, 787846414}, 4);

    dt_pcg64 pcg;
    dtp_pcg_seed(&pcg, 42);
    assert_true(dtp_pcg_double(&pcg) == 0.7739560485559633);
    assert_true(dtp_pcg_double(&pcg) == 0.4388784397520523);
}

/* One RandomState serves several draws in a row, as it does for several data sets. */
static void one_stream_for_all(void **state)
{
    (void)state;
    dt_mt19937 mt;
    uint32_t a[37], b[5];
    dtp_mt_seed(&mt, 7);
    dtp_mt_permutation(&mt, 37, a);
    assert_int_equal(dtp_mt_draw_seed(&mt), 989143352);
    dtp_mt_permutation(&mt, 5, b);
    expect(a, (const uint32_t[]){33, 2, 24, 1, 18}, 5);
    expect(b, (const uint32_t[]){4, 0, 3, 2, 1}, 5);
}

/* numpy 2.4.6 and torch 2.13.0: zlib.crc32(np.asarray(permutation, dtype=np.uint32).tobytes()). */
static void whole_permutations(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t seed, random_state, default_rng, torch;
    } cases[] = {
        {1, 0u, 0x2144df1c, 0x2144df1c, 0x2144df1c},
        {2, 0u, 0xa988dff7, 0xdd9eb80c, 0xdd9eb80c},
        {2, 42u, 0xa988dff7, 0xa988dff7, 0xdd9eb80c},
        {2, 4294967295u, 0xdd9eb80c, 0xdd9eb80c, 0xa988dff7},
        {1000, 0u, 0x53ef5450, 0xf7b4493f, 0x4d308322},
        {1000, 42u, 0x0c57fb85, 0x821e2fbd, 0x2b2cf311},
        {1000, 4294967295u, 0xca49ed8d, 0x81a6228e, 0x08d328c7},
        {70000, 0u, 0xdc3efa61, 0xf111db9e, 0x15951d6e},
        {70000, 42u, 0x46e0ec4c, 0x09400b36, 0xe26085f6},
        {70000, 4294967295u, 0x2c0c910c, 0xa3a2bae3, 0x02d9433e},
        {1048576, 42u, 0x48e75b20, 0xe6789727, 0xa1484bcf},
    };
    uint32_t *out = malloc(1048576 * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_mt19937 mt;
        dtp_mt_seed(&mt, cases[i].seed);
        dtp_mt_permutation(&mt, cases[i].n, out);
        assert_int_equal(crc32_words(out, cases[i].n), cases[i].random_state);
        dt_pcg64 pcg;
        dtp_pcg_seed(&pcg, cases[i].seed);
        dtp_pcg_permutation(&pcg, cases[i].n, out);
        assert_int_equal(crc32_words(out, cases[i].n), cases[i].default_rng);
        dtp_torch_randperm(cases[i].seed, cases[i].n, out);
        assert_int_equal(crc32_words(out, cases[i].n), cases[i].torch);
    }
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(seeds_and_doubles),
        cmocka_unit_test(one_stream_for_all),
        cmocka_unit_test(whole_permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
