/* Host side of one CUDA device: error text, device facts, kernel launches.
 * Under DT_EMULATE launches run on the CPU (emulation.hpp) and the device has a few multiprocessors. */
#ifndef DT_CUDA_DEVICE_CUH
#define DT_CUDA_DEVICE_CUH
#include <deltune/provider.h>

#include "providers/cuda/mm.cuh"

typedef struct dtp_cuda_facts {
    int multiprocessors, capability; /* 90 for 9.0 */
    int shared_bytes;                /* a block may use */
    int isa;                         /* ISA_WGMMA or ISA_MMA */
} dtp_cuda_facts;

/* Facts of the current device of `exec`. DELTUNE_CUDA_ISA=mma turns Hopper's own instructions off: a second opinion. */
void dtp_cuda_device_facts(const dt_exec *exec, dtp_cuda_facts *facts);

/* The map of a bf16 [rows, heads, width] tensor for boxes of 64 columns of `box_heads` heads of `box_rows` rows, with
 * 128-byte swizzle; strides in elements, multiples of 8. */
dt_status dtp_cuda_map_box(tensor_map *map, void *data, int64_t rows, int64_t heads, int64_t width, int64_t row_stride,
                           int64_t head_stride, int box_heads, int box_rows, dt_err *err);
/* For boxes of one head of 64 rows. */
static inline dt_status dtp_cuda_map_rows(tensor_map *map, void *data, int64_t rows, int64_t heads, int64_t width,
                                          int64_t row_stride, int64_t head_stride, dt_err *err)
{
    return dtp_cuda_map_box(map, data, rows, heads, width, row_stride, head_stride, 1, 64, err);
}

static inline int64_t dtp_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t dtp_blocks(int64_t items, int64_t per_block)
{
    return (items + per_block - 1) / per_block;
}
static inline size_t dtp_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Queues a copy in any direction; what the host gives has been read when this returns. */
dt_status dtp_cuda_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err);

#ifdef DT_EMULATE
/* Host code that stands for device work (a library's product, say): queued, recorded and replayed like a launch. It
 * runs later, so it must hold everything by value. */
void dtp_cuda_emulate(const dt_exec *exec, std::function<void()> work);
#define DT_LAUNCH(err, exec, blocks, threads, bytes, kernel, ...)                                                      \
    ((void)(err), (void)(bytes), dtp_cuda_emulate_launch(exec, blocks, threads, kernel, __VA_ARGS__), DT_OK)

template <typename... P, typename... A>
static inline void dtp_cuda_emulate_launch(const dt_exec *exec, int64_t blocks, int threads, void (*kernel)(P...),
                                           A... arguments)
{
    dtp_cuda_emulate(exec, [=]() { emu::launch((unsigned)blocks, threads, [=]() { kernel(arguments...); }); });
}
#else
dt_status dtp_cuda_status(cudaError_t error, const char *what, dt_err *err);

/* Queues kernel<<<blocks, threads, bytes>>>(...) on the stream of `exec`. */
#define DT_LAUNCH(err, exec, blocks, threads, bytes, kernel, ...)                                                      \
    dtp_cuda_launch(err, exec, blocks, threads, bytes, #kernel, kernel, __VA_ARGS__)

template <typename... P, typename... A>
static inline dt_status dtp_cuda_launch(dt_err *err, dt_exec *exec, int64_t blocks, int threads, int bytes,
                                        const char *name, void (*kernel)(P...), A... arguments)
{
    if (blocks <= 0)
        return DT_OK;
    if (bytes > 48 * 1024) {
        cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess)
            return dtp_cuda_status(error, name, err);
    }
    kernel<<<(unsigned)blocks, (unsigned)threads, (size_t)bytes, (cudaStream_t)exec->stream>>>(arguments...);
    return dtp_cuda_status(cudaGetLastError(), name, err);
}
#endif
#endif
