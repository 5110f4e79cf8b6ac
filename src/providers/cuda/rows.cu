/* The second half of every row-wise parameter gradient. */
#include "providers/cuda/rows.cuh"

enum { ADD_RUNS_COLUMNS = 32, ADD_RUNS_LANES = 16 };

/* A block owns 32 columns; its 16 warps share the runs. */
DT_KERNEL(ADD_RUNS_COLUMNS *ADD_RUNS_LANES, 1)
rows_add_runs_kernel(float *out, const float *partial, int64_t runs, int64_t width, int64_t stride)
{
    DT_SHARED(shared);
    float *sums = (float *)shared, sum = 0.0f;
    int column = (int)threadIdx.x % ADD_RUNS_COLUMNS, lane = (int)threadIdx.x / ADD_RUNS_COLUMNS;
    int64_t i = (int64_t)blockIdx.x * ADD_RUNS_COLUMNS + column;
    if (i < width)
        for (int64_t run = lane; run < runs; run += ADD_RUNS_LANES)
            sum += partial[run * stride + i];
    sums[lane * ADD_RUNS_COLUMNS + column] = sum;
    block_sync();
    if (lane != 0 || i >= width)
        return;
    for (int k = 1; k < ADD_RUNS_LANES; k++)
        sum += sums[k * ADD_RUNS_COLUMNS + column];
    out[i] += sum;
}

dt_status dtp_cuda_add_runs(dt_exec *exec, float *out, const float *partial, int64_t runs, int64_t width,
                            int64_t stride, dt_err *err)
{
    return DT_LAUNCH(err, exec, dtp_blocks(width, ADD_RUNS_COLUMNS), ADD_RUNS_COLUMNS * ADD_RUNS_LANES,
                     ADD_RUNS_COLUMNS * ADD_RUNS_LANES * (int)sizeof(float), rows_add_runs_kernel, out, partial, runs,
                     width, stride);
}
