#include "core/memory.h"
#include "operators/contract.h"
#include "operators/exec.h"
#include "operators/registry.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const char *dt_device_name(dt_device_kind kind)
{
    static const char *const names[DT_DEVICE_KINDS] = {"cpu", "cuda", "npu"};
    return (unsigned)kind < DT_DEVICE_KINDS ? names[kind] : "unknown device";
}

const char *dt_op_name(dt_op op)
{
    const dt_contract *contract = dtp_contract(op);
    return contract ? contract->name : "unknown operator";
}

dt_op dt_op_by_name(const char *name)
{
    if (strcmp(name, "chunk_gated_delta_rule") == 0)
        return DT_OP_GDN;
    if (strcmp(name, "varlen_attention") == 0)
        return DT_OP_ATTENTION;
    for (int op = 0; op < DT_OP_COUNT; op++)
        if (strcmp(name, dt_op_name((dt_op)op)) == 0)
            return (dt_op)op;
    return DT_OP_COUNT;
}

void dtp_ctx_lock(dt_ctx *ctx)
{
    pthread_mutex_lock(&ctx->lock);
}

void dtp_ctx_unlock(dt_ctx *ctx)
{
    pthread_mutex_unlock(&ctx->lock);
}

dt_status dtp_ctx_create_empty(dt_ctx **ctx_out, dt_err *err)
{
    dt_ctx *ctx = dtp_calloc(1, sizeof *ctx);
    pthread_mutexattr_t recursive;
    if (!ctx || pthread_mutexattr_init(&recursive) != 0) {
        free(ctx);
        return dt_fail(err, DT_E_NOMEM, "cannot allocate a context");
    }
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&ctx->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    ctx->fork_generation = dtp_fork_generation();
    *ctx_out = ctx;
    return DT_OK;
}

dt_status dt_ctx_create(dt_ctx **ctx_out, dt_err *err)
{
    dt_ctx *ctx;
    dt_status status = dtp_ctx_create_empty(&ctx, err);
    if (status != DT_OK)
        return status;
    for (const dt_provider *const *p = dtp_builtin_providers; *p && status == DT_OK; p++)
        status = dt_ctx_register(ctx, *p, NULL, 0, NULL, err);
    if (status != DT_OK) {
        dt_ctx_free(ctx);
        return status;
    }
    *ctx_out = ctx;
    return DT_OK;
}

#define FREE_LIST(type, list, ...)                                                                                     \
    while (list) {                                                                                                     \
        type *item = list;                                                                                             \
        list = item->next;                                                                                             \
        __VA_ARGS__;                                                                                                   \
        free(item);                                                                                                    \
    }

void dt_ctx_free(dt_ctx *ctx)
{
    if (!ctx)
        return;
    dtp_slot_free_all(ctx);
    FREE_LIST(dt_override, ctx->overrides, free(item->who), free(item->why), free(item->file));
    FREE_LIST(dt_holder, ctx->holders, free(item->name));
    FREE_LIST(dt_supplement, ctx->supplements, free(item->provider), free(item->id));
    FREE_LIST(dt_stored_policy, ctx->policies, dtp_free_policy(&item->policy));
    FREE_LIST(dt_attempt_record, ctx->attempts, free(item->subject), free(item->reason));
    /* libraries last: everything above may point into them */
    FREE_LIST(dt_registration, ctx->registrations, free(item->file), dtp_close_library(item));
    pthread_mutex_destroy(&ctx->lock);
    free(ctx);
}
