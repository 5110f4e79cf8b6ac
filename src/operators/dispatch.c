/* The one way into an operator: contract, provider, workspace, call. */
#include "operators/contract.h"
#include "operators/exec.h"
#include "operators/registry.h"

static dt_status find_contract(dt_op op, const void *args, const dt_contract **out, dt_err *err)
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
    return DT_OK;
}

/* Contract and provider in one; what every entry below starts with. */
static dt_status prepare(dt_exec *exec, dt_op op, const void *args, dt_phase phase, const dt_candidate **out,
                         uint64_t *generation_out, dt_err *err)
{
    const dt_contract *contract;
    uint32_t needs = 0;
    dt_status status = find_contract(op, args, &contract, err);
    if (status == DT_OK)
        status = contract->check(exec, args, phase, &needs, err);
    if (status == DT_OK)
        status = dtp_resolve(exec, op, args, needs, out, generation_out, err);
    return status;
}

dt_status dt_op_saved_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err)
{
    const dt_candidate *candidate;
    uint64_t generation;
    dt_status status = prepare(exec, op, args, DT_PHASE_SIZE, &candidate, &generation, err);
    if (status == DT_OK)
        *bytes_out = candidate->set->saved_bytes ? candidate->set->saved_bytes(exec, args) : 0;
    return status;
}

static size_t workspace_bytes(const dt_op_set *set, const dt_exec *exec, const void *args, bool backward)
{
    return set->workspace_bytes ? set->workspace_bytes(exec, args, backward) : 0;
}

dt_status dt_op_workspace_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err)
{
    const dt_candidate *candidate;
    uint64_t generation;
    dt_status status = prepare(exec, op, args, DT_PHASE_SIZE, &candidate, &generation, err);
    if (status != DT_OK)
        return status;
    size_t forward = workspace_bytes(candidate->set, exec, args, false);
    size_t backward = candidate->set->backward ? workspace_bytes(candidate->set, exec, args, true) : 0;
    *bytes_out = forward > backward ? forward : backward;
    return DT_OK;
}

dt_status dt_op_forward(dt_exec *exec, dt_op op, const void *args, dt_saved *saved, dt_err *err)
{
    const dt_candidate *candidate;
    uint64_t generation;
    dt_status status = prepare(exec, op, args, DT_PHASE_FORWARD, &candidate, &generation, err);
    if (status != DT_OK)
        return status;
    const dt_op_set *set = candidate->set;
    size_t need = saved && set->saved_bytes ? set->saved_bytes(exec, args) : 0;
    if (saved && saved->bytes < need)
        return dt_fail(err, DT_E_ARG, "%s: %zu bytes for what backward needs, provider %s wants %zu", dt_op_name(op),
                       saved->bytes, candidate->provider->name, need);
    void *workspace;
    status = dtp_exec_workspace(exec, workspace_bytes(set, exec, args, false), &workspace, err);
    if (status == DT_OK)
        status = set->forward(exec, args, saved ? saved->data : NULL, workspace, err);
    if (status == DT_OK && saved) {
        saved->owner = candidate;
        saved->generation = generation;
    }
    return status;
}

dt_status dt_op_backward(dt_exec *exec, dt_op op, const void *args, const dt_saved *saved, dt_err *err)
{
    const dt_contract *contract;
    uint32_t needs = 0;
    dt_status status = find_contract(op, args, &contract, err);
    if (status == DT_OK && !contract->differentiable)
        status = dt_fail(err, DT_E_ARG, "%s has no backward", contract->name);
    if (status == DT_OK && (!saved || !saved->owner))
        status = dt_fail(err, DT_E_ARG, "%s: backward without a forward that saved", contract->name);
    if (status == DT_OK)
        status = contract->check(exec, args, DT_PHASE_BACKWARD, &needs, err);
    if (status != DT_OK)
        return status;
    const dt_candidate *candidate = saved->owner; /* never resolved again: what is saved is private to it */
    const dt_op_set *set = candidate->set;
    if (set->op != op)
        return dt_fail(err, DT_E_ARG, "%s: the saved context belongs to %s", contract->name, dt_op_name(set->op));
    if (!set->backward)
        return dt_fail(err, DT_E_UNSUPPORTED,
                       "%s: provider %s, which ran the forward, has no backward (choose another with --provider)",
                       contract->name, candidate->provider->name);
    void *workspace;
    status = dtp_exec_workspace(exec, workspace_bytes(set, exec, args, true), &workspace, err);
    if (status == DT_OK)
        status = set->backward(exec, args, saved->data, workspace, err);
    return status;
}
