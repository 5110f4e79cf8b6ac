/* DT_OP_LINEAR on CUDA: plans the products of a call and launches them.
 *
 * Parts whose weights follow each other in memory, and whose results (or upstream gradients) are neighbouring columns
 * of one buffer, are one product. U = scale * (keep * x) A^T is kept for backward; B of all parts is packed
 * block-diagonally once a call, so that y += U B^T and dU = dY B are one product for such a group, too. */
#include "providers/cuda/linear_backward.cuh"
#include "providers/cuda/linear_call.cuh"

/* ---------------------------------------------------------------- forward */

template <int GROUPS> static dt_status linear_launch_inner(const linear_call *c, const linear_inner_params &p)
{
    linear_pack_params pack = linear_pack_params_of(c);
    int64_t blocks = dtp_blocks(p.T, 16 * p.slabs) * p.splits * dtp_blocks(p.R_padded, 8 * GROUPS);
    int bytes = LINEAR_INNER_WARPS * 16 * 8 * GROUPS * (int)sizeof(float);
    return DT_LAUNCH(c->err, c->exec, blocks + dtp_blocks(linear_pack_units(&pack), LINEAR_INNER_THREADS),
                     LINEAR_INNER_THREADS, bytes, linear_inner_kernel<GROUPS>, p, pack, blocks);
}
/* U, into `saved` or the workspace, and behind x when there is room; packed B. */
static dt_status linear_inner(linear_call *c, void *saved)
{
    const dt_tensor *a = &c->args->lora_a;
    linear_inner_params p;
    memset(&p, 0, sizeof p);
    if (saved || c->extension)
        linear_use_saved(c, saved);
    p.x = linear_rows_of(&c->args->x);
    p.u = c->u;
    if (c->extension)
        p.behind = linear_behind(&c->args->x);
    p.extension = (int32_t)c->extension;
    p.a = (const float *)a->data;
    p.a_pitch = a->stride[0];
    p.T = c->T;
    p.R = (int32_t)c->R, p.R_padded = (int32_t)c->R_padded, p.splits = (int32_t)c->splits;
    p.slabs = c->T_cap >= 8192 ? 4 : c->T_cap >= 4096 ? 2 : 1; /* at least 128 blocks */
    p.scale = linear_scale(c->args);
    p.mask = linear_mask_of(c);
    if (!c->fast) {
        dt_status st = linear_pack(c);
        return st != DT_OK ? st
                           : DT_LAUNCH(c->err, c->exec, dtp_blocks(c->T * c->R_padded, LINEAR_THREADS), LINEAR_THREADS,
                                       0, linear_plain_inner_kernel, p);
    }
    return c->R_padded <= 8    ? linear_launch_inner<1>(c, p)
           : c->R_padded <= 16 ? linear_launch_inner<2>(c, p)
                               : linear_launch_inner<4>(c, p);
}

static dt_status linear_group_forward(const linear_call *c, const linear_group *g)
{
    const dt_linear_part *part = &c->args->part[g->first];
    bool adapted = c->R && linear_group_adapted(c, g);
    gemm_product base = {c->T, g->out, c->in + (adapted ? c->extension : 0)};
    base.a = linear_matrix(&c->args->x);
    base.b = linear_weights(c, g);
    base.b_transposed = true;
    base.d = linear_matrix(&part->y);
    if (dt_tensor_present(&part->c))
        base.c = linear_matrix(&part->c);
    dt_status st = dtp_gemm(c->exec, &base, c->gemm, c->err);
    if (st != DT_OK || !adapted || c->extension)
        return st;
    linear_rows packed = linear_packed(c, g->first);
    gemm_product low = {c->T, g->out, c->R_padded};
    low.a = linear_low_matrix(&c->u);
    low.b = linear_low_matrix(&packed);
    low.b_transposed = true;
    low.c = low.d = base.d;
    return dtp_gemm(c->exec, &low, c->gemm, c->err);
}
static dt_status linear_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    linear_call c = linear_plan((const dt_linear_args *)args, workspace);
    c.exec = exec, c.err = err;
    dt_status st = linear_convert(&c);
    if (st == DT_OK && c.R)
        st = linear_inner(&c, saved);
    for (int j = 0; st == DT_OK && j < c.args->n_parts;) {
        linear_group g = linear_group_at(&c, j, false, false);
        st = linear_group_forward(&c, &g);
        j += g.count;
    }
    for (int j = 0; st == DT_OK && j < c.args->n_parts; j++)
        st = linear_zero_behind(&c, &c.args->part[j].y);
    return st;
}

/* ---------------------------------------------------------------- backward */

/* Whether dU comes behind dx out of the same products. Only in short packs, where a launch costs more than what the
 * wider result does to the division into tiles (2,048 rows, H200: 27% of a product whose 2,560 columns fitted exactly).
 */
static bool linear_low_behind(const linear_call *c)
{
    const dt_linear_args *a = c->args;
    return c->extension && c->T_cap <= LINEAR_SHORT && dt_tensor_present(&a->dx) && !dt_tensor_present(&a->dx_add) &&
           linear_extends(&a->dx, c->extension);
}
/* dU = sum of dY_j B_j over the groups; packed B has disjoint columns a part, so the groups' products add up. */
static dt_status linear_low_gradient(const linear_call *c)
{
    dt_status st = DT_OK;
    bool first = true;
    for (int j = 0; st == DT_OK && j < c->args->n_parts;) {
        linear_group g = linear_group_at(c, j, true, false);
        if (linear_group_adapted(c, &g)) {
            linear_rows packed = linear_packed(c, j);
            gemm_product p = {c->T, c->R_padded, g.out};
            p.a = linear_matrix(&c->args->part[j].dy);
            p.b = linear_low_matrix(&packed);
            p.d = linear_low_matrix(&c->du);
            if (!first)
                p.c = p.d;
            st = dtp_gemm(c->exec, &p, c->gemm, c->err);
            first = false;
        }
        j += g.count;
    }
    return st;
}
/* dX = dX_add + sum of dY_j W_j; the adapters' part is added later. */
static dt_status linear_input_products(const linear_call *c)
{
    const dt_tensor *dx = &c->args->dx, *add = &c->args->dx_add;
    dt_status st = DT_OK;
    gemm_matrix before = {NULL, 0, c->dtype};
    int64_t columns = c->in + (linear_low_behind(c) ? c->extension : 0);
    if (dt_tensor_present(add))
        before = linear_matrix(add);
    for (int j = 0; st == DT_OK && j < c->args->n_parts;) {
        linear_group g = linear_group_at(c, j, true, false);
        gemm_product p = {c->T, columns, g.out};
        p.a = linear_matrix(&c->args->part[j].dy);
        p.b = linear_weights(c, &g);
        p.c = before;
        p.d = before = linear_matrix(dx);
        st = dtp_gemm(c->exec, &p, c->gemm, c->err);
        j += g.count;
    }
    return st;
}
static dt_status linear_weight_gradients(const linear_call *c)
{
    dt_status st = DT_OK;
    for (int j = 0; st == DT_OK && j < c->args->n_parts;) {
        const dt_linear_part *part = &c->args->part[j];
        linear_group g = {j, 1, part->weight.shape[0]};
        if (dt_tensor_present(&part->dweight) && c->T > 0) {
            g = linear_group_at(c, j, true, true);
            gemm_product p = {g.out, c->in, c->T};
            p.a = linear_matrix(&part->dy);
            p.a_transposed = true;
            p.b = linear_matrix(&c->args->x);
            p.c = p.d = linear_matrix(&part->dweight);
            st = dtp_gemm(c->exec, &p, c->gemm, c->err);
        }
        j += g.count;
    }
    return st;
}
static dt_status linear_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    linear_call c = linear_plan((const dt_linear_args *)args, workspace);
    c.exec = exec, c.err = err;
    bool input = dt_tensor_present(&c.args->dx);
    dt_status st = input ? linear_convert(&c) : DT_OK;
    linear_use_saved(&c, (void *)(uintptr_t)saved);
    if (st == DT_OK && c.R && !c.extension) /* else forward has left it behind the weights */
        st = linear_pack(&c);
    bool behind = linear_low_behind(&c), streams = linear_streams(&c);
    if (behind)
        c.du = linear_behind(&c.args->dx);
    else if (st == DT_OK && c.R && !streams)
        st = linear_low_gradient(&c);
    if (st == DT_OK && input)
        st = linear_input_products(&c);
    if (st == DT_OK)
        st = linear_weight_gradients(&c);
    if (st == DT_OK && c.R)
        st = !streams ? linear_adapter_gradients(&c)
             : behind ? linear_joint_gradients(&c)
                      : linear_stream_gradients(&c);
    return st == DT_OK && input ? linear_zero_behind(&c, &c.args->dx) : st;
}

static size_t linear_saved_bytes(const dt_exec *exec, const void *args)
{
    linear_call c = linear_plan((const dt_linear_args *)args, NULL);
    (void)exec;
    return linear_saved_u_bytes(&c) + linear_kept_bytes(&c);
}
static size_t linear_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    return linear_plan((const dt_linear_args *)args, NULL).workspace_bytes;
}
static int linear_probe(int device_index, char *why, size_t why_size)
{
    return dtp_gemm_probe(device_index, why, why_size);
}

extern "C" const dt_op_set dtp_cuda_linear = {sizeof(dt_op_set),
                                              DT_OP_LINEAR,
                                              DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                              NULL,
                                              linear_saved_bytes,
                                              linear_workspace_bytes,
                                              linear_forward,
                                              linear_backward,
                                              linear_probe};
