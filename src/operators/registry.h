/* Providers, slots and the tables behind them: what all files of the dispatcher share.
 *
 * A slot (operator x device kind) points to an immutable table: overrides on top, then candidates, best first. A change
 * builds a new table and publishes it with one atomic store. A call announces the table it works on (dt_hazard), so a
 * table, an override or a provider is freed only when no call is inside it. Calls take no lock. */
#ifndef DT_OPERATORS_REGISTRY_H
#define DT_OPERATORS_REGISTRY_H

#include <deltune/dispatch.h>
#include <pthread.h>
#include <stdatomic.h>

enum { DTP_WHY = 256 };

/* One operator set with its identity: stable while anything refers to it. */
typedef struct dt_entry {
    const dt_op_set *set;
    const char *name, *version; /* provider's, or who overrides */
    const char *file;           /* library that holds set->forward */
    int priority;
    bool wraps;
    struct dt_entry *below; /* what a wrapping override calls: fixed when it was installed */
    atomic_long references; /* saved contexts, and wrapping overrides on top */
    char fault[DTP_WHY];    /* why its tiny real call failed when it was probed, "" = it did not */
} dt_entry;

/* An entry as one table sees it. */
typedef struct dt_candidate {
    dt_entry *entry;
    bool available;
    uint32_t caps;     /* of the set, less what the group rule takes away (dtp_group_caps) */
    char why[DTP_WHY]; /* why it is not available, or which capability is missing and why */
} dt_candidate;

typedef struct dt_slot_table {
    struct dt_slot_table *retired; /* next in the list of replaced tables */
    uint64_t generation;
    dt_entry *chosen;   /* the user's explicit choice */
    dt_entry *restored; /* the owner's entry after a restore: asked first */
    dt_entry *original; /* what the first override replaced */
    atomic_uint logged; /* bit i: the use of candidate i has been logged */
    size_t n_overrides; /* list[0..n_overrides): newest first */
    size_t n;
    dt_candidate list[];
} dt_slot_table;

/* A running call's mark: the table that must not be freed. One per execution context. */
typedef struct dt_hazard {
    struct dt_hazard *next;
    _Atomic(const dt_slot_table *) table;
} dt_hazard;

struct dt_registration {
    struct dt_registration *next;
    const dt_provider *provider;
    char *file;
    void *library; /* dlopen handle or NULL */
    bool replaced; /* kept as history only */
    bool available;
    char why[DTP_WHY];
    size_t n;
    dt_entry entry[];
};

struct dt_override {
    struct dt_override *next;
    dt_op op;
    dt_device_kind device;
    char *who, *why, *file;
    dt_entry entry;
};

typedef struct dt_holder {
    struct dt_holder *next;
    dt_op op;
    dt_device_kind device;
    char *name;
    dt_holder_fn notify;
    void *user;
} dt_holder;

typedef struct dt_supplement {
    struct dt_supplement *next;
    char *provider, *id;
    dt_device_kind device;
    dt_probe_fn probe;
} dt_supplement;

typedef struct dt_stored_policy {
    struct dt_stored_policy *next;
    dt_op op;
    dt_device_kind device;
    dt_restore_policy policy; /* strings and files are owned */
} dt_stored_policy;

typedef struct dt_attempt_record {
    struct dt_attempt_record *next;
    char *subject, *reason;
} dt_attempt_record;

struct dt_ctx {
    pthread_mutex_t lock; /* changes only; recursive, for restores that load plug-ins */
    _Atomic(dt_slot_table *) slot[DT_OP_COUNT][DT_DEVICE_KINDS];
    dt_slot_table *retired;
    dt_hazard *hazards;
    dt_registration *registrations; /* in order of registration */
    dt_override *overrides;
    dt_holder *holders;
    dt_supplement *supplements;
    dt_stored_policy *policies;
    dt_attempt_record *attempts;
    unsigned fork_generation; /* of the process that probed last */
};

/* Built-in providers, an explicit table (a constructor would be dropped by static linking). NULL-terminated. */
extern const dt_provider *const dtp_builtin_providers[];
/* A context without built-in providers, for tests. */
dt_status dtp_ctx_create_empty(dt_ctx **ctx_out, dt_err *err);

void dtp_ctx_lock(dt_ctx *ctx);
void dtp_ctx_unlock(dt_ctx *ctx);

/* ---- slot.c: tables; the lock is held ---- */

dt_slot_table *dtp_slot(dt_ctx *ctx, dt_op op, dt_device_kind device);
/* A copy with room for `extra` entries more; NULL when out of memory. Not yet published. */
dt_slot_table *dtp_slot_copy(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t extra);
void dtp_slot_insert_candidate(dt_slot_table *table, const dt_candidate *candidate); /* by priority, then order */
void dtp_slot_push_override(dt_slot_table *table, dt_entry *entry);
void dtp_slot_remove(dt_slot_table *table, const dt_entry *entry);
/* Makes the table current with the next generation; the old one is retired and freed when no call uses it. */
void dtp_slot_publish(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_slot_table *table);
/* Tells all holders of the slot; DT_OK or the first holder's error, prefixed with its name. */
dt_status dtp_slot_notify(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_err *err);
/* A running call works on a table that holds the entry. */
bool dtp_entry_is_running(dt_ctx *ctx, const dt_entry *entry);
/* The entry that serves calls when no capability is missing; NULL: none. */
const dt_candidate *dtp_slot_current(const dt_slot_table *table);
const dt_candidate *dtp_slot_find(const dt_slot_table *table, const dt_entry *entry);
void dtp_slot_free_all(dt_ctx *ctx);

/* ---- calls ---- */

/* Announces the slot's table as in use; the hazard holds it until dtp_slot_leave. */
const dt_slot_table *dtp_slot_enter(dt_ctx *ctx, dt_hazard *hazard, dt_op op, dt_device_kind device);
void dtp_slot_leave(dt_hazard *hazard);
/* What a provider's function returned, with an error text in any case: plug-ins may set a status without one, or a text
 * without a status. */
dt_status dtp_provider_status(dt_status status, const dt_entry *entry, dt_err *err);
/* The candidate of the table that runs this call, or NULL with the reason (DT_E_UNSUPPORTED). */
const dt_candidate *dtp_resolve(const dt_exec *exec, const dt_slot_table *table, dt_op op, const void *args,
                                uint32_t needs, dt_err *err);

/* ---- probe.c ---- */

/* Availability of a registration: its own probe, then supplements. */
void dtp_probe(dt_ctx *ctx, dt_registration *r);
/* The rest of the probe, once the registration is in the context's list: a tiny real call of each entry of a plug-in,
 * which finds stubs that load but do not compute. */
void dtp_probe_calls(dt_ctx *ctx, dt_registration *r);
/* The i-th entry as tables see it: availability, and capabilities after the group rule. */
void dtp_candidate_of(const dt_registration *r, size_t i, dt_candidate *out);
/* Records a failed attempt. */
void dtp_note_attempt(dt_ctx *ctx, const char *subject, const char *reason);

/* ---- plugin.c ---- */

/* Opens a plug-in without registering it. */
dt_status dtp_plugin_open(dt_ctx *ctx, const char *file, const dt_provider **provider_out, void **library_out,
                          char **path_out, dt_err *err);
/* The library that holds the code of an operator set, as the loader names it ("" when unknown). Borrowed. */
const char *dtp_file_of(const dt_op_set *set);
/* The same file, by path or by identity. */
bool dtp_same_file(const char *a, const char *b);

/* ---- registration.c; the lock is held ---- */

dt_status dtp_register(dt_ctx *ctx, const dt_provider *provider, const char *file, void *library, uint32_t flags,
                       dt_registration **out, dt_err *err);
void dtp_close_library(dt_registration *r);
dt_registration *dtp_find_registration(dt_ctx *ctx, const char *name, dt_device_kind device);
/* Memory functions of a device, or NULL. */
const dt_device_ops *dtp_ctx_device_ops(dt_ctx *ctx, dt_device_kind device);

/* ---- restore.c ---- */

void dtp_free_policy(dt_restore_policy *policy);

/* ---- smoke.c ---- */

/* A tiny call of the entry. `deep`: packed, and compared with separate calls. Operators without samples pass. */
dt_status dtp_smoke_call(dt_ctx *ctx, dt_device_kind device, const dt_entry *entry, bool deep, dt_err *err);

#endif
