/* A device for tests of what drives devices: the operators of the CPU, queued, recorded and replayed as on the emulated
 * CUDA device (device_emulated.hpp), under the name "cuda". Fast where emulated kernels are slow; in F32 and BF16.
 *
 * DT_QUEUED_BROKEN=OP makes one of them do nothing, for tests of what finds that.
 * Operators see what a device's would: boundaries and values only from device memory, at the time the work runs. */
#include "providers/cuda/device_emulated.hpp"

#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <memory>

extern "C" {
#include "providers/cpu/cpu.h"
#include "providers/reference/reference.h"
}

namespace
{
/* Arguments as the work finds them: the call's own copy. */
struct call {
    std::vector<unsigned char> bytes;
    explicit call(const void *args)
        : bytes((const unsigned char *)args, (const unsigned char *)args + *(const size_t *)args)
    {
    }
    void *args() { return bytes.data(); }
};

/* The boundaries that lie on the device instead of the host's stand-ins. */
void localise(dt_seqs *s)
{
    if (!s->cu_seqlens_device)
        return;
    s->cu_seqlens = s->cu_seqlens_device;
    s->T = s->cu_seqlens[s->n_seq];
}
void localise(dt_op op, void *args)
{
    if (op == DT_OP_GDN)
        localise(&((dt_gdn_args *)args)->seqs);
    else if (op == DT_OP_CAUSAL_CONV1D)
        localise(&((dt_causal_conv1d_args *)args)->seqs);
    else if (op == DT_OP_ATTENTION) {
        localise(&((dt_attention_args *)args)->seqs);
        localise(&((dt_attention_args *)args)->kv_seqs);
    }
}

typedef dt_status (*run_fn)(dt_exec *, const void *, const void *, void *, dt_err *);

/* CPU computes F32, the reference also BF16; which of them depends on dtypes only. */
template <const dt_op_set *CPU, const dt_op_set *REFERENCE> struct queued {
    static const dt_op_set *of(const dt_exec *exec, const void *args)
    {
        char why[256];
        return !CPU->verify || CPU->verify(exec, args, why, sizeof why) ? CPU : REFERENCE;
    }
    static size_t saved_bytes(const dt_exec *exec, const void *args)
    {
        const dt_op_set *set = of(exec, args);
        return set->saved_bytes ? set->saved_bytes(exec, args) : 0;
    }
    static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
    {
        const dt_op_set *set = of(exec, args);
        return set->workspace_bytes ? set->workspace_bytes(exec, args, backward) : 0;
    }
    static dt_status queue(dt_exec *exec, const void *args, void *saved, void *workspace, bool backward)
    {
        const dt_op_set *set = of(exec, args);
        const char *broken = getenv("DT_QUEUED_BROKEN");
        auto mine = std::make_shared<call>(args);
        if (broken && strcmp(broken, dt_op_name(set->op)) == 0)
            return DT_OK;
        dt_exec host = *exec;
        host.device = DT_DEVICE_CPU;
        dtp_cuda_emulate(exec, [=]() {
            call c = *mine; /* a recording runs many times */
            dt_exec local = host;
            dt_err err = {};
            localise(set->op, c.args());
            dt_status st = backward ? set->backward(&local, c.args(), saved, workspace, &err)
                                    : set->forward(&local, c.args(), saved, workspace, &err);
            if (st != DT_OK)
                emu::fail(err.text);
        });
        return DT_OK;
    }
    static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
    {
        (void)err;
        return queue(exec, args, saved, workspace, false);
    }
    static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
    {
        (void)err;
        return queue(exec, args, (void *)(uintptr_t)saved, workspace, true);
    }
    static dt_op_set make()
    {
        return {sizeof(dt_op_set), CPU->op, CPU->caps & REFERENCE->caps, NULL, saved_bytes, workspace_bytes,
                forward,           REFERENCE->backward ? backward : NULL, NULL};
    }
};

int always(int device_index, char *why, size_t why_size)
{
    (void)device_index, (void)why, (void)why_size;
    return 1;
}
const dt_device_ops device_ops = {sizeof(dt_device_ops),
                                  device_open,
                                  device_close,
                                  device_alloc,
                                  device_release,
                                  device_zero,
                                  device_copy,
                                  device_synchronize,
                                  device_host_alloc,
                                  device_host_release,
                                  device_memory,
                                  device_mark,
                                  device_wait,
                                  device_mark_release,
                                  device_record_begin,
                                  device_record_end,
                                  device_replay,
                                  device_recording_release};

#define SETS(X)                                                                                                        \
    X(embedding)                                                                                                       \
    X(rms_norm)                                                                                                        \
    X(rms_norm_gated)                                                                                                  \
    X(linear)                                                                                                          \
    X(rope)                                                                                                            \
    X(attention)                                                                                                       \
    X(sigmoid_gate)                                                                                                    \
    X(swiglu)                                                                                                          \
    X(causal_conv1d)                                                                                                   \
    X(causal_conv1d_step)                                                                                              \
    X(gdn_gates)                                                                                                       \
    X(gdn)                                                                                                             \
    X(gdn_step)                                                                                                        \
    X(cross_entropy)                                                                                                   \
    X(adamw)                                                                                                           \
    X(grad_norm)
#define SET(name)     const dt_op_set name##_set = queued<&dtp_cpu_##name, &dtp_ref_##name>::make();
#define POINTER(name) &name##_set,
SETS(SET)
const dt_op_set *const sets[] = {SETS(POINTER)};
} // namespace

static const dt_provider provider = {DT_PROVIDER_ABI,
                                     sizeof(dt_provider),
                                     "queued",
                                     "test",
                                     "test",
                                     DT_DEVICE_CUDA,
                                     100,
                                     always,
                                     &device_ops,
                                     sets,
                                     sizeof sets / sizeof *sets,
                                     DT_PROVIDER_KEEP_MAPPED};

extern "C" DT_API const dt_provider *dt_provider_entry(void)
{
    return &provider;
}
