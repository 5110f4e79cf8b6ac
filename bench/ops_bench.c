/* Times the operators made of matrix products, beside OpenBLAS at the same shapes and threads.
 * usage: ops_bench [THREADS [ROUNDS [NAME]]]      NAME: only cases that start with it (linear, cross_entropy,
 * attention) With one thread its processor time counts, so that other programs do not; else the time that passes. One
 * line per case: best time, GFLOP/s (multiply-adds count as two, those of the formula only), and the share of the rate
 * that one sgemm of the same m, n, k reaches in the same run. */
#include "core/memory.h"
#include <cblas.h>
#include <deltune/op/attention.h>
#include <deltune/op/cross_entropy.h>
#include <deltune/op/linear.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int threads = 2, rounds = 7;
static const char *only = "";
static dt_exec *exec;

static double now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const dt_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

/* Random numbers in [-scale, scale). The system takes the memory back when the program ends. */
static void *numbers(dt_dtype dtype, int64_t n, float scale)
{
    static uint32_t state = 1;
    float *x = dtp_alloc_aligned((size_t)n * sizeof *x);
    if (!x)
        exit(1);
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = scale * ((float)(state >> 8) * 0x1p-23f - 1);
    }
    for (int64_t i = 0; dtype == DT_BF16 && i < n; i++) {
        uint16_t h = dt_f32_to_bf16(x[i]);
        memcpy((char *)x + 2 * i, &h, 2);
    }
    return x;
}

static dt_tensor matrix(dt_dtype dtype, int64_t rows, int64_t columns)
{
    return dt_tensor_2d(numbers(dtype, rows * columns, 0.1f), dtype, rows, columns);
}

static double sgemm_rate(int64_t m, int64_t n, int64_t k)
{
    float *a = numbers(DT_F32, m * k, 1), *b = numbers(DT_F32, n * k, 1), *c = numbers(DT_F32, m * n, 1);
    double best = INFINITY;
    omp_set_num_threads(threads);
    for (int i = 0; i < rounds; i++) {
        double begin = now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1, a, (int)k, b, (int)k, 0, c,
                    (int)n);
        best = fmin(best, now() - begin);
    }
    free(a);
    free(b);
    free(c);
    return 2.0 * (double)m * (double)n * (double)k / best;
}

/* Best times of forward and backward (0 without backward). */
static void measure(dt_op op, const void *args, bool backward, double seconds[2])
{
    dt_err err = {0};
    dt_saved saved = {0};
    if (dt_op_saved_bytes(exec, op, args, &saved.bytes, &err) != DT_OK)
        stop(&err);
    saved.data = dtp_alloc_aligned(saved.bytes + 64);
    seconds[0] = seconds[1] = INFINITY;
    for (int i = 0; i < rounds; i++) {
        double begin = now();
        if (dt_op_forward(exec, op, args, &saved, &err) != DT_OK)
            stop(&err);
        double middle = now();
        if (backward && dt_op_backward(exec, op, args, &saved, &err) != DT_OK)
            stop(&err);
        seconds[0] = fmin(seconds[0], middle - begin);
        seconds[1] = fmin(seconds[1], now() - middle);
    }
}

static bool wanted(const char *name)
{
    return strncmp(name, only, strlen(only)) == 0;
}

static void line(const char *name, double flops, double seconds, double yardstick)
{
    printf("%-52s %9.3f ms %8.1f GFLOP/s", name, 1e3 * seconds, flops / seconds * 1e-9);
    printf(yardstick > 0 ? "  %4.0f%% of sgemm\n" : "\n", 100 * flops / seconds / yardstick);
}

static void linear(int64_t T, int64_t in, int64_t out, dt_dtype weight, int64_t rank, float dropout)
{
    if (!wanted("linear"))
        return;
    char name[128];
    double flops = 2.0 * (double)T * (double)in * (double)out, seconds[2], rate = sgemm_rate(T, out, in);
    dt_linear_args a = {DT_LINEAR_ARGS,     .x = matrix(DT_F32, T, in), .T = T, .n_parts = 1, .lora_scale = 2,
                        .dropout = dropout, .dx = matrix(DT_F32, T, in)};
    a.part[0] =
        (dt_linear_part){.weight = matrix(weight, out, in), .y = matrix(DT_F32, T, out), .dy = matrix(DT_F32, T, out)};
    if (rank) {
        a.lora_a = matrix(DT_F32, rank, in);
        a.dlora_a = matrix(DT_F32, rank, in);
        a.part[0].lora_b = matrix(DT_F32, out, rank);
        a.part[0].dlora_b = matrix(DT_F32, out, rank);
    } else {
        a.part[0].dweight = matrix(DT_F32, out, in);
    }
    measure(DT_OP_LINEAR, &a, true, seconds);
    snprintf(name, sizeof name, "linear %lldx%lldx%lld %s rank %lld dropout %g, forward", (long long)T, (long long)out,
             (long long)in, dt_dtype_name(weight), (long long)rank, dropout);
    line(name, flops, seconds[0], rate);
    strcpy(strrchr(name, ' '), " backward");
    line(name, flops * (rank ? 1 : 2), seconds[1], rate);
}

static void cross_entropy(int64_t T, int64_t H, int64_t V, int targets_per_ten)
{
    if (!wanted("cross_entropy"))
        return;
    char name[128];
    int32_t *target = dtp_alloc_aligned((size_t)T * sizeof *target);
    int64_t count = 0;
    if (!target)
        exit(1);
    for (int64_t t = 0; t < T; t++) {
        target[t] = t % 10 < targets_per_ten ? (int32_t)(t * 37 % V) : -1;
        count += target[t] >= 0;
    }
    dt_cross_entropy_result result;
    dt_cross_entropy_args a = {DT_CROSS_ENTROPY_ARGS,
                               .h = matrix(DT_F32, T, H),
                               .weight = matrix(DT_BF16, V, H),
                               .target = dt_tensor_1d(target, DT_I32, T),
                               .T = T,
                               .grad_scale = 1,
                               .result = &result,
                               .dh = matrix(DT_F32, T, H)};
    double seconds[2];
    measure(DT_OP_CROSS_ENTROPY, &a, false, seconds);
    snprintf(name, sizeof name, "cross_entropy %lld rows %lldx%lld", (long long)count, (long long)V, (long long)H);
    line(name, 4.0 * (double)count * (double)V * (double)H, seconds[0], sgemm_rate(count, V > 32768 ? 32768 : V, H));
}

static void attention(int64_t T, int64_t samples, int64_t heads, int64_t kv_heads, int64_t D)
{
    if (!wanted("attention"))
        return;
    char name[128];
    int32_t *cu = dtp_alloc_aligned((size_t)(samples + 1) * sizeof *cu);
    double pairs = 0, seconds[2];
    if (!cu)
        exit(1);
    for (int64_t n = 0; n <= samples; n++) {
        cu[n] = (int32_t)(n * T / samples);
        pairs += n ? 0.5 * (cu[n] - cu[n - 1]) * (cu[n] - cu[n - 1] + 1.0) : 0;
    }
    dt_tensor q = dt_tensor_split_last(matrix(DT_F32, T, heads * D), D),
              k = dt_tensor_split_last(matrix(DT_F32, T, kv_heads * D), D);
    dt_attention_args a = {DT_ATTENTION_ARGS,
                           .q = q,
                           .k = k,
                           .v = k,
                           .o = q,
                           .scale = 1 / sqrtf((float)D),
                           .d_o = q,
                           .dq = q,
                           .dk = k,
                           .dv = k,
                           .seqs = {.cu_seqlens = cu, .n_seq = samples, .n_seq_cap = samples, .T = T, .T_cap = T}};
    dt_tensor *apart[] = {&a.o, &a.dq, &a.dk, &a.dv};
    for (int i = 0; i < 4; i++)
        apart[i]->data = numbers(DT_F32, dt_tensor_numel(apart[i]), 1);
    measure(DT_OP_ATTENTION, &a, true, seconds);
    double flops = 4.0 * pairs * (double)(heads * D);
    snprintf(name, sizeof name, "attention %lld tokens in %lld, heads %lld/%lld of %lld, forward", (long long)T,
             (long long)samples, (long long)heads, (long long)kv_heads, (long long)D);
    line(name, flops, seconds[0], 0);
    strcpy(strrchr(name, ' '), " backward");
    line(name, flops * 2.5, seconds[1], 0);
}

int main(int argc, char **argv)
{
    dt_err err = {0};
    dt_ctx *ctx;
    if (argc > 1)
        threads = atoi(argv[1]);
    if (argc > 2)
        rounds = atoi(argv[2]);
    if (argc > 3)
        only = argv[3];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (dt_ctx_create(&ctx, &err) != DT_OK || dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, threads, &err) != DT_OK)
        stop(&err);
    printf("%d threads, %s\n", threads, openblas_get_config());
    linear(512, 512, 1536, DT_F32, 0, 0);
    linear(512, 512, 1536, DT_BF16, 0, 0);
    linear(512, 512, 1536, DT_BF16, 8, 0);
    linear(512, 512, 1536, DT_BF16, 8, 0.05f);
    linear(512, 2560, 9216, DT_F32, 0, 0);
    linear(512, 2560, 9216, DT_BF16, 0, 0);
    linear(512, 2560, 9216, DT_BF16, 8, 0.05f);
    linear(1, 2560, 9216, DT_BF16, 0, 0);
    cross_entropy(512, 512, 32768, 6);
    cross_entropy(512, 512, 151936, 6);
    cross_entropy(512, 2560, 248320, 10);
    attention(512, 3, 4, 1, 256);
    attention(512, 3, 16, 4, 256);
    attention(4096, 24, 16, 4, 256);
    attention(4096, 1, 16, 4, 256);
    return 0;
}
