#include "core/memory.h"
#include "operators/contract.h"
#include "operators/registry.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

dt_registration *dtp_find_registration(dt_ctx *ctx, const char *name, dt_device_kind device)
{
    for (dt_registration *r = ctx->registrations; r; r = r->next)
        if (!r->replaced && r->provider->device == device && strcmp(r->provider->name, name) == 0)
            return r;
    return NULL;
}

const dt_device_ops *dtp_ctx_device_ops(dt_ctx *ctx, dt_device_kind device)
{
    for (const dt_registration *r = ctx->registrations; r; r = r->next)
        if (!r->replaced && r->provider->device == device && r->provider->device_ops && r->available)
            return r->provider->device_ops;
    return NULL;
}

void dtp_close_library(dt_registration *r)
{
    if (r->library && !(r->provider->flags & DT_PROVIDER_KEEP_MAPPED))
        dlclose(r->library);
}

static dt_status check_set(const dt_provider *p, size_t i, const char *file, dt_err *err)
{
    const dt_op_set *set = p->ops[i];
    if (!set || set->struct_size < offsetof(dt_op_set, probe))
        return dt_fail(err, DT_E_ARG, "%s: operator set %zu of provider %s is missing or too small", file, i, p->name);
    if ((unsigned)set->op >= DT_OP_COUNT)
        return dt_fail(err, DT_E_ARG, "%s: provider %s serves operator number %d, which does not exist", file, p->name,
                       (int)set->op);
    bool needs_backward = (set->caps & DT_CAP_BACKWARD) && dtp_contract(set->op)->differentiable;
    if (!set->forward || (needs_backward && !set->backward))
        return dt_fail(err, DT_E_ARG, "%s: %s of provider %s lacks its %s function: neither half is offered", file,
                       dt_op_name(set->op), p->name, set->forward ? "backward" : "forward");
    for (size_t j = 0; j < i; j++)
        if (p->ops[j]->op == set->op)
            return dt_fail(err, DT_E_ARG, "%s: provider %s lists %s twice", file, p->name, dt_op_name(set->op));
    return DT_OK;
}

static dt_status check_provider(const dt_provider *p, const char *file, dt_err *err)
{
    if (p->abi != DT_PROVIDER_ABI)
        return dt_fail(err, DT_E_ARG, "%s: provider ABI %u, this deltune needs ABI %u: rebuild the plug-in", file,
                       p->abi, DT_PROVIDER_ABI);
    if (p->struct_size < sizeof *p)
        return dt_fail(err, DT_E_ARG, "%s: provider table of %zu bytes, at least %zu are needed: rebuild the plug-in",
                       file, p->struct_size, sizeof *p);
    if (!p->name || !p->name[0] || !p->version || (unsigned)p->device >= DT_DEVICE_KINDS || (p->n_ops && !p->ops))
        return dt_fail(err, DT_E_ARG, "%s: the provider table lacks a name, a version, a valid device or its operators",
                       file);
    dt_status status = DT_OK;
    for (size_t i = 0; i < p->n_ops && status == DT_OK; i++)
        status = check_set(p, i, file, err);
    return status;
}

/* The origins of two providers of one name, for the error. */
static dt_status check_duplicate(dt_ctx *ctx, const dt_provider *p, const char *file, uint32_t flags, dt_err *err)
{
    const dt_registration *r = dtp_find_registration(ctx, p->name, p->device);
    if (!r || (flags & DT_REGISTER_REPLACE))
        return DT_OK;
    return dt_fail(err, DT_E_ARG,
                   "%s: provider %s for %s is already registered from %s (replace it, or give it another name)", file,
                   p->name, dt_device_name(p->device), r->file);
}

static dt_registration *new_registration(const dt_provider *p, const char *file, void *library)
{
    dt_registration *r = dtp_calloc(1, sizeof *r + p->n_ops * sizeof r->entry[0]);
    char *copy = dtp_strdup(file);
    if (!r || !copy) {
        free(r);
        free(copy);
        return NULL;
    }
    r->provider = p;
    r->file = copy;
    r->library = library;
    r->n = p->n_ops;
    for (size_t i = 0; i < r->n; i++) {
        const char *code = dtp_file_of(p->ops[i]);
        r->entry[i].set = p->ops[i];
        r->entry[i].name = p->name;
        r->entry[i].version = p->version;
        r->entry[i].file = code[0] ? code : copy;
        r->entry[i].priority = p->priority;
    }
    return r;
}

/* The slot's table with the old registration's entry (or none) exchanged for the new one's. */
static dt_slot_table *exchanged(dt_ctx *ctx, const dt_registration *old, const dt_registration *r, dt_op op)
{
    dt_slot_table *table = dtp_slot_copy(ctx, op, r->provider->device, 1);
    if (!table)
        return NULL;
    for (size_t i = 0; old && i < old->n; i++)
        if (old->entry[i].set->op == op)
            dtp_slot_remove(table, &old->entry[i]);
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i].set->op == op) {
            dt_candidate candidate;
            dtp_candidate_of(r, i, &candidate);
            dtp_slot_insert_candidate(table, &candidate);
        }
    return table;
}

static bool serves(const dt_registration *r, dt_op op)
{
    for (size_t i = 0; r && i < r->n; i++)
        if (r->entry[i].set->op == op)
            return true;
    return false;
}

/* Computes the tables of all operators first, then publishes them together. */
static dt_status publish(dt_ctx *ctx, dt_registration *old, dt_registration *r, dt_err *err)
{
    dt_slot_table *tables[DT_OP_COUNT] = {NULL};
    for (int op = 0; op < DT_OP_COUNT; op++) {
        if (!serves(old, (dt_op)op) && !serves(r, (dt_op)op))
            continue;
        tables[op] = exchanged(ctx, old, r, (dt_op)op);
        if (!tables[op]) {
            while (op-- > 0)
                free(tables[op]);
            return dt_fail(err, DT_E_NOMEM, "cannot register provider %s: out of memory", r->provider->name);
        }
    }
    dt_status status = DT_OK;
    for (int op = 0; op < DT_OP_COUNT; op++)
        if (tables[op])
            dtp_slot_publish(ctx, (dt_op)op, r->provider->device, tables[op]);
    for (int op = 0; op < DT_OP_COUNT && status == DT_OK; op++)
        if (tables[op])
            status = dtp_slot_notify(ctx, (dt_op)op, r->provider->device, err);
    return status;
}

dt_status dtp_register(dt_ctx *ctx, const dt_provider *provider, const char *file, void *library, uint32_t flags,
                       dt_registration **out, dt_err *err)
{
    Dl_info origin;
    if (!file)
        file = dladdr((const void *)provider, &origin) && origin.dli_fname ? origin.dli_fname : "built in";
    dt_status status = check_provider(provider, file, err);
    if (status == DT_OK)
        status = check_duplicate(ctx, provider, file, flags, err);
    if (status != DT_OK)
        return status;
    dt_registration *old = dtp_find_registration(ctx, provider->name, provider->device);
    dt_registration *r = new_registration(provider, file, library);
    if (!r)
        return dt_fail(err, DT_E_NOMEM, "cannot register provider %s: out of memory", provider->name);
    dtp_probe(ctx, r);
    dt_registration **last = &ctx->registrations;
    while (*last)
        last = &(*last)->next;
    *last = r;
    dtp_probe_calls(ctx, r);
    status = publish(ctx, old, r, err);
    if (status == DT_OK && old)
        old->replaced = true;
    if (out)
        *out = r;
    return status;
}

dt_status dt_ctx_register(dt_ctx *ctx, const dt_provider *provider, const char *file, uint32_t flags,
                          dt_registration **registration_out, dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status status = dtp_register(ctx, provider, file, NULL, flags, registration_out, err);
    dtp_ctx_unlock(ctx);
    return status;
}

/* ---- unregistering ---- */

static dt_status check_unused(dt_ctx *ctx, dt_registration *r, dt_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        long references = atomic_load(&r->entry[i].references);
        if (references > 0 || dtp_entry_is_running(ctx, &r->entry[i]))
            return dt_fail(err, DT_E_BUSY, "provider %s is in use: %s has %s; release it first", r->provider->name,
                           dt_op_name(r->entry[i].set->op),
                           references > 0 ? "a saved context or a wrapper that refers to it" : "a running call");
    }
    return DT_OK;
}

/* Takes the provider's entries out of all tables, or puts them back in. */
static dt_status set_present(dt_ctx *ctx, dt_registration *r, bool present, dt_err *err)
{
    dt_device_kind device = r->provider->device;
    for (size_t i = 0; i < r->n; i++) {
        dt_op op = r->entry[i].set->op;
        dt_slot_table *table = dtp_slot_copy(ctx, op, device, 1);
        if (!table)
            return dt_fail(err, DT_E_NOMEM, "cannot change provider %s: out of memory", r->provider->name);
        dt_candidate candidate;
        dtp_candidate_of(r, i, &candidate);
        dtp_slot_remove(table, &r->entry[i]);
        if (present)
            dtp_slot_insert_candidate(table, &candidate);
        dtp_slot_publish(ctx, op, device, table);
        (void)dtp_slot_notify(ctx, op, device, NULL);
    }
    return DT_OK;
}

dt_status dt_ctx_unregister(dt_ctx *ctx, dt_registration *registration, dt_err *err)
{
    dtp_ctx_lock(ctx);
    /* Looked at twice: once it is out of the tables no new call can enter it, so what is unused then stays unused. */
    dt_status status = check_unused(ctx, registration, err);
    if (status == DT_OK && !registration->replaced)
        status = set_present(ctx, registration, false, err);
    if (status == DT_OK) {
        status = check_unused(ctx, registration, err);
        if (status != DT_OK && !registration->replaced)
            (void)set_present(ctx, registration, true, NULL);
    }
    if (status == DT_OK) {
        dt_registration **link = &ctx->registrations;
        while (*link && *link != registration)
            link = &(*link)->next;
        if (*link)
            *link = registration->next;
        free(registration->file);
        dtp_close_library(registration);
        free(registration);
    }
    dtp_ctx_unlock(ctx);
    return status;
}
