#include "core/test.h"

#include "core/file.h"
#include "model/model_check.h"
#include <deltune/operators.h>

static void run_case(const char *folder, const char *provider, dt_case_layout layout)
{
    dt_err err = {0};
    dt_ctx *ctx;
    dt_exec *exec;
    dt_model_case_report report;
    assert_ok(dt_ctx_create(&ctx, &err), &err);
    assert_ok(dt_ctx_choose(ctx, provider, &err), &err);
    assert_ok(dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 1, &err), &err);
    assert_ok(dtp_model_case_run(&report, exec, folder, layout, DT_F32, &err), &err);
    assert_true(report.n_rows > 6);
    size_t worst = 0;
    for (size_t i = 0; i < report.n_rows; i++) {
        const dt_model_case_row *r = &report.row[i];
        if (!r->passed)
            print_error("%s, %s, layout %d: %s: error %.2e, tolerance %.0e\n", folder, provider, (int)layout, r->name,
                        r->error, r->tolerance);
        if (r->error / r->tolerance > report.row[worst].error / report.row[worst].tolerance)
            worst = i;
    }
    print_message("%s %s layout %d: worst %s %.1e of %.0e\n", dtp_path_base(folder), provider, (int)layout,
                  report.row[worst].name, report.row[worst].error, report.row[worst].tolerance);
    assert_true(report.passed);
    dtp_model_case_free(&report);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
}

static void test_committed_case(void **state)
{
    (void)state;
    for (int layout = 0; layout < 4; layout++)
        run_case(DT_TEST_DATA "/tiny_dense", "auto", (dt_case_layout)layout);
    run_case(DT_TEST_DATA "/tiny_dense", "reference", DT_CASE_PACK);
}

static void test_shared_cases(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny_dense", "real_heads", "tiny_dense_multimodal"};
    if (!dtp_is_folder(DT_SHARED_DIR "/golden/tiny_dense")) {
        print_message("%s/golden is not there: skipped\n", DT_SHARED_DIR);
        skip();
    }
    for (int i = 0; i < 3; i++)
        for (int layout = 0; layout < 4; layout++) {
            char folder[512];
            snprintf(folder, sizeof folder, "%s/golden/%s", DT_SHARED_DIR, names[i]);
            run_case(folder, "auto", (dt_case_layout)layout);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_committed_case),
        cmocka_unit_test(test_shared_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
