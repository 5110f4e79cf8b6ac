#include "core/test.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/rng.h"
#include "data/packing.h"
#include "data/test_data.h"

#include <sys/resource.h>
#include <time.h>

#define SAMPLES_OF(packs, p) ((packs)->start[(p) + 1] - (packs)->start[p])

static uint32_t *random_lengths(uint32_t seed, size_t n, uint32_t low, uint32_t high)
{
    dt_mt19937 mt;
    dtp_mt_seed(&mt, seed);
    uint32_t *lengths = malloc((n + 1) * sizeof *lengths);
    assert_non_null(lengths);
    for (size_t i = 0; i < n; i++)
        lengths[i] = low + dtp_mt_bounded(&mt, high - low);
    return lengths;
}

static dt_packs plan(const uint32_t *lengths, size_t n, dt_packing_options options)
{
    dt_packs packs;
    dt_err err = {0};
    assert_ok(dtp_packing_plan(&packs, lengths, n, &options, &err), &err);
    return packs;
}

/* ---- The plain definition: every bin is looked at for every sample ---- */

typedef struct naive {
    uint32_t member[6000];
    size_t start[6001], n_packs, n;
} naive;

static void naive_window(naive *out, const uint32_t *item, size_t n, const uint32_t *lengths, uint32_t room,
                         bool fullest, bool last, uint32_t *carry, size_t *n_carry)
{
    static uint32_t sorted[6000], bin[6000], sums[6000];
    size_t n_bins = 1;
    sums[0] = 0;
    for (size_t i = 0; i < n; i++) { /* insertion sort: stable */
        size_t at = i;
        for (; at > 0 && lengths[sorted[at - 1]] < lengths[item[i]]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = item[i];
    }
    for (size_t i = 0; i < n; i++) {
        size_t best = SIZE_MAX;
        for (size_t b = 0; b < n_bins; b++)
            if (sums[b] + lengths[sorted[i]] <= room &&
                (best == SIZE_MAX || (fullest ? sums[b] > sums[best] : sums[b] < sums[best])))
                best = b;
        if (best == SIZE_MAX) {
            best = n_bins++;
            sums[best] = 0;
        }
        sums[best] += lengths[sorted[i]];
        bin[i] = (uint32_t)best;
    }
    *n_carry = 0;
    for (size_t b = 0; b < n_bins; b++) {
        for (size_t i = 0; i < n; i++)
            if (bin[i] == b) {
                if (b + 1 < n_bins || last)
                    out->member[out->n++] = sorted[i];
                else
                    carry[(*n_carry)++] = sorted[i];
            }
        if (b + 1 < n_bins || last)
            out->start[++out->n_packs] = out->n;
    }
}

static void naive_plan(naive *out, const uint32_t *lengths, size_t n, uint32_t room, bool fullest)
{
    static uint32_t items[6000], carry[6000];
    size_t n_carry = 0;
    *out = (naive){0};
    for (size_t first = 0; first < n; first += 1000) {
        size_t end = first + 1000 < n ? first + 1000 : n, count = n_carry;
        memcpy(items, carry, n_carry * sizeof *items);
        for (size_t i = first; i < end; i++)
            items[count++] = (uint32_t)i;
        naive_window(out, items, count, lengths, room, fullest, end == n, carry, &n_carry);
    }
}

static void equals_the_plain_definition(void **state)
{
    (void)state;
    static naive expected;
    static const struct {
        size_t n;
        uint32_t room, low, high;
    } cases[] = {{1, 5, 5, 5},       {2, 5, 5, 5},          {7, 20, 1, 20},     {1000, 50, 1, 50},    {1001, 50, 1, 20},
                 {2000, 9, 1, 9},    {2999, 512, 1, 512},   {3000, 30, 10, 11}, {3000, 30, 16, 30},   {3000, 7, 1, 1},
                 {4000, 5000, 1, 3}, {4500, 700, 340, 360}, {6000, 64, 1, 64},  {2500, 1000000, 1, 9}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int fullest = 0; fullest < 2; fullest++) {
            uint32_t *lengths = random_lengths((uint32_t)c, cases[c].n, cases[c].low, cases[c].high);
            naive_plan(&expected, lengths, cases[c].n, cases[c].room, fullest);
            dt_packs packs = plan(lengths, cases[c].n,
                                  (dt_packing_options){.strategy = fullest ? DT_PACK_FULLEST : DT_PACK_EMPTIEST,
                                                       .length = cases[c].room});
            assert_int_equal(packs.n_packs, expected.n_packs);
            assert_memory_equal(packs.member, expected.member, cases[c].n * sizeof *packs.member);
            assert_memory_equal(packs.start, expected.start, (packs.n_packs + 1) * sizeof *packs.start);
            dtp_packs_free(&packs);
            free(lengths);
        }
}

/* ---- tests/data/data/packing.json: written by order.py, checked there against the package binpacking ---- */

static uint32_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return (uint32_t)json_integer_value(value);
}

static void check_golden(const json_t *golden)
{
    const char *strategy = json_string_value(json_object_get(golden, "strategy"));
    dt_packing_options options = {.length = number(golden, "room"), .parts = (int)number(golden, "parts")};
    while (strcmp(strategy, dtp_packing_strategy_name(options.strategy)))
        options.strategy++;
    size_t n = number(golden, "n");
    uint32_t *lengths = random_lengths(number(golden, "seed"), n, number(golden, "low"), number(golden, "high"));
    dt_packs packs = plan(lengths, n, options);
    assert_int_equal(packs.n_packs, number(golden, "n_packs"));
    assert_int_equal(test_crc32(packs.member, n), number(golden, "member_crc"));
    for (size_t p = 0; p < packs.n_packs; p++)
        lengths[p] = (uint32_t)SAMPLES_OF(&packs, p);
    assert_int_equal(test_crc32(lengths, packs.n_packs), number(golden, "size_crc"));
    const json_t *explicit_packs = json_object_get(golden, "packs");
    for (size_t p = 0; p < json_array_size(explicit_packs); p++)
        for (size_t i = 0; i < json_array_size(json_array_get(explicit_packs, p)); i++)
            assert_int_equal(packs.member[packs.start[p] + i],
                             json_integer_value(json_array_get(json_array_get(explicit_packs, p), i)));
    dtp_packs_free(&packs);
    free(lengths);
}

static void equals_the_reference(void **state)
{
    (void)state;
    json_t *golden;
    dt_err err = {0};
    assert_ok(dtp_json_load(&golden, DT_TEST_DATA "/data/packing.json", 0, &err), &err);
    const json_t *cases = json_object_get(golden, "packing");
    assert_true(json_array_size(cases) >= 60);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_golden(json_array_get(cases, i));
    json_decref(golden);
}

/* ---- Properties ---- */

static void sequential_keeps_order(void **state)
{
    (void)state;
    uint32_t *lengths = random_lengths(5, 5000, 1, 300);
    dt_packs packs = plan(lengths, 5000, (dt_packing_options){.strategy = DT_PACK_SEQUENTIAL, .length = 512});
    for (uint32_t i = 0; i < 5000; i++)
        assert_int_equal(packs.member[i], i);
    for (size_t p = 0; p + 1 < packs.n_packs; p++) { /* closed only because the next sample does not fit */
        uint32_t sum = 0;
        for (size_t i = packs.start[p]; i <= packs.start[p + 1]; i++)
            sum += lengths[i];
        assert_true(sum > 512);
    }
    dtp_packs_free(&packs);
    free(lengths);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    dt_packs packs;
    dt_err err = {0};
    dt_packing_options options = {.length = 8};
    assert_fails(dtp_packing_plan(&packs, (uint32_t[]){3, 9}, 2, &options, &err), &err, DT_E_ARG,
                 "sample 1 has 9 tokens");
    assert_fails(dtp_packing_plan(&packs, (uint32_t[]){3, 0}, 2, &options, &err), &err, DT_E_ARG,
                 "sample 1 has 0 tokens");
    assert_fails(dtp_packing_plan(&packs, NULL, 0, &options, &err), &err, DT_E_ARG, "no samples");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* P-72: a million lengths in 2 s (of this thread, so that a busy machine does not matter) and 200 MB; best fit fills
 * 98%. */
static void plans_a_million(void **state)
{
    (void)state;
    static const struct {
        uint32_t room, low, high;
        double fill;
    } cases[] = {{512, 20, 400, 0.98}, {512, 257, 512, 0}, {262144, 1, 2, 0}, {8192, 20, 8192, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int strategy = 0; strategy <= DT_PACK_SEQUENTIAL; strategy++) {
            uint32_t *lengths = random_lengths(9, 1000000, cases[c].low, cases[c].high);
            long before = peak_kib();
            double start = seconds();
            dt_packs packs =
                plan(lengths, 1000000,
                     (dt_packing_options){.strategy = (dt_packing_strategy)strategy, .length = cases[c].room});
            double taken = seconds() - start;
            print_message("room %u, lengths %u..%u, %s: %zu packs, fill %.2f%%, %.3f s\n", cases[c].room, cases[c].low,
                          cases[c].high, dtp_packing_strategy_name((dt_packing_strategy)strategy), packs.n_packs,
                          100 * packs.fill, taken);
#ifndef __SANITIZE_ADDRESS__
            assert_true(taken < 2);
            assert_true(peak_kib() - before < 200000000 / 1024);
#endif
            if (strategy == DT_PACK_FULLEST)
                assert_true(packs.fill >= cases[c].fill);
            assert_true(packs.max_tokens <= cases[c].room);
            dtp_packs_free(&packs);
            free(lengths);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_plain_definition),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(sequential_keeps_order),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(plans_a_million),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
