#include "core/test.h"

#include "core/rng.h"
#include "data/sample.h"
#include "data/token_store.h"

/* ---- Packing and unpacking ---- */

enum { NO_LABELS, EQUAL_LABELS, OWN_LABELS, WEIGHTED, KINDS };

static void round_trip(dt_mt19937 *random, size_t n, int kind)
{
    int32_t ids[200], labels[200], got_ids[200], got_labels[200];
    float weights[200], got_weights[200];
    uint32_t targets = 0;
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)dtp_mt_bounded(random, 248319);
        bool target = kind != NO_LABELS && dtp_mt_bounded(random, 1);
        labels[i] = !target ? -100 : kind == OWN_LABELS ? (int32_t)dtp_mt_bounded(random, 248319) : ids[i];
        weights[i] = kind == WEIGHTED && target ? 0.25f * (float)(1 + dtp_mt_bounded(random, 8)) : 1;
        targets += i > 0 && target;
    }
    dt_buf words = {0};
    dt_sample sample;
    dtp_buf_puts(&words, "abcd"); /* something before it */
    assert_true(dtp_sample_pack(&words, ids, labels, kind == WEIGHTED ? weights : NULL, n, &sample));
    assert_int_equal(sample.length, n);
    assert_int_equal(sample.targets, targets);
    assert_int_equal(words.length, 4 + 4 * dtp_sample_words(&sample));
    if (kind == NO_LABELS || kind == EQUAL_LABELS)
        assert_int_equal(dtp_sample_words(&sample), n + (n + 31) / 32);
    dtp_sample_unpack(&sample, (const uint32_t *)(const void *)(words.data + 4), got_ids, got_labels, got_weights);
    labels[0] = -100;
    assert_memory_equal(got_ids, ids, n * sizeof *ids);
    assert_memory_equal(got_labels, labels, n * sizeof *labels);
    for (size_t i = 0; i < n; i++)
        if (labels[i] != -100)
            assert_true(got_weights[i] == weights[i]);
    dtp_buf_free(&words);
}

static void packs_and_unpacks(void **state)
{
    (void)state;
    dt_mt19937 random;
    dtp_mt_seed(&random, 1);
    static const size_t sizes[] = {1, 2, 31, 32, 33, 64, 65, 200};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int repeat = 0; repeat < 5; repeat++)
                round_trip(&random, sizes[s], kind);
}

/* ---- Cutting ---- */

static void piece(dt_truncation truncation, size_t n, size_t index, size_t expected_first, size_t expected_length)
{
    size_t first, length;
    assert_true(dtp_sample_piece(truncation, n, 64, index, &first, &length));
    assert_int_equal(first, expected_first);
    assert_int_equal(length, expected_length);
}

static void no_piece(dt_truncation truncation, size_t n, size_t index)
{
    size_t first, length;
    assert_false(dtp_sample_piece(truncation, n, 64, index, &first, &length));
}

static void cuts_long_samples(void **state)
{
    (void)state;
    for (int truncation = 0; truncation <= DT_TRUNCATE_SPLIT; truncation++) { /* what fits stays whole */
        piece((dt_truncation)truncation, 64, 0, 0, 64);
        no_piece((dt_truncation)truncation, 64, 1);
        piece((dt_truncation)truncation, 1, 0, 0, 1);
    }
    no_piece(DT_TRUNCATE_DELETE, 65, 0);
    piece(DT_TRUNCATE_LEFT, 200, 0, 136, 64);
    no_piece(DT_TRUNCATE_LEFT, 200, 1);
    piece(DT_TRUNCATE_RIGHT, 200, 0, 0, 64);
    no_piece(DT_TRUNCATE_RIGHT, 200, 1);
    piece(DT_TRUNCATE_SPLIT, 200, 0, 0, 64);
    piece(DT_TRUNCATE_SPLIT, 200, 2, 128, 64);
    piece(DT_TRUNCATE_SPLIT, 200, 3, 192, 8);
    no_piece(DT_TRUNCATE_SPLIT, 200, 4);
    piece(DT_TRUNCATE_SPLIT, 128, 1, 64, 64);
    no_piece(DT_TRUNCATE_SPLIT, 128, 2);
}

/* ---- The store ---- */

static void store_reads_back(size_t memory)
{
    enum { N = 3000 };
    static uint64_t place[N];
    uint32_t words[100], got[100];
    dt_token_store *store;
    dt_err err = {0};
    assert_ok(dtp_token_store_create(&store, NULL, memory, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < i % 100; k++)
            words[k] = i * 1000 + k;
        assert_ok(dtp_token_store_append(store, words, i % 100, &place[i], &err), &err);
    }
    for (uint32_t i = N; i-- > 0;) {
        assert_ok(dtp_token_store_read(store, place[i], got, i % 100, &err), &err);
        for (uint32_t k = 0; k < i % 100; k++)
            assert_int_equal(got[k], i * 1000 + k);
    }
    assert_int_equal(dtp_token_store_size(store), 30 * 4950);
    assert_int_equal(dtp_token_store_read(store, 30 * 4950, got, 1, &err), DT_E_INTERNAL);
    dtp_token_store_close(store);
}

static void stores_in_memory_and_in_a_file(void **state)
{
    (void)state;
    store_reads_back(1 << 20);
    store_reads_back(4000); /* spills all the time */
    store_reads_back(200000);
    store_reads_back(0);
}

static void names_a_folder_that_cannot_hold_it(void **state)
{
    (void)state;
    dt_token_store *store;
    dt_err err = {0};
    uint32_t words[8] = {0};
    uint64_t place;
    assert_ok(dtp_token_store_create(&store, "/nonexistent", 16, &err), &err);
    assert_ok(dtp_token_store_append(store, words, 4, &place, &err), &err);
    assert_fails(dtp_token_store_append(store, words, 4, &place, &err), &err, DT_E_IO, "/nonexistent: cannot create");
    dtp_token_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_and_unpacks),
        cmocka_unit_test(cuts_long_samples),
        cmocka_unit_test(stores_in_memory_and_in_a_file),
        cmocka_unit_test(names_a_folder_that_cannot_hold_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
