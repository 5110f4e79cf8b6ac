/* Overrides: entries that somebody puts on top of a slot, and holders that want to know. */
#include "core/log.h"
#include "core/memory.h"
#include "operators/contract.h"
#include "operators/registry.h"

#include <stdlib.h>
#include <string.h>

static dt_status check_request(const dt_override_request *q, dt_err *err)
{
    if (q->struct_size < sizeof *q || !q->set || !q->set->forward || !q->who || !q->who[0] ||
        (unsigned)q->op >= DT_OP_COUNT || (unsigned)q->device >= DT_DEVICE_KINDS || q->set->op != q->op)
        return dt_fail(
            err, DT_E_ARG,
            "an override needs its struct size, a name, and an operator set with a forward of that operator");
    if ((q->set->caps & DT_CAP_BACKWARD) && !q->set->backward && dtp_contract(q->op)->differentiable)
        return dt_fail(err, DT_E_ARG, "override of %s by %s lacks its backward function", dt_op_name(q->op), q->who);
    return DT_OK;
}

static void free_override(dt_override *o)
{
    free(o->who);
    free(o->why);
    free(o->file);
    free(o);
}

static dt_override *new_override(const dt_override_request *q)
{
    dt_override *o = dtp_calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->op = q->op;
    o->device = q->device;
    o->who = dtp_strdup(q->who);
    o->why = dtp_strdup(q->why ? q->why : "no reason given");
    o->file = dtp_strdup(dtp_file_of(q->set));
    if (!o->who || !o->why || !o->file) {
        free_override(o);
        return NULL;
    }
    o->entry.set = q->set;
    o->entry.name = o->who;
    o->entry.version = "override";
    o->entry.file = o->file;
    o->entry.wraps = q->wrap;
    return o;
}

/* Publishes `table`, tells the holders; when one refuses, puts a copy of the old table back. */
static dt_status publish_or_undo(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_slot_table *table, dt_err *err)
{
    dt_slot_table *undo = dtp_slot_copy(ctx, op, device, 0);
    if (!undo) {
        free(table);
        return dt_fail(err, DT_E_NOMEM, "cannot change %s: out of memory", dt_op_name(op));
    }
    dtp_slot_publish(ctx, op, device, table);
    dt_status status = dtp_slot_notify(ctx, op, device, err);
    if (status == DT_OK) {
        free(undo);
        return DT_OK;
    }
    undo->generation = table->generation;
    dtp_slot_publish(ctx, op, device, undo);
    (void)dtp_slot_notify(ctx, op, device, NULL);
    return status;
}

dt_status dt_ctx_override(dt_ctx *ctx, const dt_override_request *q, dt_override **token_out, dt_err *err)
{
    dt_status status = check_request(q, err);
    if (status != DT_OK)
        return status;
    dtp_ctx_lock(ctx);
    const dt_slot_table *old = dtp_slot(ctx, q->op, q->device);
    const dt_candidate *current = dtp_slot_current(old);
    if (old && old->chosen)
        status = dt_fail(err, DT_E_BUSY, "%s: the user chose provider %s; the override by %s is refused",
                         dt_op_name(q->op), old->chosen->name, q->who);
    else if (q->wrap && !current)
        status = dt_fail(err, DT_E_UNAVAILABLE, "%s: nothing is there for %s to wrap", dt_op_name(q->op), q->who);
    dt_override *o = status == DT_OK ? new_override(q) : NULL;
    dt_slot_table *table = o ? dtp_slot_copy(ctx, q->op, q->device, 1) : NULL;
    if (status == DT_OK && !table)
        status = dt_fail(err, DT_E_NOMEM, "cannot override %s: out of memory", dt_op_name(q->op));
    if (status == DT_OK) {
        if (!old || !old->n_overrides)
            table->original = current ? current->entry : NULL;
        o->entry.below = q->wrap ? current->entry : NULL;
        dtp_slot_push_override(table, &o->entry);
        status = publish_or_undo(ctx, q->op, q->device, table, err);
    }
    if (status == DT_OK) {
        if (o->entry.below)
            atomic_fetch_add(&o->entry.below->references, 1);
        o->next = ctx->overrides;
        ctx->overrides = o;
        dt_info("%s on %s: %s by %s from %s (%s)", dt_op_name(q->op), dt_device_name(q->device),
                q->wrap ? "wrapped" : "overridden", o->who, o->file, o->why);
        if (token_out)
            *token_out = o;
    } else if (o) {
        free_override(o);
    }
    dtp_ctx_unlock(ctx);
    return status;
}

dt_status dt_ctx_remove_override(dt_ctx *ctx, dt_override *o, dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status status = DT_OK;
    dt_slot_table *table = NULL;
    if (atomic_load(&o->entry.references) > 0)
        status =
            dt_fail(err, DT_E_BUSY, "%s: the override by %s is in use by a saved context or a wrapper on top of it",
                    dt_op_name(o->op), o->who);
    else if (!(table = dtp_slot_copy(ctx, o->op, o->device, 1)))
        status = dt_fail(err, DT_E_NOMEM, "cannot change %s: out of memory", dt_op_name(o->op));
    bool present = table && dtp_slot_find(table, &o->entry);
    if (present) { /* a restore may have taken it out already */
        dtp_slot_remove(table, &o->entry);
        dtp_slot_publish(ctx, o->op, o->device, table);
        (void)dtp_slot_notify(ctx, o->op, o->device, NULL);
    } else {
        free(table);
    }
    if (status == DT_OK && (dtp_entry_is_running(ctx, &o->entry) || atomic_load(&o->entry.references) > 0))
        status =
            dt_fail(err, DT_E_BUSY, "%s: a call of the override by %s is running; it is out of the slot, free it later",
                    dt_op_name(o->op), o->who);
    if (status == DT_OK) {
        dt_override **link = &ctx->overrides;
        while (*link && *link != o)
            link = &(*link)->next;
        if (*link)
            *link = o->next;
        if (o->entry.below)
            atomic_fetch_sub(&o->entry.below->references, 1);
        free_override(o);
    }
    dtp_ctx_unlock(ctx);
    return status;
}

/* ---- holders ---- */

dt_status dt_ctx_add_holder(dt_ctx *ctx, dt_op op, dt_device_kind device, const char *name, dt_holder_fn notify,
                            void *user, dt_err *err)
{
    dt_holder *h = dtp_calloc(1, sizeof *h);
    char *copy = dtp_strdup(name);
    if (!h || !copy) {
        free(h);
        free(copy);
        return dt_fail(err, DT_E_NOMEM, "cannot add holder %s: out of memory", name);
    }
    dtp_ctx_lock(ctx);
    *h = (dt_holder){ctx->holders, op, device, copy, notify, user};
    const dt_slot_table *table = dtp_slot(ctx, op, device);
    dt_status status = notify(user, op, device, table ? table->generation : 0, err);
    if (status == DT_OK)
        ctx->holders = h;
    dtp_ctx_unlock(ctx);
    if (status != DT_OK) {
        free(copy);
        free(h);
    }
    return status;
}

void dt_ctx_remove_holder(dt_ctx *ctx, dt_holder_fn notify, void *user)
{
    dtp_ctx_lock(ctx);
    dt_holder **link = &ctx->holders;
    while (*link) {
        dt_holder *h = *link;
        if (h->notify == notify && h->user == user) {
            *link = h->next;
            free(h->name);
            free(h);
        } else {
            link = &h->next;
        }
    }
    dtp_ctx_unlock(ctx);
}
