#include "core/test.h"

#include "core/file.h"
#include "core/json.h"
#include "train/logger.h"
#include "train/plot.h"

#include <unistd.h>

static char folder[] = "/tmp/deltune-logger-XXXXXX";

static void durations(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0s"},          {16.4, "16s"},          {59.6, "1m 0s"},        {944, "15m 44s"},
                 {3600, "1h 0m 0s"}, {93784, "1d 2h 3m 4s"}, {86400, "1d 0h 0m 0s"}, {-3, "0s"}};
    char text[48];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dtp_format_duration(text, cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

/* The keys of an object, joined. */
static void keys(char *out, size_t n, json_t *object)
{
    const char *key;
    json_t *value;
    *out = '\0';
    json_object_foreach(object, key, value)
    {
        (void)value;
        snprintf(out + strlen(out), n - strlen(out), "%s ", key);
    }
}

static json_t *line_at(int index)
{
    char path[64];
    snprintf(path, sizeof path, "%s/logging.jsonl", folder);
    dt_err err = {0};
    char *text = NULL;
    size_t length = 0;
    assert_ok(dtp_read_file(path, 0, &text, &length, &err), &err);
    char *at = text;
    for (int i = 0; i < index; i++)
        at = strchr(at, '\n') + 1;
    json_t *value = NULL;
    assert_ok(dtp_json_parse(&value, at, strcspn(at, "\n"), "line", &err), &err);
    free(text);
    return value;
}

static void lines(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_logger *logger = NULL;
    dt_logger_options options = {.folder = folder, .tensorboard = true, .first_step = 2, .max_steps = 10};
    assert_ok(dtp_logger_open(&logger, &options, &err), &err);
    json_t *values = json_pack("{s:f, s:f, s:f, s:f, s:f}", "loss", 1.837124941, "grad_norm", 2.413022284,
                               "learning_rate", 9.99315e-05, "token_acc", 4.0 / 7, "epoch", 1.0 / 60);
    assert_ok(dtp_logger_write(logger, DT_LINE_TRAIN, values, 5, &err), &err);
    values = json_pack("{s:f, s:f, s:f}", "eval_loss", 1.25, "eval_token_acc", 0.5, "epoch", 0.5);
    assert_ok(dtp_logger_write(logger, DT_LINE_EVAL, values, 5, &err), &err);
    assert_ok(dtp_logger_summary(logger, json_pack("{s:n}", "best_metric"), &err), &err);

    char text[512];
    json_t *line = line_at(0);
    keys(text, sizeof text, line);
    assert_string_equal(text, "loss grad_norm learning_rate token_acc epoch global_step/max_steps elapsed_time "
                              "remaining_time memory(GiB) train_speed(s/it) ");
    assert_true(json_real_value(json_object_get(line, "loss")) == 1.83712494);
    assert_true(json_real_value(json_object_get(line, "learning_rate")) == 9.993e-05);
    assert_true(json_real_value(json_object_get(line, "token_acc")) == 0.57142857);
    assert_string_equal(json_string_value(json_object_get(line, "global_step/max_steps")), "5/10");
    assert_true(json_real_value(json_object_get(line, "memory(GiB)")) >= 0);
    json_decref(line);
    line = line_at(2);
    keys(text, sizeof text, line);
    assert_string_equal(text, "best_metric "); /* no tail */
    json_decref(line);

    const json_t *history = dtp_logger_history(logger);
    assert_int_equal(json_array_size(history), 2);
    keys(text, sizeof text, json_array_get(history, 0));
    assert_string_equal(text, "loss grad_norm learning_rate token_acc epoch step ");
    dtp_logger_close(logger);
}

static void speed_counts_this_process(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_logger *logger = NULL;
    dt_logger_options options = {.folder = folder, .first_step = 100, .max_steps = 102};
    assert_ok(dtp_logger_open(&logger, &options, &err), &err);
    usleep(30000);
    assert_ok(dtp_logger_write(logger, DT_LINE_TRAIN, json_pack("{s:f}", "loss", 1.0), 101, &err), &err);
    json_t *line = line_at(3);
    double speed = json_real_value(json_object_get(line, "train_speed(s/it)"));
    assert_true(speed >= 0.03 && speed < 5); /* not divided by 101 */
    json_decref(line);
    dtp_logger_close(logger);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    char place[64], link[96];
    dt_err err = {0};
    snprintf(place, sizeof place, "%s/full", folder);
    snprintf(link, sizeof link, "%s/logging.jsonl", place);
    assert_ok(dtp_make_folders(place, &err), &err);
    if (symlink("/dev/full", link) != 0)
        skip();
    dt_logger *logger = NULL;
    assert_ok(dtp_logger_open(&logger, &(dt_logger_options){.folder = place, .max_steps = 1}, &err), &err);
    assert_fails(dtp_logger_write(logger, DT_LINE_TRAIN, json_pack("{s:f}", "loss", 1.0), 1, &err), &err, DT_E_IO,
                 "No space left on device");
    dtp_logger_close(logger);
}

static void smoothing(void **state)
{
    (void)state;
    const double values[3] = {1, 2, 4};
    double out[3];
    dtp_plot_smooth(out, values, 3);
    assert_true(out[0] == 1);
    assert_true(fabs(out[1] - 2.9 / 1.9) < 1e-15);
    assert_true(fabs(out[2] - (2.9 * 0.9 + 4) / (1.9 * 0.9 + 1)) < 1e-15);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(durations), cmocka_unit_test(lines),
                                       cmocka_unit_test(speed_counts_this_process),
                                       cmocka_unit_test(a_full_disk_is_an_error), cmocka_unit_test(smoothing)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
