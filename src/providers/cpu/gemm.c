#include "providers/cpu/gemm.h"

#include "providers/cpu/rows.h"

#include <omp.h>
#include <string.h>

/* Blocks of C, and the depth after which a bf16 panel is converted anew: 128 x 512 fp32 stay in a second-level cache,
 * and each converted number serves M_BLOCK multiplications. */
enum { M_BLOCK = 256, N_BLOCK = 128, K_BLOCK = 512 };

size_t dtp_gemm_scratch_bytes(int threads)
{
    return (size_t)threads * sizeof(float) * M_BLOCK * K_BLOCK;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* op(X)[row, column] as a pointer. */
static const void *element(const dt_operand *x, int64_t row, int64_t column)
{
    int64_t at = x->trans ? column * x->ld + row : row * x->ld + column;
    return (const char *)x->data + (size_t)at * dt_dtype_size(x->dtype);
}

/* The rows x columns block of op(X) from (row, column) as fp32 with the same transposition: X itself when it is fp32.
 */
static dt_operand fp32_block(const dt_operand *x, int64_t row, int64_t column, int64_t rows, int64_t columns,
                             float *scratch)
{
    dt_operand block = {element(x, row, column), DT_F32, x->ld, x->trans};
    if (x->dtype == DT_F32)
        return block;
    const dt_row_kernels *kernels = dtp_row_kernels();
    const uint16_t *from = block.data;
    int64_t lines = x->trans ? columns : rows, length = x->trans ? rows : columns;
    for (int64_t i = 0; i < lines; i++)
        kernels->from_bf16(scratch + i * length, from + i * x->ld, length);
    block.data = scratch;
    block.ld = length;
    return block;
}

static void compute_block(const dt_gemm *g, int64_t row, int64_t column, float *scratch)
{
    int64_t rows = smaller(M_BLOCK, g->m - row), columns = smaller(N_BLOCK, g->n - column);
    float *c = g->c + row * g->ldc + column;
    if (g->add && g->add != g->c)
        for (int64_t i = 0; i < rows; i++)
            memcpy(c + i * g->ldc, g->add + (row + i) * g->ld_add + column, (size_t)columns * sizeof *c);
    float beta = g->add ? 1.0f : 0.0f;
    /* A depth of 0 still has to write C. */
    int64_t depth = 0;
    do {
        int64_t k = smaller(K_BLOCK, g->k - depth);
        dt_operand a = fp32_block(&g->a, row, depth, rows, k, scratch);
        dt_operand b = fp32_block(&g->b, depth, column, k, columns, scratch);
        dtp_sgemm(a.trans, b.trans, rows, columns, k, g->alpha, a.data, a.ld, b.data, b.ld, beta, c, g->ldc);
        beta = 1.0f;
        depth += k;
    } while (depth < g->k);
}

void dtp_gemm_serial(const dt_gemm *g, void *scratch)
{
    for (int64_t column = 0; column < g->n; column += N_BLOCK)
        for (int64_t row = 0; row < g->m; row += M_BLOCK)
            compute_block(g, row, column, scratch);
}

void dtp_gemm(int threads, const dt_gemm *g, void *scratch)
{
    int64_t blocks_m = (g->m + M_BLOCK - 1) / M_BLOCK, blocks_n = (g->n + N_BLOCK - 1) / N_BLOCK;
    int64_t blocks = blocks_m * blocks_n;
    if (blocks < threads)
        threads = blocks ? (int)blocks : 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < blocks; i++) /* neighbours share a block of B */
        compute_block(g, i % blocks_m * M_BLOCK, i / blocks_m * N_BLOCK,
                      (float *)scratch + (size_t)omp_get_thread_num() * M_BLOCK * K_BLOCK);
}
