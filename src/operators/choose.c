/* The user's explicit choice of providers. */
#include "core/memory.h"
#include "operators/registry.h"

#include <stdlib.h>
#include <string.h>

static const dt_candidate *named(const dt_slot_table *table, const char *name)
{
    for (size_t i = table ? table->n_overrides : 0; table && i < table->n; i++)
        if (strcmp(table->list[i].entry->name, name) == 0)
            return &table->list[i];
    return NULL;
}

static dt_status unknown(const dt_slot_table *table, const char *op, const char *name, dt_err *err)
{
    dt_buf known = {0};
    for (size_t i = table->n_overrides; i < table->n; i++)
        dtp_buf_printf(&known, "%s%s", known.length ? ", " : "", table->list[i].entry->name);
    dt_fail(err, DT_E_ARG, "no provider named \"%s\" for %s (there are: %s)", name, op,
            known.length ? known.data : "none");
    dtp_buf_free(&known);
    return DT_E_ARG;
}

/* Chooses in one slot; name "auto" gives the choice back. */
static dt_status choose(dt_ctx *ctx, dt_op op, dt_device_kind device, const char *name, dt_err *err)
{
    const dt_slot_table *old = dtp_slot(ctx, op, device);
    const dt_candidate *candidate = named(old, name);
    bool automatic = strcmp(name, "auto") == 0;
    if (!automatic && !candidate)
        return unknown(old, dt_op_name(op), name, err);
    if (candidate && !candidate->available)
        return dt_fail(err, DT_E_UNAVAILABLE, "provider %s cannot run %s here: %s", name, dt_op_name(op),
                       candidate->why);
    dt_entry *chosen = automatic ? NULL : candidate->entry;
    if (old->chosen == chosen)
        return DT_OK;
    dt_slot_table *table = dtp_slot_copy(ctx, op, device, 0);
    if (!table)
        return dt_fail(err, DT_E_NOMEM, "cannot choose provider %s: out of memory", name);
    table->chosen = chosen;
    dtp_slot_publish(ctx, op, device, table);
    return dtp_slot_notify(ctx, op, device, err);
}

/* "NAME": every operator that provider serves. */
static dt_status choose_everywhere(dt_ctx *ctx, const char *name, dt_err *err)
{
    bool automatic = strcmp(name, "auto") == 0, found = automatic;
    dt_buf known = {0};
    for (const dt_registration *r = ctx->registrations; r; r = r->next) {
        found |= !r->replaced && strcmp(r->provider->name, name) == 0;
        if (!r->replaced)
            dtp_buf_printf(&known, ", %s", r->provider->name);
    }
    dt_status status = DT_OK;
    if (!found)
        status = dt_fail(err, DT_E_ARG, "no provider named \"%s\" (there are: auto%s)", name,
                         known.length ? known.data : "");
    dtp_buf_free(&known);
    for (int op = 0; op < DT_OP_COUNT; op++)
        for (int device = 0; device < DT_DEVICE_KINDS && status == DT_OK; device++) {
            const dt_slot_table *table = dtp_slot(ctx, (dt_op)op, (dt_device_kind)device);
            if (table && (automatic || named(table, name)))
                status = choose(ctx, (dt_op)op, (dt_device_kind)device, name, err);
        }
    return status;
}

/* "OP=NAME": on every device that has that provider; the error of the first device when none has it. */
static dt_status choose_operator(dt_ctx *ctx, const char *op_name, const char *name, dt_err *err)
{
    dt_op op = dt_op_by_name(op_name);
    if (op == DT_OP_COUNT)
        return dt_fail(err, DT_E_ARG, "no operator named \"%s\" (`deltune ops` lists them)", op_name);
    dt_err first = {0};
    bool done = false;
    for (int device = 0; device < DT_DEVICE_KINDS; device++)
        if (dtp_slot(ctx, op, (dt_device_kind)device))
            done |= choose(ctx, op, (dt_device_kind)device, name, first.status ? NULL : &first) == DT_OK;
    if (done)
        return DT_OK;
    return first.status ? dt_fail(err, first.status, "%s", first.text)
                        : dt_fail(err, DT_E_ARG, "no provider serves %s", op_name);
}

dt_status dt_ctx_choose(dt_ctx *ctx, const char *spec, dt_err *err)
{
    char *copy = dtp_strdup(spec), *rest = copy;
    if (!copy)
        return dt_fail(err, DT_E_NOMEM, "cannot choose a provider: out of memory");
    dtp_ctx_lock(ctx);
    dt_status status = DT_OK;
    for (char *item; status == DT_OK && (item = strsep(&rest, ",")) != NULL;) {
        char *equals = strchr(item, '=');
        if (equals)
            *equals = '\0';
        if (equals)
            status = choose_operator(ctx, item, equals + 1, err);
        else if (*item)
            status = choose_everywhere(ctx, item, err);
    }
    dtp_ctx_unlock(ctx);
    free(copy);
    return status == DT_OK ? DT_OK : dt_err_prefix(err, "provider choice \"%s\": ", spec);
}
