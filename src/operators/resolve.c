/* Which candidate runs a call, and the record of why. */
#include "core/log.h"
#include "core/memory.h"
#include "operators/contract.h"
#include "operators/registry.h"

#include <stdio.h>
#include <string.h>

static const char *missing_capability(uint32_t missing)
{
    if (missing & DT_CAP_PACKED)
        return "packed calls with more than one sample";
    if (missing & DT_CAP_BACKWARD)
        return "a backward";
    if (missing & DT_CAP_STATE)
        return "initial and final states";
    return "more value (query) heads than key heads";
}

/* true when the candidate can run the call; else the reason. */
static bool can_run(const dt_exec *exec, const dt_candidate *c, const void *args, uint32_t needs, char *why, size_t n)
{
    why[0] = '\0';
    if (!c->available) {
        snprintf(why, n, "unavailable: %.200s", c->why);
        return false;
    }
    uint32_t missing = needs & ~c->caps;
    if (missing) {
        snprintf(why, n, "does not support %s%s%.150s", missing_capability(missing), c->why[0] ? ": " : "", c->why);
        return false;
    }
    if (!args || !c->entry->set->verify || c->entry->set->verify(exec, args, why, n))
        return true;
    if (!why[0])
        snprintf(why, n, "refuses this call without a reason");
    return false;
}

static const char *remedy(const dt_slot_table *table, const dt_candidate *refused)
{
    if (table->chosen)
        return "choose another provider, or auto, with --provider";
    return refused->entry->wraps ? "remove the override, or restore the original"
                                 : "restore the original, or choose a provider with --provider";
}

/* An entry that somebody put there on purpose: a choice or an override. It runs the call or the call fails. */
static const dt_candidate *only(const dt_exec *exec, const dt_slot_table *table, const dt_candidate *c, dt_op op,
                                const void *args, uint32_t needs, dt_err *err)
{
    char why[DTP_WHY];
    if (can_run(exec, c, args, needs, why, sizeof why))
        return c;
    dt_fail(err, DT_E_UNSUPPORTED, "%s: %s provider %s cannot run this call: %s (%s)", dt_op_name(op),
            table->chosen ? "the chosen" : "the override by", c->entry->name, why, remedy(table, c));
    return NULL;
}

/* One line per operator and candidate when the best one is passed over. */
static void log_fallback(const dt_exec *exec, const dt_slot_table *table, dt_op op, size_t i, const char *first_reason)
{
    uint32_t bit = i < 32 ? 1u << i : 0;
    atomic_uint *logged = (atomic_uint *)(uintptr_t)&table->logged;
    if (!bit || (atomic_fetch_or(logged, bit) & bit))
        return;
    dt_info("%s on %s: %s runs calls that %s does not take (%s)", dt_op_name(op), dt_device_name(exec->device),
            table->list[i].entry->name, table->list[table->n_overrides].entry->name, first_reason);
}

static dt_status nothing_runs(const dt_exec *exec, const dt_slot_table *table, dt_op op, const void *args,
                              uint32_t needs, dt_err *err)
{
    dt_buf reasons = {0};
    char why[DTP_WHY];
    for (size_t i = 0; table && i < table->n; i++) {
        can_run(exec, &table->list[i], args, needs, why, sizeof why);
        dtp_buf_printf(&reasons, "%s%s: %s", i ? "; " : "", table->list[i].entry->name, why);
    }
    dt_fail(err, DT_E_UNSUPPORTED, "%s: no provider can run this call on %s (%s)", dt_op_name(op),
            dt_device_name(exec->device), reasons.length ? reasons.data : "none is registered");
    dtp_buf_free(&reasons);
    return DT_E_UNSUPPORTED;
}

const dt_candidate *dtp_resolve(const dt_exec *exec, const dt_slot_table *table, dt_op op, const void *args,
                                uint32_t needs, dt_err *err)
{
    if (table && (table->chosen || table->n_overrides))
        return only(exec, table, dtp_slot_current(table), op, args, needs, err);
    char why[DTP_WHY], first_reason[DTP_WHY] = "";
    const dt_candidate *restored = table && table->restored ? dtp_slot_find(table, table->restored) : NULL;
    if (restored && can_run(exec, restored, args, needs, first_reason, sizeof first_reason))
        return restored;
    for (size_t i = 0; table && i < table->n; i++) {
        if (!can_run(exec, &table->list[i], args, needs, why, sizeof why)) {
            if (!first_reason[0])
                memcpy(first_reason, why, sizeof why);
            continue;
        }
        if (first_reason[0])
            log_fallback(exec, table, op, i, first_reason);
        return &table->list[i];
    }
    nothing_runs(exec, table, op, args, needs, err);
    return NULL;
}

/* ---- the record ---- */

static dt_op_source source_of(const dt_slot_table *table, const dt_candidate *current)
{
    if (!current)
        return DT_SOURCE_NOTHING;
    if (table->chosen)
        return DT_SOURCE_CHOSEN;
    if (table->n_overrides)
        return DT_SOURCE_OVERRIDE;
    return table->restored ? DT_SOURCE_RESTORED : DT_SOURCE_AUTOMATIC;
}

const char *dt_op_source_name(dt_op_source source)
{
    static const char *const names[] = {"automatic", "chosen", "override", "restored", "nothing"};
    return (unsigned)source <= DT_SOURCE_NOTHING ? names[source] : "unknown";
}

dt_status dt_ctx_op_info(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_op_info *info_out, dt_err *err)
{
    dtp_ctx_lock(ctx);
    const dt_slot_table *table = dtp_slot(ctx, op, device);
    const dt_candidate *current = dtp_slot_current(table);
    if (current)
        *info_out = (dt_op_info){.op = dt_op_name(op),
                                 .provider = current->entry->name,
                                 .version = current->entry->version,
                                 .file = current->entry->file,
                                 .source = source_of(table, current),
                                 .caps = current->caps,
                                 .generation = table->generation};
    dtp_ctx_unlock(ctx);
    return current ? DT_OK
                   : dt_fail(err, DT_E_UNAVAILABLE, "%s: no provider can run on %s", dt_op_name(op),
                             dt_device_name(device));
}

const char *dt_ctx_candidate(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t i)
{
    dtp_ctx_lock(ctx);
    const dt_slot_table *table = dtp_slot(ctx, op, device);
    const char *name = table && i < table->n ? table->list[i].entry->name : NULL;
    dtp_ctx_unlock(ctx);
    return name;
}

bool dt_ctx_candidate_info(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t i, dt_candidate_info *info_out)
{
    dtp_ctx_lock(ctx);
    const dt_slot_table *table = dtp_slot(ctx, op, device);
    bool there = table && i < table->n;
    if (there) {
        const dt_candidate *c = &table->list[i];
        *info_out = (dt_candidate_info){
            c->entry->name, c->entry->version, c->entry->file, i < table->n_overrides, c->available, c->caps, ""};
        memcpy(info_out->why, c->why, sizeof info_out->why);
    }
    dtp_ctx_unlock(ctx);
    return there;
}

/* Reasons are computed for this call now, so they are never those of an earlier one. */
void dt_op_explain(dt_exec *exec, dt_op op, const void *args, bool backward, char *text, size_t size)
{
    uint32_t needs = 0;
    dt_err fault = {0};
    dt_buf out = {0};
    char why[DTP_WHY];
    if (args && dtp_contract(op)->check(exec, args, DT_PHASE_SIZE, &needs, &fault) != DT_OK)
        dtp_buf_printf(&out, "the call breaks its contract: %s\n", fault.text);
    if (backward)
        needs |= DT_CAP_BACKWARD;
    dtp_ctx_lock(exec->ctx);
    const dt_slot_table *table = dtp_slot(exec->ctx, op, exec->device);
    const dt_candidate *taken = table && !out.length ? dtp_resolve(exec, table, op, args, needs, NULL) : NULL;
    for (size_t i = 0; table && i < table->n; i++) {
        const dt_candidate *c = &table->list[i];
        bool runs = can_run(exec, c, args, needs, why, sizeof why);
        dtp_buf_printf(&out, "%s %s %s (%s)%s: %s\n", c == taken ? "*" : " ", c->entry->name, c->entry->version,
                       c->entry->file, i < table->n_overrides ? " override" : "",
                       c == taken ? "runs it"
                       : runs     ? "could run it, is not asked"
                                  : why);
    }
    dtp_ctx_unlock(exec->ctx);
    if (size)
        snprintf(text, size, "%s", out.length ? out.data : "no provider is registered\n");
    dtp_buf_free(&out);
}

dt_status dt_ctx_fingerprint(dt_ctx *ctx, dt_device_kind device, char *text, size_t size, dt_err *err)
{
    dt_buf out = {0};
    for (int op = 0; op < DT_OP_COUNT; op++) {
        dt_op_info info;
        if (dt_ctx_op_info(ctx, (dt_op)op, device, &info, NULL) == DT_OK)
            dtp_buf_printf(&out, "%s %s %s %s\n", info.op, info.provider, info.version, info.file);
        else
            dtp_buf_printf(&out, "%s none\n", dt_op_name((dt_op)op));
    }
    dt_status status = dtp_buf_status(&out, "fingerprint", err);
    if (status == DT_OK && out.length >= size)
        status = dt_fail(err, DT_E_ARG, "the fingerprint needs %zu bytes", out.length + 1);
    if (status == DT_OK)
        memcpy(text, out.data, out.length + 1);
    dtp_buf_free(&out);
    return status;
}
