/* Putting an operator's original back after somebody replaced it. */
#include "core/log.h"
#include "core/memory.h"
#include "operators/registry.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One restore in progress. */
typedef struct dt_restore {
    dt_ctx *ctx;
    dt_op op;
    dt_device_kind device;
    const dt_restore_policy *policy;
    dt_restore_report *report;
    dt_entry *found; /* the owner's entry */
} dt_restore;

static void reject(dt_restore *r, const char *source, const char *reason)
{
    size_t used = strlen(r->report->reasons);
    snprintf(r->report->reasons + used, sizeof r->report->reasons - used, "%s%s: %s", used ? "; " : "", source, reason);
}

/* Does the code of this entry lie in the owner's library? A name proves nothing: an override may have been propagated
 * under it. */
static bool belongs_to_owner(dt_restore *r, const dt_entry *entry, const char *source, const char *owner_file)
{
    const char *code = dtp_file_of(entry->set);
    if (dtp_same_file(code, owner_file))
        return true;
    char reason[512];
    snprintf(reason, sizeof reason, "its function lies in %s, not in %s", code[0] ? code : "an unknown file",
             owner_file);
    reject(r, source, reason);
    return false;
}

static dt_entry *entry_of(dt_registration *g, dt_op op)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->entry[i].set->op == op)
            return &g->entry[i];
    return NULL;
}

/* The entry of a registration, if it is available and provably the owner's. */
static bool accept_registration(dt_restore *r, dt_registration *g, const char *source)
{
    dt_entry *entry = entry_of(g, r->op);
    const dt_candidate *candidate = entry ? dtp_slot_find(dtp_slot(r->ctx, r->op, r->device), entry) : NULL;
    if (!entry) {
        reject(r, source, "does not serve the operator");
        return false;
    }
    if (candidate ? !candidate->available : !g->available) {
        reject(r, source, candidate ? candidate->why : g->why);
        return false;
    }
    if (!belongs_to_owner(r, entry, source, r->policy->owner_file ? r->policy->owner_file : g->file))
        return false;
    r->found = entry;
    return true;
}

/* Resolves the owner again from a file, past the public alias, which may itself have been replaced. */
static bool accept_file(dt_restore *r, const char *file)
{
    const dt_provider *provider;
    void *library;
    char *path;
    dt_err fault = {0};
    if (dtp_plugin_open(r->ctx, file, &provider, &library, &path, &fault) != DT_OK) {
        reject(r, "owner not loadable", fault.text);
        return false;
    }
    dt_registration *g = NULL;
    const char *owner_file = r->policy->owner_file ? r->policy->owner_file : path;
    bool good = strcmp(provider->name, r->policy->owner) == 0 && provider->device == r->device;
    if (!good)
        reject(r, file, "holds another provider");
    for (size_t i = 0; good && i < provider->n_ops;
         i++) /* before it is registered: a foreign one must leave no trace */
        if (provider->ops[i] && provider->ops[i]->op == r->op && provider->ops[i]->forward) {
            const dt_entry probe = {.set = provider->ops[i]};
            good = belongs_to_owner(r, &probe, file, owner_file);
        }
    if (good && dtp_register(r->ctx, provider, path, library, DT_REGISTER_REPLACE, &g, &fault) != DT_OK) {
        reject(r, file, fault.text);
        good = false;
    }
    if (!g)
        dlclose(library);
    free(path);
    return good && accept_registration(r, g, file);
}

static bool find_owner(dt_restore *r)
{
    const dt_slot_table *table = dtp_slot(r->ctx, r->op, r->device);
    dt_registration *known = dtp_find_registration(r->ctx, r->policy->owner, r->device);
    if (table && table->original && strcmp(table->original->name, r->policy->owner) != 0)
        reject(r, "saved original", "belongs to another provider");
    if (known && accept_registration(r, known, "saved original"))
        return true;
    if (!known)
        reject(r, r->policy->owner, "owner not loadable: it is not registered");
    for (size_t i = 0; i < r->policy->n_files; i++)
        if (accept_file(r, r->policy->files[i]))
            return true;
    return false;
}

/* Publish, notify, verify; undo everything when one of them fails. */
static dt_status install(dt_restore *r, dt_err *err)
{
    dt_slot_table *table = dtp_slot_copy(r->ctx, r->op, r->device, 0),
                  *undo = dtp_slot_copy(r->ctx, r->op, r->device, 0);
    if (!table || !undo) {
        free(table);
        free(undo);
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    }
    while (table->n_overrides)
        dtp_slot_remove(table, table->list[0].entry);
    table->restored = r->found;
    table->original = NULL;
    dtp_slot_publish(r->ctx, r->op, r->device, table);
    dt_status status = dtp_slot_notify(r->ctx, r->op, r->device, err);
    const dt_candidate *current = dtp_slot_current(table);
    if (status == DT_OK && (!current || current->entry != r->found))
        status = dt_fail(err, DT_E_INTERNAL, "the slot does not hold the restored entry");
    if (status == DT_OK) {
        free(undo);
        return DT_OK;
    }
    undo->generation = table->generation;
    dtp_slot_publish(r->ctx, r->op, r->device, undo);
    (void)dtp_slot_notify(r->ctx, r->op, r->device, NULL);
    return status;
}

static dt_status give_up(dt_restore *r, dt_err *err)
{
    const dt_candidate *stays = dtp_slot_current(dtp_slot(r->ctx, r->op, r->device));
    snprintf(r->report->kept, sizeof r->report->kept, "%s from %.180s", stays ? stays->entry->name : "nothing",
             stays ? stays->entry->file : "nowhere");
    dt_warning("%s on %s: cannot restore the original of %s (%s); %s stays; packed calls may fail if it cannot pack",
               dt_op_name(r->op), dt_device_name(r->device), r->policy->owner, r->report->reasons, r->report->kept);
    return dt_fail(err, DT_E_UNAVAILABLE, "%s: cannot restore the original of %s: %s", dt_op_name(r->op),
                   r->policy->owner, r->report->reasons);
}

static dt_status restore_locked(dt_restore *r, dt_err *err)
{
    *r->report = (dt_restore_report){0};
    if (!find_owner(r))
        return give_up(r, err);
    const dt_slot_table *table = dtp_slot(r->ctx, r->op, r->device);
    const dt_candidate *current = dtp_slot_current(table);
    if (table->chosen || (current && current->entry == r->found && !table->n_overrides)) {
        r->report->reasons[0] = '\0'; /* the user's choice stands above; or it is there already */
        return DT_OK;
    }
    dt_err fault = {0};
    dt_status status = r->policy->verify_call ? dtp_smoke_call(r->ctx, r->device, r->found, true, &fault) : DT_OK;
    if (status == DT_OK)
        status = install(r, &fault);
    if (status != DT_OK) {
        reject(r, r->found->file, fault.text);
        return give_up(r, err);
    }
    r->report->changed = true;
    dt_info("%s on %s: original of %s restored: version %s, %s", dt_op_name(r->op), dt_device_name(r->device),
            r->policy->owner, r->found->version, r->found->file);
    return DT_OK;
}

/* ---- remembered policies ---- */

void dtp_free_policy(dt_restore_policy *policy)
{
    for (size_t i = 0; policy->files && i < policy->n_files; i++)
        free((void *)(uintptr_t)policy->files[i]);
    free((void *)(uintptr_t)policy->files);
    free((void *)(uintptr_t)policy->owner);
    free((void *)(uintptr_t)policy->owner_file);
    *policy = (dt_restore_policy){0};
}

static bool copy_policy(dt_restore_policy *to, const dt_restore_policy *from)
{
    *to = (dt_restore_policy){DT_RESTORE_POLICY, .owner = dtp_strdup(from->owner), .verify_call = from->verify_call};
    to->owner_file = from->owner_file ? dtp_strdup(from->owner_file) : NULL;
    char **files = from->n_files ? dtp_calloc(from->n_files, sizeof *files) : NULL;
    bool good = to->owner && (to->owner_file || !from->owner_file) && (files || !from->n_files);
    for (size_t i = 0; good && i < from->n_files; i++)
        good = (files[i] = dtp_strdup(from->files[i])) != NULL;
    to->files = (const char *const *)files;
    to->n_files = files ? from->n_files : 0;
    if (!good)
        dtp_free_policy(to);
    return good;
}

static dt_status remember(dt_ctx *ctx, dt_op op, dt_device_kind device, const dt_restore_policy *policy, dt_err *err)
{
    dt_stored_policy *s = ctx->policies;
    while (s && (s->op != op || s->device != device))
        s = s->next;
    if (s && policy == &s->policy)
        return DT_OK;
    dt_restore_policy copy;
    dt_stored_policy *fresh = s ? s : dtp_calloc(1, sizeof *fresh);
    if (!fresh || !copy_policy(&copy, policy)) {
        if (fresh != s)
            free(fresh);
        return dt_fail(err, DT_E_NOMEM, "cannot remember the restore policy of %s: out of memory", dt_op_name(op));
    }
    if (s) {
        dtp_free_policy(&s->policy);
        s->policy = copy;
    } else {
        *fresh = (dt_stored_policy){ctx->policies, op, device, copy};
        ctx->policies = fresh;
    }
    return DT_OK;
}

dt_status dt_ctx_restore(dt_ctx *ctx, dt_op op, dt_device_kind device, const dt_restore_policy *policy,
                         dt_restore_report *report_out, dt_err *err)
{
    dt_restore_report unused;
    dt_restore r = {ctx, op, device, policy, report_out ? report_out : &unused, NULL};
    if (policy->struct_size < sizeof *policy || !policy->owner)
        return dt_fail(err, DT_E_ARG, "a restore policy needs its struct size and an owner");
    dtp_ctx_lock(ctx);
    dt_status status = remember(ctx, op, device, policy, err);
    if (status == DT_OK)
        status = restore_locked(&r, err);
    dtp_ctx_unlock(ctx);
    return status;
}

dt_status dt_ctx_after_repatch(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status first = DT_OK;
    for (const dt_stored_policy *s = ctx->policies; s; s = s->next) {
        if (s->device != device)
            continue;
        dt_status status = dt_ctx_restore(ctx, s->op, device, &s->policy, NULL, first == DT_OK ? err : NULL);
        first = first == DT_OK ? status : first;
    }
    dtp_ctx_unlock(ctx);
    return first;
}
