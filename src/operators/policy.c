#include <deltune/policy.h>

#include "core/log.h"
#include "operators/per_sample.h"
#include "operators/registry.h"

#include <ctype.h>
#include <string.h>

/* Lower case. "910" alone is the first generation although it starts the names of all others: hence whole names. */
static const struct {
    const char *name;
    dt_soc_family family;
} soc_table[] = {
    {"ascend910", DT_SOC_ASCEND910},         {"ascend910a", DT_SOC_ASCEND910},
    {"ascend910proa", DT_SOC_ASCEND910},     {"ascend910prob", DT_SOC_ASCEND910},
    {"ascend910premiuma", DT_SOC_ASCEND910}, {"ascend910b1", DT_SOC_ASCEND910B},
    {"ascend910b2", DT_SOC_ASCEND910B},      {"ascend910b2c", DT_SOC_ASCEND910B},
    {"ascend910b3", DT_SOC_ASCEND910B},      {"ascend910b4", DT_SOC_ASCEND910B},
    {"ascend910b4-1", DT_SOC_ASCEND910B},    {"ascend910_93", DT_SOC_ASCEND910_93},
    {"ascend910_9391", DT_SOC_ASCEND910_93}, {"ascend910_9392", DT_SOC_ASCEND910_93},
    {"ascend910_9381", DT_SOC_ASCEND910_93}, {"ascend910_9382", DT_SOC_ASCEND910_93},
    {"ascend910_9372", DT_SOC_ASCEND910_93}, {"ascend910_9362", DT_SOC_ASCEND910_93},
    {"ascend950", DT_SOC_ASCEND950},         {"ascend910_95", DT_SOC_ASCEND950},
    {"ascend950dt", DT_SOC_ASCEND950},       {"ascend950pr", DT_SOC_ASCEND950},
    {"ascend310p", DT_SOC_ASCEND310P},       {"ascend310p1", DT_SOC_ASCEND310P},
    {"ascend310p3", DT_SOC_ASCEND310P},
};

dt_soc_family dt_soc_family_of(const char *soc_name)
{
    char lower[64];
    size_t n = strlen(soc_name);
    if (n >= sizeof lower)
        return DT_SOC_OTHER;
    for (size_t i = 0; i <= n; i++)
        lower[i] = (char)tolower((unsigned char)soc_name[i]);
    for (size_t i = 0; i < sizeof soc_table / sizeof *soc_table; i++)
        if (strcmp(lower, soc_table[i].name) == 0)
            return soc_table[i].family;
    return DT_SOC_OTHER;
}

/* The third party's entry becomes current, wrapped by one call per sample. */
static dt_status wrap_third_party(dt_ctx *ctx, const dt_settle_request *q, dt_err *err)
{
    const dt_slot_table *table = dtp_slot(ctx, q->op, q->device);
    const dt_candidate *current = dtp_slot_current(table);
    const dt_candidate *third = NULL;
    for (size_t i = 0; table && i < table->n; i++)
        if (!third && strcmp(table->list[i].entry->name, q->third_party) == 0)
            third = &table->list[i];
    if (!third || !third->available)
        return dt_fail(err, DT_E_UNAVAILABLE, "%s: provider %s is not there to be wrapped%s%s", dt_op_name(q->op),
                       q->third_party, third ? ": " : "", third ? third->why : "");
    if (current && current->entry->set == dtp_per_sample_set(q->op))
        return DT_OK; /* done before */
    dt_override_request replace = {DT_OVERRIDE_REQUEST,
                                   q->op,
                                   q->device,
                                   third->entry->set,
                                   q->third_party,
                                   "this device family has no native path of the owner",
                                   false};
    dt_override_request wrap = {DT_OVERRIDE_REQUEST,   q->op, q->device, dtp_per_sample_set(q->op), "safe varlen",
                                "one call per sample", true};
    dt_override *token = NULL;
    dt_status status = current && current->entry == third->entry ? DT_OK : dt_ctx_override(ctx, &replace, &token, err);
    if (status == DT_OK)
        status = dt_ctx_override(ctx, &wrap, NULL, err);
    if (status != DT_OK && token)
        (void)dt_ctx_remove_override(ctx, token, NULL);
    return status;
}

dt_status dt_ctx_settle(dt_ctx *ctx, const dt_settle_request *q, dt_settled *settled_out, dt_err *err)
{
    if (q->struct_size < sizeof *q || !q->policy)
        return dt_fail(err, DT_E_ARG, "a settle request needs its struct size and a restore policy");
    *settled_out = DT_SETTLED_UNTOUCHED;
    if (q->device != DT_DEVICE_NPU && !q->soc_name) /* only a device that names its family can be affected */
        return DT_OK;
    dtp_ctx_lock(ctx);
    dt_status status = DT_OK;
    if (q->soc_name && dt_soc_family_of(q->soc_name) == DT_SOC_ASCEND950 && q->third_party &&
        dtp_per_sample_set(q->op)) {
        status = wrap_third_party(ctx, q, err);
        *settled_out = status == DT_OK ? DT_SETTLED_PER_SAMPLE : DT_SETTLED_KEPT;
    } else {
        /* a failed restore has warned and changed nothing: calls are then checked one by one */
        bool restored = dt_ctx_restore(ctx, q->op, q->device, q->policy, NULL, NULL) == DT_OK;
        *settled_out = restored ? DT_SETTLED_OWNER : DT_SETTLED_KEPT;
    }
    dtp_ctx_unlock(ctx);
    return status;
}
