#include "core/test.h"

#include "core/json.h"
#include "data/order.h"
#include "data/test_data.h"

/* tests/data/data/order.json: the same rules in Python with numpy's own generators (order.py). */

static void compare(const dt_order *order, const json_t *golden, const char *part, const char *size, const char *crc)
{
    assert_int_equal(order->n, json_integer_value(json_object_get(golden, size)));
    const json_t *rows = json_object_get(golden, part);
    for (size_t i = 0; i < json_array_size(rows); i++)
        assert_int_equal(order->row[i], json_integer_value(json_array_get(rows, i)));
    assert_int_equal(test_crc32(order->row, order->n), (uint32_t)json_integer_value(json_object_get(golden, crc)));
}

static void equals_numpy(void **state)
{
    (void)state;
    json_t *golden;
    dt_err err = {0};
    assert_ok(dtp_json_load(&golden, DT_TEST_DATA "/data/order.json", 0, &err), &err);
    const json_t *cases = json_object_get(golden, "order");
    assert_true(json_array_size(cases) >= 24);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *item = json_array_get(cases, c), *sizes = json_object_get(item, "sets");
        dt_order_set sets[4];
        for (size_t s = 0; s < json_array_size(sizes); s++)
            sets[s] = (dt_order_set){.name = "set",
                                     .rows = (size_t)json_integer_value(json_array_get(json_array_get(sizes, s), 0)),
                                     .sample = json_integer_value(json_array_get(json_array_get(sizes, s), 1))};
        dt_mt19937 random;
        dt_order train, val;
        dtp_mt_seed(&random, (uint32_t)json_integer_value(json_object_get(item, "seed")));
        assert_ok(dtp_order_plan(&train, &val, sets, json_array_size(sizes),
                                 json_number_value(json_object_get(item, "ratio")),
                                 json_is_true(json_object_get(item, "shuffle")), &random, &err),
                  &err);
        compare(&train, item, "train", "n_train", "train_crc");
        compare(&val, item, "val", "n_val", "val_crc");
        dtp_order_free(&train);
        dtp_order_free(&val);
    }
    json_decref(golden);
}

static void refuse(dt_order_set set, double ratio, const char *part)
{
    dt_mt19937 random;
    dt_order train, val;
    dt_err err = {0};
    dtp_mt_seed(&random, 42);
    assert_fails(dtp_order_plan(&train, &val, &set, 1, ratio, true, &random, &err), &err, DT_E_ARG, part);
}

static void refuses_impossible_requests(void **state)
{
    (void)state;
    refuse((dt_order_set){"a.jsonl", 0, -1}, 0, "a.jsonl: no usable row");
    refuse((dt_order_set){"a.jsonl", 5, 0}, 0, "#0 takes no row");
    refuse((dt_order_set){"a.jsonl", 5, 6}, 1, "more validation rows than its 5");
    refuse((dt_order_set){"a.jsonl", 1, -1}, 0.5, "none is left to train on");
    refuse((dt_order_set){"a.jsonl", 5, -1}, 1.5, "expected 0 to 1");
    refuse((dt_order_set){"a.jsonl", 5, -1}, -0.1, "expected 0 to 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_numpy),
        cmocka_unit_test(refuses_impossible_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
