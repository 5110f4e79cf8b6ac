#include "core/test.h"

#include "core/json.h"
#include "core/rng.h"
#include "data/loader.h"
#include "data/test_data.h"

/* ---- Data sets to load from: rows of token ids whose first token names the row ---- */

static dt_dataset *prepare(const char *folder, const char *rows, int64_t max_length)
{
    char *file = test_write(folder, "rows.jsonl", rows);
    dt_dataset_options options;
    dt_dataset *train, *val;
    dt_err err = {0};
    dtp_dataset_options_default(&options);
    options.paths = (const char *const[]){file};
    options.n_paths = 1;
    options.shuffle = false;
    options.threads = 2;
    options.max_length = max_length;
    assert_ok(dtp_dataset_prepare(&train, &val, &options, &err), &err);
    free(file);
    return train;
}

/* Row i is i, i+1000, ... of the given length. */
static void append_row(dt_buf *rows, int row, int length)
{
    dtp_buf_puts(rows, "{\"input_ids\": [");
    for (int t = 0; t < length; t++)
        dtp_buf_printf(rows, "%s%d", t ? ", " : "", row + 1000 * t);
    dtp_buf_puts(rows, "]}\n");
}

static dt_dataset *prepare_lengths(const char *folder, const int *lengths, int n)
{
    dt_buf rows = {0};
    for (int i = 0; i < n; i++)
        append_row(&rows, i, lengths[i]);
    dt_dataset *d = prepare(folder, rows.data, 1000);
    dtp_buf_free(&rows);
    return d;
}

static dt_dataset *prepare_uniform(const char *folder, int n, int length)
{
    dt_buf rows = {0};
    for (int i = 0; i < n; i++)
        append_row(&rows, i, length);
    dt_dataset *d = prepare(folder, rows.data, 1000);
    dtp_buf_free(&rows);
    return d;
}

static const dt_loader_options defaults = {.layout = DT_LAYOUT_PADDING_FREE,
                                           .batch_size = 1,
                                           .accumulation = 1,
                                           .shuffle = true,
                                           .data_seed = 42,
                                           .world = 1,
                                           .prefetch = 2,
                                           .pad_id = 77};

static dt_loader *open_loader(const dt_dataset *d, dt_loader_options options)
{
    dt_loader *l;
    dt_err err = {0};
    assert_ok(dtp_loader_open(&l, d, &options, &err), &err);
    return l;
}

static dt_window window(dt_loader *l)
{
    dt_window w;
    dt_err err = {0};
    assert_ok(dtp_loader_next_window(l, &w, NULL, &err), &err);
    return w;
}

static dt_batch next(dt_loader *l)
{
    dt_batch b;
    dt_err err = {0};
    assert_ok(dtp_loader_next(l, &b, &err), &err);
    return b;
}

/* What must hold for every batch of unpadded layouts. */
static void check_batch(const dt_dataset *d, const dt_batch *b)
{
    int32_t ids[1000], labels[1000];
    dt_err err = {0};
    int64_t targets = 0;
    assert_true(b->n_seq > 0);
    assert_int_equal(b->cu_seqlens[0], 0);
    assert_int_equal(b->cu_seqlens[b->n_seq], b->T);
    for (int64_t s = 0; s < b->n_seq; s++) {
        int32_t begin = b->cu_seqlens[s], end = b->cu_seqlens[s + 1];
        assert_true(end > begin);
        assert_int_equal(end - begin, dtp_dataset_length(d, b->samples[s]));
        assert_int_equal(b->lengths[s], end - begin);
        assert_ok(dtp_dataset_read(d, b->samples[s], ids, labels, NULL, &err), &err);
        assert_memory_equal(b->tokens + begin, ids, (size_t)(end - begin) * sizeof *ids);
        assert_memory_equal(b->labels + begin, labels, (size_t)(end - begin) * sizeof *labels);
        for (int32_t t = begin; t < end; t++) {
            assert_int_equal(b->positions[t], t - begin);
            int32_t expected = t + 1 < end && labels[t + 1 - begin] != -100 ? labels[t + 1 - begin] : -1;
            assert_int_equal(b->target[t], expected);
            targets += expected >= 0;
        }
    }
    assert_int_equal(b->n_targets, targets);
}

/* ---- Order ---- */

static void order_equals_torch(void **state)
{
    json_t *golden;
    dt_err err = {0};
    assert_ok(dtp_json_load(&golden, DT_TEST_DATA "/data/order.json", 0, &err), &err);
    const json_t *cases = json_object_get(golden, "epoch");
    size_t checked = 0;
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *item = json_array_get(cases, c), *ranks = json_object_get(item, "ranks");
        dt_dataset *d = prepare_uniform(*state, (int)json_integer_value(json_object_get(item, "n")), 2);
        for (size_t r = 0; r < json_array_size(ranks); r++) {
            dt_loader_options options = defaults;
            options.world = (int)json_array_size(ranks);
            options.rank = (int)r;
            options.data_seed = (uint32_t)json_integer_value(json_object_get(item, "seed"));
            dt_loader *l = open_loader(d, options);
            assert_ok(dtp_loader_seek(l, json_integer_value(json_object_get(item, "epoch")), 0, &err), &err);
            for (size_t k = 0; k < json_array_size(json_array_get(ranks, r)); k++, checked++) {
                window(l);
                dt_batch b = next(l);
                assert_int_equal(b.samples[0], json_integer_value(json_array_get(json_array_get(ranks, r), k)));
            }
            dtp_loader_close(l);
        }
        dtp_dataset_close(d);
    }
    assert_true(checked >= 30);
    json_decref(golden);
}

/* P-73: epochs differ, and repeat for a seed. */
static void epochs_differ_and_repeat(void **state)
{
    dt_dataset *d = prepare_uniform(*state, 50, 2);
    dt_loader *a = open_loader(d, defaults), *b = open_loader(d, defaults);
    uint32_t order[3][50];
    for (int e = 0; e < 3; e++)
        for (int i = 0; i < 50; i++) {
            window(a);
            window(b);
            order[e][i] = next(a).samples[0];
            assert_int_equal(order[e][i], next(b).samples[0]);
        }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    assert_memory_not_equal(order[1], order[2], sizeof order[0]);
    assert_memory_not_equal(order[0], order[2], sizeof order[0]);
    dtp_loader_close(a);
    dtp_loader_close(b);
    dtp_dataset_close(d);
}

/* ---- Layouts ---- */

static void padded_rows(void **state)
{
    dt_dataset *d = prepare_lengths(*state, (int[]){3, 5, 1, 4}, 4);
    dt_loader_options options = defaults;
    options.layout = DT_LAYOUT_PADDED;
    options.batch_size = 3;
    options.shuffle = false;
    dt_loader *l = open_loader(d, options);
    window(l);
    dt_batch b = next(l);
    const int32_t tokens[] = {0, 1000, 2000, 77, 77, 1, 1001, 2001, 3001, 4001, 2, 77, 77, 77, 77};
    const int32_t target[] = {1000, 2000, -1, -1, -1, 1001, 2001, 3001, 4001, -1, -1, -1, -1, -1, -1};
    assert_int_equal(b.T, 15);
    assert_int_equal(b.n_seq, 3);
    assert_int_equal(b.n_targets, 6);
    assert_memory_equal(b.tokens, tokens, sizeof tokens);
    assert_memory_equal(b.target, target, sizeof target);
    assert_memory_equal(b.cu_seqlens, ((int32_t[]){0, 5, 10, 15}), 4 * sizeof(int32_t));
    assert_memory_equal(b.lengths, ((int32_t[]){3, 5, 1}), 3 * sizeof(int32_t));
    window(l);
    b = next(l); /* a short last batch is kept, padded to its own longest */
    assert_int_equal(b.T, 4);
    assert_int_equal(b.n_rows, 1);
    dtp_loader_close(l);
    dtp_dataset_close(d);
}

static void packs_are_joined_into_one_row(void **state)
{
    dt_dataset *d = prepare_lengths(*state, (int[]){6, 3, 5, 4, 2}, 5); /* packs of 9: {6,3} {5,4} {2} */
    dt_loader_options options = defaults;
    options.layout = DT_LAYOUT_PACKING;
    options.packing = (dt_packing_options){.length = 9};
    options.batch_size = 2;
    options.shuffle = false;
    dt_loader *l = open_loader(d, options);
    assert_int_equal(dtp_loader_count(l).n_items, 3);
    assert_int_equal(dtp_loader_count(l).batches, 2);
    window(l);
    dt_batch b = next(l);
    check_batch(d, &b);
    assert_int_equal(b.T, 18);
    assert_int_equal(b.n_rows, 2);
    assert_memory_equal(b.samples, ((uint32_t[]){0, 1, 2, 3}), 4 * sizeof(uint32_t));
    dtp_loader_close(l);
    dtp_dataset_close(d);
}

/* P-09: fully trained rows of 10 and 7 tokens give 15 targets. */
static void first_tokens_are_no_targets(void **state)
{
    dt_dataset *d = prepare_lengths(*state, (int[]){10, 7}, 2);
    dt_loader_options options = defaults;
    options.batch_size = 2;
    dt_loader *l = open_loader(d, options);
    assert_int_equal(window(l).n_targets, 15);
    assert_int_equal(next(l).n_targets, 15);
    dtp_loader_close(l);
    dtp_dataset_close(d);
}

/* ---- Windows ---- */

/* P-40: N of a window is the same however the rows are grouped, and is known before a batch is made. */
static void windows_know_their_targets(void **state)
{
    dt_dataset *d = prepare_lengths(*state, (int[]){10, 400, 33, 7, 250, 90, 61, 5}, 8);
    for (int bs = 1; bs <= 8; bs *= 2) {
        dt_loader_options options = defaults;
        options.batch_size = bs;
        options.accumulation = 8 / bs;
        dt_loader *l = open_loader(d, options);
        dt_window w = window(l);
        int64_t targets = 0;
        assert_int_equal(w.n_targets, 856 - 8);
        assert_int_equal(w.n_tokens, 856);
        assert_int_equal(w.n_micro, 8 / bs);
        for (int i = 0; i < w.n_micro; i++) {
            dt_batch b = next(l);
            check_batch(d, &b);
            targets += b.n_targets;
        }
        assert_int_equal(targets, w.n_targets);
        assert_int_equal(dtp_loader_count(l).steps, 1);
        dtp_loader_close(l);
    }
    dtp_dataset_close(d);
}

static void short_windows_at_the_end(void **state)
{
    dt_dataset *d = prepare_uniform(*state, 7, 3);
    dt_loader_options options = defaults;
    options.accumulation = 3;
    dt_loader *l = open_loader(d, options);
    dt_err err = {0};
    dt_window w;
    dt_batch b;
    assert_int_equal(dtp_loader_count(l).steps, 3);
    static const int64_t n_micro[] = {3, 3, 1, 3};
    for (int s = 0; s < 4; s++) {
        w = window(l);
        assert_int_equal(w.n_micro, n_micro[s]);
        assert_int_equal(w.epoch, s / 3);
        assert_int_equal(w.first, s % 3 * 3);
        assert_fails(dtp_loader_next_window(l, &w, NULL, &err), &err, DT_E_ARG, "are left");
        for (int64_t i = 0; i < w.n_micro; i++)
            assert_int_equal(next(l).index, w.first + i);
        assert_fails(dtp_loader_next(l, &b, &err), &err, DT_E_ARG, "start a window");
    }
    dtp_loader_close(l);
    /* P-11: one row, accumulation 8: one window of one micro-batch */
    dt_dataset *one = prepare_uniform(*state, 1, 3);
    options.accumulation = 8;
    l = open_loader(one, options);
    assert_int_equal(dtp_loader_count(l).steps, 1);
    assert_int_equal(window(l).n_micro, 1);
    assert_int_equal(next(l).T, 3);
    assert_int_equal(window(l).epoch, 1);
    dtp_loader_close(l);
    dtp_dataset_close(one);
    dtp_dataset_close(d);
}

/* Going on from a stored position gives the batches that would have come. */
static void resumes_anywhere(void **state)
{
    dt_dataset *d = prepare_uniform(*state, 11, 3);
    dt_loader_options options = defaults;
    options.accumulation = 2;
    options.batch_size = 2;
    for (int k = 0; k < 7; k++) {
        dt_loader *a = open_loader(d, options), *b = open_loader(d, options);
        dt_err err = {0};
        int64_t epoch, batch;
        for (int s = 0; s < k; s++)
            for (int64_t i = window(a).n_micro; i > 0; i--)
                next(a);
        dtp_loader_position(a, &epoch, &batch);
        window(b); /* a seek also works in the middle of a run */
        next(b);
        assert_ok(dtp_loader_seek(b, epoch, batch, &err), &err);
        for (int s = 0; s < 5; s++) {
            dt_window w = window(a);
            assert_int_equal(w.n_targets, window(b).n_targets);
            for (int64_t i = 0; i < w.n_micro; i++) {
                dt_batch x = next(a), y = next(b);
                assert_int_equal(x.T, y.T);
                assert_memory_equal(x.tokens, y.tokens, (size_t)x.T * sizeof *x.tokens);
            }
        }
        assert_fails(dtp_loader_seek(b, 0, 1, &err), &err, DT_E_ARG, "no window at epoch 0, batch 1");
        dtp_loader_close(a);
        dtp_loader_close(b);
    }
    dtp_dataset_close(d);
}

/* ---- Ranks and evaluation ---- */

static void too_few_items(void **state)
{
    dt_dataset *d = prepare_uniform(*state, 3, 3);
    dt_loader_options options = defaults;
    dt_loader *l;
    dt_err err = {0};
    options.world = 4;
    assert_fails(dtp_loader_open(&l, d, &options, &err), &err, DT_E_ARG, "3 samples are too few for 4 ranks");
    options.world = 1;
    options.batch_size = 4;
    options.drop_last = true;
    assert_fails(dtp_loader_open(&l, d, &options, &err), &err, DT_E_ARG, "do not fill one batch of 4");
    dtp_dataset_close(d);
}

static void evaluation_uses_everything_once(void **state)
{
    dt_dataset *d = prepare_uniform(*state, 11, 3);
    for (int world = 1; world <= 12; world += 11) {
        int seen[11] = {0};
        for (int rank = 0; rank < world; rank++) {
            dt_loader_options options = defaults;
            options.evaluation = true;
            options.world = world;
            options.rank = rank;
            options.batch_size = 4;
            dt_loader *l = open_loader(d, options);
            dt_err err = {0};
            for (int repeat = 0; repeat < 2; repeat++) {
                bool more = true;
                dt_window w;
                while (assert_true(dtp_loader_next_window(l, &w, &more, &err) == DT_OK), more) {
                    dt_batch b = next(l);
                    check_batch(d, &b);
                    for (int64_t i = 0; repeat == 0 && i < b.n_seq; i++)
                        seen[b.samples[i]]++;
                }
                assert_ok(dtp_loader_seek(l, 0, 0, &err), &err);
            }
            dtp_loader_close(l);
        }
        for (int i = 0; i < 11; i++)
            assert_int_equal(seen[i], 1);
    }
    dtp_dataset_close(d);
}

/* ---- P-07: 10,000 random rows, 30% filtered ---- */

static dt_dataset *random_rows(const char *folder)
{
    dt_mt19937 random;
    dt_buf rows = {0};
    dtp_mt_seed(&random, 3);
    for (int i = 0; i < 10000; i++) {
        uint32_t kind = dtp_mt_bounded(&random, 99);
        if (kind < 10)
            append_row(&rows, i, 65 + (int)dtp_mt_bounded(&random, 100)); /* too long */
        else if (kind < 20)
            dtp_buf_puts(&rows, kind < 15 ? "{\"input_ids\": []}\n" : "{\"input_ids\": [1, \"x\"]}\n");
        else if (kind < 30)
            dtp_buf_puts(&rows, kind < 25 ? "{\"input_ids\": [1, 2\n" : "{\"other\": 1}\n");
        else
            append_row(&rows, i, 1 + (int)dtp_mt_bounded(&random, 63));
    }
    dt_dataset *d = prepare(folder, rows.data, 64);
    dtp_buf_free(&rows);
    return d;
}

/* One epoch of all ranks; counts uses of every sample, checks every batch. */
static void run_epoch(const dt_dataset *d, dt_loader_options options, int64_t epoch, int *uses)
{
    int64_t tokens = 0, planned = 0, targets = 0, planned_targets = 0;
    for (options.rank = 0; options.rank < options.world; options.rank++) {
        dt_loader *l = open_loader(d, options);
        dt_err err = {0};
        dt_loader_limits limits;
        assert_ok(dtp_loader_limit(l, epoch + 1, &limits, &err), &err);
        assert_ok(dtp_loader_seek(l, epoch, 0, &err), &err);
        for (int64_t step = 0; step < dtp_loader_count(l).steps; step++) {
            dt_window w = window(l);
            planned += w.n_tokens;
            planned_targets += w.n_targets;
            assert_int_equal(w.epoch, epoch);
            for (int64_t i = 0; i < w.n_micro; i++) {
                dt_batch b = next(l);
                check_batch(d, &b);
                assert_true(b.T <= limits.max_tokens && b.n_seq <= limits.max_n_seq &&
                            b.n_targets <= limits.max_targets);
                tokens += b.T;
                targets += b.n_targets;
                for (int64_t s = 0; s < b.n_seq; s++)
                    uses[b.samples[s]]++;
            }
        }
        dtp_loader_close(l);
    }
    assert_int_equal(tokens * options.world, planned); /* each rank plans the windows of all */
    assert_int_equal(targets * options.world, planned_targets);
}

static void every_kept_row_once(void **state)
{
    dt_dataset *d = random_rows(*state);
    size_t n = dtp_dataset_size(d);
    const dt_dataset_stats *s = dtp_dataset_statistics(d);
    assert_int_equal(s->rows, 10000);
    assert_int_equal(s->selected, 10000 - s->bad);
    assert_int_equal(n, s->selected - s->too_long - s->empty - s->failed);
    assert_in_range(n, 6500, 7500);
    int *uses = calloc(n, sizeof *uses);
    for (int layout = 0; layout < 2; layout++)
        for (int world = 1; world <= 3; world += 2) {
            dt_loader_options options = defaults;
            options.layout = layout ? DT_LAYOUT_PADDING_FREE : DT_LAYOUT_PACKING;
            options.packing = (dt_packing_options){.length = 64};
            options.batch_size = 1 + layout * 3;
            options.accumulation = 2;
            options.world = world;
            for (int epoch = 0; epoch < 2; epoch++) {
                memset(uses, 0, n * sizeof *uses);
                run_epoch(d, options, epoch, uses);
                dt_loader *l = open_loader(d, options);
                size_t unused_samples = 0, unused_items = (size_t)dtp_loader_count(l).n_unused;
                for (size_t i = 0; i < n; i++) {
                    assert_true(uses[i] <= 1);
                    unused_samples += uses[i] == 0;
                }
                assert_true(unused_items < (size_t)world);
                assert_true(layout ? unused_samples == unused_items : (unused_samples == 0) == (unused_items == 0));
                dtp_loader_close(l);
            }
        }
    free(uses);
    dtp_dataset_close(d);
}

static void limits_are_reached(void **state)
{
    dt_dataset *d = prepare_lengths(*state, (int[]){9, 1, 2, 8, 3, 4, 5}, 7);
    for (int layout = DT_LAYOUT_PADDING_FREE; layout <= DT_LAYOUT_PADDED; layout++)
        for (int bs = 1; bs <= 3; bs++) {
            dt_loader_options options = defaults;
            options.layout = (dt_layout)layout;
            options.batch_size = bs;
            dt_loader *l = open_loader(d, options);
            dt_loader_limits limits, seen = {0};
            dt_err err = {0};
            assert_ok(dtp_loader_limit(l, 4, &limits, &err), &err);
            for (int64_t i = 0; i < 4 * dtp_loader_count(l).batches; i++) {
                window(l);
                dt_batch b = next(l);
                seen.max_tokens = b.T > seen.max_tokens ? b.T : seen.max_tokens;
                seen.max_n_seq = b.n_seq > seen.max_n_seq ? b.n_seq : seen.max_n_seq;
                seen.max_targets = b.n_targets > seen.max_targets ? b.n_targets : seen.max_targets;
            }
            assert_int_equal(limits.max_tokens, seen.max_tokens);
            assert_int_equal(limits.max_n_seq, seen.max_n_seq);
            assert_int_equal(limits.max_targets, seen.max_targets);
            assert_int_equal(limits.max_sequence, 9);
            dtp_loader_close(l);
        }
    dtp_dataset_close(d);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, test_folder, test_folder_remove)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(order_equals_torch),
        IN_FOLDER(epochs_differ_and_repeat),
        IN_FOLDER(padded_rows),
        IN_FOLDER(packs_are_joined_into_one_row),
        IN_FOLDER(first_tokens_are_no_targets),
        IN_FOLDER(windows_know_their_targets),
        IN_FOLDER(short_windows_at_the_end),
        IN_FOLDER(resumes_anywhere),
        IN_FOLDER(too_few_items),
        IN_FOLDER(evaluation_uses_everything_once),
        IN_FOLDER(every_kept_row_once),
        IN_FOLDER(limits_are_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
