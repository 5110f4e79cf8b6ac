/* The provider table of libdeltune-cuda.so, and memory and ordering of a CUDA device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/cuda/device.cuh"

#ifndef DT_VERSION
#define DT_VERSION "0.1.0"
#endif

static int chosen_isa(int capability)
{
    const char *isa = getenv("DELTUNE_CUDA_ISA");
    return capability == 90 && !(isa && strcmp(isa, "mma") == 0) ? ISA_WGMMA : ISA_MMA;
}

#ifdef DT_EMULATE
void dtp_cuda_device_facts(const dt_exec *exec, dtp_cuda_facts *facts)
{
    (void)exec;
    /* tests vary both: few blocks make long chains, a seed delays warps at random */
    const char *blocks = getenv("DELTUNE_EMULATED_BLOCKS"), *seed = getenv("DELTUNE_EMULATED_SEED");
    emu::seed = seed ? (unsigned)atoi(seed) : 0;
    *facts = {blocks ? atoi(blocks) : 3, 90, 232448, chosen_isa(90)};
}
dt_status dtp_cuda_map_box(tensor_map *map, void *data, int64_t rows, int64_t heads, int64_t width, int64_t row_stride,
                           int64_t head_stride, int box_heads, int box_rows, dt_err *err)
{
    *map = {(const uint16_t *)data, width, heads, rows, head_stride, row_stride, box_heads, box_rows};
    (void)err;
    return DT_OK;
}
static int probe(int device_index, char *why, size_t why_size)
{
    (void)device_index, (void)why, (void)why_size;
    return 1;
}
#include "providers/cuda/device_emulated.hpp"
#else
dt_status dtp_cuda_status(cudaError_t error, const char *what, dt_err *err)
{
    if (error == cudaSuccess)
        return DT_OK;
    return dt_fail(err, error == cudaErrorMemoryAllocation ? DT_E_NOMEM : DT_E_INTERNAL, "CUDA: %s: %s", what,
                   cudaGetErrorString(error));
}
void dtp_cuda_device_facts(const dt_exec *exec, dtp_cuda_facts *facts)
{
    int major = 0, minor = 0, device = exec->device_index;
    cudaDeviceGetAttribute(&facts->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    cudaDeviceGetAttribute(&facts->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    facts->capability = 10 * major + minor;
    facts->isa = chosen_isa(facts->capability);
}

dt_status dtp_cuda_map_box(tensor_map *map, void *data, int64_t rows, int64_t heads, int64_t width, int64_t row_stride,
                           int64_t head_stride, int box_heads, int box_rows, dt_err *err)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || !encode)
        return dt_fail(err, DT_E_UNAVAILABLE,
                       "CUDA: the driver has no cuTensorMapEncodeTiled: update it to 525 or later");
    cuuint64_t sizes[3] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)rows};
    cuuint64_t strides[2] = {(cuuint64_t)head_stride * 2, (cuuint64_t)row_stride * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows}, steps[3] = {1, 1, 1};
    CUresult result = ((encode_fn)encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box, steps,
                                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return dt_fail(err, DT_E_INTERNAL, "CUDA: tensor map of %lld x %lld x %lld, strides %lld, %lld: error %d",
                       (long long)rows, (long long)heads, (long long)width, (long long)row_stride,
                       (long long)head_stride, (int)result);
    return DT_OK;
}

__global__ void probe_kernel(int *out)
{
    *out = 41 + (int)gridDim.x;
}

/* Runs a kernel: a driver that is too old, or a card this file has no code for, shows only there. */
static int probe(int device_index, char *why, size_t why_size)
{
    int count = 0, answer = 0, *memory = NULL;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && device_index >= count) {
        snprintf(why, why_size, "CUDA device %d asked for, %d present", device_index, count);
        return 0;
    }
    if (error == cudaSuccess)
        error = cudaSetDevice(device_index);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&memory, sizeof answer);
    if (error == cudaSuccess) {
        probe_kernel<<<1, 1>>>(memory);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpy(&answer, memory, sizeof answer, cudaMemcpyDeviceToHost);
    if (error == cudaErrorInsufficientDriver) { /* said of a driver that is not there, too */
        int driver = 0;
        cudaDriverGetVersion(&driver);
        if (driver == 0)
            snprintf(why, why_size, "no NVIDIA driver here: install one, or make it visible in this container");
        else
            snprintf(why, why_size, "the driver is for CUDA %d.%d, this plug-in for %d.%d: update the driver",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        return 0;
    }
    cudaFree(memory);
    if (error != cudaSuccess || answer != 42) {
        snprintf(why, why_size, "CUDA device %d: %s", device_index,
                 error != cudaSuccess ? cudaGetErrorString(error) : "a test kernel gave a wrong answer");
        return 0;
    }
    return 1;
}
#include "providers/cuda/device_real.cuh"
#endif

dt_status dtp_cuda_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    return device_copy(exec, to, from, bytes, err);
}

static const dt_device_ops device_ops = {sizeof(dt_device_ops), device_open,         device_close,
                                         device_alloc,          device_release,      device_zero,
                                         device_copy,           device_synchronize,  device_host_alloc,
                                         device_host_release,   device_memory,       device_mark,
                                         device_wait,           device_mark_release, device_record_begin,
                                         device_record_end,     device_replay,       device_recording_release};

extern "C" {
extern const dt_op_set dtp_cuda_adamw, dtp_cuda_attention, dtp_cuda_causal_conv1d, dtp_cuda_causal_conv1d_step,
    dtp_cuda_cross_entropy, dtp_cuda_embedding, dtp_cuda_gdn, dtp_cuda_gdn_gates, dtp_cuda_gdn_step, dtp_cuda_grad_norm,
    dtp_cuda_linear, dtp_cuda_rms_norm, dtp_cuda_rms_norm_gated, dtp_cuda_rope, dtp_cuda_sigmoid_gate, dtp_cuda_swiglu;
static const dt_op_set *const ops[] = {&dtp_cuda_embedding,    &dtp_cuda_rms_norm,      &dtp_cuda_rms_norm_gated,
                                       &dtp_cuda_rope,         &dtp_cuda_attention,     &dtp_cuda_sigmoid_gate,
                                       &dtp_cuda_swiglu,       &dtp_cuda_causal_conv1d, &dtp_cuda_causal_conv1d_step,
                                       &dtp_cuda_gdn_gates,    &dtp_cuda_gdn,           &dtp_cuda_gdn_step,
                                       &dtp_cuda_adamw,        &dtp_cuda_grad_norm,     &dtp_cuda_linear,
                                       &dtp_cuda_cross_entropy};

static const dt_provider provider = {DT_PROVIDER_ABI,
                                     sizeof(dt_provider),
                                     "cuda",
                                     DT_VERSION,
                                     __DATE__ " " __TIME__,
                                     DT_DEVICE_CUDA,
                                     100,
                                     probe,
                                     &device_ops,
                                     ops,
                                     sizeof ops / sizeof *ops,
                                     DT_PROVIDER_KEEP_MAPPED};

DT_API const dt_provider *dt_provider_entry(void)
{
    return &provider;
}
}
