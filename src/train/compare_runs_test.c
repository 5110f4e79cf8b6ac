/* Reading logging.jsonl back, and the figures of two runs. */
#include "core/test.h"

#include "core/file.h"
#include "train/compare_runs.h"

#include <unistd.h>

static char folder[] = "/tmp/deltune-compare-XXXXXX";

static char *write_log(const char *name, const char *text)
{
    dt_err err = {0};
    char *place = dtp_path_join(folder, name), *path = dtp_path_join(place, "logging.jsonl");
    assert_ok(dtp_make_folders(place, &err), &err);
    assert_ok(dtp_write_file(path, text, strlen(text), &err), &err);
    free(path);
    return place;
}

static char *line_of(int step, const char *loss)
{
    return dtp_format("{\"loss\": %s, \"grad_norm\": 1.5, \"global_step/max_steps\": \"%d/9\"}\n", loss, step);
}

/* A log with `loss` at steps first..last. */
static char *steps_of(int first, int last, const char *loss)
{
    dt_buf text = {0};
    for (int step = first; step <= last; step++) {
        char *line = line_of(step, loss);
        dtp_buf_puts(&text, line);
        free(line);
    }
    return text.data;
}

static void only_training_lines_are_points(void **state)
{
    (void)state;
    char *place =
        write_log("plain", "{\"loss\": 2.5, \"grad_norm\": 1.5, \"global_step/max_steps\": \"1/9\"}\n"
                           "{\"eval_loss\": 9.0, \"global_step/max_steps\": \"1/9\"}\n"
                           "\n"
                           "{\"loss\": 2, \"note\": \"NaN \\\" Infinity\", \"global_step/max_steps\": \"2/9\"}\n"
                           "{\"train_loss\": 7.0, \"global_step/max_steps\": \"2/9\"}\n"
                           "{\"best_metric\": null}\n"
                           "{\"loss\": 1.0, \"global_st"); /* killed while writing */
    dt_err err = {0};
    dt_run_log log = {0};
    assert_ok(dtp_run_log_read(&log, place, &err), &err);
    assert_int_equal(log.count, 2);
    assert_true(log.points[0].step == 1 && log.points[0].loss == 2.5 && log.points[0].grad_norm == 1.5);
    assert_true(log.points[1].step == 2 && log.points[1].loss == 2 && !log.points[1].has_norm);
    dtp_run_log_free(&log);
    char *file = dtp_path_join(place, "logging.jsonl"); /* the file itself is as good */
    assert_ok(dtp_run_log_read(&log, file, &err), &err);
    assert_int_equal(log.count, 2);
    dtp_run_log_free(&log);
    free(file);
    free(place);
}

static void python_writes_values_that_json_lacks(void **state)
{
    (void)state;
    char *place = write_log("nan", "{\"loss\": NaN, \"grad_norm\": Infinity, \"global_step/max_steps\": \"1/9\"}\n"
                                   "{\"loss\": -Infinity, \"grad_norm\": 0.5, \"global_step/max_steps\": \"2/9\"}\n");
    dt_err err = {0};
    dt_run_log log = {0};
    assert_ok(dtp_run_log_read(&log, place, &err), &err);
    assert_true(isnan(log.points[0].loss) && isinf(log.points[0].grad_norm));
    assert_true(isinf(log.points[1].loss) && log.points[1].loss < 0 && log.points[1].grad_norm == 0.5);
    dtp_run_log_free(&log);
    free(place);
}

static void bad_logs_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {{"{\"eval_loss\": 1.0}\n", "no training step has been logged"},
                 {"{\"loss\": 1.0,}\n", "logging.jsonl:1:"},
                 {"{}\n[1]\n", "logging.jsonl:2: not an object"},
                 {"{\"loss\": \"low\", \"global_step/max_steps\": \"1/9\"}\n", "loss is not a number"},
                 {"{\"loss\": 1.0, \"global_step/max_steps\": 3}\n", "expected a string"},
                 {"{\"loss\": 1.0, \"global_step/max_steps\": \"x/9\"}\n", "not like \"5/300\""},
                 {"{\"loss\": 1.0}\n", "not like \"5/300\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *place = write_log("bad", cases[i].text);
        dt_err err = {0};
        dt_run_log log = {0};
        assert_fails(dtp_run_log_read(&log, place, &err), &err, DT_E_FORMAT, cases[i].part);
        free(place);
    }
    dt_err err = {0};
    dt_run_log log = {0};
    char *empty = dtp_path_join(folder, "empty");
    assert_fails(dtp_run_log_read(&log, empty, &err), &err, DT_E_IO, "no such run folder");
    assert_ok(dtp_make_folders(empty, &err), &err);
    assert_fails(dtp_run_log_read(&log, empty, &err), &err, DT_E_IO, "neither a logging.jsonl nor run folders");
    free(empty);
}

/* v2 goes on from step 4 of v1, after v10 sorts by number: what is repeated counts once, the later values. */
static void versions_of_one_run_are_joined(void **state)
{
    (void)state;
    dt_err err = {0};
    char *first = steps_of(1, 6, "3.0"), *second = steps_of(5, 8, "2.0"), *third = steps_of(8, 9, "1.0");
    free(write_log("output/v1-a", first));
    free(write_log("output/v2-b", second));
    free(write_log("output/v10-c", third));
    char *output = dtp_path_join(folder, "output");
    dt_run_log log = {0};
    assert_ok(dtp_run_log_read(&log, output, &err), &err);
    assert_int_equal(log.count, 9);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(log.points[i].step, i + 1);
        assert_true(log.points[i].loss == (i < 4 ? 3 : i < 7 ? 2 : 1));
    }
    dtp_run_log_free(&log);
    free(write_log("output/v11-d", first)); /* begins anew */
    assert_fails(dtp_run_log_read(&log, output, &err), &err, DT_E_FORMAT, "several runs (v11-d begins at step 1)");
    free(output);
    free(first);
    free(second);
    free(third);
}

/* A resumed run in the same folder appends to its log. */
static void repeated_steps_count_once(void **state)
{
    (void)state;
    dt_err err = {0};
    char *first = steps_of(1, 6, "3.0"), *second = steps_of(5, 8, "2.0"), *both = dtp_format("%s%s", first, second);
    char *place = write_log("appended", both);
    dt_run_log log = {0};
    assert_ok(dtp_run_log_read(&log, place, &err), &err);
    assert_int_equal(log.count, 8);
    assert_true(log.points[3].loss == 3 && log.points[4].step == 5 && log.points[4].loss == 2);
    dtp_run_log_free(&log);
    free(place);
    free(first);
    free(second);
    free(both);
}

/* ---- figures ---- */

enum { STEPS = 40 };

static dt_run_log curve(dt_run_point *points, int n, double base, double slope, double swing)
{
    for (int i = 0; i < n; i++)
        points[i] = (dt_run_point){.step = 5 * (i + 1),
                                   .loss = 2 * (1 + base + slope * i + (i % 2 ? swing : -swing)),
                                   .grad_norm = 1,
                                   .has_norm = true};
    return (dt_run_log){.points = points, .count = (size_t)n};
}

static void the_figures_are_those_of_the_arithmetic(void **state)
{
    (void)state;
    dt_run_point x[STEPS], y[STEPS];
    dt_run_log a = curve(x, STEPS, 0, 0, 0), b = curve(y, STEPS, -0.0117, 0.0006, 0);
    dt_run_comparison c;
    dt_err err = {0};
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_int_equal(c.count, STEPS);
    double sum = 0;
    for (int i = 0; i < STEPS; i++)
        sum += fabs(-0.0117 + 0.0006 * i);
    assert_true(fabs(c.mean - sum / STEPS) < 1e-12);
    assert_true(fabs(c.drift - 0.0006 * (STEPS - 1)) < 1e-12); /* an exact line: slope times length */
    assert_int_equal(c.largest, 0);                            /* -0.0117 against +0.0117: the first of the two */
    assert_true(fabs(c.first_tenth - (-0.0117 + 0.0006 * 1.5)) < 1e-12);
    assert_true(fabs(c.last_tenth - (-0.0117 + 0.0006 * 37.5)) < 1e-12);
    assert_true(c.mean < 0.01 && !dtp_runs_agree(&c, 0.01)); /* near on average, but drifting by 2.3% */
    assert_true(dtp_runs_agree(&c, 0.03));
    dtp_run_comparison_free(&c);
}

static void noise_is_no_drift(void **state)
{
    (void)state;
    dt_run_point x[STEPS], y[STEPS];
    dt_run_log a = curve(x, STEPS, 0, 0, 0), b = curve(y, STEPS, 0, 0, 0.008);
    dt_run_comparison c;
    dt_err err = {0};
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_true(fabs(c.mean - 0.008) < 1e-12);
    assert_true(fabs(c.drift) < 7 * 0.008 / STEPS); /* alternating signs have a trend of about 6 swings / n */
    assert_true(dtp_runs_agree(&c, 0.01) && !dtp_runs_agree(&c, 0.0079));
    dtp_run_comparison_free(&c);
}

static void missing_steps_and_nan_are_no_agreement(void **state)
{
    (void)state;
    dt_run_point x[STEPS], y[STEPS];
    dt_run_log a = curve(x, STEPS, 0, 0, 0), b = curve(y, STEPS, 0, 0, 0);
    dt_run_comparison c;
    dt_err err = {0};
    b.count--;
    memmove(y + 9, y + 10, (STEPS - 11) * sizeof *y);
    b.count--;
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_int_equal(c.count, STEPS - 2);
    assert_int_equal(c.only_a.count, 2);
    assert_int_equal(c.only_a.first, 50);
    assert_int_equal(c.only_b.count, 0);
    assert_false(dtp_runs_agree(&c, 1));
    dtp_run_comparison_free(&c);

    b = curve(y, STEPS, 0, 0, 0);
    y[3].grad_norm = NAN;
    y[5].loss = INFINITY;
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_int_equal(c.not_finite, 2);
    assert_int_equal(c.first_not_finite, 20);
    assert_true(c.mean == 0 && c.drift == 0);
    assert_false(dtp_runs_agree(&c, 1));
    dtp_run_comparison_free(&c);

    for (int i = 0; i < STEPS; i++)
        y[i].step++;
    assert_fails(dtp_compare_runs(&c, &a, &b, &err), &err, DT_E_FORMAT, "no step is in both logs");
}

static void one_step_has_no_trend(void **state)
{
    (void)state;
    dt_run_point x[1], y[1];
    dt_run_log a = curve(x, 1, 0, 0, 0), b = curve(y, 1, 0.005, 0, 0);
    dt_run_comparison c;
    dt_err err = {0};
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_true(c.drift == 0 && fabs(c.mean - 0.005) < 1e-12 && dtp_runs_agree(&c, 0.01));
    dtp_run_comparison_free(&c);
    x[0].loss = 0; /* relative to the smallest loss that a log can tell from nothing */
    y[0].loss = 1e-8;
    assert_ok(dtp_compare_runs(&c, &a, &b, &err), &err);
    assert_true(fabs(c.mean - 0.01) < 1e-12);
    dtp_run_comparison_free(&c);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return dtp_remove_tree(folder, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_training_lines_are_points),
                                       cmocka_unit_test(python_writes_values_that_json_lacks),
                                       cmocka_unit_test(bad_logs_are_named),
                                       cmocka_unit_test(versions_of_one_run_are_joined),
                                       cmocka_unit_test(repeated_steps_count_once),
                                       cmocka_unit_test(the_figures_are_those_of_the_arithmetic),
                                       cmocka_unit_test(noise_is_no_drift),
                                       cmocka_unit_test(missing_steps_and_nan_are_no_agreement),
                                       cmocka_unit_test(one_step_has_no_trend)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
