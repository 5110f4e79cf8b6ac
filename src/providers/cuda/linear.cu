/* DT_OP_LINEAR on CUDA: plans the products of a call and launches them.
 *
 * Parts whose weights follow each other in memory, and whose results (or upstream gradients) are neighbouring columns
 * of one buffer, are one product. U = scale * (keep * x) A^T is kept for backward; B of all parts is packed
 * block-diagonally once a call, so that y += U B^T and dU = dY B are one product for such a group, too. */
#include <deltune/op/linear.h>

#include "providers/cuda/device.cuh"
#include "providers/cuda/gemm.cuh"
#include "providers/cuda/linear.cuh"

/* A call: what the arguments say, and where its pieces lie. */
struct linear_call {
    dt_exec *exec;
    const dt_linear_args *args;
    dt_err *err;
    int64_t T, T_cap, in, out, R, R_padded; /* out: of all parts */
    dt_dtype dtype;                         /* of activations */
    size_t element;
    bool convert;      /* some weight is not of that dtype */
    bool fast;         /* x and A suit the mma kernels */
    int64_t extension; /* columns behind x and the weights that hold U and B; 0: they lie in the workspace */
    int64_t splits;    /* parts of U, side by side */
    int64_t first[DT_LINEAR_MAX_PARTS + 1]; /* rows of all parts before part j */
    void *gemm, *b, *weight;                /* b: packed B; weight: parts one after another, row pitch `in` */
    linear_rows u, du;
    uint8_t *kept; /* the dropout mask between forward and backward */
    size_t workspace_bytes;
};
/* Parts [first, first + count) as one product. */
struct linear_group {
    int first, count;
    int64_t out;
};

static bool linear_adapted(const dt_linear_part *part)
{
    return dt_tensor_present(&part->lora_b);
}
static linear_rows linear_rows_of(const dt_tensor *t)
{
    linear_rows r = {t->data, t->stride[0], t->dtype == DT_F32};
    return r;
}
static bool linear_units(const dt_tensor *t) /* rows of whole 16-byte units */
{
    return t->dtype == DT_BF16 && ((uintptr_t)t->data & 15) == 0 && t->stride[0] % 8 == 0 && t->shape[1] % 8 == 0;
}
static bool linear_extends(const dt_tensor *t, int64_t extension) /* its rows have that room */
{
    return linear_units(t) && t->stride[0] >= t->shape[1] + extension;
}
/* The columns behind a tensor's rows. */
static linear_rows linear_behind(const dt_tensor *t)
{
    linear_rows r = {(char *)t->data + t->shape[1] * (int64_t)dt_dtype_size(t->dtype), t->stride[0],
                     t->dtype == DT_F32};
    return r;
}

static void *linear_take(char *base, size_t *used, int64_t rows, int64_t width, size_t element)
{
    void *at = base ? base + *used : NULL;
    *used += dtp_round_up((size_t)rows * (size_t)width * element, 256);
    return at;
}
static void linear_place(linear_call *c, char *base)
{
    size_t used = 0;
    int is_float = c->dtype == DT_F32;
    c->gemm = linear_take(base, &used, 1, GEMM_WORKSPACE, 1);
    c->u = {linear_take(base, &used, c->T_cap, c->R_padded, c->element), c->R_padded, is_float};
    c->du = {linear_take(base, &used, c->T_cap, c->R_padded, c->element), c->R_padded, is_float};
    c->b = linear_take(base, &used, c->out, c->R_padded, c->element);
    if (c->convert)
        c->weight = linear_take(base, &used, c->out, c->in, c->element);
    c->workspace_bytes = used;
}
/* Whether U and B have room behind x and the weights. */
static bool linear_has_room(const linear_call *c)
{
    const dt_linear_args *a = c->args;
    bool room = c->fast && !c->convert && c->R_padded <= a->extension && a->extension % 8 == 0 &&
                linear_extends(&a->x, a->extension);
    for (int j = 0; j < a->n_parts; j++)
        room = room && linear_extends(&a->part[j].weight, a->extension);
    return room;
}
/* Parts of U where there is room behind x: as many as fit, as far as each still gives every warp a step, and no more
 * than make 128 blocks (a multiprocessor holds one). */
static int64_t linear_splits(const linear_call *c)
{
    int64_t fit = c->R ? dtp_min(c->args->extension, 64) / c->R_padded : 0,
            useful = dtp_min(dtp_blocks(c->in, LINEAR_INNER_WARPS * 32), c->T_cap ? 128 / dtp_blocks(c->T_cap, 16) : 1);
    return c->T_cap <= LINEAR_SHORT && dtp_min(fit, useful) > 1 ? dtp_min(fit, useful) : 1;
}
/* Looks at shapes only when `workspace` is NULL. */
static linear_call linear_plan(const dt_linear_args *a, void *workspace)
{
    linear_call c;
    bool adapted = !workspace;
    memset(&c, 0, sizeof c);
    c.args = a;
    c.T = a->T, c.T_cap = a->x.shape[0], c.in = a->x.shape[1];
    c.dtype = a->x.dtype;
    c.element = dt_dtype_size(c.dtype);
    for (int j = 0; j < a->n_parts; j++) {
        adapted = adapted || linear_adapted(&a->part[j]);
        c.convert = c.convert || a->part[j].weight.dtype != c.dtype;
        c.first[j + 1] = c.out += a->part[j].weight.shape[0];
    }
    c.R = adapted && a->lora_a.rank == 2 ? a->lora_a.shape[0] : 0;
    c.R_padded = (int64_t)dtp_round_up((size_t)c.R, 8);
    c.splits = 1;
    linear_place(&c, (char *)workspace);
    if (!workspace || !c.R)
        return c;
    c.fast = linear_units(&a->x) && ((uintptr_t)a->lora_a.data & 15) == 0 && a->lora_a.stride[0] % 4 == 0;
    c.extension = linear_has_room(&c) ? a->extension : 0;
    c.splits = c.extension ? linear_splits(&c) : 1;
    c.u.pitch = c.R_padded * c.splits;
    return c;
}

/* Between forward and backward: U, and where dropout needs one and rows are whole units the mask, one bit an element.
 */
static size_t linear_kept_bytes(const linear_call *c)
{
    return c->args->dropout > 0 && c->R && c->dtype == DT_BF16 && c->in % 8 == 0 ? (size_t)(c->T_cap * c->in / 8) : 0;
}
static size_t linear_saved_u_bytes(const linear_call *c)
{
    return dtp_round_up((size_t)(c->T_cap * c->R_padded * linear_splits(c)) * c->element, 64);
}
static void linear_use_saved(linear_call *c, void *saved)
{
    c->u.data = saved;
    if (saved && c->fast && linear_kept_bytes(c))
        c->kept = (uint8_t *)saved + linear_saved_u_bytes(c);
}

static gemm_matrix linear_matrix(const dt_tensor *t)
{
    gemm_matrix m = {t->data, t->stride[0], t->dtype};
    return m;
}
static gemm_matrix linear_low_matrix(const linear_rows *r)
{
    gemm_matrix m = {r->data, r->pitch, r->is_float ? DT_F32 : DT_BF16};
    return m;
}
static linear_mask linear_mask_of(const linear_call *c)
{
    const dt_linear_args *a = c->args;
    linear_mask m = {a->values, a->seed, a->step, a->micro, a->input, dt_dropout_threshold(a->dropout), c->in, c->kept};
    return m;
}
/* What the masked sums are multiplied by. */
static float linear_scale(const dt_linear_args *a)
{
    return a->lora_scale / (1.0f - a->dropout);
}

/* ---------------------------------------------------------------- groups */

static const char *linear_end(const dt_tensor *t, int64_t elements)
{
    return (const char *)t->data + elements * (int64_t)dt_dtype_size(t->dtype);
}
static bool linear_below(const dt_tensor *upper, const dt_tensor *lower) /* its rows follow */
{
    return upper->dtype == lower->dtype && upper->stride[0] == lower->stride[0] &&
           linear_end(upper, upper->shape[0] * upper->stride[0]) == (const char *)lower->data;
}
static bool linear_beside(const dt_tensor *left, const dt_tensor *right) /* its columns follow */
{
    return left->stride[0] == right->stride[0] && linear_end(left, left->shape[1]) == (const char *)right->data;
}
/* Both absent, or both there and `right`'s columns follow. */
static bool linear_beside_or_absent(const dt_tensor *left, const dt_tensor *right)
{
    return dt_tensor_present(left) ? dt_tensor_present(right) && linear_beside(left, right) : !dt_tensor_present(right);
}
static bool linear_joins(const linear_call *c, int j, bool backward, bool weight_gradients)
{
    const dt_linear_part *a = &c->args->part[j - 1], *b = &c->args->part[j];
    if (backward && weight_gradients)
        return linear_beside(&a->dy, &b->dy) && dt_tensor_present(&b->dweight) &&
               linear_below(&a->dweight, &b->dweight);
    if (!c->convert && !linear_below(&a->weight, &b->weight))
        return false;
    return backward ? linear_beside(&a->dy, &b->dy)
                    : linear_beside(&a->y, &b->y) && linear_beside_or_absent(&a->c, &b->c);
}
static linear_group linear_group_at(const linear_call *c, int first, bool backward, bool weight_gradients)
{
    linear_group g = {first, 1, c->args->part[first].weight.shape[0]};
    while (first + g.count < c->args->n_parts && linear_joins(c, first + g.count, backward, weight_gradients))
        g.out += c->args->part[first + g.count++].weight.shape[0];
    return g;
}
static bool linear_group_adapted(const linear_call *c, const linear_group *g)
{
    for (int j = g->first; j < g->first + g->count; j++)
        if (linear_adapted(&c->args->part[j]))
            return true;
    return false;
}
/* The group's weights, as stored or as converted. */
static gemm_matrix linear_weights(const linear_call *c, const linear_group *g)
{
    if (!c->convert)
        return linear_matrix(&c->args->part[g->first].weight);
    gemm_matrix m = {(char *)c->weight + (size_t)(c->first[g->first] * c->in) * c->element, c->in, c->dtype};
    return m;
}
/* The packed B of part j and those after it in its group. */
static linear_rows linear_packed(const linear_call *c, int j)
{
    if (c->extension)
        return linear_behind(&c->args->part[j].weight);
    linear_rows r = {(char *)c->b + (size_t)(c->first[j] * c->R_padded) * c->element, c->R_padded, c->dtype == DT_F32};
    return r;
}

/* ---------------------------------------------------------------- pieces of both directions */

static dt_status linear_convert(const linear_call *c)
{
    dt_status st = DT_OK;
    for (int j = 0; c->convert && st == DT_OK && j < c->args->n_parts; j++) {
        linear_group one = {j, 1, 0};
        gemm_matrix to = linear_weights(c, &one);
        st = dtp_gemm_convert(c->exec, &c->args->part[j].weight, &to, c->err);
    }
    return st;
}
static linear_pack_params linear_pack_params_of(const linear_call *c)
{
    linear_pack_params p;
    memset(&p, 0, sizeof p);
    for (int j = 0; j < c->args->n_parts; j++) {
        const dt_tensor *b = &c->args->part[j].lora_b;
        p.end[j] = c->first[j + 1];
        p.out[j] = linear_packed(c, j);
        if (!linear_adapted(&c->args->part[j]))
            continue;
        p.b[j] = (const float *)b->data;
        p.pitch[j] = b->stride[0];
        p.row[j] = (int32_t)c->args->part[j].lora_row;
        p.rank[j] = (int32_t)b->shape[1];
    }
    p.parts = c->args->n_parts;
    p.width = (int32_t)(c->extension ? c->extension : c->R_padded);
    p.period = (int32_t)c->R_padded, p.copies = (int32_t)c->splits;
    return p;
}
static int64_t linear_pack_units(const linear_pack_params *p)
{
    return p->end[p->parts - 1] * (p->width / 8);
}
static dt_status linear_pack(const linear_call *c)
{
    linear_pack_params p = linear_pack_params_of(c);
    return DT_LAUNCH(c->err, c->exec, dtp_blocks(linear_pack_units(&p), LINEAR_THREADS), LINEAR_THREADS, 0,
                     linear_pack_kernel, p);
}
static dt_status linear_zero_behind(const linear_call *c, const dt_tensor *t)
{
    return DT_LAUNCH(c->err, c->exec, dtp_blocks((c->T_cap - c->T) * t->shape[1], LINEAR_THREADS), LINEAR_THREADS, 0,
                     linear_zero_kernel, linear_rows_of(t), c->T, c->T_cap - c->T, t->shape[1]);
}

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
static linear_input_params linear_input_params_of(const linear_call *c)
{
    const dt_tensor *a = &c->args->lora_a;
    linear_input_params p;
    memset(&p, 0, sizeof p);
    p.du = c->du;
    p.dx = linear_rows_of(&c->args->dx);
    p.a = (const float *)a->data;
    p.a_pitch = a->stride[0];
    p.T = c->T;
    p.R = (int32_t)c->R;
    p.row_step = c->T_cap <= LINEAR_SHORT ? 16 : 64;
    p.scale = linear_scale(c->args);
    p.mask = linear_mask_of(c);
    return p;
}
static int64_t linear_items(const linear_gradient *g, bool fast)
{
    int64_t panels = (g->first + g->rank - 1) / 64 - g->first / 64 + 1;
    return fast ? dtp_blocks(g->width, LINEAR_TILE) * panels : dtp_blocks(g->width * g->rank, LINEAR_THREADS);
}
/* dA and all dB; returns their items. */
static int64_t linear_gradient_params_of(linear_gradient_params *p, const linear_call *c, bool fast)
{
    const dt_linear_args *a = c->args;
    int64_t items = 0;
    memset(p, 0, sizeof *p);
    p->T = c->T;
    p->mask = linear_mask_of(c);
    if (dt_tensor_present(&a->dlora_a)) {
        linear_gradient *g = &p->part[p->parts++];
        g->rows = linear_rows_of(&a->x), g->width = c->in;
        g->low = c->du, g->low_width = c->R_padded;
        g->out = (float *)a->dlora_a.data, g->column_stride = 1, g->rank_stride = a->dlora_a.stride[0];
        g->rank = (int32_t)c->R;
        g->copies = 1;
        g->scale = linear_scale(a);
        g->masked = true;
    }
    for (int j = 0; j < a->n_parts; j++) {
        const dt_linear_part *part = &a->part[j];
        if (!linear_adapted(part) || !dt_tensor_present(&part->dlora_b))
            continue;
        linear_gradient *g = &p->part[p->parts++];
        g->rows = linear_rows_of(&part->dy), g->width = part->dy.shape[1];
        g->low = c->u, g->low_width = c->R_padded * c->splits;
        g->period = (int32_t)c->R_padded, g->copies = (int32_t)c->splits;
        g->out = (float *)part->dlora_b.data, g->column_stride = part->dlora_b.stride[0], g->rank_stride = 1;
        g->first = (int32_t)part->lora_row, g->rank = (int32_t)part->lora_b.shape[1];
        g->scale = 1.0f;
    }
    for (int i = 0; i < p->parts; i++) {
        p->part[i].first_item = items;
        items += linear_items(&p->part[i], fast);
    }
    return items;
}
/* One launch in short packs; two in long ones, where registers decide how much is on its way. */
template <int STEPS>
static dt_status linear_launch_gradients(const linear_call *c, const linear_gradient_params &g, int64_t items,
                                         const linear_input_params &p, int64_t blocks)
{
    if (c->T_cap <= LINEAR_SHORT)
        return DT_LAUNCH(c->err, c->exec, items + blocks, LINEAR_THREADS, LINEAR_COLUMNS_BYTES,
                         linear_backward_kernel<STEPS>, g, p, items);
    dt_status st = DT_LAUNCH(c->err, c->exec, items, LINEAR_THREADS, LINEAR_COLUMNS_BYTES, linear_columns_kernel, g);
    return st != DT_OK ? st : DT_LAUNCH(c->err, c->exec, blocks, LINEAR_THREADS, 0, linear_input_kernel<STEPS>, p);
}
/* dA, dB and the adapters' part of dx. */
static dt_status linear_adapter_gradients(const linear_call *c)
{
    const dt_tensor *dx = &c->args->dx;
    bool input = dt_tensor_present(dx), fast = linear_units(&c->args->x) && (!input || linear_units(dx));
    for (int j = 0; j < c->args->n_parts; j++)
        fast = fast && (!linear_adapted(&c->args->part[j]) || linear_units(&c->args->part[j].dy));
    linear_gradient_params g;
    linear_input_params p = linear_input_params_of(c);
    int64_t items = linear_gradient_params_of(&g, c, fast), blocks;
    if (!fast) {
        dt_status st = DT_LAUNCH(c->err, c->exec, items, LINEAR_THREADS, 0, linear_plain_gradient_kernel, g);
        return st != DT_OK || !input ? st
                                     : DT_LAUNCH(c->err, c->exec, dtp_blocks(c->T * c->in, LINEAR_THREADS),
                                                 LINEAR_THREADS, 0, linear_plain_input_kernel, p);
    }
    blocks = input ? dtp_blocks(c->in, 32 * LINEAR_WARPS) * dtp_blocks(c->T, p.row_step) : 0;
    return c->R <= 16   ? linear_launch_gradients<1>(c, g, items, p, blocks)
           : c->R <= 32 ? linear_launch_gradients<2>(c, g, items, p, blocks)
                        : linear_launch_gradients<4>(c, g, items, p, blocks);
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
    if (linear_low_behind(&c))
        c.du = linear_behind(&c.args->dx);
    else if (st == DT_OK && c.R)
        st = linear_low_gradient(&c);
    if (st == DT_OK && input)
        st = linear_input_products(&c);
    if (st == DT_OK)
        st = linear_weight_gradients(&c);
    if (st == DT_OK && c.R)
        st = linear_adapter_gradients(&c);
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
