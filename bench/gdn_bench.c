/* Times the gated delta rule, forward and backward, beside the BLAS's rate for a large matrix product.
 * usage: gdn_bench HEADS_V HEADS_K WIDTH THREADS ROUNDS LENGTH...      prints one JSON object */
#include "core/memory.h"
#include <cblas.h>
#include <deltune/op/gdn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int threads;

/* With one thread its processor time, so that other programs hardly matter. */
static double now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_floats(int64_t n, float low, float high)
{
    static uint32_t state = 1;
    float *x = dtp_alloc_aligned((size_t)n * sizeof *x);
    if (!x)
        exit(1);
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = low + (high - low) * (float)(state >> 8) * 0x1p-24f;
    }
    return x;
}

static void print_list(const char *name, const double *x, int n)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < n; i++)
        printf("%s%.6f", i ? ", " : "", x[i]);
    printf("]");
}

/* Multiply-adds count as two. */
static double blas_rate(void)
{
    enum { N = 3072 };
    float *a = random_floats(N * N, -1, 1), *b = random_floats(N * N, -1, 1), *c = random_floats(N * N, 0, 0);
    double best = 0;
    omp_set_num_threads(threads);
    for (int i = 0; i < 4; i++) {
        double begin = now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
        double rate = 2.0 * N * N * N / (now() - begin);
        best = rate > best ? rate : best;
    }
    free(a);
    free(b);
    free(c);
    return best;
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return 2;
    int64_t hv = atoll(argv[1]), hk = atoll(argv[2]), width = atoll(argv[3]);
    threads = atoi(argv[4]);
    int rounds = atoi(argv[5]), n_seq = argc - 6;
    int32_t *cu = dtp_calloc((size_t)n_seq + 1, sizeof *cu);
    double *seconds = dtp_calloc((size_t)rounds, sizeof *seconds);
    if (!cu || !seconds)
        return 1;
    for (int i = 0; i < n_seq; i++)
        cu[i + 1] = cu[i] + atoi(argv[6 + i]);
    int64_t T = cu[n_seq];

    dt_gdn_args a = {DT_GDN_ARGS};
#define HEADS(field, heads) a.field = dt_tensor_3d(random_floats(T * (heads)*width, -1, 1), DT_F32, T, heads, width)
    HEADS(q, hk);
    HEADS(k, hk);
    HEADS(v, hv);
    HEADS(o, hv);
    HEADS(d_o, hv);
    HEADS(dq, hk);
    HEADS(dk, hk);
    HEADS(dv, hv);
    a.g = dt_tensor_2d(random_floats(T * hv, -1, 0), DT_F32, T, hv);
    a.beta = dt_tensor_2d(random_floats(T * hv, 0, 1), DT_F32, T, hv);
    a.dg = dt_tensor_2d(random_floats(T * hv, 0, 0), DT_F32, T, hv);
    a.dbeta = dt_tensor_2d(random_floats(T * hv, 0, 0), DT_F32, T, hv);
    a.seqs = (dt_seqs){.cu_seqlens = cu, .n_seq = n_seq, .n_seq_cap = n_seq, .T = T, .T_cap = T};
    a.scale = 0.08838835f; /* 128^-0.5 */
    a.qk_l2norm = true;

    dt_err err = {0};
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_saved saved = {0};
    dt_op_info info = {0};
    if (dt_ctx_create(&ctx, &err) != DT_OK || dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, threads, &err) != DT_OK ||
        dt_op_saved_bytes(exec, DT_OP_GDN, &a, &saved.bytes, &err) != DT_OK ||
        dt_ctx_op_info(ctx, DT_OP_GDN, DT_DEVICE_CPU, &info, &err) != DT_OK)
        goto fail;
    saved.data = dtp_alloc_aligned(saved.bytes);
    for (int i = -1; i < rounds; i++) { /* the first is a warm-up */
        double begin = now();
        if (dt_op_forward(exec, DT_OP_GDN, &a, &saved, &err) != DT_OK ||
            dt_op_backward(exec, DT_OP_GDN, &a, &saved, &err) != DT_OK)
            goto fail;
        if (i >= 0)
            seconds[i] = now() - begin;
    }
    printf("{\"provider\": \"%s\", ", info.provider);
    print_list("seconds", seconds, rounds);
    /* operations per real token and value head at width 128: forward and backward of the chunked form */
    printf(", \"operations\": %.0f, \"blas_rate\": %.0f}\n", 684032.0 * (double)T * (double)hv, blas_rate());
    return 0; /* the system takes the memory back */
fail:
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
