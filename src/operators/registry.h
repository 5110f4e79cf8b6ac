/* Providers and slots of one context.
 *
 * A slot (operator x device kind) points to an immutable table of candidates, best first. Changing anything builds
 * a new table and publishes it with one atomic store, so calls never lock and finish on the table they started with;
 * tables that were replaced are kept until the context goes. */
#ifndef DT_OPERATORS_REGISTRY_H
#define DT_OPERATORS_REGISTRY_H

#include <deltune/provider.h>
#include <stdatomic.h>

enum { DTP_WHY = 256 };

/* One operator set of one registered provider. */
typedef struct dt_candidate {
    const dt_provider *provider;
    const dt_op_set *set;
    const char *file; /* the library it lives in, as the loader names it */
    bool available;
    char why[DTP_WHY]; /* why it is not available */
} dt_candidate;

typedef struct dt_slot_table {
    struct dt_slot_table *older; /* the table this one replaced: kept for calls in flight */
    uint64_t generation;
    const dt_candidate *chosen; /* the user's explicit choice, NULL = automatic */
    size_t n;
    const dt_candidate *candidate[]; /* highest priority first, then in order of registration */
} dt_slot_table;

/* Built-in providers, an explicit table (a constructor would be dropped by static linking). NULL-terminated. */
extern const dt_provider *const dtp_builtin_providers[];

/* A context without built-in providers, for tests. */
dt_status dtp_ctx_create_empty(dt_ctx **ctx_out, dt_err *err);
/* `file` NULL: found from the table's address. The provider table must outlive the context.
 * Errors: DT_E_ARG for another ABI (both numbers), a duplicate (name, op, device), an operator set without forward. */
dt_status dtp_ctx_register(dt_ctx *ctx, const dt_provider *provider, const char *file, dt_err *err);

const dt_slot_table *dtp_slot_table(dt_ctx *ctx, dt_op op, dt_device_kind device);
/* Memory functions of a device, or NULL. */
const dt_device_ops *dtp_ctx_device_ops(dt_ctx *ctx, dt_device_kind device);

/* The candidate that runs this call. DT_E_UNSUPPORTED lists every candidate with its reason. */
dt_status dtp_resolve(dt_exec *exec, dt_op op, const void *args, uint32_t needs, const dt_candidate **out,
                      uint64_t *generation_out, dt_err *err);

#endif
