/* The provider ABI: how an implementation of operators is described, built in or plugged in. C only.
 *
 * A provider is one const table. For each operator it serves, a dt_op_set carries forward, backward, sizes and
 * verify as one unit: backward reads what this forward saved, so they are never mixed between providers. */
#ifndef DELTUNE_PROVIDER_H
#define DELTUNE_PROVIDER_H

#include <deltune/operators.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DT_PROVIDER_ABI 1

/* What an operator set can do. A call that needs a missing capability is not given to it. */
enum {
    DT_CAP_PACKED = 1u << 0,   /* more than one sample in a call, boundaries respected */
    DT_CAP_BACKWARD = 1u << 1, /* has backward */
    DT_CAP_STATE = 1u << 2,    /* initial and final state, with packing */
    DT_CAP_GVA = 1u << 3,      /* more value heads than key heads / grouped queries */
    DT_CAP_DETERMINISTIC = 1u << 4
};

typedef struct dt_op_set {
    size_t struct_size;
    dt_op op;
    uint32_t caps;
    /* 0 = this call cannot run here, with a reason in why; 1 = it can. Looks at shapes, dtypes and options, never at
     * tensor data. NULL: everything the capabilities allow. */
    int (*verify)(const dt_exec *exec, const void *args, char *why, size_t why_size);
    size_t (*saved_bytes)(const dt_exec *exec, const void *args);                    /* NULL: 0 */
    size_t (*workspace_bytes)(const dt_exec *exec, const void *args, bool backward); /* NULL: 0 */
    /* Arguments have been checked against the operator's contract. `workspace` is 64-byte aligned. */
    dt_status (*forward)(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err);
    dt_status (*backward)(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err);
    /* Whether this one operator can run on the device, beside dt_provider.probe. 0 = no, reason in why; NULL: yes. */
    int (*probe)(int device_index, char *why, size_t why_size);
} dt_op_set;

/* Memory and ordering of one device kind; NULL in a provider that only adds operators to a device another one drives.
 */
typedef struct dt_device_ops {
    size_t struct_size;
    dt_status (*open)(dt_exec *exec, dt_err *err); /* creates exec->stream */
    void (*close)(dt_exec *exec);
    dt_status (*alloc)(dt_exec *exec, void **out, size_t bytes, dt_err *err);
    void (*release)(dt_exec *exec, void *memory);
    dt_status (*zero)(dt_exec *exec, void *memory, size_t bytes, dt_err *err);
    dt_status (*copy)(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err); /* any direction */
    dt_status (*synchronize)(dt_exec *exec, dt_err *err);
    /* From here on optional: NULL, or missing in a shorter struct, where the device has no such thing (exec.h says what
     * the caller then sees). */
    dt_status (*host_alloc)(dt_exec *exec, void **out, size_t bytes, dt_err *err); /* page-locked */
    void (*host_release)(dt_exec *exec, void *memory);
    dt_status (*memory)(dt_exec *exec, uint64_t *free_out, uint64_t *total_out, dt_err *err);
    dt_status (*mark)(dt_exec *exec, void **mark, dt_err *err); /* creates one when *mark is NULL, else moves it */
    dt_status (*wait)(dt_exec *exec, void *mark, dt_err *err);
    void (*mark_release)(dt_exec *exec, void *mark);
    dt_status (*record_begin)(dt_exec *exec, dt_err *err);
    dt_status (*record_end)(dt_exec *exec, void **recording_out, dt_err *err); /* recording_out NULL: drop it */
    dt_status (*replay)(dt_exec *exec, void *recording, dt_err *err);
    void (*recording_release)(dt_exec *exec, void *recording);
} dt_device_ops;

typedef struct dt_provider {
    uint32_t abi;       /* DT_PROVIDER_ABI of the header it was compiled with */
    size_t struct_size; /* sizeof(dt_provider) there */
    const char *name;   /* "cpu", "reference", "cuda": unique in a process */
    const char *version;
    const char *build_id;
    dt_device_kind device;
    int priority; /* the highest that can run a call takes it */
    /* Runs real code on the device. 0 = unavailable, with the reason in why. NULL: always available. */
    int (*probe)(int device_index, char *why, size_t why_size);
    const dt_device_ops *device_ops;
    const dt_op_set *const *ops; /* n_ops entries */
    size_t n_ops;
    uint32_t flags; /* DT_PROVIDER_* */
} dt_provider;

enum {
    /* Never unmapped after unloading: a library that registered device code or started threads. */
    DT_PROVIDER_KEEP_MAPPED = 1u << 0
};

/* The one symbol a plug-in exports: `const dt_provider *dt_provider_entry(void)`. The table is constant and lives as
 * long as the library is mapped. One library, one provider, one device kind. */
#define DT_PROVIDER_SYMBOL "dt_provider_entry"
typedef const dt_provider *(*dt_provider_entry_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
