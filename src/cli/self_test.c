#include "cli/self_test.h"

#include "conformance/case_run.h"
#include "conformance/generated.h"
#include "core/progress.h"

#include <stdio.h>

static dt_status failed(const dt_kit_report *r, const dt_exec *exec, const char *provider, dt_err *err)
{
    int p = 0;
    while (p < DT_PROPERTIES - 1 && !r->failed[p])
        p++;
    return dt_fail(err, DT_E_INTERNAL,
                   "self-test: %s of provider %s is wrong on %s:%d: %s: %.200s; `deltune check --generated` says more, "
                   "--provider %s=NAME takes another provider, --self_test false goes on anyway",
                   dt_op_name(r->op), provider, dt_device_name(exec->device), (int)exec->device_index,
                   dtp_property_name((dt_property)p), r->fault[p], dt_op_name(r->op));
}

/* *tested_out: 0 where somebody has replaced the entry, or the provider takes no call of that kind. */
static dt_status test_operator(dt_exec *exec, dt_op op, dt_dtype activation, int *tested_out, dt_err *err)
{
    dt_op_info info;
    dt_kit_report report;
    *tested_out = 0;
    dt_status st = dt_ctx_op_info(exec->ctx, op, exec->device, &info, err);
    if (st != DT_OK || (info.source != DT_SOURCE_AUTOMATIC && info.source != DT_SOURCE_CHOSEN))
        return st;
    const dt_kit_options options = {.provider = info.provider, .activation = activation, .seed = 1, .cases = 1};
    st = dtp_check_generated(exec, op, &options, &report, err);
    if (info.source == DT_SOURCE_AUTOMATIC) { /* the check has chosen by name */
        dt_status restored = dtp_case_choose(exec, op, NULL, st == DT_OK ? err : NULL);
        st = st == DT_OK ? restored : st;
    }
    if (st != DT_OK || report.ran == 0)
        return st;
    *tested_out = 1;
    return report.passed ? DT_OK : failed(&report, exec, info.provider, err);
}

dt_status dtp_self_test(const dt_exec *exec, dt_dtype activation, dt_err *err)
{
    dt_exec *own = NULL; /* its memory is not the run's */
    double start = dtp_monotonic_seconds();
    int tested = 0;
    dt_status st = dt_exec_create(&own, exec->ctx, exec->device, exec->device_index, exec->threads, err);
    for (int op = 0; op < DT_OP_COUNT && st == DT_OK; op++) {
        int one = 0;
        if (dtp_has_generated((dt_op)op))
            st = test_operator(own, (dt_op)op, activation, &one, err);
        tested += one;
    }
    dt_exec_free(own);
    if (st == DT_OK)
        printf("self-test: %d operators agree with the CPU, %.2f s\n", tested, dtp_monotonic_seconds() - start);
    return st;
}
