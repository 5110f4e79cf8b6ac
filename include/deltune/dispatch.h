/* Changing who serves an operator: plug-ins, overrides, restores, and the record of all of it.
 *
 * Everything here is for start-up and for tools; the calls of a step need none of it. All functions are thread-safe and
 * may run while other threads are in operator calls: a call finishes on the entry it started with.
 *
 * Rules (docs/dispatch.md has the reasons):
 * - A caller never holds a function pointer. The operator's number is its handle; it is resolved through the slot at
 *   each call, so nobody can keep a stale entry.
 * - The user's explicit choice (dt_ctx_choose) is above overrides: nobody replaces it behind the user's back.
 * - A change is whole or does not happen: tables are computed and verified first, then published together. */
#ifndef DELTUNE_DISPATCH_H
#define DELTUNE_DISPATCH_H

#include <deltune/provider.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- providers ---- */

/* What registration gives back and unregistration takes. */
typedef struct dt_registration dt_registration;

enum {
    DT_REGISTER_REPLACE = 1u << 0, /* take the place of a provider of the same name; it stays in the history */
    DT_REGISTER_FOUND = 1u << 1    /* nobody named it: that it cannot run here is an attempt, and no warning */
};

/* Adds a provider table. `file` NULL: found from the address of its functions. The table must outlive the registration.
 * Errors: DT_E_ARG for another ABI (both numbers), an incomplete table (what is missing), a name already registered for
 * the operator and device (both origins). A provider whose probe fails is registered as unavailable, reason kept. */
DT_API dt_status dt_ctx_register(dt_ctx *ctx, const dt_provider *provider, const char *file, uint32_t flags,
                                 dt_registration **registration_out, dt_err *err);
/* Opens a plug-in file (RTLD_NOW | RTLD_LOCAL) and registers what it exports. Not cached: after a failure the next
 * call tries again. Errors: DT_E_UNAVAILABLE with the loader's own words or the missing symbol; those of registering.
 */
DT_API dt_status dt_ctx_load_plugin(dt_ctx *ctx, const char *file, uint32_t flags, dt_registration **registration_out,
                                    dt_err *err);
/* Loads what a colon-separated list names: files, and in folders the files "libdeltune-*.so", in the order of their
 * names. `devices` (bit 1 << dt_device_kind) keeps a run from opening libraries it has no use for:
 * "libdeltune-cuda*.so" in a folder is opened only with the bit of DT_DEVICE_CUDA. A file that fails is an attempt with
 * a reason (and one warning), not an error. */
DT_API dt_status dt_ctx_load_plugin_path(dt_ctx *ctx, const char *path, uint32_t devices, dt_err *err);
/* Takes the provider out; its slots go back to what they were without it. Errors: DT_E_BUSY while a saved context or a
 * running call refers to it. On success the registration is gone. */
DT_API dt_status dt_ctx_unregister(dt_ctx *ctx, dt_registration *registration, dt_err *err);

/* Probes all providers of a device again: nothing that failed is remembered as failed, success is kept. */
DT_API dt_status dt_ctx_probe_again(dt_ctx *ctx, dt_device_kind device, dt_err *err);

/* A second opinion for one provider on one device, asked only when its own probe says no. `id` marks it: installing
 * the same id twice does nothing. On other devices nothing changes at all. */
typedef int (*dt_probe_fn)(int device_index, char *why, size_t why_size);
DT_API dt_status dt_ctx_supplement_probe(dt_ctx *ctx, const char *provider, dt_device_kind device, const char *id,
                                         dt_probe_fn probe, dt_err *err);

/* Every failed attempt of this context, oldest first: what was tried and the exact reason. Borrowed until the context
 * goes. Returns false after the last. */
typedef struct dt_attempt {
    const char *subject; /* file or provider */
    const char *reason;
} dt_attempt;
DT_API bool dt_ctx_attempt(dt_ctx *ctx, size_t index, dt_attempt *attempt_out);

/* ---- overrides ---- */

typedef struct dt_override dt_override; /* token */

typedef struct dt_override_request {
    size_t struct_size;
    dt_op op;
    dt_device_kind device;
    const dt_op_set *set; /* must outlive the override */
    const char *who;      /* who replaces: shown wherever the operator is named */
    const char *why;
    bool wrap; /* the entry calls the one below it through dt_next_*; never inferred from a name */
} dt_override_request;
#define DT_OVERRIDE_REQUEST .struct_size = sizeof(dt_override_request)

/* Puts an entry on top of the slot. The first override saves what was there as the original. Overrides stack.
 * Errors: DT_E_ARG for an incomplete request; DT_E_BUSY when the user has chosen a provider for this operator. */
DT_API dt_status dt_ctx_override(dt_ctx *ctx, const dt_override_request *request, dt_override **token_out, dt_err *err);
/* Takes one override out of the stack, wherever it lies. Errors: DT_E_BUSY as dt_ctx_unregister. */
DT_API dt_status dt_ctx_remove_override(dt_ctx *ctx, dt_override *token, dt_err *err);

/* Inside a wrapping entry: the one below. Sizes first (its saved bytes and workspace are part of the wrapper's). */
DT_API size_t dt_next_saved_bytes(const dt_exec *exec, const void *args);
DT_API size_t dt_next_workspace_bytes(const dt_exec *exec, const void *args, bool backward);
DT_API dt_status dt_next_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err);
DT_API dt_status dt_next_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err);

/* ---- restore ---- */

/* Where the original of an operator may come from, in order. */
typedef struct dt_restore_policy {
    size_t struct_size;
    const char *owner; /* provider name that owns the operator */
    const char
        *owner_file; /* the library that must hold the function (real path); NULL: that of the owner's registration */
    const char *const *files; /* plug-in files to resolve the owner from again, tried in order; n_files may be 0 */
    size_t n_files;
    bool verify_call; /* deep verification: a tiny packed call compared with separate calls */
} dt_restore_policy;
#define DT_RESTORE_POLICY .struct_size = sizeof(dt_restore_policy)

typedef struct dt_restore_report {
    bool changed;      /* false: it already was the owner's entry */
    char kept[256];    /* on failure: who stays, and from which file */
    char reasons[768]; /* each source that was tried and why it was refused */
} dt_restore_report;

/* Puts the owner's entry back and drops all overrides, wraps included. All or nothing: compute, verify, publish, notify
 * holders, verify again; on any failure what was there is there again, one warning says so, and DT_E_UNAVAILABLE is
 * returned - packed calls then fail at the call if what stayed cannot pack. Already restored: nothing happens, nothing
 * is logged. The policy is remembered for dt_ctx_after_repatch. */
DT_API dt_status dt_ctx_restore(dt_ctx *ctx, dt_op op, dt_device_kind device, const dt_restore_policy *policy,
                                dt_restore_report *report_out, dt_err *err);
/* After a third party has applied its overrides again: every remembered policy of the device runs once more, last. */
DT_API dt_status dt_ctx_after_repatch(dt_ctx *ctx, dt_device_kind device, dt_err *err);

/* ---- who is told ---- */

/* Called under the registry's lock after a slot changed, with its new generation; must not call back into the context.
 * A failure during a restore undoes the restore. Called once when added, so that late comers see the present entry. */
typedef dt_status (*dt_holder_fn)(void *user, dt_op op, dt_device_kind device, uint64_t generation, dt_err *err);
DT_API dt_status dt_ctx_add_holder(dt_ctx *ctx, dt_op op, dt_device_kind device, const char *name, dt_holder_fn notify,
                                   void *user, dt_err *err);
DT_API void dt_ctx_remove_holder(dt_ctx *ctx, dt_holder_fn notify, void *user);

/* ---- the record ---- */

/* The i-th entry of a slot in the order it is asked, overrides first; false after the last. */
typedef struct dt_candidate_info {
    const char *provider, *version, *file; /* live until the slot changes */
    bool is_override, available;
    uint32_t caps;
    char why[256]; /* why it is unavailable, or lacks a capability it claims */
} dt_candidate_info;
DT_API bool dt_ctx_candidate_info(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t i, dt_candidate_info *info_out);

/* Every candidate of the slot in the order they are asked, one a line, with its reason for not taking this call.
 * args NULL: without a call. Writes at most `size` bytes, always NUL-terminated. */
DT_API void dt_op_explain(dt_exec *exec, dt_op op, const void *args, bool backward, char *text, size_t size);

/* One line per operator: "gdn cpu 0.1.0 FILE", for comparing ranks and runs. */
DT_API dt_status dt_ctx_fingerprint(dt_ctx *ctx, dt_device_kind device, char *text, size_t size, dt_err *err);

#ifdef __cplusplus
}
#endif
#endif
