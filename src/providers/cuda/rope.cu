/* DT_OP_ROPE on CUDA: chooses the kernel and launches it. */
#include <deltune/op/rope.h>
#include <math.h>
#include <stdio.h>

#include "providers/cuda/rope.cuh"

static int rope_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    const dt_rope_args *a = (const dt_rope_args *)args;
    (void)exec;
    if (a->rotary_dim / 2 <= ROPE_MAX_PAIRS)
        return 1;
    snprintf(why, why_size, "rotary_dim is %d, the kernels take up to %d", a->rotary_dim, 2 * ROPE_MAX_PAIRS);
    return 0;
}
static dt_status rope_rotate(dt_exec *exec, const dt_rope_args *a, const dt_tensor *in, const dt_tensor *out,
                             float direction, dt_err *err)
{
    rope_params p;
    memset(&p, 0, sizeof p);
    p.in = rows_view_of(in), p.out = rows_view_of(out);
    p.positions = (const int32_t *)a->positions.data;
    p.T = a->T, p.T_cap = in->shape[0];
    p.heads = (int32_t)in->shape[1], p.width = (int32_t)in->shape[2], p.pairs = a->rotary_dim / 2;
    p.in_place = in->data == out->data && in->stride[0] == out->stride[0] && in->stride[1] == out->stride[1];
    p.direction = direction;
    for (int i = 0; i < p.pairs; i++)
        p.turns[i] = pow((double)a->theta, -2.0 * i / a->rotary_dim) / 6.283185307179586476925;
    bool copies = !p.in_place || p.T < p.T_cap;
    int32_t items = p.pairs / 8 + (copies ? (p.width - 2 * p.pairs) / 8 : 0);
    int64_t threads = p.T_cap * dtp_blocks(p.heads, ROPE_HEADS) * items;
    if (rows_fast(in) && rows_fast(out) && p.pairs % 8 == 0 && threads <= INT32_MAX)
        return DT_LAUNCH(err, exec, dtp_blocks(threads, ROWS_THREADS), ROWS_THREADS, 0, rope_kernel, p, items);
    return DT_LAUNCH(err, exec, dtp_blocks(p.T_cap * p.heads * (p.width - p.pairs), ROWS_THREADS), ROWS_THREADS, 0,
                     rope_plain_kernel, p);
}
static dt_status rope_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_rope_args *a = (const dt_rope_args *)args;
    (void)saved, (void)workspace;
    return rope_rotate(exec, a, &a->x, &a->y, 1.0f, err);
}
static dt_status rope_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_rope_args *a = (const dt_rope_args *)args;
    (void)saved, (void)workspace;
    return rope_rotate(exec, a, &a->dy, &a->dx, -1.0f, err);
}

extern "C" const dt_op_set dtp_cuda_rope = {
    sizeof(dt_op_set), DT_OP_ROPE,    DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    rope_verify,       NULL,          NULL,
    rope_forward,      rope_backward, NULL};
