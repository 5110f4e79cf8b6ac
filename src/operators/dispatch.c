/* The one way into an operator: contract, entry, workspace, call. */
#include "core/memory.h"
#include "operators/contract.h"
#include "operators/exec.h"

static dt_status begin(dt_exec *exec, dt_op op, const void *args, const dt_contract **out, dt_err *err)
{
    *out = dtp_contract(op);
    if (!*out)
        return dt_fail(err, DT_E_ARG, "there is no operator number %d", (int)op);
    size_t given = *(const size_t *)args; /* struct_size comes first in every argument struct */
    if (given < (*out)->args_size)
        return dt_fail(
            err, DT_E_ARG,
            "%s: argument struct of %zu bytes, this library needs %zu: set it with the DT_*_ARGS initialiser",
            (*out)->name, given, (*out)->args_size);
    const dt_scratch *scratch = dtp_scratch(exec);
    if (scratch->running)
        return dt_fail(err, DT_E_ARG,
                       "%s: called from inside a call of %s on the same execution context: a wrapper calls dt_next_*",
                       (*out)->name, dt_op_name(scratch->running->set->op));
    if (exec->device != DT_DEVICE_CPU && scratch->fork_generation != dtp_fork_generation())
        return dt_fail(err, DT_E_UNAVAILABLE,
                       "%s: this execution context belongs to the parent process: create one after the fork",
                       (*out)->name);
    return DT_OK;
}

/* Contract and entry in one. On success the slot's table is held until leave(). */
static dt_status enter(dt_exec *exec, dt_op op, const void *args, dt_phase phase, uint32_t needs,
                       const dt_candidate **out, uint64_t *generation_out, dt_err *err)
{
    const dt_contract *contract;
    uint32_t of_call = 0;
    dt_status status = begin(exec, op, args, &contract, err);
    if (status == DT_OK)
        status = contract->check(exec, args, phase, &of_call, err);
    if (status != DT_OK)
        return status;
    dt_scratch *scratch = dtp_scratch(exec);
    const dt_slot_table *table = dtp_slot_enter(exec->ctx, &scratch->hazard, op, exec->device);
    *out = dtp_resolve(exec, table, op, args, needs | of_call, err);
    if (!*out) {
        dtp_slot_leave(&scratch->hazard);
        return DT_E_UNSUPPORTED;
    }
    *generation_out = table->generation;
    scratch->running = (*out)->entry;
    return DT_OK;
}

static void leave(dt_exec *exec)
{
    dt_scratch *scratch = dtp_scratch(exec);
    scratch->running = NULL;
    dtp_slot_leave(&scratch->hazard);
}

static size_t saved_bytes(const dt_entry *e, const dt_exec *exec, const void *args)
{
    return e->set->saved_bytes ? e->set->saved_bytes(exec, args) : 0;
}

static size_t workspace_bytes(const dt_entry *e, const dt_exec *exec, const void *args, bool backward)
{
    return e->set->workspace_bytes && (!backward || e->set->backward) ? e->set->workspace_bytes(exec, args, backward)
                                                                      : 0;
}

dt_status dt_op_saved_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err)
{
    const dt_candidate *c;
    uint64_t generation;
    dt_status status = enter(exec, op, args, DT_PHASE_SIZE, 0, &c, &generation, err);
    if (status != DT_OK)
        return status;
    *bytes_out = saved_bytes(c->entry, exec, args);
    leave(exec);
    return DT_OK;
}

dt_status dt_op_workspace_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err)
{
    const dt_candidate *c;
    uint64_t generation;
    dt_status status = enter(exec, op, args, DT_PHASE_SIZE, 0, &c, &generation, err);
    if (status != DT_OK)
        return status;
    size_t forward = workspace_bytes(c->entry, exec, args, false),
           backward = workspace_bytes(c->entry, exec, args, true);
    *bytes_out = forward > backward ? forward : backward;
    leave(exec);
    return DT_OK;
}

void dt_saved_release(dt_saved *saved)
{
    if (!saved || !saved->owner)
        return;
    atomic_fetch_sub(&((dt_entry *)(uintptr_t)saved->owner)->references, 1);
    saved->owner = NULL;
}

static void saved_refer(dt_saved *saved, dt_entry *entry, uint64_t generation)
{
    if (saved->owner != entry) {
        dt_saved_release(saved);
        atomic_fetch_add(&entry->references, 1);
        saved->owner = entry;
    }
    saved->generation = generation;
}

dt_status dtp_provider_status(dt_status status, const dt_entry *entry, dt_err *err)
{
    if (status == DT_OK || !err)
        return status;
    if (!err->text[0])
        return dt_fail(err, status, "%s: provider %s failed with %s and said no more", dt_op_name(entry->set->op),
                       entry->name, dt_status_name(status));
    err->status = status;
    return status;
}

dt_status dt_op_forward(dt_exec *exec, dt_op op, const void *args, dt_saved *saved, dt_err *err)
{
    const dt_candidate *c;
    uint64_t generation;
    uint32_t needs = saved && dtp_contract(op) && dtp_contract(op)->differentiable ? DT_CAP_BACKWARD : 0;
    dt_status status = enter(exec, op, args, DT_PHASE_FORWARD, needs, &c, &generation, err);
    if (status != DT_OK)
        return status;
    dt_entry *entry = c->entry;
    size_t need = saved ? saved_bytes(entry, exec, args) : 0;
    void *workspace = NULL;
    if (saved && saved->bytes < need)
        status = dt_fail(err, DT_E_ARG, "%s: %zu bytes for what backward needs, provider %s wants %zu", dt_op_name(op),
                         saved->bytes, entry->name, need);
    if (status == DT_OK)
        status = dtp_exec_workspace(exec, workspace_bytes(entry, exec, args, false), &workspace, err);
    if (status == DT_OK)
        status = dtp_provider_status(entry->set->forward(exec, args, saved ? saved->data : NULL, workspace, err), entry,
                                     err);
    if (status == DT_OK && saved)
        saved_refer(saved, entry, generation);
    leave(exec);
    return status;
}

dt_status dt_op_backward(dt_exec *exec, dt_op op, const void *args, const dt_saved *saved, dt_err *err)
{
    const dt_contract *contract;
    uint32_t needs = 0;
    dt_status status = begin(exec, op, args, &contract, err);
    if (status == DT_OK && !contract->differentiable)
        status = dt_fail(err, DT_E_ARG, "%s has no backward", contract->name);
    if (status == DT_OK && (!saved || !saved->owner))
        status = dt_fail(err, DT_E_ARG, "%s: backward without a forward that saved", contract->name);
    if (status == DT_OK)
        status = contract->check(exec, args, DT_PHASE_BACKWARD, &needs, err);
    if (status != DT_OK)
        return status;
    /* Never resolved again: what is saved is private to the entry that ran forward. Its reference keeps it alive. */
    const dt_entry *entry = saved->owner;
    if (entry->set->op != op)
        return dt_fail(err, DT_E_ARG, "%s: the saved context belongs to %s", contract->name,
                       dt_op_name(entry->set->op));
    void *workspace;
    status = dtp_exec_workspace(exec, workspace_bytes(entry, exec, args, true), &workspace, err);
    if (status != DT_OK)
        return status;
    dtp_scratch(exec)->running = entry;
    status = dtp_provider_status(entry->set->backward(exec, args, saved->data, workspace, err), entry, err);
    dtp_scratch(exec)->running = NULL;
    return status;
}

/* ---- inside a wrapping entry ---- */

static const dt_entry *next_of(const dt_exec *exec)
{
    const dt_entry *running = dtp_scratch(exec)->running;
    return running ? running->below : NULL;
}

size_t dt_next_saved_bytes(const dt_exec *exec, const void *args)
{
    const dt_entry *running = dtp_scratch(exec)->running, *next = next_of(exec);
    if (!next)
        return 0;
    dtp_scratch(exec)->running = next;
    size_t bytes = saved_bytes(next, exec, args);
    dtp_scratch(exec)->running = running;
    return bytes;
}

size_t dt_next_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_entry *running = dtp_scratch(exec)->running, *next = next_of(exec);
    if (!next)
        return 0;
    dtp_scratch(exec)->running = next;
    size_t bytes = workspace_bytes(next, exec, args, backward);
    dtp_scratch(exec)->running = running;
    return bytes;
}

static dt_status no_next(dt_err *err)
{
    return dt_fail(err, DT_E_ARG, "dt_next_* is for entries installed with `wrap`: there is nothing below this one");
}

/* The entry below must be able to run what the wrapper hands on. */
static dt_status check_next(const dt_exec *exec, const dt_entry *next, const void *args, bool backward, dt_err *err)
{
    char why[DTP_WHY] = "";
    if (backward && !next->set->backward)
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: provider %s, below the wrapper, has no backward",
                       dt_op_name(next->set->op), next->name);
    if (!next->set->verify || next->set->verify(exec, args, why, sizeof why))
        return DT_OK;
    return dt_fail(err, DT_E_UNSUPPORTED, "%s: provider %s, below the wrapper, cannot run this call: %s",
                   dt_op_name(next->set->op), next->name, why);
}

dt_status dt_next_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_entry *running = dtp_scratch(exec)->running, *next = next_of(exec);
    dt_status status = next ? check_next(exec, next, args, false, err) : no_next(err);
    if (status != DT_OK)
        return status;
    dtp_scratch(exec)->running = next;
    status = next->set->forward(exec, args, saved, workspace, err);
    dtp_scratch(exec)->running = running;
    return status;
}

dt_status dt_next_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_entry *running = dtp_scratch(exec)->running, *next = next_of(exec);
    dt_status status = next ? check_next(exec, next, args, true, err) : no_next(err);
    if (status != DT_OK)
        return status;
    dtp_scratch(exec)->running = next;
    status = next->set->backward(exec, args, saved, workspace, err);
    dtp_scratch(exec)->running = running;
    return status;
}
