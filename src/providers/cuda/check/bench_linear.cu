/* Times of linear and cross_entropy at the shapes of the 4B model, whole calls and the pieces they are made of, and
 * what they add up to over a step (24 linear-attention and 8 full-attention layers).
 *
 *     cuda_linear_bench [ROWS...]        default 512 2048 8192
 * Each line is the median over replays of a CUDA graph of several calls over rotating weights. */
#include <algorithm>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "providers/cuda/cross_entropy.cu"
#include "providers/cuda/gemm.cu"
#include "providers/cuda/linear.cu"

enum { COPIES = 3, CALLS = 6, REPLAYS = 7, RANK = 8 };

void dtp_cuda_device_facts(const dt_exec *exec, dtp_cuda_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    cudaDeviceGetAttribute(&facts->multiprocessors, cudaDevAttrMultiProcessorCount, exec->device_index);
}
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
static dt_err error_text;
static void must_run(dt_status st)
{
    if (st != DT_OK) {
        printf("%s\n", error_text.text);
        exit(1);
    }
}

__global__ void fill(void *out, int64_t n, int is_float, float scale, unsigned seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        unsigned long long x = (unsigned long long)i * 0x9E3779B97F4A7C15ull + seed;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        float u1 = ((unsigned)x + 1.0f) * 2.3283064e-10f, u2 = (unsigned)(x >> 32) * 2.3283064e-10f;
        store_element(out, is_float, i, scale * sqrtf(-2.0f * logf(u1)) * cospif(2.0f * u2));
    }
}
static std::vector<void *> memory;
static void *allocate(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes), "allocate");
    memory.push_back(p);
    return p;
}
static dt_tensor make(dt_dtype dtype, int64_t rows, int64_t columns, float scale)
{
    static unsigned seed = 1;
    dt_tensor t = dt_tensor_2d(NULL, dtype, rows, columns);
    t.data = allocate((size_t)(rows * columns) * dt_dtype_size(dtype));
    fill<<<1056, 512>>>(t.data, rows * columns, dtype == DT_F32, scale, seed += 7);
    return t;
}
static void release()
{
    cudaDeviceSynchronize();
    for (void *p : memory)
        cudaFree(p);
    memory.clear();
}

/* Microseconds of run(i), i = 0 .. CALLS - 1, each. */
static double measure(dt_exec *exec, const std::function<void(int)> &run, int calls)
{
    cudaStream_t stream = (cudaStream_t)exec->stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaEvent_t from, to;
    run(0); /* algorithms are chosen, modules loaded */
    must(cudaStreamSynchronize(stream), "first run");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++)
        run(i);
    must(cudaStreamEndCapture(stream, &graph), "end capture");
    must(cudaGraphInstantiate(&instance, graph, 0), "instantiate");
    cudaEventCreate(&from), cudaEventCreate(&to);
    std::vector<float> times;
    for (int i = 0; i <= REPLAYS; i++) {
        float ms;
        cudaEventRecord(from, stream);
        must(cudaGraphLaunch(instance, stream), "launch");
        cudaEventRecord(to, stream);
        must(cudaEventSynchronize(to), "run");
        cudaEventElapsedTime(&ms, from, to);
        if (i)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    cudaGraphExecDestroy(instance), cudaGraphDestroy(graph), cudaEventDestroy(from), cudaEventDestroy(to);
    return 1e3 * times[REPLAYS / 2] / calls;
}

struct module {
    const char *name;
    int64_t in, out[4];
    int parts, count; /* calls a step */
    bool residual;
};
static const module modules[] = {
    {"in_proj", 2560, {8192, 4096, 32, 32}, 4, 24, false},
    {"qkv", 2560, {8192, 1024, 1024}, 3, 8, false},
    {"out_proj", 4096, {2560}, 1, 32, true},
    {"gate_up", 2560, {9216, 9216}, 2, 32, false},
    {"down", 9216, {2560}, 1, 32, true},
};
static dt_tensor roomy(int64_t rows, int64_t columns, int64_t extension, float scale)
{
    return dt_tensor_slice(make(DT_BF16, rows, columns + extension, scale), 1, 0, columns);
}
static dt_linear_args arguments(const module &m, int64_t T, int64_t extension)
{
    static const dt_step_values *values;
    dt_linear_args a = {};
    int64_t total = 0, at = 0;
    for (int j = 0; j < m.parts; j++)
        total += m.out[j];
    if (!values) {
        dt_step_values v = {};
        v.seed = 42, v.step = 3;
        void *p;
        must(cudaMalloc(&p, sizeof v), "values");
        must(cudaMemcpy(p, &v, sizeof v, cudaMemcpyHostToDevice), "values");
        values = (const dt_step_values *)p;
    }
    a.struct_size = sizeof a;
    a.x = roomy(T, m.in, extension, 1), a.dx = roomy(T, m.in, extension, 1), a.extension = extension;
    a.T = T, a.n_parts = m.parts, a.lora_scale = 4, a.dropout = 0.05f, a.values = values;
    a.lora_a = make(DT_F32, RANK * m.parts, m.in, 0.02f), a.dlora_a = make(DT_F32, RANK * m.parts, m.in, 0.02f);
    dt_tensor w = roomy(total, m.in, extension, 0.02f), y = make(DT_BF16, T, total, 1), dy = make(DT_BF16, T, total, 1),
              c;
    if (m.residual)
        c = make(DT_BF16, T, total, 1);
    for (int j = 0; j < m.parts; at += m.out[j++]) {
        dt_linear_part *p = &a.part[j];
        p->weight = dt_tensor_slice(w, 0, at, at + m.out[j]);
        p->y = dt_tensor_slice(y, 1, at, at + m.out[j]);
        p->dy = dt_tensor_slice(dy, 1, at, at + m.out[j]);
        if (m.residual)
            p->c = c;
        p->lora_b = make(DT_F32, m.out[j], RANK, 0.02f), p->dlora_b = make(DT_F32, m.out[j], RANK, 0.02f);
        p->lora_row = j * RANK;
    }
    return a;
}

struct sums {
    double forward, backward, base;
};
static void bench_module(dt_exec *exec, const module &m, int64_t T, int64_t extension, sums *step)
{
    std::vector<dt_linear_args> args, bare;
    for (int i = 0; i < COPIES; i++) {
        args.push_back(arguments(m, T, extension));
        bare.push_back(args.back());
        bare.back().lora_a = dt_tensor();
        for (int j = 0; j < m.parts; j++)
            bare.back().part[j].lora_b = dt_tensor();
    }
    void *workspace = allocate(linear_workspace_bytes(exec, &args[0], true)),
         *saved = allocate(linear_saved_bytes(exec, &args[0]));
    must(cudaDeviceSynchronize(), "fill");
    auto call = [&](int i) {
        linear_call c = linear_plan(&args[(size_t)(i % COPIES)], workspace);
        c.exec = exec, c.err = &error_text;
        return c;
    };
    auto line = [&](const char *what, const std::function<dt_status(int)> &run) {
        double us = measure(
            exec, [&](int i) { must_run(run(i)); }, CALLS);
        printf("  %s %.1f", what, us);
        return us;
    };
    printf("%-9s T %5lld%s:", m.name, (long long)T, extension ? " extended" : "");
    double base = line("base y", [&](int i) {
        return linear_forward(exec, &bare[(size_t)(i % COPIES)], NULL, workspace, &error_text);
    });
    double base_back = line("base dx", [&](int i) {
        return linear_backward(exec, &bare[(size_t)(i % COPIES)], NULL, workspace, &error_text);
    });
    double forward = line("| forward", [&](int i) {
        return linear_forward(exec, &args[(size_t)(i % COPIES)], saved, workspace, &error_text);
    });
    double backward = line("backward", [&](int i) {
        return linear_backward(exec, &args[(size_t)(i % COPIES)], saved, workspace, &error_text);
    });
    line("| U, B", [&](int i) {
        linear_call c = call(i);
        return linear_inner(&c, saved);
    });
    line("dU, dA, dB, dx", [&](int i) {
        linear_call c = call(i);
        linear_use_saved(&c, saved);
        if (linear_low_behind(&c)) { /* dU comes out of the products */
            c.du = linear_behind(&c.args->dx);
            return linear_joint_gradients(&c);
        }
        return linear_stream_gradients(&c);
    });
    printf(" us\n");
    step->forward += forward * m.count, step->backward += backward * m.count;
    step->base += (base + base_back) * m.count;
    release();
}
/* `every`: one row in so many has a target. */
static void bench_head(dt_exec *exec, int64_t T, int every)
{
    const int64_t H = 2560, V = 248320;
    dt_cross_entropy_args a = {};
    a.struct_size = sizeof a;
    a.h = make(DT_BF16, T, H, 1), a.weight = make(DT_BF16, V, H, 0.02f), a.dh = make(DT_BF16, T, H, 1);
    std::vector<int32_t> target((size_t)T);
    for (int64_t t = 0; t < T; t++)
        target[(size_t)t] = t % every ? -1 : (int32_t)(t * 7919 % V);
    a.target = dt_tensor_1d(allocate((size_t)T * 4), DT_I32, T);
    must(cudaMemcpy(a.target.data, target.data(), (size_t)T * 4, cudaMemcpyHostToDevice), "targets");
    a.T = T, a.grad_scale = 1.0f / (float)T;
    a.result_device = (dt_cross_entropy_result *)allocate(sizeof *a.result_device);
    void *workspace = allocate(cross_entropy_workspace_bytes(exec, &a, false));
    double all = measure(
        exec, [&](int) { must_run(cross_entropy_forward(exec, &a, NULL, workspace, &error_text)); }, 1);
    cross_entropy_call c = cross_entropy_plan(&a, workspace);
    c.exec = exec, c.err = &error_text;
    cross_entropy_bind(&c);
    double row = measure(
        exec, [&](int) { must_run(cross_entropy_launch_rows(&c, 0, c.chunk)); }, 2);
    double list = measure(
        exec,
        [&](int) {
            must_run(DT_LAUNCH(&error_text, exec, 1, CROSS_ENTROPY_THREADS, 1024, cross_entropy_list_kernel, c.p));
        },
        4);
    double sum = measure(
        exec,
        [&](int) {
            must_run(DT_LAUNCH(&error_text, exec, 1, CROSS_ENTROPY_THREADS, CROSS_ENTROPY_THREADS * 12,
                               cross_entropy_sum_kernel, c.p));
        },
        4);
    dt_cross_entropy_result r, eager;
    must(cudaMemcpy(&r, a.result_device, sizeof r, cudaMemcpyDeviceToHost), "result");
    must_run(cross_entropy_forward(exec, &a, NULL, workspace, &error_text));
    must(cudaStreamSynchronize((cudaStream_t)exec->stream), "eager");
    must(cudaMemcpy(&eager, a.result_device, sizeof eager, cudaMemcpyDeviceToHost), "result");
    printf("head      T %5lld: %.1f us; rows of a chunk of %lld %.1f (%.2f TB/s read + written), list %.1f, sums %.1f; "
           "loss %.4f, %lld targets, %s outside of a graph\n",
           (long long)T, all, (long long)c.chunk, row, 4.0 * (double)(c.chunk * V) / row * 1e-6, list, sum,
           r.loss / (double)r.targets, (long long)r.targets, memcmp(&r, &eager, sizeof r) ? "DIFFERENT" : "the same");
    release();
}

int main(int argc, char **argv)
{
    char why[512];
    dt_exec exec = {};
    exec.device = DT_DEVICE_CUDA;
    cudaStream_t stream;
    std::vector<int64_t> rows;
    for (int i = 1; i < argc; i++)
        rows.push_back(atoll(argv[i]));
    if (rows.empty())
        rows = {512, 2048, 8192};
    if (!dtp_gemm_probe(0, why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    exec.stream = stream;
    for (int64_t T : rows) {
        for (int64_t extension : {0, 64}) {
            sums step = {};
            for (const module &m : modules)
                bench_module(&exec, m, T, extension, &step);
            printf("step      T %5lld%s: linear %.2f ms (products without adapters %.2f)\n", (long long)T,
                   extension ? " extended" : "", (step.forward + step.backward) * 1e-3, step.base * 1e-3);
        }
        bench_head(&exec, T, 1);
        if (T > 1024)
            bench_head(&exec, T, 2);
    }
    return 0;
}
