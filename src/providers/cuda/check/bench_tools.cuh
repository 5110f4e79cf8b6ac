/* What the timings share: tensors filled with noise, packs, and a CUDA graph of several calls over rotating buffers
 * (larger than the L2), timed with events, median of the replays. */
#ifndef DT_CUDA_CHECK_BENCH_TOOLS_CUH
#define DT_CUDA_CHECK_BENCH_TOOLS_CUH
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <deltune/provider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static inline void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

/* Normal numbers from a counter; kind 1: a decay g <= 0; kind 2: a write strength in (0, 1). */
static __global__ void fill_kernel(void *out, int64_t n, int is_float, int kind, unsigned seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        unsigned long long x = (unsigned long long)i * 0x9E3779B97F4A7C15ull + seed;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        x ^= x >> 31;
        float u1 = ((unsigned)x + 1.0f) * 2.3283064e-10f, u2 = (unsigned)(x >> 32) * 2.3283064e-10f;
        float y = sqrtf(-2.0f * logf(u1)) * cospif(2.0f * u2);
        if (kind == 1)
            y = -0.5f * log1pf(expf(y - 1.0f));
        if (kind == 2)
            y = 1.0f / (1.0f + expf(-y));
        if (is_float)
            ((float *)out)[i] = y;
        else
            ((__nv_bfloat16 *)out)[i] = __float2bfloat16(y);
    }
}
static size_t allocated;
static inline dt_tensor make(dt_dtype dtype, int kind, std::vector<int64_t> shape)
{
    static unsigned seed = 1;
    dt_tensor t;
    memset(&t, 0, sizeof t);
    t.dtype = dtype;
    t.rank = (int32_t)shape.size();
    int64_t n = 1;
    for (int i = 3; i >= 0; i--) {
        t.shape[i] = i < t.rank ? shape[(size_t)i] : 1;
        t.stride[i] = n;
        n *= t.shape[i];
    }
    size_t bytes = (size_t)n * (dtype == DT_F32 ? 4 : 2);
    must(cudaMalloc(&t.data, bytes), "allocate");
    allocated += bytes;
    fill_kernel<<<1024, 256>>>(t.data, n, dtype == DT_F32, kind, seed++);
    return t;
}

/* `n` sample lengths around the mean, fixed for ever. */
static inline std::vector<int32_t> boundaries(int64_t T, int n)
{
    std::vector<double> weights;
    unsigned x = 12345;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        weights.push_back(0.3 + 1.4 * (x >> 8) / 16777216.0);
        sum += weights.back();
    }
    std::vector<int32_t> cu(1, 0);
    double at = 0;
    for (int i = 0; i < n; i++) {
        at += weights[(size_t)i];
        cu.push_back((int32_t)(at / sum * (double)T + 0.5));
    }
    cu.back() = (int32_t)T;
    return cu;
}
static inline dt_seqs make_seqs(const std::vector<int32_t> &cu)
{
    dt_seqs s;
    memset(&s, 0, sizeof s);
    s.cu_seqlens = cu.data();
    s.n_seq = s.n_seq_cap = (int64_t)cu.size() - 1;
    s.T = s.T_cap = cu.back();
    must(cudaMalloc((void **)&s.cu_seqlens_device, cu.size() * 4), "allocate");
    must(cudaMemcpy((void *)s.cu_seqlens_device, cu.data(), cu.size() * 4, cudaMemcpyHostToDevice), "upload");
    return s;
}

struct timing {
    double forward, backward;
};
/* `args` are sets of the same call on different buffers. */
static inline timing time_op(dt_exec *exec, const dt_op_set *set, const std::vector<void *> &args)
{
    dt_err err = {};
    size_t saved_bytes = set->saved_bytes ? set->saved_bytes(exec, args[0]) : 0, work = 1;
    if (set->workspace_bytes)
        work = std::max(set->workspace_bytes(exec, args[0], false), set->workspace_bytes(exec, args[0], true));
    std::vector<void *> saved(args.size());
    void *workspace = NULL;
    must(cudaMalloc(&workspace, work + 1), "allocate workspace");
    for (void *&s : saved)
        must(cudaMalloc(&s, saved_bytes + 1), "allocate saved");
    timing result = {0, 0};
    cudaStream_t stream = (cudaStream_t)exec->stream;
    must(cudaDeviceSynchronize(), "fill");
    for (int backward = 0; backward < 2; backward++) {
        int calls = std::max((int)args.size(), 4);
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int i = 0; i < calls; i++) {
            size_t n = (size_t)i % args.size();
            dt_status st = backward ? set->backward(exec, args[n], saved[n], workspace, &err)
                                    : set->forward(exec, args[n], saved[n], workspace, &err);
            if (st != DT_OK)
                printf("call failed: %s\n", err.text), exit(1);
        }
        must(cudaStreamEndCapture(stream, &graph), "end capture");
        must(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
        std::vector<float> times;
        cudaEvent_t start, stop;
        cudaEventCreate(&start), cudaEventCreate(&stop);
        for (int i = 0; i < 14; i++) {
            float ms;
            cudaEventRecord(start, stream);
            must(cudaGraphLaunch(replay, stream), "replay");
            cudaEventRecord(stop, stream);
            must(cudaEventSynchronize(stop), "run");
            cudaEventElapsedTime(&ms, start, stop);
            if (i >= 3)
                times.push_back(ms / (float)calls);
        }
        std::sort(times.begin(), times.end());
        (backward ? result.backward : result.forward) = times[times.size() / 2];
        cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
        cudaEventDestroy(start), cudaEventDestroy(stop);
    }
    cudaFree(workspace);
    for (void *s : saved)
        cudaFree(s);
    return result;
}

static inline void report(FILE *json, const char *op, int64_t T, int n, timing t, double forward_bytes,
                          double backward_bytes)
{
    printf("%-16s %6lld tokens %4d samples  forward %8.4f ms (%4.2f TB/s)  backward %8.4f ms (%4.2f TB/s)\n", op,
           (long long)T, n, t.forward, forward_bytes / t.forward * 1e-9, t.backward,
           backward_bytes / t.backward * 1e-9);
    if (json)
        fprintf(json,
                "{\"op\": \"%s\", \"tokens\": %lld, \"samples\": %d, \"forward_ms\": %.5f, \"backward_ms\": %.5f}\n",
                op, (long long)T, n, t.forward, t.backward);
}
#endif
