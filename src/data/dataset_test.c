#include "core/test.h"

#include "core/file.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/test_data.h"

static dt_dataset_options options_for(const char *const *paths, size_t n)
{
    dt_dataset_options options;
    dtp_dataset_options_default(&options);
    options.paths = paths;
    options.n_paths = n;
    options.threads = 2;
    return options;
}

/* The first token of a sample names its row in these tests. */
static int32_t first_token(const dt_dataset *d, size_t index)
{
    int32_t ids[512], labels[512];
    dt_err err = {0};
    assert_true(dtp_dataset_length(d, index) <= 512);
    assert_ok(dtp_dataset_read(d, index, ids, labels, NULL, &err), &err);
    return ids[0];
}

static void reads_a_sample(const dt_dataset *d, size_t index, size_t n, const int32_t *ids, const int32_t *labels)
{
    int32_t got_ids[64], got_labels[64];
    float weights[64];
    dt_err err = {0};
    assert_int_equal(dtp_dataset_length(d, index), n);
    assert_ok(dtp_dataset_read(d, index, got_ids, got_labels, weights, &err), &err);
    assert_memory_equal(got_ids, ids, n * sizeof *ids);
    assert_memory_equal(got_labels, labels, n * sizeof *labels);
    for (size_t i = 0; i < n; i++)
        assert_true(weights[i] == 1);
}

static void token_rows(void **state)
{
    char *file = test_write(*state, "a.jsonl",
                            "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n"
                            "{\"input_ids\": [1, 2]}\n"
                            "\n"
                            "{\"input_ids\": []}\n"
                            "{\"input_ids\": [8, 9], \"labels\": [-100, -100]}\n");
    dt_dataset_options options = options_for((const char *const[]){file}, 1);
    options.shuffle = false;
    dt_dataset *train, *val;
    dt_err err = {0};
    assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
    assert_null(val);
    assert_int_equal(dtp_dataset_size(train), 3);
    reads_a_sample(train, 0, 3, (int32_t[]){5, 6, 7}, (int32_t[]){-100, -100, 9}); /* P-09: the first label is none */
    reads_a_sample(train, 1, 2, (int32_t[]){1, 2}, (int32_t[]){-100, 2});
    reads_a_sample(train, 2, 2, (int32_t[]){8, 9}, (int32_t[]){-100, -100});
    const dt_dataset_stats *s = dtp_dataset_statistics(train);
    assert_int_equal(s->empty, 1);
    assert_int_equal(s->without_targets, 1);
    assert_int_equal(s->targets, 2);
    assert_int_equal(s->tokens, 7);
    const char *origin;
    int64_t line;
    dtp_dataset_origin(train, 2, &origin, &line);
    assert_string_equal(origin, file);
    assert_int_equal(line, 5);
    dtp_dataset_close(train);
    free(file);
}

int main(void)
{
    (void)first_token;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(token_rows, test_folder, test_folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
