/* Timings of the row-wise operators beside their floors: the bytes they must move at copy speed, or the time of a node
 * of a graph. At 512 rows the buffers of all calls together fit into the L2, as those of a real step do. */
#include "providers/cuda/check/bench_tools.cuh"
#include <deltune/op/activation.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/embedding.h>
#include <deltune/op/gdn.h>
#include <deltune/op/optimizer.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <deltune/op/rope.h>

#include <functional>

#include "providers/cuda/check/bench.h"

static const double copy_speed = 4.26e6, node = 2.5; /* bytes a microsecond; microseconds */

struct row_bench {
    const dt_provider *provider;
    dt_exec *exec;
    const char *only; /* "rows/q norm": those whose name starts so; NULL: all */
    FILE *json;
    int64_t T;
    std::vector<void *> memory; /* of the calls being timed */
};
static dt_tensor tensor(row_bench &b, dt_dtype dtype, std::vector<int64_t> shape)
{
    dt_tensor t = make(dtype, 0, shape);
    b.memory.push_back(t.data);
    return t;
}
/* Columns [first, first + heads * width) of a [T, pitch] buffer as [T, heads, width], heads `step` columns apart. */
static dt_tensor view(const dt_tensor &buffer, int64_t first, int64_t heads, int64_t width, int64_t step)
{
    dt_tensor t = dt_tensor_3d((uint16_t *)buffer.data + first, DT_BF16, buffer.shape[0], heads, width);
    t.stride[0] = buffer.shape[1];
    t.stride[1] = step;
    return t;
}
static dt_tensor integers(row_bench &b, int64_t n, int64_t below)
{
    std::vector<int32_t> values;
    for (int64_t i = 0; i < n; i++)
        values.push_back((int32_t)((uint64_t)i * 2654435761u % (uint64_t)below));
    void *data = NULL;
    must(cudaMalloc(&data, (size_t)n * 4), "allocate");
    must(cudaMemcpy(data, values.data(), (size_t)n * 4, cudaMemcpyHostToDevice), "upload");
    b.memory.push_back(data);
    return dt_tensor_1d(data, DT_I32, n);
}

/* Microseconds of one of `calls` calls in a graph. */
static double time_graph(dt_exec *exec, int calls, const std::function<void(int)> &call)
{
    cudaStream_t stream = (cudaStream_t)exec->stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaDeviceSynchronize(), "fill");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++)
        call(i);
    must(cudaStreamEndCapture(stream, &graph), "end capture");
    must(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    cudaEvent_t start, stop;
    cudaEventCreate(&start), cudaEventCreate(&stop);
    std::vector<float> times;
    for (int i = 0; i < 14; i++) {
        float ms;
        cudaEventRecord(start, stream);
        must(cudaGraphLaunch(replay, stream), "replay");
        cudaEventRecord(stop, stream);
        must(cudaEventSynchronize(stop), "run");
        cudaEventElapsedTime(&ms, start, stop);
        if (i >= 3)
            times.push_back(1000 * ms / (float)calls);
    }
    std::sort(times.begin(), times.end());
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
    cudaEventDestroy(start), cudaEventDestroy(stop);
    return times[times.size() / 2];
}
static void row(row_bench &b, const char *name, const char *direction, double bytes, double us)
{
    double floor = bytes / copy_speed + node;
    printf("%-22s %-9s %6lld rows %9.2f MB  floor %8.2f us  measured %8.2f us  %4.2f TB/s\n", name, direction,
           (long long)b.T, bytes * 1e-6, floor, us, bytes / us * 1e-6);
    if (b.json)
        fprintf(b.json, "{\"op\": \"%s\", \"direction\": \"%s\", \"rows\": %lld, \"floor_us\": %.3f, \"us\": %.3f}\n",
                name, direction, (long long)b.T, floor, us);
}
/* Times calls made by `make_call` (enough of them that the buffers exceed the L2, at most 16) and frees all. bytes:
 * moved by forward and by backward; 0: not timed. */
template <class ARGS>
static void bench_op(row_bench &b, const char *name, dt_op op, double forward, double backward,
                     const std::function<void(ARGS &)> &make_call)
{
    const dt_op_set *set = bench_find_op(b.provider, op);
    if (!set || (b.only && strncmp(b.only, name, strlen(b.only)) != 0))
        return;
    std::vector<ARGS> sets;
    size_t before = allocated, work = 1;
    while (sets.size() < 16 && (sets.size() < 4 || allocated - before < 300u << 20)) {
        ARGS a;
        memset(&a, 0, sizeof a);
        a.struct_size = sizeof a;
        make_call(a);
        sets.push_back(a);
    }
    if (set->workspace_bytes)
        work += std::max(set->workspace_bytes(b.exec, &sets[0], false), set->workspace_bytes(b.exec, &sets[0], true));
    void *workspace = NULL;
    must(cudaMalloc(&workspace, work), "allocate workspace");
    for (int back = 0; back < 2; back++) {
        if ((back ? backward : forward) == 0)
            continue;
        double us = time_graph(b.exec, (int)sets.size(), [&](int i) {
            dt_err err = {};
            dt_status st = back ? set->backward(b.exec, &sets[(size_t)i], NULL, workspace, &err)
                                : set->forward(b.exec, &sets[(size_t)i], NULL, workspace, &err);
            if (st != DT_OK)
                printf("call failed: %s\n", err.text), exit(1);
        });
        row(b, name, back ? "backward" : "forward", back ? backward : forward, us);
    }
    cudaFree(workspace);
    for (void *m : b.memory)
        cudaFree(m);
    b.memory.clear();
}

/* The buffers of the 4B model: q (with its gate) | k | v of a full layer; qkv | z | b | a of a linear layer. */
enum { HIDDEN = 2560, MLP = 9216, FULL = 10240, LINEAR = 12352, VOCABULARY = 248320 };

static void bench_norms(row_bench &b)
{
    double T = (double)b.T, hidden = T * HIDDEN * 2;
    for (int weights = 0; weights < 2; weights++)
        bench_op<dt_rms_norm_args>(b, weights ? "rms_norm, weights" : "rms_norm", DT_OP_RMS_NORM,
                                   weights ? 0 : 2 * hidden, 4 * hidden, [&](dt_rms_norm_args &a) {
                                       a.x = tensor(b, DT_BF16, {b.T, HIDDEN}), a.y = tensor(b, DT_BF16, {b.T, HIDDEN});
                                       a.dy = tensor(b, DT_BF16, {b.T, HIDDEN}), a.dx = a.dy;
                                       a.residual_grad = tensor(b, DT_BF16, {b.T, HIDDEN});
                                       a.weight = tensor(b, DT_BF16, {HIDDEN});
                                       if (weights)
                                           a.dweight = tensor(b, DT_F32, {HIDDEN});
                                       a.T = b.T, a.eps = 1e-6f, a.zero_centered = true;
                                   });
    for (int heads : {16, 4})
        bench_op<dt_rms_norm_args>(b, heads == 16 ? "q norm" : "k norm", DT_OP_RMS_NORM, 2 * T * heads * 512,
                                   3 * T * heads * 512, [&](dt_rms_norm_args &a) {
                                       dt_tensor mix = tensor(b, DT_BF16, {b.T, FULL});
                                       int64_t step = heads == 16 ? 512 : 256, first = heads == 16 ? 0 : 8192;
                                       a.x = view(mix, first, heads, 256, step), a.dx = a.x;
                                       a.y = tensor(b, DT_BF16, {b.T, heads, 256}), a.dy = a.y;
                                       a.weight = tensor(b, DT_BF16, {256});
                                       a.T = b.T, a.eps = 1e-6f, a.zero_centered = true;
                                   });
    bench_op<dt_rms_norm_gated_args>(b, "rms_norm_gated", DT_OP_RMS_NORM_GATED, 3 * T * 8192, 5 * T * 8192,
                                     [&](dt_rms_norm_gated_args &a) {
                                         dt_tensor mix = tensor(b, DT_BF16, {b.T, LINEAR});
                                         a.z = view(mix, 8192, 32, 128, 128), a.dz = a.z;
                                         a.x = tensor(b, DT_BF16, {b.T, 32, 128});
                                         a.y = tensor(b, DT_BF16, {b.T, 32, 128});
                                         a.dy = tensor(b, DT_BF16, {b.T, 32, 128}), a.dx = a.dy;
                                         a.weight = tensor(b, DT_F32, {128});
                                         a.T = b.T, a.eps = 1e-6f;
                                     });
}
static void bench_gates(row_bench &b)
{
    double T = (double)b.T;
    bench_op<dt_gate_args>(b, "swiglu", DT_OP_SWIGLU, 3 * T * MLP * 2, 5 * T * MLP * 2, [&](dt_gate_args &a) {
        dt_tensor both = tensor(b, DT_BF16, {b.T, 2 * MLP});
        a.gate = a.x = dt_tensor_2d(both.data, DT_BF16, b.T, MLP);
        a.gate.stride[0] = a.x.stride[0] = 2 * MLP;
        a.x.data = (uint16_t *)both.data + MLP;
        a.dx = a.x, a.dgate = a.gate;
        a.y = tensor(b, DT_BF16, {b.T, MLP}), a.dy = a.y;
        a.T = b.T;
    });
    bench_op<dt_gate_args>(b, "sigmoid_gate", DT_OP_SIGMOID_GATE, 3 * T * 8192, 5 * T * 8192, [&](dt_gate_args &a) {
        dt_tensor mix = tensor(b, DT_BF16, {b.T, FULL});
        a.gate = view(mix, 256, 16, 256, 512), a.dgate = a.gate;
        a.x = tensor(b, DT_BF16, {b.T, 16, 256}), a.dx = a.x;
        a.y = tensor(b, DT_BF16, {b.T, 16, 256}), a.dy = a.y;
        a.T = b.T;
    });
    bench_op<dt_gdn_gates_args>(b, "gdn_gates", DT_OP_GDN_GATES, T * 32 * 12, T * 32 * 16, [&](dt_gdn_gates_args &a) {
        dt_tensor mix = tensor(b, DT_BF16, {b.T, LINEAR}), part = dt_tensor_2d(mix.data, DT_BF16, b.T, 32);
        part.stride[0] = LINEAR;
        a.b = a.a = part;
        a.b.data = (uint16_t *)mix.data + 12288, a.a.data = (uint16_t *)mix.data + 12320;
        a.da = a.a, a.db = a.b;
        a.A_log = tensor(b, DT_F32, {32}), a.dt_bias = tensor(b, DT_F32, {32});
        a.g = tensor(b, DT_F32, {b.T, 32}), a.beta = tensor(b, DT_F32, {b.T, 32});
        a.dg = tensor(b, DT_F32, {b.T, 32}), a.dbeta = tensor(b, DT_F32, {b.T, 32});
        a.T = b.T;
    });
}
static void bench_positions(row_bench &b)
{
    double T = (double)b.T, hidden = T * HIDDEN * 2;
    bench_op<dt_rope_args>(b, "rope, q in place", DT_OP_ROPE, 2 * T * 16 * 128, 0, [&](dt_rope_args &a) {
        a.x = a.y = tensor(b, DT_BF16, {b.T, 16, 256});
        a.positions = integers(b, b.T, b.T);
        a.T = b.T, a.theta = 1e7f, a.rotary_dim = 64;
    });
    bench_op<dt_rope_args>(b, "rope, q", DT_OP_ROPE, 2 * T * 16 * 512, 0, [&](dt_rope_args &a) {
        a.x = tensor(b, DT_BF16, {b.T, 16, 256}), a.y = tensor(b, DT_BF16, {b.T, 16, 256});
        a.positions = integers(b, b.T, b.T);
        a.T = b.T, a.theta = 1e7f, a.rotary_dim = 64;
    });
    if (b.only && strncmp(b.only, "embedding", 9) != 0)
        return;
    dt_tensor weight = make(DT_BF16, 0, {VOCABULARY, HIDDEN}), dweight = make(DT_F32, 0, {VOCABULARY, HIDDEN});
    for (int64_t ids : {(int64_t)VOCABULARY, b.T / 16}) /* all different; each 16 times */
        bench_op<dt_embedding_args>(b, ids == VOCABULARY ? "embedding" : "embedding, repeats", DT_OP_EMBEDDING,
                                    2 * hidden, hidden + 4.0 * hidden * (ids == VOCABULARY ? 1 : 1.0 / 16),
                                    [&](dt_embedding_args &a) {
                                        a.ids = integers(b, b.T, ids);
                                        a.weight = weight, a.dweight = dweight;
                                        a.y = a.dy = tensor(b, DT_BF16, {b.T, HIDDEN});
                                        a.T = b.T;
                                    });
    cudaFree(weight.data), cudaFree(dweight.data);
}
static void bench_optimizer(row_bench &b, int64_t n)
{
    std::vector<dt_param_segment> segments;
    for (int64_t i = 0; i < 496; i++)
        segments.push_back({i * (n / 496), i < 495 ? n / 496 : n - 495 * (n / 496), 0.1f});
    dt_param_segment *device = NULL;
    dt_grad_norm_result *result = NULL;
    must(cudaMalloc((void **)&device, segments.size() * sizeof *device), "allocate");
    must(cudaMalloc((void **)&result, sizeof *result), "allocate");
    must(cudaMemcpy(device, segments.data(), segments.size() * sizeof *device, cudaMemcpyHostToDevice), "upload");
    b.T = n;
    bench_op<dt_grad_norm_args>(b, "grad_norm", DT_OP_GRAD_NORM, 4.0 * (double)n, 0, [&](dt_grad_norm_args &a) {
        a.grad = tensor(b, DT_F32, {n});
        a.segments = segments.data(), a.segments_device = device, a.n_segments = 496, a.result_device = result;
    });
    bench_op<dt_adamw_args>(b, "adamw", DT_OP_ADAMW, 28.0 * (double)n, 0, [&](dt_adamw_args &a) {
        a.param = tensor(b, DT_F32, {n}), a.grad = tensor(b, DT_F32, {n});
        a.m = tensor(b, DT_F32, {n}), a.v = tensor(b, DT_F32, {n});
        a.segments = segments.data(), a.segments_device = device, a.n_segments = 496;
        a.lr = 1e-4f, a.beta1 = 0.9f, a.beta2 = 0.999f, a.eps = 1e-8f, a.grad_scale = 1.0f, a.step = 10;
    });
    cudaFree(device), cudaFree(result);
}
static void bench_decode(row_bench &b)
{
    double states = (double)b.T * 32 * 128 * 128 * 8;
    bench_op<dt_gdn_step_args>(b, "gdn_step", DT_OP_GDN_STEP, states, 0, [&](dt_gdn_step_args &a) {
        a.q = tensor(b, DT_BF16, {b.T, 16, 128}), a.k = tensor(b, DT_BF16, {b.T, 16, 128});
        a.v = tensor(b, DT_BF16, {b.T, 32, 128}), a.o = tensor(b, DT_BF16, {b.T, 32, 128});
        a.g = tensor(b, DT_F32, {b.T, 32}), a.beta = tensor(b, DT_F32, {b.T, 32});
        a.state = tensor(b, DT_F32, {b.T, 32, 128, 128});
        a.scale = 0.088f, a.qk_l2norm = true;
    });
    bench_op<dt_causal_conv1d_step_args>(
        b, "conv step", DT_OP_CAUSAL_CONV1D_STEP, (double)b.T * 8192 * 28, 0, [&](dt_causal_conv1d_step_args &a) {
            a.x = tensor(b, DT_BF16, {b.T, 8192}), a.y = tensor(b, DT_BF16, {b.T, 8192});
            a.weight = tensor(b, DT_BF16, {8192, 4});
            a.state = tensor(b, DT_BF16, {b.T, 8192, 4});
            a.silu = true;
        });
}

extern "C" void bench_rows(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json)
{
    row_bench b = {provider, exec, only && strncmp(only, "rows/", 5) == 0 ? only + 5 : NULL, json, 0, {}};
    for (int64_t T : {512, 8192}) {
        b.T = T;
        bench_norms(b);
        bench_gates(b);
        bench_positions(b);
    }
    bench_optimizer(b, 16 << 20);
    bench_optimizer(b, 400 << 20);
    for (int64_t n : {1, 64}) {
        b.T = n;
        bench_decode(b);
    }
}
