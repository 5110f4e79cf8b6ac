/* The kit on providers with a fault in what only recorded steps use. tests/provider_test.sh has the other faults. */
#include "conformance/generated.h"
#include "core/test.h"
#include "providers/reference/reference.h"

#include <deltune/dispatch.h>
#include <deltune/op/cross_entropy.h>
#include <deltune/op/optimizer.h>
#include <deltune/provider.h>

extern const dt_op_set dtp_ref_adamw, dtp_ref_cross_entropy;

static int always(int device_index, char *why, size_t why_size)
{
    (void)device_index, (void)why, (void)why_size;
    return 1;
}

/* Takes the fields of the call and not the values in device memory. */
static dt_status deaf_adamw(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    dt_adamw_args a = *(const dt_adamw_args *)args;
    a.values = NULL;
    a.norm = NULL;
    return dtp_ref_adamw.forward(exec, &a, saved, workspace, err);
}

/* Updates although a gradient is not finite would need a norm that says so: here the norm is not looked at, but lr is.
 */
static dt_status unclipped_adamw(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    dt_adamw_args a = *(const dt_adamw_args *)args;
    if (a.norm)
        a.grad_scale = 1;
    a.norm = NULL;
    return dtp_ref_adamw.forward(exec, &a, saved, workspace, err);
}

/* Writes the result where it is not wanted. */
static dt_status lost_result(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    dt_cross_entropy_args a = *(const dt_cross_entropy_args *)args;
    dt_cross_entropy_result result;
    if (a.result_device)
        a.result_device = &result;
    return dtp_ref_cross_entropy.forward(exec, &a, saved, workspace, err);
}

static void check(dt_op op, dt_status (*forward)(dt_exec *, const void *, void *, void *, dt_err *), const char *part)
{
    dt_err err = {0};
    dt_ctx *ctx;
    dt_exec *exec;
    dt_kit_report report;
    dt_op_set set = op == DT_OP_ADAMW ? dtp_ref_adamw : dtp_ref_cross_entropy;
    if (forward)
        set.forward = forward;
    const dt_op_set *sets[] = {&set};
    const dt_provider provider = {.struct_size = sizeof provider,
                                  .abi = DT_PROVIDER_ABI,
                                  .name = "faulty",
                                  .version = "1",
                                  .device = DT_DEVICE_CPU,
                                  .probe = always,
                                  .ops = sets,
                                  .n_ops = 1};
    assert_ok(dt_ctx_create(&ctx, &err), &err);
    assert_ok(dt_ctx_register(ctx, &provider, NULL, 0, NULL, &err), &err);
    assert_ok(dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 1, &err), &err);
    const dt_kit_options options = {.provider = "faulty", .activation = DT_F32, .seed = 1, .cases = 6};
    assert_ok(dtp_check_generated(exec, op, &options, &report, &err), &err);
    assert_int_equal(report.ran, 6);
    for (int p = 0; p < DT_PROPERTIES; p++)
        if (report.failed[p] != (part && p == DT_PROPERTY_RECORDED))
            fail_msg("%s of %s: %s", dtp_property_name((dt_property)p), dt_op_name(op), report.fault[p]);
    if (part && !strstr(report.fault[DT_PROPERTY_RECORDED], part))
        fail_msg("\"%s\" does not name %s", report.fault[DT_PROPERTY_RECORDED], part);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
}

static void values_in_device_memory_are_looked_at(void **state)
{
    (void)state;
    check(DT_OP_ADAMW, NULL, NULL);
    check(DT_OP_ADAMW, deaf_adamw, "new_param is wrong");
    check(DT_OP_ADAMW, unclipped_adamw, "is wrong");
}

static void results_go_where_they_are_wanted(void **state)
{
    (void)state;
    check(DT_OP_CROSS_ENTROPY, NULL, NULL);
    check(DT_OP_CROSS_ENTROPY, lost_result, "loss is wrong");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_in_device_memory_are_looked_at),
                                       cmocka_unit_test(results_go_where_they_are_wanted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
