/* Rates of the matrix products of the 4B model by cuBLASLt: each shape of a training step at 512, 2,048 and 8,192 rows,
 * every algorithm the library proposes, the first marked (it is the one that runs).
 *
 *     cuda_gemm_bench [all|first]  every choice, or the first of forward and input gradient alone; else the first four
 * Products are replayed as a CUDA graph of several calls over rotating weights, so that these come from memory. */
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "providers/cuda/gemm.cu"

enum { PAD = 64, CALLS = 8, REPLAYS = 5 };

struct bench_shape {
    const char *name;
    int64_t out, in;
    int extension; /* columns of the adapter behind the inputs; 0: none */
};
static const bench_shape shapes[] = {
    {"in_proj", 12352, 2560, 0}, {"in_proj+", 12352, 2560, PAD}, {"qkv", 10240, 2560, 0},
    {"qkv+", 10240, 2560, PAD},  {"out_proj", 2560, 4096, 0},    {"out_proj+", 2560, 4096, PAD},
    {"gate_up", 18432, 2560, 0}, {"gate_up+", 18432, 2560, PAD}, {"down", 2560, 9216, 0},
    {"down+", 2560, 9216, PAD},
};

dt_status dtp_cuda_status(cudaError_t error, const char *what, dt_err *err)
{
    return error == cudaSuccess ? DT_OK : dt_fail(err, DT_E_INTERNAL, "%s: %s", what, cudaGetErrorString(error));
}
static void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}
__global__ void fill(__nv_bfloat16 *out, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned long long x = (unsigned long long)i * 0x9E3779B97F4A7C15ull + 77;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        float u1 = ((unsigned)x + 1.0f) * 2.3283064e-10f, u2 = (unsigned)(x >> 32) * 2.3283064e-10f;
        out[i] = __float2bfloat16(sqrtf(-2.0f * logf(u1)) * cospif(2.0f * u2));
    }
}

struct arena {
    char *base;
    size_t bytes;
};
static arena make_arena(size_t bytes)
{
    arena a = {NULL, bytes};
    must(cudaMalloc((void **)&a.base, bytes), "allocate");
    fill<<<1056, 512>>>((__nv_bfloat16 *)a.base, bytes / 2);
    return a;
}
/* The i-th of the pieces of `bytes` that fit. */
static void *piece(const arena &a, size_t bytes, int i)
{
    size_t step = (bytes + 1023) / 1024 * 1024, n = std::max<size_t>(1, a.bytes / step);
    return a.base + (size_t)i % n * step;
}
static arena weights, inputs, outputs;
static void *workspace;

static void bind(gemm_product *p, int i, int weight_is_b)
{
    size_t a = (size_t)(p->a_transposed ? p->inner : p->rows) * p->a.pitch * (p->a.dtype == DT_F32 ? 4 : 2),
           b = (size_t)(p->b_transposed ? p->columns : p->inner) * p->b.pitch * (p->b.dtype == DT_F32 ? 4 : 2),
           d = (size_t)p->rows * p->d.pitch * (p->d.dtype == DT_F32 ? 4 : 2);
    p->a.data = piece(inputs, a, 0);
    p->b.data = weight_is_b ? piece(weights, b, i) : piece(weights, b, 0);
    p->d.data = piece(outputs, d, i % 2);
    if (p->c.pitch) /* in place, as gradients and adapters add */
        p->c.data = p->d.data;
}
/* Milliseconds of one product. */
static double measure(dt_exec *exec, gemm_product p, int calls)
{
    dt_err err = {};
    cudaStream_t stream = (cudaStream_t)exec->stream;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t from, to;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++) {
        bind(&p, i, 1);
        if (dtp_gemm(exec, &p, workspace, &err) != DT_OK) {
            printf("%s\n", err.text);
            exit(1);
        }
    }
    must(cudaStreamEndCapture(stream, &graph), "end capture");
    must(cudaGraphInstantiate(&run, graph, 0), "instantiate");
    cudaEventCreate(&from), cudaEventCreate(&to);
    std::vector<float> times;
    for (int i = 0; i <= REPLAYS; i++) {
        float ms;
        cudaEventRecord(from, stream);
        must(cudaGraphLaunch(run, stream), "launch");
        cudaEventRecord(to, stream);
        must(cudaEventSynchronize(to), "run");
        cudaEventElapsedTime(&ms, from, to);
        if (i)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    cudaGraphExecDestroy(run), cudaGraphDestroy(graph);
    cudaEventDestroy(from), cudaEventDestroy(to);
    return times[REPLAYS / 2] / calls;
}
static void report(dt_exec *exec, const char *name, const char *kind, gemm_product p, int limit, double ceiling)
{
    dt_err err = {};
    char text[256];
    bind(&p, 0, 1);
    int n = std::min(dtp_gemm_choices(exec, &p, &err), limit);
    if (!n)
        printf("%-10s %-8s rows %5lld: %s\n", name, kind, (long long)p.rows, err.text);
    double flop = 2.0 * (double)p.rows * (double)p.columns * (double)p.inner;
    int calls = flop > 5e11 ? 2 : flop > 1e11 ? 4 : CALLS;
    for (int i = 0; i < n; i++) {
        dtp_gemm_choose(exec, &p, i, text, sizeof text, &err);
        double ms = measure(exec, p, calls), rate = flop / ms / 1e9;
        printf("%-10s %-8s %6lld x %6lld x %6lld %s %8.1f us %6.1f TFLOP/s %5.1f%%  %s\n", name, kind,
               (long long)p.rows, (long long)p.columns, (long long)p.inner, i ? " " : "*", 1e3 * ms, rate,
               100 * rate / ceiling, text);
    }
    dtp_gemm_choose(exec, &p, 0, text, sizeof text, &err);
}

static gemm_product forward(int64_t T, const bench_shape &s, bool add)
{
    int64_t in = s.in + s.extension;
    gemm_product p = {T, s.out, in, {NULL, in, DT_BF16}, {NULL, in, DT_BF16}, {}, {NULL, s.out, DT_BF16}, false, true};
    if (add)
        p.c = {NULL, s.out, DT_BF16};
    return p;
}
static gemm_product data_gradient(int64_t T, const bench_shape &s)
{
    int64_t in = s.in + s.extension;
    return {T, in, s.out, {NULL, s.out, DT_BF16}, {NULL, in, DT_BF16}, {}, {NULL, in, DT_BF16}, false, false};
}
static gemm_product weight_gradient(int64_t T, const bench_shape &s)
{
    return {s.out, s.in, T, {NULL, s.out, DT_BF16}, {NULL, s.in, DT_BF16}, {NULL, s.in, DT_F32}, {NULL, s.in, DT_F32},
            true,  false};
}
/* The adapter without an extension: y += U B^T, and dU = dY B. */
static gemm_product adapter_up(int64_t T, const bench_shape &s, int64_t R)
{
    return {T,     s.out, R, {NULL, R, DT_BF16}, {NULL, R, DT_BF16}, {NULL, s.out, DT_BF16}, {NULL, s.out, DT_BF16},
            false, true};
}
static gemm_product adapter_down(int64_t T, const bench_shape &s, int64_t R)
{
    return {T, R, s.out, {NULL, s.out, DT_BF16}, {NULL, R, DT_BF16}, {}, {NULL, R, DT_BF16}, false, false};
}

int main(int argc, char **argv)
{
    bool first = argc > 1 && strcmp(argv[1], "first") == 0;
    int limit = first ? 1 : argc > 1 && strcmp(argv[1], "all") == 0 ? 8 : 4;
    char why[512];
    dt_exec exec = {};
    exec.device = DT_DEVICE_CUDA;
    cudaStream_t stream;
    if (!dtp_gemm_probe(0, why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    exec.stream = stream;
    weights = make_arena((size_t)1600 << 20), inputs = make_arena((size_t)1200 << 20),
    outputs = make_arena((size_t)1600 << 20);
    must(cudaMalloc(&workspace, GEMM_WORKSPACE), "workspace");
    must(cudaDeviceSynchronize(), "fill");
    const int64_t rows[] = {512, 2048, 8192};
    const double ceilings[] = {610, 690, 675};
    for (int r = 0; r < 3; r++)
        for (const bench_shape &s : shapes) {
            int64_t T = rows[r];
            report(&exec, s.name, "y", forward(T, s, s.out == 2560), limit, ceilings[r]);
            report(&exec, s.name, "dx", data_gradient(T, s), limit, ceilings[r]);
            if (s.extension || first)
                continue;
            report(&exec, s.name, "dW", weight_gradient(T, s), 2, ceilings[r]);
            int64_t R = s.in != 2560 ? 8 : s.out == 18432 ? 16 : 32;
            report(&exec, s.name, "U B^T", adapter_up(T, s, R), 2, ceilings[r]);
            report(&exec, s.name, "dY B", adapter_down(T, s, R), 2, ceilings[r]);
        }
    const bench_shape head = {"head", 248320, 2560, 0};
    for (int64_t T : {512, 1024}) {
        report(&exec, "head", "logits", forward(T, head, false), limit, 690);
        report(&exec, "head", "dh", data_gradient(T, head), first ? 1 : 8, 690);
    }
    if (first)
        return 0;
    report(&exec, "head", "dW", weight_gradient(1024, head), 2, 690);
    return 0;
}
