/* BPE against the definition, taken literally: look at every pair, do the best one, start again. */
#include "core/philox.h"
#include "core/test.h"
#include "text/bpe.h"

enum { N_BYTES = 4, N_MERGES = 60, LONGEST = 400 };

typedef struct dt_literal_merge {
    int32_t left, right, merged;
} dt_literal_merge;

static size_t literal_bpe(const dt_literal_merge *merges, const unsigned char *piece, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = piece[i];
    for (;;) {
        size_t best = N_MERGES, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t m = 0; m < best; m++)
                if (merges[m].left == out[i] && merges[m].right == out[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == N_MERGES)
            return n;
        out[at] = merges[best].merged;
        memmove(out + at + 1, out + at + 2, (n - at - 2) * sizeof *out);
        n--;
    }
}

/* Random merges of random earlier symbols; ids of new symbols start at 256. */
static void random_merges(uint32_t seed, dt_literal_merge *merges)
{
    for (uint32_t i = 0; i < N_MERGES; i++) {
        bool fresh;
        uint32_t attempt = 0;
        do {
            dt_philox_block r = dt_philox(seed, i, attempt++, 0, 0);
            uint32_t a = r.word[0] % (N_BYTES + i), b = r.word[1] % (N_BYTES + i);
            merges[i] = (dt_literal_merge){(int32_t)(a < N_BYTES ? a : 252 + a), (int32_t)(b < N_BYTES ? b : 252 + b),
                                           (int32_t)(256 + i)};
            fresh = true;
            for (uint32_t j = 0; j < i; j++)
                fresh &= merges[j].left != merges[i].left || merges[j].right != merges[i].right;
        } while (!fresh);
    }
}

static void merges_equal_the_definition(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_bpe_scratch scratch = {0};
    unsigned char piece[LONGEST];
    int32_t got[LONGEST], expected[LONGEST];
    for (uint32_t seed = 0; seed < 20; seed++) {
        dt_literal_merge merges[N_MERGES];
        random_merges(seed, merges);
        dt_bpe bpe = {0};
        for (int byte = 0; byte < 256; byte++)
            bpe.byte_id[byte] = byte;
        assert_ok(dtp_bpe_init(&bpe, N_MERGES, &err), &err);
        for (uint32_t m = 0; m < N_MERGES; m++)
            dtp_bpe_add(&bpe, m, merges[m].left, merges[m].right, merges[m].merged);
        dtp_bpe_finish(&bpe);
        for (uint32_t round = 0; round < 400; round++) {
            size_t n = 1 + round % LONGEST, n_got;
            for (size_t i = 0; i < n; i++)
                piece[i] = (unsigned char)(dt_philox(99, seed, round, (uint32_t)i, 0).word[0] % N_BYTES);
            size_t n_expected = literal_bpe(merges, piece, n, expected);
            assert_ok(dtp_bpe_encode(&bpe, &scratch, piece, n, got, &n_got, &err), &err);
            assert_int_equal(n_got, n_expected);
            assert_memory_equal(got, expected, n_got * sizeof *got);
        }
        dtp_bpe_free(&bpe);
    }
    dtp_bpe_scratch_free(&scratch);
}

static void a_merge_given_twice_has_its_later_rank(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_bpe bpe = {0};
    dt_bpe_scratch scratch = {0};
    for (int byte = 0; byte < 256; byte++)
        bpe.byte_id[byte] = byte;
    assert_ok(dtp_bpe_init(&bpe, 3, &err), &err);
    dtp_bpe_add(&bpe, 0, 'a', 'b', 256);
    dtp_bpe_add(&bpe, 1, 'b', 'c', 257);
    dtp_bpe_add(&bpe, 2, 'a', 'b', 256);
    dtp_bpe_finish(&bpe);
    int32_t out[3];
    size_t n;
    assert_ok(dtp_bpe_encode(&bpe, &scratch, (const unsigned char *)"abc", 3, out, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_int_equal(out[0], 'a');
    assert_int_equal(out[1], 257);
    dtp_bpe_free(&bpe);
    dtp_bpe_scratch_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_equal_the_definition),
        cmocka_unit_test(a_merge_given_twice_has_its_later_rank),
    };
    return cmocka_run_group_tests_name("bpe", tests, NULL, NULL);
}
