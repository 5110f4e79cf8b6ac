/* deltune compare as a user runs it: exit codes, table, picture, folder names in Chinese, a narrow terminal. */
#include "program.h"

enum { STEPS = 60 };

/* A run folder NAME (below the test's) whose loss at step i is 2 * (1 + offset + drift * i / STEPS). */
static char *make_run(const char *name, double offset, double drift)
{
    dt_err err = {0};
    dt_buf text = {0};
    char *folder = dtp_path_join(program_folder, name), *path = dtp_path_join(folder, "logging.jsonl");
    for (int i = 1; i <= STEPS; i++)
        dtp_buf_printf(&text, "{\"loss\": %.8f, \"grad_norm\": 1.25, \"global_step/max_steps\": \"%d/%d\"}\n",
                       2 * (1 + offset + drift * i / STEPS), i, STEPS);
    assert_ok(dtp_make_folders(folder, &err), &err);
    assert_ok(dtp_write_file(path, text.data, text.length, &err), &err);
    dtp_buf_free(&text);
    free(path);
    return folder;
}

/* Exit code of `deltune compare A B OPTIONS` in the test's folder, where the picture goes. */
static int compare(const char *a, const char *b, const char *options)
{
    char *prefix = dtp_format("cd %s;", program_folder), *arguments = dtp_format("compare %s %s %s", a, b, options);
    int code = program_run(prefix, arguments);
    free(prefix);
    free(arguments);
    return code;
}

static bool has_file(const char *name)
{
    char *path = dtp_path_join(program_folder, name);
    bool there = dtp_file_exists(path);
    free(path);
    return there;
}

static bool plots(void)
{
    return access(DT_PLOT_PLUGIN, R_OK) == 0;
}

static void the_exit_code_is_the_verdict(void **state)
{
    (void)state;
    char *a = make_run("cpu", 0, 0), *near = make_run("gpu", 0.004, 0), *far = make_run("off", 0.02, 0),
         *drifting = make_run("drifting", -0.01, 0.02);
    assert_int_equal(compare(a, near, ""), 0);
    assert_int_equal(compare(a, a, "--threshold 0"), 0);
    assert_int_equal(compare(a, far, ""), 1);
    assert_int_equal(compare(a, far, "--threshold 0.03"), 0);
    assert_int_equal(compare(a, drifting, ""), 1); /* 0.5% apart on average, but never ceasing to move */
    assert_int_equal(compare(a, "no-such-run", ""), 2);
    assert_int_equal(compare(a, "", ""), 2);
    assert_int_equal(compare(a, near, "--threshold -1"), 2);
    assert_int_equal(compare(a, near, "--threshold much"), 2);
    free(a);
    free(near);
    free(far);
    free(drifting);
}

static void what_is_printed(void **state)
{
    (void)state;
    char *a = make_run("实验/基线-甲", 0, 0), *b = make_run("实验/显卡-乙", 0.0025, 0);
    assert_int_equal(compare(a, b, "--rows 10"), 0);
    char *text = program_output();
    assert_non_null(strstr(text, "B: "));
    assert_non_null(strstr(text, "实验/显卡-乙\n"));
    assert_non_null(strstr(text, "     1   2.00000   2.00500  +0.00500   +0.250%   1.25   1.25\n"));
    assert_non_null(strstr(text, "compared      60 steps, 1 to 60\n"));
    assert_non_null(strstr(text, "finite        every loss and gradient norm\n"));
    assert_non_null(strstr(text, "mean          0.25% of the loss"));
    assert_non_null(strstr(text, "within the threshold of 1%"));
    int rows = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        rows += strstr(line, "1.25   1.25") != NULL;
        if (strncmp(line, "A: ", 3) != 0 && strncmp(line, "B: ", 3) != 0)
            assert_true(strlen(line) <= 60);
    }
    assert_int_equal(rows, 11); /* ten evenly spaced, and the last */
    free(text);
    free(a);
    free(b);
}

static void json_holds_every_step(void **state)
{
    (void)state;
    dt_err err = {0};
    char *a = make_run("cpu", 0, 0), *b = make_run("gpu", 0.004, 0);
    assert_int_equal(compare(a, b, "--json --output x.png"), plots() ? 0 : 2);
    char *text = program_output(), *end = strstr(text, "\n}\n"); /* behind it may stand what went to stderr */
    json_t *all = NULL;
    assert_non_null(end);
    assert_ok(dtp_json_parse(&all, text, (size_t)(end - text) + 2, "stdout", &err), &err);
    assert_int_equal(json_array_size(json_object_get(all, "steps")), STEPS);
    assert_true(json_is_true(json_object_get(all, "within")));
    assert_true(fabs(json_real_value(json_object_get(all, "mean_relative")) - 0.004) < 1e-9);
    json_decref(all);
    free(text);
    free(a);
    free(b);
}

static void different_steps_are_said(void **state)
{
    (void)state;
    char *a = make_run("cpu", 0, 0), *half = dtp_path_join(program_folder, "half");
    char *command =
        dtp_format("mkdir -p %s && sed -n '1,30p;40,60p' %s/logging.jsonl >%s/logging.jsonl", half, a, half);
    assert_int_equal(system(command), 0);
    assert_int_equal(compare(a, half, ""), 1);
    char *text = program_output();
    assert_non_null(strstr(text, "missing       B lacks 9 steps of A, first 31\n"));
    assert_non_null(strstr(text, "DIFFERENT: not the same steps\n"));
    free(text);
    free(command);
    command = dtp_format("sed -i 's/2.00000000/NaN/' %s/logging.jsonl", a);
    assert_int_equal(system(command), 0);
    assert_int_equal(compare(half, a, ""), 1);
    text = program_output();
    assert_non_null(strstr(text, "not finite    51 steps, first 1\n"));
    assert_non_null(strstr(text, "DIFFERENT: values that are not finite\n"));
    free(text);
    free(command);
    free(half);
    free(a);
}

static void the_picture(void **state)
{
    (void)state;
    if (!plots()) {
        print_message("skipped: built without the plot plug-in\n");
        skip();
    }
    char *a = make_run("甲", 0, 0), *b = make_run("乙", 0.004, 0.001);
    assert_int_equal(compare(a, b, "--output 图.png"), 0);
    assert_true(has_file("图.png"));
    assert_int_equal(compare(a, b, ""), 0);
    assert_true(has_file("compare.png"));
    assert_int_equal(compare(a, b, "--output no/such/folder.png"), 2); /* asked for, not made */
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_exit_code_is_the_verdict),
                                       cmocka_unit_test(what_is_printed), cmocka_unit_test(json_holds_every_step),
                                       cmocka_unit_test(different_steps_are_said), cmocka_unit_test(the_picture)};
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
