/* Matrix products by cuBLASLt: the one place that knows it. Under DT_EMULATE a plain loop.
 *
 * The library is opened when the provider is probed, so that a machine without it gets a reason and not a load error.
 * The algorithm of a product is the first that the library proposes for its shape, chosen once a process: no timing,
 * hence the same bits in every run with the same library (DELTUNE_GEMM_TUNE in gemm_tune.cuh measures instead). Asking
 * does not belong into a stream capture (some versions refuse it there): run a step once before recording it. */
#ifndef DT_CUDA_GEMM_CUH
#define DT_CUDA_GEMM_CUH
#include <deltune/provider.h>

/* Bytes any product may use: partial sums of split products. */
#ifdef DT_EMULATE
enum { GEMM_WORKSPACE = 256 };
#else
enum { GEMM_WORKSPACE = 64 << 20 };
#endif

typedef struct gemm_matrix { /* row-major, F32 or BF16 */
    void *data;
    int64_t pitch; /* elements from row to row */
    dt_dtype dtype;
} gemm_matrix;

/* D [rows, columns] = A [rows, inner] B [inner, columns] (+ C), accumulated in f32 (for F32 operands without TF32).
 * A and B are of one dtype; C and D are of one dtype: theirs, or F32. C may be D. */
typedef struct gemm_product {
    int64_t rows, columns, inner;
    gemm_matrix a, b, c, d; /* c.data NULL: no addend */
    bool a_transposed;      /* A is stored [inner, rows] */
    bool b_transposed;      /* B is stored [columns, inner] */
} gemm_product;

/* `workspace`: GEMM_WORKSPACE bytes. Nothing happens when D is empty. */
dt_status dtp_gemm(dt_exec *exec, const gemm_product *product, void *workspace, dt_err *err);

/* Copies the matrix `from` into `to`, rounding or widening: an operand that is stored in the other dtype. */
dt_status dtp_gemm_convert(dt_exec *exec, const dt_tensor *from, const gemm_matrix *to, dt_err *err);

/* 0 = the library cannot be used here, with the reason. */
int dtp_gemm_probe(int device_index, char *why, size_t why_size);

/* For measurements: how many algorithms are known for a product, the use of another one, and what it is. */
int dtp_gemm_choices(dt_exec *exec, const gemm_product *product, dt_err *err);
dt_status dtp_gemm_choose(dt_exec *exec, const gemm_product *product, int choice, char *text, size_t text_size,
                          dt_err *err);
#endif
