/* The golden operator cases, on every provider that serves them. */
#include "conformance/op_case.h"
#include "core/file.h"
#include "core/test.h"

#include <dirent.h>

static void run_folder(const char *folder, const char *provider, int *ran)
{
    dt_err err = {0};
    dt_ctx *ctx;
    dt_exec *exec;
    assert_ok(dt_ctx_create(&ctx, &err), &err);
    assert_ok(dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 2, &err), &err);
    DIR *list = opendir(folder);
    assert_non_null(list);
    const dt_case_options options = {provider, DT_F32};
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (!strstr(entry->d_name, ".safetensors"))
            continue;
        char *path = dtp_path_join(folder, entry->d_name);
        dt_case_report report;
        assert_ok(dtp_run_op_case(exec, path, &options, &report, &err), &err);
        if (!report.passed) {
            for (int i = 0; i < report.n_results; i++)
                if (!report.result[i].comparison.passed)
                    print_error("%s on %s: %s: ratio %g, worst slice %g (sample %lld, head %lld)\n", report.name,
                                provider, report.result[i].tensor, report.result[i].comparison.ratio,
                                report.result[i].comparison.worst_ratio, (long long)report.result[i].comparison.worst_n,
                                (long long)report.result[i].comparison.worst_head);
            fail_msg("%s on %s: %s", report.name, provider, report.fault);
        }
        assert_string_equal(report.provider, provider);
        free(path);
        ++*ran;
    }
    closedir(list);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
}

static void golden_cases_pass_on(const char *provider)
{
    int ran = 0;
    if (dtp_is_folder(DT_SHARED_DIR "/golden/ops"))
        run_folder(DT_SHARED_DIR "/golden/ops", provider, &ran);
    else
        print_message("skipped: the large cases, " DT_SHARED_DIR "/golden/ops is missing\n");
    run_folder(DT_TEST_DATA "/ops", provider, &ran);
    assert_true(ran > 0);
}

static void golden_cases_pass_on_reference(void **state)
{
    (void)state;
    golden_cases_pass_on("reference");
}

static void golden_cases_pass_on_cpu(void **state)
{
    (void)state;
    golden_cases_pass_on("cpu");
}

static void files_that_are_no_case_are_refused(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_ctx *ctx;
    dt_exec *exec;
    assert_ok(dt_ctx_create(&ctx, &err), &err);
    assert_ok(dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 1, &err), &err);
    dt_case_report report;
    const dt_case_options options = {NULL, DT_F32};
    assert_fails(dtp_run_op_case(exec, "/nowhere.safetensors", &options, &report, &err), &err, DT_E_IO,
                 "/nowhere.safetensors");
    assert_fails(dtp_run_op_case(exec, DT_SOURCE_DIR "/README.md", &options, &report, &err), &err, DT_E_FORMAT,
                 "README.md");
    dt_exec_free(exec);
    dt_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_pass_on_reference),
        cmocka_unit_test(golden_cases_pass_on_cpu),
        cmocka_unit_test(files_that_are_no_case_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
