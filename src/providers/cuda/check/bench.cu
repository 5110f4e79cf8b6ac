/* Timings of the plug-in's operators at the shapes of the 4B model. */
#include "providers/cuda/check/bench_tools.cuh"
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>

#include "providers/cuda/check/bench.h"

static void bench_gdn(const dt_provider *provider, dt_exec *exec, int64_t T, int n, FILE *json)
{
    std::vector<int32_t> cu = boundaries(T, n);
    std::vector<void *> sets;
    size_t before = allocated;
    while (sets.size() < 8 && (sets.empty() || allocated - before < 400u << 20)) {
        dt_gdn_args *a = new dt_gdn_args();
        a->struct_size = sizeof *a;
        a->q = make(DT_BF16, 0, {T, 16, 128}), a->k = make(DT_BF16, 0, {T, 16, 128});
        a->v = make(DT_BF16, 0, {T, 32, 128}), a->o = make(DT_BF16, 0, {T, 32, 128});
        a->g = make(DT_F32, 1, {T, 32}), a->beta = make(DT_F32, 2, {T, 32});
        a->d_o = make(DT_BF16, 0, {T, 32, 128}), a->dv = make(DT_BF16, 0, {T, 32, 128});
        a->dq = make(DT_BF16, 0, {T, 16, 128}), a->dk = make(DT_BF16, 0, {T, 16, 128});
        a->dg = make(DT_F32, 0, {T, 32}), a->dbeta = make(DT_F32, 0, {T, 32});
        a->seqs = make_seqs(cu);
        a->scale = 0.08838835f;
        a->qk_l2norm = true;
        sets.push_back(a);
    }
    timing t = time_op(exec, bench_find_op(provider, DT_OP_GDN), sets);
    double rows = (double)T * 32;
    report(json, "gdn", T, n, t, rows * 776, rows * 1850);
    for (void *s : sets) {
        dt_gdn_args *a = (dt_gdn_args *)s;
        for (dt_tensor *x :
             {&a->q, &a->k, &a->v, &a->o, &a->g, &a->beta, &a->d_o, &a->dv, &a->dq, &a->dk, &a->dg, &a->dbeta})
            cudaFree(x->data);
        cudaFree((void *)a->seqs.cu_seqlens_device);
        delete a;
    }
}

static void bench_conv(const dt_provider *provider, dt_exec *exec, int64_t T, int n, FILE *json)
{
    if (!bench_find_op(provider, DT_OP_CAUSAL_CONV1D))
        return;
    std::vector<int32_t> cu = boundaries(T, n);
    std::vector<void *> sets;
    size_t before = allocated;
    while (sets.size() < 8 && (sets.empty() || allocated - before < 400u << 20)) {
        dt_causal_conv1d_args *a = new dt_causal_conv1d_args();
        a->struct_size = sizeof *a;
        a->x = make(DT_BF16, 0, {T, 8192}), a->y = make(DT_BF16, 0, {T, 8192});
        a->dy = make(DT_BF16, 0, {T, 8192}), a->dx = make(DT_BF16, 0, {T, 8192});
        a->weight = make(DT_BF16, 0, {8192, 4});
        a->seqs = make_seqs(cu);
        a->silu = true;
        sets.push_back(a);
    }
    double bytes = (double)T * 8192 * 2;
    report(json, "conv (frozen)", T, n, time_op(exec, bench_find_op(provider, DT_OP_CAUSAL_CONV1D), sets), 2 * bytes,
           3 * bytes);
    for (void *s : sets)
        ((dt_causal_conv1d_args *)s)->dweight = make(DT_F32, 0, {8192, 4});
    report(json, "conv", T, n, time_op(exec, bench_find_op(provider, DT_OP_CAUSAL_CONV1D), sets), 2 * bytes, 3 * bytes);
    for (void *s : sets) {
        dt_causal_conv1d_args *a = (dt_causal_conv1d_args *)s;
        for (dt_tensor *x : {&a->x, &a->y, &a->dy, &a->dx, &a->weight, &a->dweight})
            cudaFree(x->data);
        delete a;
    }
}

static void bench_copy(FILE *json)
{
    size_t bytes = (size_t)2 << 30;
    void *a, *b;
    must(cudaMalloc(&a, bytes), "allocate"), must(cudaMalloc(&b, bytes), "allocate");
    cudaEvent_t start, stop;
    cudaEventCreate(&start), cudaEventCreate(&stop);
    std::vector<float> times;
    for (int i = 0; i < 9; i++) {
        float ms;
        cudaEventRecord(start);
        cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice);
        cudaEventRecord(stop);
        must(cudaEventSynchronize(stop), "copy");
        cudaEventElapsedTime(&ms, start, stop);
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    printf("%-16s %.3f TB/s read + written\n", "copy", 2.0 * (double)bytes / times[4] * 1e-9);
    if (json)
        fprintf(json, "{\"op\": \"copy\", \"tb_s\": %.4f}\n", 2.0 * (double)bytes / times[4] * 1e-9);
    cudaFree(a), cudaFree(b);
}

extern "C" void bench_all(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json)
{
    static const struct {
        int64_t T;
        int n;
    } packs[] = {{32768, 195}, {8192, 41}, {512, 3}, {32768, 1}, {32768, 8}};
    if (!only || strcmp(only, "copy") == 0)
        bench_copy(json);
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++) { /* gdn1, gdn2, ...: one of them, for profilers */
        char one[] = {'g', 'd', 'n', (char)('1' + i), 0};
        if (!only || strcmp(only, "gdn") == 0 || strcmp(only, one) == 0)
            bench_gdn(provider, exec, packs[i].T, packs[i].n, json);
    }
    for (int i = 0; i < 3; i++)
        if (!only || strcmp(only, "conv") == 0)
            bench_conv(provider, exec, packs[i].T, packs[i].n, json);
    if (!only || strncmp(only, "attention", 9) == 0)
        bench_attention(provider, exec, only, json);
    if (!only || strncmp(only, "rows", 4) == 0)
        bench_rows(provider, exec, only, json);
}
