/* A call of DT_OP_LINEAR on CUDA, host side: where its pieces lie, which parts are one product, and what both
 * directions do. Included by linear.cu alone. */
#ifndef DT_CUDA_LINEAR_CALL_CUH
#define DT_CUDA_LINEAR_CALL_CUH
#include <deltune/op/linear.h>

#include "providers/cuda/device.cuh"
#include "providers/cuda/gemm.cuh"
#include "providers/cuda/linear.cuh"
#include "providers/cuda/linear_gradient.cuh"

/* How the gradients of adapters are divided over blocks, by shapes alone. */
struct linear_share {
    int32_t wide, tiles, ranges; /* 128-column tiles side by side a block; tiles of rows a range; ranges */
};
struct linear_gradient_plan {
    int groups; /* of eight ranks, of the widest part; 0: the shapes do not suit the streaming kernels */
    linear_share output, input;
    float *du[DT_LINEAR_MAX_PARTS], *db[DT_LINEAR_MAX_PARTS], *da;
};

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
    linear_gradient_plan gradient;
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
/* Groups of eight columns of U that part j's ranks lie in. */
static int64_t linear_groups_of(const dt_linear_part *part)
{
    return part->lora_b.rank == 2 ? dtp_blocks(part->lora_row % 8 + part->lora_b.shape[1], 8) : 0;
}
/* 1, 2 or 4: the kernels' template argument. */
static int linear_round_groups(int64_t groups)
{
    return groups <= 1 ? 1 : groups <= 2 ? 2 : 4;
}
/* Multiprocessors that work is divided for: those of an H200; fixed, so that sums do not depend on the card. */
#ifdef DT_EMULATE
enum { LINEAR_MULTIPROCESSORS = 2 };
#else
enum { LINEAR_MULTIPROCESSORS = 132 };
#endif
/* The division of `columns` blocks by ranges of rows that costs least. Costs in tiles that pass: those of the longest
 * row of blocks that share a place (`resident` a multiprocessor), one for the start of each, times the places; and the
 * bytes of sums left in memory, `bytes` and `range_bytes` a range. */
static double linear_cost(linear_share *best, int64_t T, int64_t columns, int32_t wide, int resident, double bytes,
                          double range_bytes)
{
    int64_t tiles = dtp_blocks(T > 0 ? T : 1, LINEAR_SIDE), places = resident * LINEAR_MULTIPROCESSORS;
    double least = -1;
    for (int64_t k = 1; k <= tiles; k++) {
        int64_t ranges = dtp_blocks(tiles, k), rounds = dtp_blocks(columns * ranges, places);
        double cost = (double)(rounds * (k * wide + 1) * places) +
                      (bytes + (double)ranges * range_bytes) / (double)LINEAR_BODY_BYTES;
        if (least < 0 || cost < least) {
            least = cost;
            *best = {wide, (int32_t)k, (int32_t)ranges};
        }
    }
    return least;
}
static void linear_place_gradient(linear_call *c, char *base, size_t *used)
{
    const dt_linear_args *a = c->args;
    linear_gradient_plan *g = &c->gradient;
    int64_t groups = 0, width = 0, narrow_blocks = 0, wide_blocks = 0;
    for (int j = 0; j < a->n_parts; j++) {
        int64_t own = linear_groups_of(&a->part[j]);
        groups = own > groups ? own : groups;
        if (!own)
            continue;
        width += a->part[j].weight.shape[0];
        narrow_blocks += dtp_blocks(a->part[j].weight.shape[0], LINEAR_SIDE);
        wide_blocks += dtp_blocks(a->part[j].weight.shape[0], 4 * LINEAR_SIDE);
    }
    if (c->dtype != DT_BF16 || !groups || groups > 4 || c->R_padded > 32)
        return;
    g->groups = linear_round_groups(groups);
    bool joint = c->T_cap <= LINEAR_SHORT; /* then x and dx are in the same launch, two blocks a multiprocessor */
    int inputs = linear_round_groups(c->R_padded / 8);
    double sums = 2.0 * 32 * g->groups, T = (double)c->T_cap; /* bytes of a row of sums, written and read */
    linear_share narrow, wide;
    bool less = linear_cost(&wide, c->T_cap, wide_blocks, 4, 2, T * sums * (double)wide_blocks, sums * (double)width) <
                linear_cost(&narrow, c->T_cap, narrow_blocks, 1, g->groups == 1 && !joint ? 3 : 2,
                            T * sums * (double)narrow_blocks, sums * (double)width);
    g->output = less && !joint ? wide : narrow;
    linear_cost(&g->input, c->T_cap, dtp_blocks(c->in, LINEAR_SIDE), 1, 2, 0, 2.0 * 32 * inputs * (double)c->in);
    for (int j = 0; j < a->n_parts; j++) {
        int64_t out = a->part[j].weight.shape[0], ranks = 8 * g->groups;
        if (!linear_groups_of(&a->part[j]))
            continue;
        g->du[j] = (float *)linear_take(base, used, dtp_blocks(out, g->output.wide * LINEAR_SIDE) * c->T_cap, ranks, 4);
        g->db[j] = (float *)linear_take(base, used, g->output.ranges * out, ranks, 4);
    }
    g->da = (float *)linear_take(base, used, g->input.ranges * 8 * inputs, c->in, 4);
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
    if (c->R)
        linear_place_gradient(c, base, &used);
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
#endif
