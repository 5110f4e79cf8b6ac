/* Training operators: what can be called, and the one way to call it.
 *
 * Every operator has an argument struct (deltune/op/NAME.h) with its inputs, outputs, upstream gradients and
 * gradients. dt_op_forward and dt_op_backward check the arguments against the contract, pick the provider
 * through the operator's slot, and run it. What forward keeps for backward is private to the provider and
 * lives in a dt_saved, which also remembers the provider: backward always runs on the one that ran forward.
 *
 * Common rules of all argument structs:
 * - `struct_size` comes first and is set by the DT_*_ARGS initialiser.
 * - Outputs alias nothing unless the field says so. An absent optional tensor has data == NULL.
 * - Activations are one dtype per call: F32 (CPU, or fp32 checking mode) or BF16 (CUDA). "f32" in a comment
 *   means always F32. Weights may be BF16 while activations are F32.
 * - Rows T..T_cap-1 (dt_seqs) hold finite values and belong to no sample: outputs and gradients there are 0.
 * - Parameter gradients (dweight and the like) are F32 and are ADDED to; activation gradients are written.
 *   A NULL parameter gradient is not computed (frozen weight).
 * - Errors: DT_E_ARG, DT_E_SHAPE, DT_E_DTYPE before anything is written; DT_E_NOMEM; DT_E_UNSUPPORTED when no
 *   provider can run the call, with each candidate's reason; outputs are untouched in all of these.
 * - Thread-safe on distinct outputs and distinct dt_exec. */
#ifndef DELTUNE_OPERATORS_H
#define DELTUNE_OPERATORS_H

#include <deltune/exec.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_op {
    DT_OP_EMBEDDING = 0,      /* op/embedding.h */
    DT_OP_RMS_NORM,           /* op/rms_norm.h */
    DT_OP_RMS_NORM_GATED,     /* op/rms_norm_gated.h */
    DT_OP_LINEAR,             /* op/linear.h */
    DT_OP_ROPE,               /* op/rope.h */
    DT_OP_ATTENTION,          /* op/attention.h */
    DT_OP_SIGMOID_GATE,       /* op/activation.h */
    DT_OP_SWIGLU,             /* op/activation.h */
    DT_OP_CAUSAL_CONV1D,      /* op/causal_conv1d.h */
    DT_OP_CAUSAL_CONV1D_STEP, /* op/causal_conv1d.h */
    DT_OP_GDN_GATES,          /* op/gdn.h */
    DT_OP_GDN,                /* op/gdn.h */
    DT_OP_GDN_STEP,           /* op/gdn.h */
    DT_OP_CROSS_ENTROPY,      /* op/cross_entropy.h */
    DT_OP_ADAMW,              /* op/optimizer.h */
    DT_OP_GRAD_NORM,          /* op/optimizer.h */
    DT_OP_COUNT
} dt_op;

/* The name used by --provider OP=NAME, `deltune ops` and reference cases: "gdn", "causal_conv1d", ... */
DT_API const char *dt_op_name(dt_op op);
/* The operator of that name, or DT_OP_COUNT. "chunk_gated_delta_rule" and "varlen_attention" are accepted too. */
DT_API dt_op dt_op_by_name(const char *name);

/* The boundaries of packed samples. Sample n is rows [cu_seqlens[n], cu_seqlens[n+1]); its state, convolution
 * window and attention start there. 0 = first <= ... <= last = T. Length-0 samples are legal in operators. */
typedef struct dt_seqs {
    const int32_t *cu_seqlens; /* [n_seq+1], host memory, borrowed for the call (until backward has run) */
    const int32_t *
        cu_seqlens_device; /* the same in device memory, [n_seq_cap+1], entries after n_seq repeat T; NULL on the CPU */
    int64_t n_seq, n_seq_cap; /* n_seq_cap >= n_seq; equal to it when nothing is captured */
    int64_t T;                /* == cu_seqlens[n_seq] */
    int64_t T_cap;            /* rows of every [T,...] tensor, >= T; T itself when nothing is padded */
} dt_seqs;

/* What changes from step to step. It lies in device memory, so that a recorded step (dt_exec_record_begin) reads the
 * values of the step it is replayed for: operators that use one of them take a pointer to this beside their by-value
 * fields, and when it is not NULL they read it there and ignore the fields.
 *
 * A recorded call reads nothing else that changes: it has T == T_cap, where the rows behind the pack are ordinary
 * finite rows whose gradients are 0, and operators on samples take the boundaries from dt_seqs.cu_seqlens_device. */
typedef struct dt_step_values {
    uint64_t seed; /* dropout: linear.seed, .step, .micro */
    uint32_t step, micro;
    float grad_scale;    /* cross_entropy.grad_scale */
    float lr;            /* adamw.lr */
    float max_grad_norm; /* adamw with a norm: clips to it; 0 = does not clip */
    int32_t update;      /* adamw.step: t, from 1 */
} dt_step_values;

/* What a forward call keeps for its backward. The caller provides the memory; zero-initialise the struct. A filled
 * dt_saved refers to the provider that filled it, which cannot be unloaded meanwhile: dt_saved_release ends that. Using
 * the struct for another forward releases the old reference by itself. */
typedef struct dt_saved {
    void *data;        /* device memory, 64-byte aligned, at least dt_op_saved_bytes */
    size_t bytes;      /* size of `data` */
    const void *owner; /* set by forward: the operator set that ran */
    uint64_t generation;
} dt_saved;

/* Forgets the provider; does not touch `data`. Accepts NULL and a struct that no forward has filled. */
DT_API void dt_saved_release(dt_saved *saved);

/* Bytes of dt_saved memory and of workspace that a call with these arguments needs. Both grow with T_cap and
 * n_seq_cap only, so asking once with the largest pack covers a run. Tensor data pointers are not read. */
DT_API dt_status dt_op_saved_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err);
DT_API dt_status dt_op_workspace_bytes(dt_exec *exec, dt_op op, const void *args, size_t *bytes_out, dt_err *err);

/* `saved` may be NULL: inference, nothing is kept. */
DT_API dt_status dt_op_forward(dt_exec *exec, dt_op op, const void *args, dt_saved *saved, dt_err *err);
DT_API dt_status dt_op_backward(dt_exec *exec, dt_op op, const void *args, const dt_saved *saved, dt_err *err);

/* Explicit choice, before or between calls: "reference" (every operator) or "gdn=reference,linear=cpu".
 * "auto" gives the choice back. Errors: DT_E_ARG for unknown names, listing the known ones; DT_E_UNAVAILABLE
 * when the provider cannot run here. There is no silent fallback from an explicit choice. */
DT_API dt_status dt_ctx_choose(dt_ctx *ctx, const char *spec, dt_err *err);

/* The name of the i-th candidate of a slot, best first, whether it can run or not; NULL after the last. */
DT_API const char *dt_ctx_candidate(dt_ctx *ctx, dt_op op, dt_device_kind device, size_t i);

/* Who serves an operator now. Strings live until the slot changes. */
typedef enum dt_op_source {
    DT_SOURCE_AUTOMATIC, /* the best candidate that can run */
    DT_SOURCE_CHOSEN,    /* the user's explicit choice */
    DT_SOURCE_OVERRIDE,  /* somebody replaced or wrapped the entry (deltune/dispatch.h) */
    DT_SOURCE_RESTORED,  /* the owner's original, put back by a restore */
    DT_SOURCE_NOTHING    /* no candidate can run */
} dt_op_source;

typedef struct dt_op_info {
    const char *op, *provider, *version, *file; /* file: the library that holds the function, as the loader names it */
    dt_op_source source;
    uint32_t caps;       /* DT_CAP_* */
    uint64_t generation; /* grows with every change of the slot */
} dt_op_info;
/* "automatic", "chosen", "override", "restored", "nothing". */
DT_API const char *dt_op_source_name(dt_op_source source);
DT_API dt_status dt_ctx_op_info(dt_ctx *ctx, dt_op op, dt_device_kind device, dt_op_info *info_out, dt_err *err);

#ifdef __cplusplus
}
#endif
#endif
