/* Is a provider usable here? Its own probe, then - only when that says no - the supplements installed for it. */
#include "core/memory.h"
#include "operators/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dtp_note_attempt(dt_ctx *ctx, const char *subject, const char *reason)
{
    dt_attempt_record *record = dtp_calloc(1, sizeof *record);
    if (!record)
        return; /* the reason is also in the error of the call that failed */
    record->subject = dtp_strdup(subject);
    record->reason = dtp_strdup(reason);
    dt_attempt_record **last = &ctx->attempts;
    while (*last)
        last = &(*last)->next;
    *last = record;
}

bool dt_ctx_attempt(dt_ctx *ctx, size_t index, dt_attempt *attempt_out)
{
    dtp_ctx_lock(ctx);
    const dt_attempt_record *record = ctx->attempts;
    while (record && index--)
        record = record->next;
    if (record)
        *attempt_out = (dt_attempt){record->subject ? record->subject : "", record->reason ? record->reason : ""};
    dtp_ctx_unlock(ctx);
    return record != NULL;
}

static const dt_supplement *find_supplement(const dt_ctx *ctx, const dt_registration *r, const dt_supplement *after)
{
    for (const dt_supplement *s = after ? after->next : ctx->supplements; s; s = s->next)
        if (s->device == r->provider->device && strcmp(s->provider, r->provider->name) == 0)
            return s;
    return NULL;
}

void dtp_probe(dt_ctx *ctx, dt_registration *r)
{
    char own[DTP_WHY] = "";
    int answer = r->provider->probe ? r->provider->probe(0, own, sizeof own) : 1;
    own[sizeof own - 1] = '\0';
    r->available = answer > 0;
    snprintf(r->why, sizeof r->why, "%s", r->available ? "" : own[0] ? own : "its probe failed without a reason");
    if (answer < 0)
        snprintf(r->why, sizeof r->why, "its probe failed with code %d%s%.200s", answer, own[0] ? ": " : "", own);
    if (!r->available)
        dtp_note_attempt(ctx, r->provider->name, r->why);
    for (const dt_supplement *s = NULL; !r->available && (s = find_supplement(ctx, r, s)) != NULL;) {
        char second[DTP_WHY] = "";
        r->available = s->probe(0, second, sizeof second) > 0;
        second[sizeof second - 1] = '\0';
        if (r->available)
            continue;
        size_t used = strlen(r->why);
        snprintf(r->why + used, sizeof r->why - used, "; %s: %s", s->id, second);
        dtp_note_attempt(ctx, s->id, second);
    }
}

void dtp_probe_calls(dt_ctx *ctx, dt_registration *r)
{
    /* without a provider that drives the device there is nothing to call on yet */
    bool callable = r->available && r->library && dtp_ctx_device_ops(ctx, r->provider->device);
    for (size_t i = 0; callable && i < r->n; i++) {
        dt_err fault = {0};
        r->entry[i].fault[0] = '\0';
        if (dtp_smoke_call(ctx, r->provider->device, &r->entry[i], false, &fault) == DT_OK)
            continue;
        snprintf(r->entry[i].fault, sizeof r->entry[i].fault, "%.250s", fault.text);
        dtp_note_attempt(ctx, r->provider->name, fault.text);
    }
}

static bool op_is_available(const dt_registration *r, size_t i, char *why, size_t n)
{
    const dt_op_set *set = r->entry[i].set;
    if (!r->available) {
        snprintf(why, n, "%s", r->why);
        return false;
    }
    if (r->entry[i].fault[0]) {
        snprintf(why, n, "%s", r->entry[i].fault);
        return false;
    }
    if (!set->probe || set->probe(0, why, n) > 0)
        return true;
    if (!why[0])
        snprintf(why, n, "the probe of %s failed without a reason", dt_op_name(set->op));
    return false;
}

/* Packed linear attention needs convolution and delta rule alike: a provider that offers both, of which only one works,
 * must not serve packed calls with half of the boundaries. Returns the broken other half's index, or -1. */
static int64_t broken_partner(const dt_registration *r, size_t i, char *why, size_t n)
{
    dt_op self = r->entry[i].set->op, partner;
    if (self == DT_OP_GDN)
        partner = DT_OP_CAUSAL_CONV1D;
    else if (self == DT_OP_CAUSAL_CONV1D)
        partner = DT_OP_GDN;
    else
        return -1;
    for (size_t j = 0; j < r->n; j++)
        if (r->entry[j].set->op == partner)
            return op_is_available(r, j, why, n) ? -1 : (int64_t)j;
    return -1;
}

void dtp_candidate_of(const dt_registration *r, size_t i, dt_candidate *out)
{
    *out = (dt_candidate){.entry = (dt_entry *)(uintptr_t)&r->entry[i], .caps = r->entry[i].set->caps};
    out->available = op_is_available(r, i, out->why, sizeof out->why);
    char why[DTP_WHY] = "";
    int64_t partner = out->available ? broken_partner(r, i, why, sizeof why) : -1;
    if (partner < 0)
        return;
    out->caps &= ~(uint32_t)DT_CAP_PACKED;
    snprintf(out->why, sizeof out->why, "its %s is unavailable (%.180s)", dt_op_name(r->entry[partner].set->op), why);
}

/* Brings the tables in line with what the probes say now. */
static dt_status refresh(dt_ctx *ctx, const dt_registration *r, dt_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        dt_op op = r->entry[i].set->op;
        dt_candidate fresh;
        dtp_candidate_of(r, i, &fresh);
        const dt_candidate *old = dtp_slot_find(dtp_slot(ctx, op, r->provider->device), fresh.entry);
        if (!old || (old->available == fresh.available && old->caps == fresh.caps && strcmp(old->why, fresh.why) == 0))
            continue;
        dt_slot_table *table = dtp_slot_copy(ctx, op, r->provider->device, 0);
        if (!table)
            return dt_fail(err, DT_E_NOMEM, "cannot refresh %s: out of memory", dt_op_name(op));
        table->list[old - dtp_slot(ctx, op, r->provider->device)->list] = fresh;
        dtp_slot_publish(ctx, op, r->provider->device, table);
        dt_status status = dtp_slot_notify(ctx, op, r->provider->device, err);
        if (status != DT_OK)
            return status;
    }
    return DT_OK;
}

dt_status dt_ctx_probe_again(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status status = DT_OK;
    for (dt_registration *r = ctx->registrations; r && status == DT_OK; r = r->next) {
        if (r->replaced || r->provider->device != device)
            continue;
        if (!r->available) /* success is kept */
            dtp_probe(ctx, r);
        dtp_probe_calls(ctx, r);
        status = refresh(ctx, r, err);
    }
    dtp_ctx_unlock(ctx);
    return status;
}

dt_status dt_ctx_supplement_probe(dt_ctx *ctx, const char *provider, dt_device_kind device, const char *id,
                                  dt_probe_fn probe, dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status status = DT_OK;
    bool known = false;
    for (const dt_supplement *s = ctx->supplements; s; s = s->next)
        known |= s->device == device && strcmp(s->id, id) == 0 && strcmp(s->provider, provider) == 0;
    dt_supplement *s = known ? NULL : dtp_calloc(1, sizeof *s);
    if (s) {
        *s = (dt_supplement){ctx->supplements, dtp_strdup(provider), dtp_strdup(id), device, probe};
        ctx->supplements = s;
    }
    if (!known && (!s || !s->provider || !s->id))
        status = dt_fail(err, DT_E_NOMEM, "cannot add the probe %s: out of memory", id);
    for (dt_registration *r = ctx->registrations; !known && r && status == DT_OK; r = r->next)
        if (!r->replaced && !r->available && r->provider->device == device &&
            strcmp(r->provider->name, provider) == 0) {
            dtp_probe(ctx, r);
            dtp_probe_calls(ctx, r);
            status = refresh(ctx, r, err);
        }
    dtp_ctx_unlock(ctx);
    return status;
}
