#include "operators/registry.h"

#include "core/memory.h"
#include "operators/contract.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dt_registered {
    struct dt_registered *next;
    const dt_provider *provider;
    bool available;
    size_t n;
    dt_candidate candidate[];
} dt_registered;

struct dt_ctx {
    pthread_mutex_t lock; /* taken by changes only, never by calls */
    dt_registered *providers, **last;
    _Atomic(dt_slot_table *) slot[DT_OP_COUNT][DT_DEVICE_KINDS];
};

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

dt_status dtp_ctx_create_empty(dt_ctx **ctx_out, dt_err *err)
{
    dt_ctx *ctx = dtp_calloc(1, sizeof *ctx);
    if (!ctx)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate a context");
    if (pthread_mutex_init(&ctx->lock, NULL) != 0) {
        free(ctx);
        return dt_fail(err, DT_E_NOMEM, "cannot create the lock of a context");
    }
    ctx->last = &ctx->providers;
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
        status = dtp_ctx_register(ctx, *p, NULL, err);
    if (status != DT_OK) {
        dt_ctx_free(ctx);
        return status;
    }
    *ctx_out = ctx;
    return DT_OK;
}

void dt_ctx_free(dt_ctx *ctx)
{
    if (!ctx)
        return;
    for (int op = 0; op < DT_OP_COUNT; op++)
        for (int device = 0; device < DT_DEVICE_KINDS; device++)
            for (dt_slot_table *table = atomic_load(&ctx->slot[op][device]); table;) {
                dt_slot_table *older = table->older;
                free(table);
                table = older;
            }
    while (ctx->providers) {
        dt_registered *next = ctx->providers->next;
        free(ctx->providers);
        ctx->providers = next;
    }
    pthread_mutex_destroy(&ctx->lock);
    free(ctx);
}

const dt_slot_table *dtp_slot_table(dt_ctx *ctx, dt_op op, dt_device_kind device)
{
    return atomic_load_explicit(&ctx->slot[op][device], memory_order_acquire);
}

/* Publishes a copy of the slot's table with room for one candidate more; the caller fills it in first. */
static dt_slot_table *copy_table(dt_slot_table *old, size_t extra)
{
    size_t n = old ? old->n : 0;
    dt_slot_table *table = dtp_calloc(1, sizeof *table + (n + extra) * sizeof table->candidate[0]);
    if (!table)
        return NULL;
    table->older = old;
    table->generation = old ? old->generation + 1 : 1;
    table->n = n;
    if (old) {
        table->chosen = old->chosen;
        memcpy(table->candidate, old->candidate, n * sizeof table->candidate[0]);
    }
    return table;
}

static void insert_candidate(dt_slot_table *table, const dt_candidate *candidate)
{
    size_t at = 0;
    while (at < table->n && table->candidate[at]->provider->priority >= candidate->provider->priority)
        at++;
    memmove(&table->candidate[at + 1], &table->candidate[at], (table->n - at) * sizeof table->candidate[0]);
    table->candidate[at] = candidate;
    table->n++;
}

static dt_status check_provider(dt_ctx *ctx, const dt_provider *p, const char *file, dt_err *err)
{
    if (p->abi != DT_PROVIDER_ABI)
        return dt_fail(err, DT_E_ARG, "%s: provider ABI %u, this deltune needs %u: rebuild the plug-in", file, p->abi,
                       DT_PROVIDER_ABI);
    if (p->struct_size < sizeof *p)
        return dt_fail(err, DT_E_ARG, "%s: provider table of %zu bytes, at least %zu needed", file, p->struct_size,
                       sizeof *p);
    if (!p->name || !p->name[0] || (unsigned)p->device >= DT_DEVICE_KINDS)
        return dt_fail(err, DT_E_ARG, "%s: the provider table lacks a name or a valid device", file);
    for (size_t i = 0; i < p->n_ops; i++) {
        const dt_op_set *set = p->ops[i];
        if (!set || set->struct_size < sizeof *set || (unsigned)set->op >= DT_OP_COUNT || !set->forward)
            return dt_fail(err, DT_E_ARG, "%s: operator set %zu of provider %s is incomplete", file, i, p->name);
        if ((set->caps & DT_CAP_BACKWARD) && !set->backward && dtp_contract(set->op)->differentiable)
            return dt_fail(err, DT_E_ARG, "%s: %s of provider %s claims a backward but has none", file,
                           dt_op_name(set->op), p->name);
        const dt_slot_table *table = dtp_slot_table(ctx, set->op, p->device);
        for (size_t j = 0; table && j < table->n; j++)
            if (strcmp(table->candidate[j]->provider->name, p->name) == 0)
                return dt_fail(err, DT_E_ARG, "%s: provider %s already serves %s on %s (from %s)", file, p->name,
                               dt_op_name(set->op), dt_device_name(p->device), table->candidate[j]->file);
    }
    return DT_OK;
}

static dt_status publish(dt_ctx *ctx, dt_registered *r, dt_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        dt_op op = r->candidate[i].set->op;
        dt_slot_table *table = copy_table(atomic_load(&ctx->slot[op][r->provider->device]), 1);
        if (!table)
            return dt_fail(err, DT_E_NOMEM, "cannot register provider %s: out of memory", r->provider->name);
        insert_candidate(table, &r->candidate[i]);
        atomic_store_explicit(&ctx->slot[op][r->provider->device], table, memory_order_release);
    }
    return DT_OK;
}

dt_status dtp_ctx_register(dt_ctx *ctx, const dt_provider *provider, const char *file, dt_err *err)
{
    Dl_info origin;
    if (!file)
        file = dladdr((const void *)provider, &origin) && origin.dli_fname ? origin.dli_fname : "built in";
    pthread_mutex_lock(&ctx->lock);
    dt_status status = check_provider(ctx, provider, file, err);
    dt_registered *r = NULL;
    if (status == DT_OK) {
        r = dtp_calloc(1, sizeof *r + provider->n_ops * sizeof r->candidate[0] + strlen(file) + 1);
        if (!r)
            status = dt_fail(err, DT_E_NOMEM, "cannot register provider %s: out of memory", provider->name);
    }
    if (status == DT_OK) {
        char why[DTP_WHY] = "", *name = (char *)&r->candidate[provider->n_ops];
        strcpy(name, file);
        bool available = !provider->probe || provider->probe(0, why, sizeof why) > 0;
        r->provider = provider;
        r->available = available;
        r->n = provider->n_ops;
        for (size_t i = 0; i < r->n; i++) {
            r->candidate[i] = (dt_candidate){provider, provider->ops[i], name, available, ""};
            memcpy(r->candidate[i].why, why, sizeof why);
        }
        *ctx->last = r;
        ctx->last = &r->next;
        status = publish(ctx, r, err);
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

const dt_device_ops *dtp_ctx_device_ops(dt_ctx *ctx, dt_device_kind device)
{
    for (const dt_registered *r = ctx->providers; r; r = r->next)
        if (r->provider->device == device && r->provider->device_ops && r->available)
            return r->provider->device_ops;
    return NULL;
}

/* ---- explicit choice ---- */

/* The candidate of that name in the slot, or an error that lists what there is. name "auto": NULL. */
static dt_status find_candidate(const dt_slot_table *table, const char *op, const char *name, const dt_candidate **out,
                                dt_err *err)
{
    *out = NULL;
    if (strcmp(name, "auto") == 0)
        return DT_OK;
    dt_buf known = {0};
    for (size_t i = 0; table && i < table->n && !*out; i++) {
        if (strcmp(table->candidate[i]->provider->name, name) == 0)
            *out = table->candidate[i];
        dtp_buf_printf(&known, "%s%s", known.length ? ", " : "", table->candidate[i]->provider->name);
    }
    dt_status status = DT_OK;
    if (!*out)
        status = dt_fail(err, DT_E_ARG, "no provider named \"%s\" for %s (there are: %s)", name, op,
                         known.length ? known.data : "none");
    else if (!(*out)->available)
        status = dt_fail(err, DT_E_UNAVAILABLE, "provider %s cannot run here: %s", name, (*out)->why);
    dtp_buf_free(&known);
    return status;
}

static dt_status choose(dt_ctx *ctx, dt_op op, dt_device_kind device, const char *name, dt_err *err)
{
    dt_slot_table *old = atomic_load(&ctx->slot[op][device]);
    const dt_candidate *candidate;
    dt_status status = find_candidate(old, dt_op_name(op), name, &candidate, err);
    if (status != DT_OK || !old || old->chosen == candidate)
        return status;
    dt_slot_table *table = copy_table(old, 0);
    if (!table)
        return dt_fail(err, DT_E_NOMEM, "cannot choose provider %s: out of memory", name);
    table->chosen = candidate;
    atomic_store_explicit(&ctx->slot[op][device], table, memory_order_release);
    return DT_OK;
}

/* "NAME": every operator that provider serves, on its device; at least one, else it is unknown. */
static dt_status choose_everywhere(dt_ctx *ctx, const char *name, dt_err *err)
{
    bool found = strcmp(name, "auto") == 0;
    for (const dt_registered *r = ctx->providers; r; r = r->next)
        found |= strcmp(r->provider->name, name) == 0;
    if (!found) {
        dt_buf known = {0};
        for (const dt_registered *r = ctx->providers; r; r = r->next)
            dtp_buf_printf(&known, "%s%s", known.length ? ", " : "", r->provider->name);
        dt_fail(err, DT_E_ARG, "no provider named \"%s\" (there are: auto%s%s)", name, known.length ? ", " : "",
                known.length ? known.data : "");
        dtp_buf_free(&known);
        return DT_E_ARG;
    }
    dt_status status = DT_OK;
    for (int op = 0; op < DT_OP_COUNT; op++)
        for (int device = 0; device < DT_DEVICE_KINDS && status == DT_OK; device++) {
            const dt_slot_table *table = dtp_slot_table(ctx, (dt_op)op, (dt_device_kind)device);
            bool serves = strcmp(name, "auto") == 0;
            for (size_t i = 0; table && i < table->n; i++)
                serves |= strcmp(table->candidate[i]->provider->name, name) == 0;
            if (table && serves)
                status = choose(ctx, (dt_op)op, (dt_device_kind)device, name, err);
        }
    return status;
}

static dt_status choose_one(dt_ctx *ctx, char *item, dt_err *err)
{
    char *equals = strchr(item, '=');
    if (!equals)
        return choose_everywhere(ctx, item, err);
    *equals = '\0';
    dt_op op = dt_op_by_name(item);
    if (op == DT_OP_COUNT)
        return dt_fail(err, DT_E_ARG, "no operator named \"%s\" (`deltune ops` lists them)", item);
    dt_status status = DT_E_ARG;
    dt_err first = {0};
    for (int device = 0; device < DT_DEVICE_KINDS && status != DT_OK; device++) {
        if (!dtp_slot_table(ctx, op, (dt_device_kind)device))
            continue;
        dt_err *into = first.status ? NULL : &first;
        status = choose(ctx, op, (dt_device_kind)device, equals + 1, into);
    }
    if (status == DT_OK)
        return DT_OK;
    if (!first.status)
        return dt_fail(err, DT_E_ARG, "no provider serves %s", item);
    return dt_fail(err, first.status, "%s", first.text);
}

dt_status dt_ctx_choose(dt_ctx *ctx, const char *spec, dt_err *err)
{
    char *copy = dtp_strdup(spec);
    if (!copy)
        return dt_fail(err, DT_E_NOMEM, "cannot choose a provider: out of memory");
    pthread_mutex_lock(&ctx->lock);
    dt_status status = DT_OK;
    char *rest = copy;
    for (char *item; status == DT_OK && (item = strsep(&rest, ",")) != NULL;)
        if (*item)
            status = choose_one(ctx, item, err);
    pthread_mutex_unlock(&ctx->lock);
    free(copy);
    return status == DT_OK ? DT_OK : dt_err_prefix(err, "provider choice \"%s\": ", spec);
}

/* ---- resolution ---- */

/* 1 when the candidate can run the call; else 0 with the reason. */
static int can_run(const dt_exec *exec, const dt_candidate *c, const void *args, uint32_t needs, char *why, size_t n)
{
    static const struct {
        uint32_t cap;
        const char *text;
    } missing[] = {{DT_CAP_PACKED, "packed calls with more than one sample"},
                   {DT_CAP_BACKWARD, "a backward"},
                   {DT_CAP_STATE, "initial and final states"},
                   {DT_CAP_GVA, "more value (query) heads than key heads"}};
    if (!c->available) {
        snprintf(why, n, "unavailable: %.200s", c->why);
        return 0;
    }
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        if (needs & ~c->set->caps & missing[i].cap) {
            snprintf(why, n, "does not support %s", missing[i].text);
            return 0;
        }
    return !c->set->verify || c->set->verify(exec, args, why, n);
}

dt_status dtp_resolve(dt_exec *exec, dt_op op, const void *args, uint32_t needs, const dt_candidate **out,
                      uint64_t *generation_out, dt_err *err)
{
    const dt_slot_table *table = dtp_slot_table(exec->ctx, op, exec->device);
    char why[DTP_WHY];
    if (table && table->chosen) {
        why[0] = '\0';
        if (!can_run(exec, table->chosen, args, needs, why, sizeof why))
            return dt_fail(err, DT_E_UNSUPPORTED,
                           "%s: the chosen provider %s cannot run this call: %s (choose another with --provider)",
                           dt_op_name(op), table->chosen->provider->name, why);
        *out = table->chosen;
        *generation_out = table->generation;
        return DT_OK;
    }
    for (size_t i = 0; table && i < table->n; i++)
        if (can_run(exec, table->candidate[i], args, needs, why, sizeof why)) {
            *out = table->candidate[i];
            *generation_out = table->generation;
            return DT_OK;
        }
    dt_buf reasons = {0};
    for (size_t i = 0; table && i < table->n; i++) {
        why[0] = '\0';
        can_run(exec, table->candidate[i], args, needs, why, sizeof why);
        dtp_buf_printf(&reasons, "%s%s: %s", i ? "; " : "", table->candidate[i]->provider->name, why);
    }
    dt_fail(err, DT_E_UNSUPPORTED, "%s: no provider can run this call on %s (%s)", dt_op_name(op),
            dt_device_name(exec->device), reasons.length ? reasons.data : "none is registered");
    dtp_buf_free(&reasons);
    return DT_E_UNSUPPORTED;
}

const char *dt_ctx_candidate(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t i)
{
    const dt_slot_table *table = dtp_slot_table(ctx, op, device);
    return table && i < table->n ? table->candidate[i]->provider->name : NULL;
}

dt_status dt_ctx_op_info(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_op_info *info_out, dt_err *err)
{
    const dt_slot_table *table = dtp_slot_table(ctx, op, device);
    const dt_candidate *current = table ? table->chosen : NULL;
    for (size_t i = 0; table && !current && i < table->n; i++)
        if (table->candidate[i]->available)
            current = table->candidate[i];
    if (!current)
        return dt_fail(err, DT_E_UNAVAILABLE, "%s: no provider on %s", dt_op_name(op), dt_device_name(device));
    *info_out = (dt_op_info){dt_op_name(op), current->provider->name, current->provider->version, current->file,
                             table->chosen != NULL};
    return DT_OK;
}
