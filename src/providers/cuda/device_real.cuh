/* Memory, ordering, marks and recordings of a CUDA device: streams, events and graphs. */
#ifndef DT_CUDA_DEVICE_REAL_CUH
#define DT_CUDA_DEVICE_REAL_CUH
#include "providers/cuda/device.cuh"

static cudaStream_t stream_of(const dt_exec *exec)
{
    return (cudaStream_t)exec->stream;
}

static dt_status device_open(dt_exec *exec, dt_err *err)
{
    cudaStream_t stream = NULL;
    dt_status st = dtp_cuda_status(cudaSetDevice(exec->device_index), "set device", err);
    if (st == DT_OK)
        st = dtp_cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream", err);
    if (st == DT_OK)
        exec->stream = stream;
    return st;
}
static void device_close(dt_exec *exec)
{
    if (exec->stream)
        cudaStreamDestroy(stream_of(exec));
    exec->stream = NULL;
}
static dt_status device_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    (void)exec;
    cudaError_t error = cudaMalloc(out, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&available, &total);
        return dt_fail(err, DT_E_NOMEM, "CUDA: cannot allocate %zu bytes: %zu of %zu are free", bytes, available,
                       total);
    }
    return dtp_cuda_status(error, "allocate", err);
}
static void device_release(dt_exec *exec, void *memory)
{
    (void)exec;
    cudaFree(memory);
}
static dt_status device_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err)
{
    return dtp_cuda_status(cudaMemsetAsync(memory, 0, bytes, stream_of(exec)), "zero", err);
}
/* Ordinary memory of the host: a graph would read or write it whenever it is launched. */
static bool is_ordinary(const void *memory)
{
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, memory) != cudaSuccess ||
           attributes.type == cudaMemoryTypeUnregistered;
}
static dt_status device_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    dt_status st = dtp_cuda_status(cudaStreamIsCapturing(stream_of(exec), &capture), "ask whether it records", err);
    if (st == DT_OK && capture != cudaStreamCaptureStatusNone && (is_ordinary(to) || is_ordinary(from)))
        return dt_fail(err, DT_E_ARG, "CUDA: a copy that touches ordinary host memory is recorded");
    return st == DT_OK
               ? dtp_cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(exec)), "copy", err)
               : st;
}
static dt_status device_synchronize(dt_exec *exec, dt_err *err)
{
    return dtp_cuda_status(cudaStreamSynchronize(stream_of(exec)), "synchronize", err);
}

static dt_status device_host_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    (void)exec;
    return dtp_cuda_status(cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocPortable), "allocate page-locked memory",
                           err);
}
static void device_host_release(dt_exec *exec, void *memory)
{
    (void)exec;
    cudaFreeHost(memory);
}
static dt_status device_memory(dt_exec *exec, uint64_t *free_out, uint64_t *total_out, dt_err *err)
{
    size_t available = 0, total = 0;
    (void)exec;
    dt_status st = dtp_cuda_status(cudaMemGetInfo(&available, &total), "ask for free memory", err);
    if (st == DT_OK)
        *free_out = available, *total_out = total;
    return st;
}

static dt_status device_mark(dt_exec *exec, void **mark, dt_err *err)
{
    cudaEvent_t event = (cudaEvent_t)*mark;
    dt_status st = DT_OK;
    if (!event)
        st = dtp_cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event", err);
    if (st == DT_OK)
        *mark = event;
    return st == DT_OK ? dtp_cuda_status(cudaEventRecord(event, stream_of(exec)), "record an event", err) : st;
}
static dt_status device_wait(dt_exec *exec, void *mark, dt_err *err)
{
    (void)exec;
    return dtp_cuda_status(cudaEventSynchronize((cudaEvent_t)mark), "wait for an event", err);
}
static void device_mark_release(dt_exec *exec, void *mark)
{
    (void)exec;
    cudaEventDestroy((cudaEvent_t)mark);
}

/* Thread-local mode: other threads may use the runtime meanwhile. */
static dt_status device_record_begin(dt_exec *exec, dt_err *err)
{
    return dtp_cuda_status(cudaStreamBeginCapture(stream_of(exec), cudaStreamCaptureModeThreadLocal), "begin a graph",
                           err);
}
static dt_status device_record_end(dt_exec *exec, void **recording_out, dt_err *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t runnable = NULL;
    cudaError_t error = cudaStreamEndCapture(stream_of(exec), &graph);
    if (!recording_out)
        cudaGetLastError(); /* the graph is dropped, and with it what went wrong in it */
    else if (error == cudaSuccess)
        error = cudaGraphInstantiate(&runnable, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (!recording_out)
        return DT_OK;
    if (error == cudaSuccess)
        error = cudaGraphUpload(runnable, stream_of(exec));
    *recording_out = runnable;
    return dtp_cuda_status(error, "make a graph", err);
}
static dt_status device_replay(dt_exec *exec, void *recording, dt_err *err)
{
    return dtp_cuda_status(cudaGraphLaunch((cudaGraphExec_t)recording, stream_of(exec)), "launch a graph", err);
}
static void device_recording_release(dt_exec *exec, void *recording)
{
    cudaStreamSynchronize(stream_of(exec));
    cudaGraphExecDestroy((cudaGraphExec_t)recording);
}
#endif
