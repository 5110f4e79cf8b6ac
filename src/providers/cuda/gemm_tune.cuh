/* Measured choices of algorithms: DELTUNE_GEMM_TUNE=FILE. Part of gemm.cu.
 *
 * A shape that the file knows takes the choice written there. Any other is measured when it first runs outside of a
 * recording, the library's first proposals side by side, and the fastest is added to the file. So runs with one file,
 * one card and one library repeat each other's bits; without the variable nothing is measured and the first proposal is
 * taken. Two processes that measure at once may add a shape twice; the first line counts. */
#ifndef DT_CUDA_GEMM_TUNE_CUH
#define DT_CUDA_GEMM_TUNE_CUH

enum { GEMM_TUNE_RUNS = 5, GEMM_TUNE_LINE = 512 };

/* Everything a choice depends on, as the file spells it. */
static void gemm_tune_shape(char *out, const gemm_key *k)
{
    cudaDeviceProp card;
    memset(&card, 0, sizeof card);
    cudaGetDeviceProperties(&card, k->device);
    for (char *c = card.name; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    snprintf(out, GEMM_TUNE_LINE, "%zu %s %lldx%lldx%lld pitches %lld %lld %lld %lld types %d %d %s%s%s align %d",
             gemm_library.GetVersion(), card.name, (long long)k->rows, (long long)k->columns, (long long)k->inner,
             (long long)k->pitch_a, (long long)k->pitch_b, (long long)k->pitch_c, (long long)k->pitch_d, (int)k->in,
             (int)k->out, k->a_transposed ? "T" : "N", k->b_transposed ? "T" : "N", k->adds ? "+" : "",
             (int)k->alignment);
}
/* The choice written for a shape, -1 = none. */
static int gemm_tune_find(const char *path, const char *shape)
{
    char line[GEMM_TUNE_LINE + 32];
    size_t n = strlen(shape);
    int found = -1;
    FILE *file = fopen(path, "r");
    while (file && found < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, shape, n) == 0 && strncmp(line + n, " = ", 3) == 0)
            found = atoi(line + n + 3);
    if (file)
        fclose(file);
    return found;
}
static void gemm_tune_add(const char *path, const char *shape, int choice)
{
    FILE *file = fopen(path, "a");
    if (!file)
        return;
    fprintf(file, "%s = %d\n", shape, choice);
    fclose(file);
}

/* Milliseconds of GEMM_TUNE_RUNS products; negative when it does not run. */
static float gemm_tune_time(dt_exec *exec, const gemm_plan *plan, const gemm_product *p, void *workspace,
                            cudaEvent_t from, cudaEvent_t to)
{
    cudaStream_t stream = (cudaStream_t)exec->stream;
    float ms = -1;
    for (int i = 0; i <= GEMM_TUNE_RUNS; i++) { /* the first warms up */
        if (i == 1)
            cudaEventRecord(from, stream);
        if (gemm_run(exec, plan, p, workspace) != CUBLAS_STATUS_SUCCESS)
            return -1;
    }
    cudaEventRecord(to, stream);
    return cudaEventSynchronize(to) == cudaSuccess && cudaEventElapsedTime(&ms, from, to) == cudaSuccess ? ms : -1;
}
/* Sets plan->choice to the fastest. An addend that is the result itself would be added again and again: that is
 * measured on memory of its own, or, when there is none, not at all. */
static bool gemm_tune_measure(dt_exec *exec, gemm_plan *plan, const gemm_product *product, void *workspace)
{
    gemm_product p = *product;
    void *scratch = NULL;
    cudaEvent_t from = NULL, to = NULL;
    float best_ms = -1;
    int best = 0;
    if (p.c.data == p.d.data) {
        size_t bytes = (size_t)(p.rows * p.d.pitch) * dt_dtype_size(p.d.dtype);
        if (cudaMalloc(&scratch, bytes) != cudaSuccess) {
            cudaGetLastError();
            return false;
        }
        cudaMemsetAsync(scratch, 0, bytes, (cudaStream_t)exec->stream);
        p.c.data = p.d.data = scratch;
    }
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i < plan->choices; i++) {
        plan->choice = i;
        float ms = gemm_tune_time(exec, plan, &p, workspace, from, to);
        if (ms >= 0 && (best_ms < 0 || ms < best_ms))
            best_ms = ms, best = i;
    }
    plan->choice = best;
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaFree(scratch);
    return best_ms >= 0;
}
static void gemm_tune(dt_exec *exec, gemm_plan *plan, const gemm_product *p, void *workspace)
{
    const char *path = getenv("DELTUNE_GEMM_TUNE");
    char shape[GEMM_TUNE_LINE];
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (!path || !*path) {
        plan->tuned = true;
        return;
    }
    gemm_tune_shape(shape, &plan->key);
    int choice = gemm_tune_find(path, shape);
    if (choice >= 0 && choice < plan->choices) {
        plan->choice = choice;
        plan->tuned = true;
        return;
    }
    cudaStreamIsCapturing((cudaStream_t)exec->stream, &capturing);
    if (capturing != cudaStreamCaptureStatusNone)
        return;
    plan->tuned = true;
    if (gemm_tune_measure(exec, plan, p, workspace))
        gemm_tune_add(path, shape, plan->choice);
}
#endif
