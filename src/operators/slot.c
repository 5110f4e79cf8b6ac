#include "core/memory.h"
#include "operators/registry.h"

#include <stdlib.h>
#include <string.h>

dt_slot_table *dtp_slot(dt_ctx *ctx, dt_op op, dt_device_kind device)
{
    return atomic_load(&ctx->slot[op][device]);
}

dt_slot_table *dtp_slot_copy(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t extra)
{
    const dt_slot_table *old = dtp_slot(ctx, op, device);
    size_t n = old ? old->n : 0;
    dt_slot_table *table = dtp_calloc(1, sizeof *table + (n + extra) * sizeof table->list[0]);
    if (!table)
        return NULL;
    table->n = n;
    if (old) {
        table->generation = old->generation;
        table->chosen = old->chosen;
        table->restored = old->restored;
        table->original = old->original;
        table->n_overrides = old->n_overrides;
        memcpy(table->list, old->list, n * sizeof table->list[0]);
    }
    return table;
}

static void insert(dt_slot_table *table, size_t at, const dt_candidate *candidate)
{
    memmove(&table->list[at + 1], &table->list[at], (table->n - at) * sizeof table->list[0]);
    table->list[at] = *candidate;
    table->n++;
}

void dtp_slot_insert_candidate(dt_slot_table *table, const dt_candidate *candidate)
{
    size_t at = table->n_overrides;
    while (at < table->n && table->list[at].entry->priority >= candidate->entry->priority)
        at++;
    insert(table, at, candidate);
}

void dtp_slot_push_override(dt_slot_table *table, dt_entry *entry)
{
    const dt_candidate top = {.entry = entry, .available = true, .caps = entry->set->caps};
    insert(table, 0, &top);
    table->n_overrides++;
}

void dtp_slot_remove(dt_slot_table *table, const dt_entry *entry)
{
    for (size_t i = 0; i < table->n; i++) {
        if (table->list[i].entry != entry)
            continue;
        memmove(&table->list[i], &table->list[i + 1], (table->n - i - 1) * sizeof table->list[0]);
        table->n--;
        if (i < table->n_overrides)
            table->n_overrides--;
        break;
    }
    dt_entry **named[] = {&table->chosen, &table->restored, &table->original};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (*named[i] == entry)
            *named[i] = NULL;
}

static bool in_use(dt_ctx *ctx, const dt_slot_table *table)
{
    for (dt_hazard *h = ctx->hazards; h; h = h->next)
        if (atomic_load(&h->table) == table)
            return true;
    return false;
}

/* Frees the replaced tables that no call works on any more. */
static void sweep(dt_ctx *ctx)
{
    dt_slot_table **link = &ctx->retired;
    while (*link) {
        dt_slot_table *table = *link;
        if (in_use(ctx, table)) {
            link = &table->retired;
        } else {
            *link = table->retired;
            free(table);
        }
    }
}

void dtp_slot_publish(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_slot_table *table)
{
    table->generation++;
    dt_slot_table *old = atomic_exchange(&ctx->slot[op][device], table);
    if (old) {
        old->retired = ctx->retired;
        ctx->retired = old;
    }
    sweep(ctx);
}

dt_status dtp_slot_notify(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_err *err)
{
    uint64_t generation = dtp_slot(ctx, op, device) ? dtp_slot(ctx, op, device)->generation : 0;
    dt_status first = DT_OK;
    for (dt_holder *h = ctx->holders; h; h = h->next) {
        if (h->op != op || h->device != device)
            continue;
        dt_err fault = {0};
        dt_status status = h->notify(h->user, op, device, generation, &fault);
        if (status != DT_OK && first == DT_OK)
            first = dt_fail(err, status, "holder %s: %s", h->name, fault.text);
    }
    return first;
}

bool dtp_entry_is_running(dt_ctx *ctx, const dt_entry *entry)
{
    for (dt_hazard *h = ctx->hazards; h; h = h->next) {
        const dt_slot_table *table = atomic_load(&h->table);
        for (size_t i = 0; table && i < table->n; i++)
            if (table->list[i].entry == entry)
                return true;
    }
    return false;
}

const dt_candidate *dtp_slot_find(const dt_slot_table *table, const dt_entry *entry)
{
    for (size_t i = 0; table && i < table->n; i++)
        if (table->list[i].entry == entry)
            return &table->list[i];
    return NULL;
}

const dt_candidate *dtp_slot_current(const dt_slot_table *table)
{
    if (!table)
        return NULL;
    if (table->chosen)
        return dtp_slot_find(table, table->chosen);
    if (table->n_overrides)
        return &table->list[0];
    if (table->restored)
        return dtp_slot_find(table, table->restored);
    for (size_t i = 0; i < table->n; i++)
        if (table->list[i].available)
            return &table->list[i];
    return NULL;
}

const dt_slot_table *dtp_slot_enter(dt_ctx *ctx, dt_hazard *hazard, dt_op op, dt_device_kind device)
{
    /* announce, then look again: a table that was replaced in between may already be gone */
    const dt_slot_table *table;
    do {
        table = atomic_load(&ctx->slot[op][device]);
        atomic_store(&hazard->table, table);
    } while (atomic_load(&ctx->slot[op][device]) != table);
    return table;
}

void dtp_slot_leave(dt_hazard *hazard)
{
    atomic_store_explicit(&hazard->table, NULL, memory_order_release);
}

void dtp_slot_free_all(dt_ctx *ctx)
{
    for (int op = 0; op < DT_OP_COUNT; op++)
        for (int device = 0; device < DT_DEVICE_KINDS; device++)
            free(atomic_load(&ctx->slot[op][device]));
    while (ctx->retired) {
        dt_slot_table *next = ctx->retired->retired;
        free(ctx->retired);
        ctx->retired = next;
    }
}
