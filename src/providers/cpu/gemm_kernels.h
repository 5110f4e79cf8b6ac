/* The source of dt_gemm_kernels, included once per instruction set with GEMM_KERNELS naming the table.
 *
 * A tile of TILE_ROWS x TILE_VECS vectors of C stays in registers over the whole depth; B comes from panels of
 * PANEL columns packed row after row, A is read one scalar at a time. Every element of C is one chain of fused
 * multiply-adds in the order of k, whatever tile it falls into: a row of C depends on that row of A alone. */
#include "providers/cpu/gemm.h"
#include "providers/cpu/vec.h"

/* 24 of 32 registers accumulate with AVX-512 and NEON, 12 of 16 otherwise; the others hold a row of B and one element
 * of A. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif
enum { TILE_VECS = 3, PANEL = TILE_VECS * VF };
_Static_assert(DT_PANEL_MULTIPLE % PANEL == 0, "panels of every instruction set fill what callers allocate");

/* ---- packing ---- */

/* Transposes VF vectors of VF lanes: log2(VF) rounds of exchanging halves. */
VEC_INLINE void transpose(vf row[VF])
{
#if defined(__clang__) /* has no shuffle by a vector; the fuzz targets, which it builds, need no speed */
    float square[VF][VF], turned[VF][VF];
    memcpy(square, row, sizeof square);
    for (int i = 0; i < VF; i++)
        for (int j = 0; j < VF; j++)
            turned[j][i] = square[i][j];
    memcpy(row, turned, sizeof turned);
#else
#pragma GCC unroll 4
    for (int width = 1; width < VF; width *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < VF; i++) {
            if (i & width)
                continue;
            vi low, high;
#pragma GCC unroll 16
            for (int lane = 0; lane < VF; lane++) {
                low[lane] = lane & width ? VF + (lane & ~width) : lane;
                high[lane] = lane & width ? VF + lane : lane | width;
            }
            vf a = row[i], b = row[i + width];
            row[i] = __builtin_shuffle(a, b, low);
            row[i + width] = __builtin_shuffle(a, b, high);
        }
#endif
}

VEC_INLINE vf load_some(const void *from, dt_dtype dtype, int64_t at, int64_t n)
{
    if (dtype == DT_F32)
        return n >= VF ? vf_load((const float *)from + at) : vf_load_n((const float *)from + at, n);
    if (n >= VF)
        return vf_from_bf16((const uint16_t *)from + at);
    uint16_t some[VF] = {0};
    memcpy(some, (const uint16_t *)from + at, (size_t)n * sizeof *some);
    return vf_from_bf16(some);
}

/* Columns n of op(B) are stored one after the other: `n` <= VF rows of `depth` numbers become `depth` vectors,
 * PANEL floats apart. */
VEC_INLINE void pack_transposed(float *to, const void *from, dt_dtype dtype, int64_t at, int64_t ld, int64_t n,
                                int64_t depth)
{
    for (int64_t p = 0; p < depth; p += VF) {
        int64_t left = depth - p;
        vf row[VF];
#pragma GCC unroll 16
        for (int i = 0; i < VF; i++)
            row[i] = i < n ? load_some(from, dtype, at + i * ld + p, left) : (vf){0};
        transpose(row);
        if (left >= VF) {
#pragma GCC unroll 16
            for (int i = 0; i < VF; i++)
                vf_store(to + (p + i) * PANEL, row[i]);
        } else {
            for (int i = 0; i < left; i++)
                vf_store(to + (p + i) * PANEL, row[i]);
        }
    }
}

/* Rows of op(B) are stored one after the other. */
VEC_INLINE void pack_straight(float *to, const void *from, dt_dtype dtype, int64_t at, int64_t ld, int64_t n,
                              int64_t depth)
{
    for (int64_t p = 0; p < depth; p++)
        vf_store(to + p * PANEL, load_some(from, dtype, at + p * ld, n));
}

VEC_INLINE void pack_panels(float *to, const void *data, dt_dtype dtype, int64_t ld, dt_transpose trans, int64_t n,
                            int64_t depth)
{
    for (int64_t j = 0; j < n; j += VF) {
        float *vectors = to + j / PANEL * PANEL * depth + j % PANEL;
        int64_t width = n - j < VF ? n - j : VF;
        if (trans)
            pack_transposed(vectors, data, dtype, j * ld, ld, width, depth);
        else
            pack_straight(vectors, data, dtype, j, ld, width, depth);
    }
}

/* One square of a transposition, up to VF x VF. */
VEC_INLINE void transpose_square(float *to, int64_t ld_to, const float *from, int64_t ld, int64_t rows, int64_t columns)
{
    vf row[VF];
#pragma GCC unroll 16
    for (int i = 0; i < VF; i++)
        row[i] = i < rows ? load_some(from, DT_F32, i * ld, columns) : (vf){0};
    transpose(row);
    if (rows >= VF && columns >= VF) {
#pragma GCC unroll 16
        for (int i = 0; i < VF; i++)
            vf_store(to + i * ld_to, row[i]);
    } else {
        for (int i = 0; i < VF && i < columns; i++)
            vf_store_n(to + i * ld_to, row[i], rows < VF ? rows : VF);
    }
}

static void transpose_matrix(float *to, int64_t ld_to, const float *from, int64_t ld, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i += VF)
        for (int64_t j = 0; j < columns; j += VF)
            transpose_square(to + j * ld_to + i, ld_to, from + i * ld + j, ld, rows - i, columns - j);
}

static void pack(float *panels, const dt_operand *b, int64_t depth, int64_t n)
{
    if (b->dtype == DT_BF16)
        pack_panels(panels, b->data, DT_BF16, b->ld, b->trans, n, depth);
    else
        pack_panels(panels, b->data, DT_F32, b->ld, b->trans, n, depth);
}

/* ---- multiplying ---- */

/* What one tile computes; `add` NULL: nothing is added. */
typedef struct tile {
    int64_t depth;
    float alpha;
    const float *a;
    int64_t a_row, a_column;
    const float *panel, *add;
    int64_t ld_add;
    float *c;
    int64_t ldc;
    int64_t width; /* columns of C, <= vecs * VF */
} tile;

VEC_INLINE void store_tile(const tile *t, int rows, int vecs, vf sum[TILE_ROWS][TILE_VECS])
{
    vf alpha = vf_set(t->alpha);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            int64_t left = t->width - v * VF, at = r * t->ldc + v * VF, at_add = r * t->ld_add + v * VF;
            vf old = {0};
            if (t->add)
                old = left >= VF ? vf_load(t->add + at_add) : vf_load_n(t->add + at_add, left);
            vf out = vf_fma(sum[r][v], alpha, old);
            if (left >= VF)
                vf_store(t->c + at, out);
            else
                vf_store_n(t->c + at, out, left);
        }
}

/* rows and vecs are constants after inlining. */
VEC_INLINE void compute_tile(const tile *t, int rows, int vecs)
{
    vf sum[TILE_ROWS][TILE_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++)
            sum[r][v] = (vf){0};
    const float *a = t->a, *b = t->panel;
    int64_t a_row = t->a_row, a_column = t->a_column;
    for (int64_t p = 0; p < t->depth; p++) {
        vf row[TILE_VECS];
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++)
            row[v] = vf_load(b + v * VF);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf x = vf_set(a[r * a_row]);
#pragma GCC unroll 3
            for (int v = 0; v < vecs; v++)
                sum[r][v] = vf_fma(x, row[v], sum[r][v]);
        }
        a += a_column;
        b += PANEL;
    }
    store_tile(t, rows, vecs, sum);
}

#define TILE_CASE(rows)                                                                                                \
    case rows:                                                                                                         \
        if (t->width > 2 * VF)                                                                                         \
            compute_tile(t, rows, 3);                                                                                  \
        else if (t->width > VF)                                                                                        \
            compute_tile(t, rows, 2);                                                                                  \
        else                                                                                                           \
            compute_tile(t, rows, 1);                                                                                  \
        break;

static void run_tile(const tile *t, int64_t rows)
{
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
#if defined(__AVX512F__) || defined(__aarch64__)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
#endif
    default: break;
    }
}

static void multiply(const dt_block *g)
{
    for (int64_t j = 0; j < g->n; j += PANEL)
        for (int64_t i = 0; i < g->m; i += TILE_ROWS) {
            tile t = {.depth = g->depth,
                      .alpha = g->alpha,
                      .a = g->a + i * g->a_row,
                      .a_row = g->a_row,
                      .a_column = g->a_column,
                      .panel = g->panels + j * g->depth,
                      .add = g->add ? g->add + i * g->ld_add + j : NULL,
                      .ld_add = g->ld_add,
                      .c = g->c + i * g->ldc + j,
                      .ldc = g->ldc,
                      .width = g->n - j < PANEL ? g->n - j : PANEL};
            run_tile(&t, g->m - i < TILE_ROWS ? g->m - i : TILE_ROWS);
        }
}

const dt_gemm_kernels GEMM_KERNELS = {.pack = pack, .multiply = multiply, .transpose = transpose_matrix};
