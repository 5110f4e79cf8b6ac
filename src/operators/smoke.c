/* A tiny real call: does an entry compute at all, and does a packed call equal separate ones?
 * Five tokens in two samples of 2 and 3, forward only; the conformance kit (deltune check) goes further. */
#include "core/memory.h"
#include "core/philox.h"
#include "operators/contract.h"
#include "operators/exec.h"

#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 5, FIRST = 2, MAX_INPUTS = 5 };

/* One operator's tiny call: inputs [TOKENS, width], one output [TOKENS, width_out]. */
typedef struct dt_smoke {
    dt_exec *exec;
    const dt_entry *entry;
    dt_dtype dtype;
    int64_t width; /* head size; one head, or the channels of the convolution */
    void *input[MAX_INPUTS], *output, *boundaries, *workspace;
    int32_t cu[3];
    float result[2][TOKENS * 256]; /* packed, separate */
} dt_smoke;

typedef union dt_smoke_args {
    dt_gdn_args gdn;
    dt_causal_conv1d_args conv;
    dt_attention_args attention;
} dt_smoke_args;

static void *row(const dt_smoke *s, void *base, int64_t begin, int64_t width, dt_dtype dtype)
{
    (void)s;
    return (char *)base + (size_t)(begin * width) * dt_dtype_size(dtype);
}

/* Arguments for rows [begin, begin + T). */
static void fill(const dt_smoke *s, dt_smoke_args *a, int64_t begin, int64_t T, int64_t n_seq)
{
    int64_t w = s->width;
    dt_seqs seqs = {s->cu, s->boundaries, n_seq, n_seq, T, T};
#define ROWS(i) dt_tensor_3d(row(s, s->input[i], begin, w, s->dtype), s->dtype, T, 1, w)
#define GATE(i) dt_tensor_2d(row(s, s->input[i], begin, 1, DT_F32), DT_F32, T, 1)
    dt_tensor out = dt_tensor_3d(row(s, s->output, begin, w, s->dtype), s->dtype, T, 1, w);
    memset(a, 0, sizeof *a);
    switch (s->entry->set->op) {
    case DT_OP_GDN:
        a->gdn = (dt_gdn_args){DT_GDN_ARGS,     .q = ROWS(0), .k = ROWS(1), .v = ROWS(2),  .g = GATE(3),
                               .beta = GATE(4), .o = out,     .seqs = seqs, .scale = 0.1f, .qk_l2norm = true};
        break;
    case DT_OP_ATTENTION:
        a->attention = (dt_attention_args){DT_ATTENTION_ARGS, .q = ROWS(0), .k = ROWS(1), .v = ROWS(2),
                                           .o = out,          .seqs = seqs, .scale = 0.1f};
        break;
    default:
        a->conv = (dt_causal_conv1d_args){DT_CAUSAL_CONV1D_ARGS,
                                          .x = dt_tensor_2d(row(s, s->input[0], begin, w, s->dtype), s->dtype, T, w),
                                          .weight = dt_tensor_2d(s->input[1], s->dtype, w, 4),
                                          .y = dt_tensor_2d(out.data, s->dtype, T, w),
                                          .seqs = seqs,
                                          .silu = true};
    }
#undef ROWS
#undef GATE
}

static dt_status upload(dt_smoke *s, int i, dt_err *err)
{
    int64_t count = i >= 3 ? TOKENS : TOKENS * s->width;
    bool gate = i >= 3;
    unsigned char image[TOKENS * 256 * sizeof(float)];
    for (int64_t at = 0; at < count; at++) {
        float u = (float)(dt_philox(7, (uint32_t)at, (uint32_t)i, 0, 0).word[0] >> 8) * 0x1p-24f;
        float value = i == 3 ? -0.5f * u : i == 4 ? u : 2 * u - 1;
        if (s->dtype == DT_BF16 && !gate)
            ((uint16_t *)(void *)image)[at] = dt_f32_to_bf16(value);
        else
            ((float *)(void *)image)[at] = value;
    }
    return dt_exec_upload(s->exec, s->input[i], image, (size_t)count * dt_dtype_size(gate ? DT_F32 : s->dtype), err);
}

static dt_status download(dt_smoke *s, float *to, dt_err *err)
{
    unsigned char image[TOKENS * 256 * sizeof(float)];
    int64_t count = TOKENS * s->width;
    dt_status status = dt_exec_download(s->exec, image, s->output, (size_t)count * dt_dtype_size(s->dtype), err);
    if (status == DT_OK)
        status = dt_exec_synchronize(s->exec, err);
    for (int64_t i = 0; status == DT_OK && i < count; i++)
        to[i] = s->dtype == DT_BF16 ? dt_bf16_to_f32(((uint16_t *)(void *)image)[i]) : ((float *)(void *)image)[i];
    return status;
}

/* Runs the entry itself, not the slot: it may not be current yet. */
static dt_status call(dt_smoke *s, int64_t begin, int64_t T, int64_t n_seq, dt_err *err)
{
    dt_smoke_args a;
    const dt_op_set *set = s->entry->set;
    s->cu[0] = 0;
    s->cu[1] = n_seq == 2 ? FIRST : (int32_t)T;
    s->cu[2] = (int32_t)T;
    dt_status status = DT_OK;
    if (s->exec->device != DT_DEVICE_CPU)
        status = dt_exec_upload(s->exec, s->boundaries, s->cu, sizeof s->cu, err);
    fill(s, &a, begin, T, n_seq);
    if (status == DT_OK)
        status = dtp_exec_workspace(s->exec, set->workspace_bytes ? set->workspace_bytes(s->exec, &a, false) : 0,
                                    &s->workspace, err);
    if (status != DT_OK)
        return status;
    dtp_scratch(s->exec)->running = s->entry;
    status = dtp_provider_status(set->forward(s->exec, &a, NULL, s->workspace, err), s->entry, err);
    dtp_scratch(s->exec)->running = NULL;
    return status == DT_OK ? dt_exec_synchronize(s->exec, err) : status;
}

static dt_status compare(const dt_smoke *s, dt_err *err)
{
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < TOKENS * s->width; i++) {
        if (!isfinite(s->result[0][i]))
            return dt_fail(err, DT_E_INTERNAL, "smoke call: token %lld of the packed call is not finite",
                           (long long)(i / s->width));
        largest = fmax(largest, fabs(s->result[1][i]));
        difference = fmax(difference, fabs((double)s->result[0][i] - s->result[1][i]));
    }
    if (!(difference <= 0.01 * largest))
        return dt_fail(err, DT_E_INTERNAL,
                       "smoke call: packed samples differ from separate calls by %.2g (largest value %.2g)", difference,
                       largest);
    return DT_OK;
}

static dt_status run(dt_smoke *s, bool deep, dt_err *err)
{
    bool packs = deep && (s->entry->set->caps & DT_CAP_PACKED);
    dt_status status = DT_OK;
    for (int i = 0; i < MAX_INPUTS && status == DT_OK; i++)
        status = upload(s, i, err);
    if (status == DT_OK)
        status = call(s, 0, FIRST, 1, err);
    if (status == DT_OK)
        status = call(s, FIRST, TOKENS - FIRST, 1, err);
    if (status == DT_OK)
        status = download(s, s->result[1], err);
    if (status == DT_OK && packs)
        status = call(s, 0, TOKENS, 2, err);
    if (status == DT_OK)
        status = download(s, s->result[0], err);
    return status == DT_OK ? compare(s, err) : dt_err_prefix(err, "smoke call: ");
}

/* The first dtype and width that the entry takes; false when it takes none. */
static bool find_shape(dt_smoke *s)
{
    static const int64_t widths[] = {128, 64, 256};
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t j = 0; j < 2; j++) {
            dt_smoke_args a;
            char why[DTP_WHY];
            s->width = widths[i];
            s->dtype = dtypes[j];
            s->cu[1] = s->cu[2] = TOKENS;
            fill(s, &a, 0, TOKENS, 1);
            if (!s->entry->set->verify || s->entry->set->verify(s->exec, &a, why, sizeof why))
                return true;
        }
    return false;
}

dt_status dtp_smoke_call(dt_ctx *ctx, dt_device_kind device, const dt_entry *entry, bool deep, dt_err *err)
{
    dt_op op = entry->set->op;
    if (op != DT_OP_GDN && op != DT_OP_ATTENTION && op != DT_OP_CAUSAL_CONV1D)
        return DT_OK;
    dt_smoke *s = dtp_calloc(1, sizeof *s);
    if (!s)
        return dt_fail(err, DT_E_NOMEM, "smoke call: out of memory");
    s->entry = entry;
    dt_status status = dt_exec_create(&s->exec, ctx, device, 0, 1, err);
    for (int i = 0; i < MAX_INPUTS && status == DT_OK; i++)
        status = dt_exec_alloc(s->exec, &s->input[i], TOKENS * 256 * sizeof(float), err);
    if (status == DT_OK)
        status = dt_exec_alloc(s->exec, &s->output, TOKENS * 256 * sizeof(float), err);
    if (status == DT_OK && device != DT_DEVICE_CPU)
        status = dt_exec_alloc(s->exec, &s->boundaries, sizeof s->cu, err);
    if (status == DT_OK && find_shape(s))
        status = run(s, deep, err);
    for (int i = 0; s->exec && i < MAX_INPUTS; i++)
        dt_exec_release(s->exec, s->input[i]);
    if (s->exec) {
        dt_exec_release(s->exec, s->output);
        dt_exec_release(s->exec, s->boundaries);
    }
    dt_exec_free(s->exec);
    free(s);
    return status;
}
