/* The minimal provider with one fault, chosen by DT_BROKEN: what `deltune check` must catch by name. */
#define dt_provider_entry minimal_entry
#include "../../examples/provider-minimal/provider.c"
#undef dt_provider_entry

enum { LEAKS = 1, WRONG_DG, STALE, WRITES_PAST, NO_BACKWARD };

/* The boundaries that the fault sees. */
static const dt_gdn_args *tampered(const dt_gdn_args *a, dt_gdn_args *copy)
{
    *copy = *a;
    if (DT_BROKEN == LEAKS) { /* one long sample */
        static _Thread_local int32_t whole[2];
        whole[1] = (int32_t)a->seqs.T;
        copy->seqs.cu_seqlens = whole;
        copy->seqs.n_seq = a->seqs.n_seq ? 1 : 0;
    }
    if (DT_BROKEN == STALE) { /* remembers the list by its address, as an identity-keyed cache does */
        static _Thread_local const int32_t *key;
        static _Thread_local int64_t n;
        static _Thread_local int32_t list[64];
        if (key != a->seqs.cu_seqlens || n != a->seqs.n_seq || list[n] != a->seqs.T) {
            key = a->seqs.cu_seqlens;
            n = a->seqs.n_seq;
            memcpy(list, key, (size_t)(n + 1) * sizeof *list);
        }
        copy->seqs.cu_seqlens = list;
    }
    return copy;
}

static dt_status broken_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    dt_gdn_args copy;
    dt_status status = forward(exec, tampered(args, &copy), saved, workspace, err);
    if (DT_BROKEN == WRITES_PAST)
        ((float *)copy.o.data)[copy.o.shape[0] * copy.o.stride[0]] = 0;
    return status;
}

#ifndef DT_BROKEN_NO_BACKWARD
static dt_status broken_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    dt_gdn_args copy;
    dt_status status = backward(exec, tampered(args, &copy), saved, workspace, err);
    for (int64_t i = 0; DT_BROKEN == WRONG_DG && i < copy.dg.shape[0] * copy.dg.shape[1]; i++)
        ((float *)copy.dg.data)[i] *= 1.01f;
    return status;
}
#endif

static dt_op_set broken_gdn;
static const dt_op_set *const broken_operators[] = {&broken_gdn};
static dt_provider broken;

__attribute__((visibility("default"))) const dt_provider *dt_provider_entry(void);

const dt_provider *dt_provider_entry(void)
{
    broken = *minimal_entry();
    broken_gdn = *broken.ops[0];
    broken_gdn.forward = broken_forward;
#ifdef DT_BROKEN_NO_BACKWARD
    broken_gdn.backward = NULL;
    broken_gdn.caps &= ~(uint32_t)DT_CAP_BACKWARD;
#else
    broken_gdn.backward = broken_backward;
#endif
    broken.name = "broken";
    broken.ops = broken_operators;
    return &broken;
}
