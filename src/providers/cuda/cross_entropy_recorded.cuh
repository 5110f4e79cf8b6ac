/* Chunks of a recorded step that run only when the list of target rows reaches them: each is the body of a condition,
 * set on the device from the number of targets of the pack at hand. Part of cross_entropy.cu; needs CUDA 13's runtime,
 * with an older one all chunks run. */
#ifndef DT_CUDA_CROSS_ENTROPY_RECORDED_CUH
#define DT_CUDA_CROSS_ENTROPY_RECORDED_CUH

#if !defined(DT_EMULATE) && CUDART_VERSION >= 13000
__global__ void cross_entropy_condition_kernel(cudaGraphConditionalHandle handle, const int32_t *count, int32_t first)
{
    cudaGraphSetConditional(handle, first < *count);
}

/* Adds the condition behind what `stream` has recorded. Returns its body, NULL where there are no conditions. */
static cudaGraph_t cross_entropy_add_condition(const cross_entropy_call *c, int64_t first, cudaGraphNode_t *node)
{
    cudaStream_t stream = (cudaStream_t)c->exec->stream;
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    const cudaGraphNode_t *behind;
    const cudaGraphEdgeData *edges;
    size_t n;
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.type = cudaGraphCondTypeIf;
    p.conditional.size = 1;
    if (cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL) != cudaSuccess ||
        status != cudaStreamCaptureStatusActive ||
        cudaGraphConditionalHandleCreate(&p.conditional.handle, graph, 0, 0) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    cross_entropy_condition_kernel<<<1, 1, 0, stream>>>(p.conditional.handle, c->p.count, (int32_t)first);
    if (cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &behind, &edges, &n) != cudaSuccess ||
        cudaGraphAddNode(node, graph, behind, edges, n, &p) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return p.conditional.phGraph_out[0];
}
static dt_status cross_entropy_record_chunk(const cross_entropy_call *c, int64_t first, int64_t rows)
{
    cudaStream_t body = NULL, stream = (cudaStream_t)c->exec->stream;
    cudaGraphNode_t node;
    cudaGraph_t graph = cross_entropy_add_condition(c, first, &node), recorded;
    if (!graph)
        return cross_entropy_run_chunk(c, first, rows);
    dt_exec inner = *c->exec;
    cross_entropy_call chunk = *c;
    chunk.exec = &inner;
    cudaError_t error = cudaStreamCreateWithFlags(&body, cudaStreamNonBlocking);
    inner.stream = body;
    if (error == cudaSuccess)
        error = cudaStreamBeginCaptureToGraph(body, graph, NULL, NULL, 0, cudaStreamCaptureModeThreadLocal);
    dt_status st = dtp_cuda_status(error, "record a chunk of cross_entropy", c->err);
    if (st == DT_OK) {
        st = cross_entropy_run_chunk(&chunk, first, rows);
        error = cudaStreamEndCapture(body, &recorded);
        if (st == DT_OK && error == cudaSuccess)
            error = cudaStreamUpdateCaptureDependencies(stream, &node, NULL, 1, cudaStreamSetCaptureDependencies);
        if (st == DT_OK)
            st = dtp_cuda_status(error, "record a chunk of cross_entropy", c->err);
    }
    if (body)
        cudaStreamDestroy(body);
    return st;
}
static bool cross_entropy_recording(const cross_entropy_call *c)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing((cudaStream_t)c->exec->stream, &status);
    return status == cudaStreamCaptureStatusActive;
}
#else
static dt_status cross_entropy_record_chunk(const cross_entropy_call *c, int64_t first, int64_t rows)
{
    return cross_entropy_run_chunk(c, first, rows);
}
static bool cross_entropy_recording(const cross_entropy_call *c)
{
    (void)c;
    return false;
}
#endif
#endif
