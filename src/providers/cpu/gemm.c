#include "providers/cpu/gemm.h"

#include "providers/cpu/cpu_isa.h"

#include <omp.h>
#include <stdbool.h>
#include <string.h>

/* K_BLOCK is part of the arithmetic: partial sums of that depth are added to C in order. The other extents are not,
 * and are chosen for speed: an A that is read in place is shared by few columns of B, so that B stays in the
 * second-level cache; an A that must be copied (transposed or masked) is used for more columns at a time. */
enum {
    K_BLOCK = 256,
    M_BLOCK = 512,
    N_BLOCK = 96,
    M_BLOCK_COPIED = 192,
    N_BLOCK_COPIED = 384,
    M_SMALLEST = 64,
    LD_COPY = K_BLOCK + 16, /* not a power of two: rows of the copy fall into different cache sets */
    TASKS_PER_THREAD = 4,
    SERIAL_WORK = 32768 /* multiply-adds below which threads cost more than they save */
};

/* What one thread works in. */
typedef struct scratch {
    float panels[K_BLOCK * N_BLOCK_COPIED];
    float a[M_BLOCK * LD_COPY];                     /* a block of A that cannot be read in place */
    float b[K_BLOCK * N_BLOCK_COPIED];              /* a masked block of B, before it is packed */
    float product[M_BLOCK_COPIED * N_BLOCK_COPIED]; /* product[0] before its mask */
} scratch;

_Static_assert(M_BLOCK *N_BLOCK <= M_BLOCK_COPIED * N_BLOCK_COPIED, "either extent of a block fits");

size_t dtp_gemm_scratch_bytes(void)
{
    return (sizeof(scratch) + 63) / 64 * 64;
}

const dt_gemm_kernels *dtp_gemm_kernels(void)
{
    switch (dtp_cpu_isa()) {
#if defined(__x86_64__)
    case DT_ISA_AVX512: return &dtp_gemm_kernels_avx512;
    case DT_ISA_AVX2: return &dtp_gemm_kernels_avx2;
#endif
    default: return &dtp_gemm_kernels_portable;
    }
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows and columns of C that one task computes. */
typedef struct area {
    int64_t row, column, rows, columns;
} area;

/* op(X)[row, column] and what follows it. */
static const void *element(const dt_operand *x, int64_t row, int64_t column)
{
    int64_t at = x->trans ? column * x->ld + row : row * x->ld + column;
    return (const char *)x->data + (size_t)at * dt_dtype_size(x->dtype);
}

static bool copied(const dt_operand *a)
{
    return a->trans || a->mask;
}

/* A block of a matrix that is stored as it is used, times its mask. */
static void masked_block(const dt_operand *x, int64_t row, int64_t column, int64_t rows, int64_t columns, float *to,
                         int64_t ld)
{
    for (int64_t i = 0; i < rows; i++)
        dtp_dropout_apply(x->mask, row + i, column, columns, element(x, row + i, column), to + i * ld);
}

/* Where the kernel reads rows x depth of op(A): in place when rows are contiguous, else from a copy. */
static const float *block_of_a(const dt_operand *a, const area *t, int64_t p, int64_t depth, scratch *s, int64_t *ld)
{
    const float *in_place = element(a, t->row, p);
    *ld = a->ld;
    if (!copied(a))
        return in_place;
    *ld = LD_COPY;
    if (a->mask)
        masked_block(a, t->row, p, t->rows, depth, s->a, LD_COPY);
    else
        dtp_gemm_kernels()->transpose(s->a, LD_COPY, in_place, a->ld, depth, t->rows);
    return s->a;
}

static void pack_block_of_b(const dt_operand *b, const area *t, int64_t p, int64_t depth, scratch *s)
{
    dt_operand block = {element(b, p, t->column), b->dtype, b->ld, b->trans, NULL};
    if (b->mask) {
        masked_block(b, p, t->column, depth, t->columns, s->b, N_BLOCK_COPIED);
        block = dtp_operand_f32(s->b, N_BLOCK_COPIED, DTP_N);
    }
    dtp_gemm_kernels()->pack(s->panels, &block, depth, t->columns);
}

/* c = product + add, depth by depth. Without depth c still becomes add, or 0. */
static void run_product(const dt_product *x, const area *t, const float *add, int64_t ld_add, float *c, int64_t ldc,
                        scratch *s)
{
    int64_t p = 0;
    do {
        int64_t depth = smaller(K_BLOCK, x->k - p), ld;
        const float *a = block_of_a(&x->a, t, p, depth, s, &ld);
        dt_block block = {.m = t->rows,
                          .n = t->columns,
                          .depth = depth,
                          .alpha = x->alpha,
                          .a = a,
                          .a_row = ld,
                          .a_column = 1,
                          .panels = s->panels,
                          .add = add,
                          .ld_add = ld_add,
                          .c = c,
                          .ldc = ldc};
        pack_block_of_b(&x->b, t, p, depth, s);
        dtp_gemm_kernels()->multiply(&block);
        add = c;
        ld_add = ldc;
        p += depth;
    } while (p < x->k);
}

static void compute_area(const dt_gemm *g, const area *t, scratch *s)
{
    float *c = g->c + t->row * g->ldc + t->column;
    const float *add = g->add ? g->add + t->row * g->ld_add + t->column : NULL;
    int64_t ld_add = g->ld_add;
    for (int32_t i = 0; i < g->n_products; i++) {
        if (i == 0 && g->mask_first) {
            run_product(&g->product[0], t, NULL, 0, s->product, t->columns, s);
            for (int64_t r = 0; r < t->rows; r++)
                dtp_dropout_add(g->mask_first, t->row + r, t->column, t->columns, s->product + r * t->columns,
                                add ? add + r * ld_add : NULL, c + r * g->ldc);
        } else {
            run_product(&g->product[i], t, add, ld_add, c, g->ldc, s);
        }
        add = c;
        ld_add = g->ldc;
    }
}

/* Extents of a task: as large as pays, but enough of them for all threads. Not part of the arithmetic. */
static area task_extent(const dt_gemm *g, int threads)
{
    area e = {.rows = M_BLOCK, .columns = N_BLOCK};
    for (int32_t i = 0; i < g->n_products; i++)
        if (copied(&g->product[i].a))
            e = (area){.rows = M_BLOCK_COPIED, .columns = N_BLOCK_COPIED};
    int64_t wanted = (int64_t)threads * TASKS_PER_THREAD;
    while (threads > 1 && (g->m + e.rows - 1) / e.rows * ((g->n + e.columns - 1) / e.columns) < wanted) {
        if (e.rows >= 2 * M_SMALLEST && g->m > M_SMALLEST)
            e.rows /= 2;
        else if (e.columns > N_BLOCK)
            e.columns /= 2;
        else
            break;
    }
    return e;
}

static area task_area(const dt_gemm *g, const area *extent, int64_t row, int64_t column)
{
    return (area){row, column, smaller(extent->rows, g->m - row), smaller(extent->columns, g->n - column)};
}

void dtp_gemm_serial(const dt_gemm *g, void *memory)
{
    area extent = task_extent(g, 1);
    for (int64_t column = 0; column < g->n; column += extent.columns)
        for (int64_t row = 0; row < g->m; row += extent.rows) {
            area t = task_area(g, &extent, row, column);
            compute_area(g, &t, memory);
        }
}

void dtp_gemm(int threads, const dt_gemm *g, void *memory)
{
    int64_t depth = 0;
    for (int32_t i = 0; i < g->n_products; i++)
        depth += g->product[i].k;
    if (threads <= 1 || g->m * g->n * depth < SERIAL_WORK) {
        dtp_gemm_serial(g, memory);
        return;
    }
    area extent = task_extent(g, threads);
    int64_t down = (g->m + extent.rows - 1) / extent.rows, across = (g->n + extent.columns - 1) / extent.columns;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < down * across; i++) { /* neighbours share a block of B */
        area t = task_area(g, &extent, i % down * extent.rows, i / down * extent.columns);
        compute_area(g, &t, (scratch *)((char *)memory + (size_t)omp_get_thread_num() * dtp_gemm_scratch_bytes()));
    }
}
