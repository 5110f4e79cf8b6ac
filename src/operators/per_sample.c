#include "operators/per_sample.h"

#include <deltune/dispatch.h>
#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <string.h>

typedef union dt_any_args {
    dt_gdn_args gdn;
    dt_causal_conv1d_args conv;
    dt_attention_args attention;
} dt_any_args;

/* Which tensors of the argument struct are cut by rows, and which by sample. Offsets, ended by 0. */
typedef struct dt_cut {
    size_t seqs;
    size_t rows[16], samples[6];
    size_t initial, final, dinitial, dfinal; /* states: what an empty sample copies; 0 = none */
} dt_cut;

#define G(field) offsetof(dt_gdn_args, field)
#define C(field) offsetof(dt_causal_conv1d_args, field)
#define A(field) offsetof(dt_attention_args, field)
static const dt_cut gdn_cut = {G(seqs),
                               {G(q), G(k), G(v), G(g), G(beta), G(o), G(d_o), G(dq), G(dk), G(dv), G(dg), G(dbeta)},
                               {G(initial_state), G(final_state), G(dfinal_state), G(dinitial_state)},
                               G(initial_state),
                               G(final_state),
                               G(dinitial_state),
                               G(dfinal_state)};
static const dt_cut conv_cut = {C(seqs),
                                {C(x), C(y), C(dy), C(dx)},
                                {C(initial_state), C(final_state), C(dfinal_state), C(dinitial_state)},
                                C(initial_state),
                                C(final_state),
                                C(dinitial_state),
                                C(dfinal_state)};
static const dt_cut attention_cut = {A(seqs), {A(q), A(k), A(v), A(o), A(d_o), A(dq), A(dk), A(dv)}, {0}, 0, 0, 0, 0};

/* The boundaries of the one sample of a part; lives beside the copied arguments. */
typedef struct dt_part {
    dt_any_args args;
    int32_t cu[2];
} dt_part;

static size_t args_size(const dt_cut *cut)
{
    return cut == &gdn_cut    ? sizeof(dt_gdn_args)
           : cut == &conv_cut ? sizeof(dt_causal_conv1d_args)
                              : sizeof(dt_attention_args);
}

static dt_tensor *field(void *args, size_t offset)
{
    return (dt_tensor *)(void *)((char *)args + offset);
}

static const dt_seqs *seqs_of(const dt_cut *cut, const void *args)
{
    return (const dt_seqs *)(const void *)((const char *)args + cut->seqs);
}

/* The call of sample n alone. cu_device: two device int32 for this sample, NULL on the CPU. */
static void cut_out(const dt_cut *cut, const void *args, int64_t n, const int32_t *cu_device, dt_part *part)
{
    memcpy(&part->args, args, args_size(cut));
    const dt_seqs *all = seqs_of(cut, args);
    int64_t begin = all->cu_seqlens[n], end = all->cu_seqlens[n + 1];
    for (const size_t *o = cut->rows; *o; o++)
        if (field(&part->args, *o)->data)
            *field(&part->args, *o) = dt_tensor_slice(*field(&part->args, *o), 0, begin, end);
    for (const size_t *o = cut->samples; *o; o++)
        if (field(&part->args, *o)->data)
            *field(&part->args, *o) = dt_tensor_slice(*field(&part->args, *o), 0, n, n + 1);
    part->cu[0] = 0;
    part->cu[1] = (int32_t)(end - begin);
    dt_seqs one = {part->cu, cu_device, 1, 1, end - begin, end - begin};
    memcpy((char *)&part->args + cut->seqs, &one, sizeof one);
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* A call with one sample of `rows` rows, for sizes. */
static void one_sample(const dt_cut *cut, const void *args, int64_t rows, dt_part *part)
{
    memcpy(&part->args, args, args_size(cut));
    for (const size_t *o = cut->rows; *o; o++)
        if (field(&part->args, *o)->rank)
            field(&part->args, *o)->shape[0] = rows;
    for (const size_t *o = cut->samples; *o; o++)
        if (field(&part->args, *o)->rank)
            field(&part->args, *o)->shape[0] = 1;
    part->cu[0] = 0;
    part->cu[1] = (int32_t)rows;
    dt_seqs one = {part->cu, NULL, 1, 1, rows, rows};
    memcpy((char *)&part->args + cut->seqs, &one, sizeof one);
}

/* Upper bound for any split of T_cap rows into n_seq_cap samples: what a provider keeps grows with chunks of 64 rows,
 * so the whole as one sample plus one chunk for every sample covers it. */
static size_t bound(const dt_cut *cut, const dt_exec *exec, const void *args)
{
    const dt_seqs *all = seqs_of(cut, args);
    dt_part part;
    one_sample(cut, args, all->T_cap, &part);
    size_t whole = aligned(dt_next_saved_bytes(exec, &part.args));
    one_sample(cut, args, 64, &part);
    return whole + (size_t)all->n_seq_cap * (aligned(dt_next_saved_bytes(exec, &part.args)) + 64);
}

/* Device boundaries of all samples, two int32 each, at the start of the workspace. */
static size_t boundary_bytes(const dt_exec *exec, const dt_seqs *all)
{
    return exec->device == DT_DEVICE_CPU ? 0 : aligned((size_t)all->n_seq_cap * 2 * sizeof(int32_t));
}

static size_t workspace(const dt_cut *cut, const dt_exec *exec, const void *args, bool backward)
{
    const dt_seqs *all = seqs_of(cut, args);
    dt_part part;
    one_sample(cut, args, all->T_cap, &part);
    return boundary_bytes(exec, all) + dt_next_workspace_bytes(exec, &part.args, backward);
}

static dt_status write_boundaries(dt_exec *exec, const dt_seqs *all, void *work, dt_err *err)
{
    dt_status status = DT_OK;
    for (int64_t n = 0; exec->device != DT_DEVICE_CPU && n < all->n_seq && status == DT_OK; n++) {
        int32_t cu[2] = {0, all->cu_seqlens[n + 1] - all->cu_seqlens[n]};
        status = dt_exec_upload(exec, (char *)work + (size_t)n * sizeof cu, cu, sizeof cu, err);
    }
    return status;
}

/* An empty sample is not handed on: its final state is its initial state (and the same for the gradients). */
static dt_status copy_state(dt_exec *exec, const dt_tensor *from, const dt_tensor *to, dt_err *err)
{
    if (!to->data)
        return DT_OK;
    size_t bytes = (size_t)dt_tensor_numel(to) * dt_dtype_size(to->dtype);
    return from->data ? dt_exec_copy(exec, to->data, from->data, bytes, err) : dt_exec_zero(exec, to->data, bytes, err);
}

static dt_status empty_sample(const dt_cut *cut, dt_exec *exec, dt_part *part, bool backward, dt_err *err)
{
    if (!cut->initial)
        return DT_OK;
    return backward ? copy_state(exec, field(&part->args, cut->dfinal), field(&part->args, cut->dinitial), err)
                    : copy_state(exec, field(&part->args, cut->initial), field(&part->args, cut->final), err);
}

/* Rows after the last sample belong to nobody and are zero. */
static dt_status zero_rest(dt_exec *exec, const dt_cut *cut, const void *args, bool backward, dt_err *err)
{
    const dt_seqs *all = seqs_of(cut, args);
    static const size_t forward_outputs[] = {G(o), C(y), A(o)};
    dt_status status = DT_OK;
    dt_any_args copy;
    memcpy(&copy, args, args_size(cut));
    for (const size_t *o = cut->rows; *o && status == DT_OK; o++) {
        bool output = false, gradient = false;
        if (cut == &gdn_cut) {
            output = *o == forward_outputs[0];
            gradient = *o >= G(dq);
        } else if (cut == &conv_cut) {
            output = *o == forward_outputs[1];
            gradient = *o == C(dx);
        } else {
            output = *o == forward_outputs[2];
            gradient = *o >= A(dq);
        }
        dt_tensor *t = field(&copy, *o);
        if (!t->data || !(backward ? gradient : output))
            continue;
        for (int64_t row = all->T; row < all->T_cap && status == DT_OK; row++) {
            dt_tensor rest = dt_tensor_slice(*t, 0, row, row + 1);
            int64_t heads = rest.rank == 3 ? rest.shape[1] : 1, width = rest.shape[rest.rank - 1];
            for (int64_t h = 0; h < heads && status == DT_OK; h++)
                status = dt_exec_zero(exec,
                                      (char *)rest.data + (size_t)(h * (rest.rank == 3 ? rest.stride[1] : 0)) *
                                                              dt_dtype_size(rest.dtype),
                                      (size_t)width * dt_dtype_size(rest.dtype), err);
        }
    }
    return status;
}

static dt_status each_sample(const dt_cut *cut, dt_exec *exec, const void *args, char *saved, void *work, bool backward,
                             dt_err *err)
{
    const dt_seqs *all = seqs_of(cut, args);
    dt_status status = write_boundaries(exec, all, work, err);
    if (status == DT_OK)
        status = zero_rest(exec, cut, args, backward, err);
    char *rest = (char *)work + boundary_bytes(exec, all);
    for (int64_t n = 0; n < all->n_seq && status == DT_OK; n++) {
        dt_part part;
        cut_out(cut, args, n, exec->device == DT_DEVICE_CPU ? NULL : (const int32_t *)work + 2 * n, &part);
        if (all->cu_seqlens[n] == all->cu_seqlens[n + 1]) {
            status = empty_sample(cut, exec, &part, backward, err);
            continue;
        }
        status = backward ? dt_next_backward(exec, &part.args, saved, rest, err)
                          : dt_next_forward(exec, &part.args, saved, rest, err);
        if (saved)
            saved += aligned(dt_next_saved_bytes(exec, &part.args));
    }
    return status;
}

#define WRAPPER(name, op_)                                                                                             \
    static size_t name##_saved(const dt_exec *x, const void *a)                                                        \
    {                                                                                                                  \
        return bound(&name##_cut, x, a);                                                                               \
    }                                                                                                                  \
    static size_t name##_work(const dt_exec *x, const void *a, bool b)                                                 \
    {                                                                                                                  \
        return workspace(&name##_cut, x, a, b);                                                                        \
    }                                                                                                                  \
    static dt_status name##_forward(dt_exec *x, const void *a, void *s, void *w, dt_err *e)                            \
    {                                                                                                                  \
        return each_sample(&name##_cut, x, a, s, w, false, e);                                                         \
    }                                                                                                                  \
    static dt_status name##_backward(dt_exec *x, const void *a, const void *s, void *w, dt_err *e)                     \
    {                                                                                                                  \
        return each_sample(&name##_cut, x, a, (char *)(uintptr_t)s, w, true, e);                                       \
    }                                                                                                                  \
    static const dt_op_set name##_set = {                                                                              \
        .struct_size = sizeof(dt_op_set),                                                                              \
        .op = op_,                                                                                                     \
        .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,                    \
        .saved_bytes = name##_saved,                                                                                   \
        .workspace_bytes = name##_work,                                                                                \
        .forward = name##_forward,                                                                                     \
        .backward = name##_backward,                                                                                   \
    };
WRAPPER(gdn, DT_OP_GDN)
WRAPPER(conv, DT_OP_CAUSAL_CONV1D)
WRAPPER(attention, DT_OP_ATTENTION)

const dt_op_set *dtp_per_sample_set(dt_op op)
{
    switch (op) {
    case DT_OP_GDN: return &gdn_set;
    case DT_OP_CAUSAL_CONV1D: return &conv_set;
    case DT_OP_ATTENTION: return &attention_set;
    default: return NULL;
    }
}
