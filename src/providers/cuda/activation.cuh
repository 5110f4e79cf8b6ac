/* The elementwise gates: y = x sigmoid(gate), and y = x silu(gate).
 * fast kernels: a thread owns 8 columns of several rows. plain kernels: a thread for an element. Outputs may lie over
 * inputs: a thread has read all it needs of an element before it writes there. */
#ifndef DT_CUDA_ACTIVATION_CUH
#define DT_CUDA_ACTIVATION_CUH
#include "providers/cuda/rows.cuh"

enum { ACTIVATION_FORWARD_ROWS = 4, ACTIVATION_BACKWARD_ROWS = 2 }; /* of a thread */

struct activation_params {
    rows_view x, gate, y, dy, dx, dgate;
    int64_t T, T_cap;
    int32_t heads, width; /* of a head */
};
template <bool SILU> DT_DEVICE float activation_value(float x, float gate)
{
    float s = sigmoid_fast(gate);
    return SILU ? x * (gate * s) : x * s;
}
template <bool SILU> DT_DEVICE void activation_gradient(float &dx, float &dgate, float x, float gate, float dy)
{
    float s = sigmoid_fast(gate);
    dx = SILU ? dy * (gate * s) : dy * s;
    dgate = SILU ? dy * x * (s * (1.0f + gate * (1.0f - s))) : dy * x * (s * (1.0f - s));
}

/* The rows and the columns of this thread; false: it has none. */
template <int ROWS> DT_DEVICE bool activation_locate(const activation_params &p, int64_t &first, int &head, int &column)
{
    int vectors = p.heads * (p.width / 8), chunks = (vectors + ROWS_THREADS - 1) / ROWS_THREADS;
    int vector = (int)(blockIdx.x % (unsigned)chunks) * ROWS_THREADS + (int)threadIdx.x;
    first = (int64_t)(blockIdx.x / (unsigned)chunks) * ROWS;
    head = p.heads == 1 ? 0 : vector / (p.width / 8);
    column = (vector - head * (p.width / 8)) * 8;
    return vector < vectors;
}
template <bool SILU> DT_KERNEL(ROWS_THREADS, 1) activation_forward_kernel(const activation_params p)
{
    int64_t first;
    int head, column;
    uint4 x[ACTIVATION_FORWARD_ROWS], gate[ACTIVATION_FORWARD_ROWS];
    if (!activation_locate<ACTIVATION_FORWARD_ROWS>(p, first, head, column))
        return;
    DT_UNROLL
    for (int i = 0; i < ACTIVATION_FORWARD_ROWS; i++) {
        bool used = first + i < p.T;
        x[i] = used ? rows_load8(p.x, rows_at(p.x, first + i, head) + column) : make_uint4(0, 0, 0, 0);
        gate[i] = used ? rows_load8(p.gate, rows_at(p.gate, first + i, head) + column) : make_uint4(0, 0, 0, 0);
    }
    DT_UNROLL
    for (int i = 0; i < ACTIVATION_FORWARD_ROWS; i++) {
        float e[8], g[8];
        unpack8(e, x[i]);
        unpack8(g, gate[i]);
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            e[c] = activation_value<SILU>(e[c], g[c]);
        if (first + i < p.T_cap)
            rows_store8(p.y, rows_at(p.y, first + i, head) + column, e);
    }
}
template <bool SILU> DT_KERNEL(ROWS_THREADS, 1) activation_backward_kernel(const activation_params p)
{
    int64_t first;
    int head, column;
    uint4 x[ACTIVATION_BACKWARD_ROWS], gate[ACTIVATION_BACKWARD_ROWS], dy[ACTIVATION_BACKWARD_ROWS];
    if (!activation_locate<ACTIVATION_BACKWARD_ROWS>(p, first, head, column))
        return;
    DT_UNROLL
    for (int i = 0; i < ACTIVATION_BACKWARD_ROWS; i++) {
        bool used = first + i < p.T;
        x[i] = used ? rows_load8(p.x, rows_at(p.x, first + i, head) + column) : make_uint4(0, 0, 0, 0);
        gate[i] = used ? rows_load8(p.gate, rows_at(p.gate, first + i, head) + column) : make_uint4(0, 0, 0, 0);
        dy[i] = used ? rows_load8(p.dy, rows_at(p.dy, first + i, head) + column) : make_uint4(0, 0, 0, 0);
    }
    DT_UNROLL
    for (int i = 0; i < ACTIVATION_BACKWARD_ROWS; i++) {
        float e[8], g[8], d[8], dx[8], dgate[8];
        unpack8(e, x[i]);
        unpack8(g, gate[i]);
        unpack8(d, dy[i]);
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            activation_gradient<SILU>(dx[c], dgate[c], e[c], g[c], d[c]);
        if (first + i < p.T_cap) {
            rows_store8(p.dx, rows_at(p.dx, first + i, head) + column, dx);
            rows_store8(p.dgate, rows_at(p.dgate, first + i, head) + column, dgate);
        }
    }
}

template <bool SILU> DT_KERNEL(ROWS_THREADS, 1) activation_plain_kernel(const activation_params p, int backward)
{
    int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x, columns = (int64_t)p.heads * p.width;
    int64_t t = i / columns, h = i % columns / p.width, column = i % p.width;
    if (t >= p.T_cap)
        return;
    float x = 0.0f, gate = 0.0f, dx, dgate;
    if (t < p.T) {
        x = rows_get(p.x, rows_at(p.x, t, h) + column);
        gate = rows_get(p.gate, rows_at(p.gate, t, h) + column);
    }
    if (!backward) {
        rows_set(p.y, rows_at(p.y, t, h) + column, activation_value<SILU>(x, gate));
        return;
    }
    float dy = t < p.T ? rows_get(p.dy, rows_at(p.dy, t, h) + column) : 0.0f;
    activation_gradient<SILU>(dx, dgate, x, gate, dy);
    rows_set(p.dx, rows_at(p.dx, t, h) + column, dx);
    rows_set(p.dgate, rows_at(p.dgate, t, h) + column, dgate);
}
#endif
