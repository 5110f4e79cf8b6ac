/* Depthwise causal convolution, channel-last. Two families of kernels:
 *
 * run kernels: bf16, W = 4, no bias, no states (training). A thread owns 8 channels and a run of consecutive tokens,
 * the window of inputs stays in registers, and each row of x (and dy) is read once, but for 3 rows of halo a run. How
 * far a token is from its sample's start is the same for a whole block, so boundaries cost a branch that does not
 * diverge. element kernels: any dtype, W <= 8, with states. One thread an element, written for clarity. */
#ifndef DT_CUDA_CAUSAL_CONV1D_CUH
#define DT_CUDA_CAUSAL_CONV1D_CUH
#include "providers/cuda/elements.cuh"

enum { CONV_THREADS = 256, RUN_THREADS = 128 };

struct conv_tensor {
    void *data;
    int64_t row; /* elements from token to token (states: unused) */
    int is_float;
};
struct conv_params {
    conv_tensor x, y, dy, dx, weight, bias, initial_state, final_state, dfinal_state, dinitial_state;
    float *dweight, *dbias, *partial;
    const int32_t *cu; /* device, [n_seq_cap+1] */
    int32_t n_seq, n_seq_cap, W, silu, run;
    int64_t channels, T_cap;
};

/* ---------------------------------------------------------------- run kernels */

enum { FORWARD_AHEAD = 8, BACKWARD_AHEAD = 4 }; /* rows in flight a thread */

/* Where a walk over tokens stands between the boundaries. */
struct token_walk {
    const int32_t *cu;
    int next, count; /* index of the first boundary after the token; boundaries */
    int start, end;  /* of the token's sample */
};
/* All threads of the block; `t` may be negative or past the end. shared: 32 ints. */
DT_DEVICE void walk_to(token_walk &w, const int32_t *cu, int n, int64_t t, int *shared)
{
    int lane = (int)threadIdx.x & 31, before = 0;
    if (t < 0)
        t = 0;
    for (int i = (int)threadIdx.x; i <= n; i += RUN_THREADS)
        before += cu[i] <= t;
    for (int k = 1; k < 32; k *= 2) {
        int up = shuffle_up_int(before, k);
        before += lane >= k ? up : 0;
    }
    if (lane == 31) /* the warp's total */
        shared[threadIdx.x / 32] = before;
    block_sync();
    int total = 0;
    for (int i = 0; i < RUN_THREADS / 32; i++)
        total += shared[i];
    w.cu = cu;
    w.count = n + 1;
    w.next = total;
    w.start = total ? cu[total - 1] : 0;
    w.end = total <= n ? cu[total] : 0x7fffffff;
}
DT_DEVICE void walk_step(token_walk &w, int64_t t) /* to token t, one after the last */
{
    while (t >= w.end) {
        w.start = w.end;
        w.next++;
        w.end = w.next < w.count ? w.cu[w.next] : 0x7fffffff;
    }
}

DT_DEVICE void load_weights(float (&w)[4][8], const conv_params &p, int64_t channel)
{
    DT_UNROLL
    for (int c = 0; c < 8; c++) {
        DT_UNROLL
        for (int j = 0; j < 4; j++)
            w[j][c] = load_element(p.weight.data, p.weight.is_float, (channel + c) * 4 + j);
    }
}
DT_DEVICE uint4 load_row(const conv_tensor &x, int64_t t, int64_t limit, int64_t channel)
{
    return t >= 0 && t < limit ? *(const uint4 *)((const uint16_t *)x.data + t * x.row + channel)
                               : make_uint4(0, 0, 0, 0);
}
/* p[t] from the rows t-3 .. t; rows before the sample count as zero. */
DT_DEVICE void convolve(float (&sum)[8], const float (&w)[4][8], const uint4 (&window)[4], int distance)
{
    float x[8];
    DT_UNROLL
    for (int c = 0; c < 8; c++)
        sum[c] = 0.0f;
    DT_UNROLL
    for (int lag = 3; lag >= 0; lag--)
        if (lag <= distance) {
            unpack8(x, window[3 - lag]);
            DT_UNROLL
            for (int c = 0; c < 8; c++)
                sum[c] += w[3 - lag][c] * x[c];
        }
}
DT_KERNEL(RUN_THREADS, 5) conv_run_forward_kernel(const conv_params p)
{
    DT_SHARED(shared);
    int64_t columns = (p.channels / 8 + RUN_THREADS - 1) / RUN_THREADS;
    int64_t channel = ((int64_t)blockIdx.x % columns * RUN_THREADS + threadIdx.x) * 8,
            t0 = (int64_t)blockIdx.x / columns * p.run;
    int64_t T = p.cu[p.n_seq_cap], end = t0 + p.run < p.T_cap ? t0 + p.run : p.T_cap;
    bool inside = channel < p.channels;
    int64_t readable = inside ? T : 0;
    token_walk walk;
    float w[4][8];
    uint4 window[4], ahead[FORWARD_AHEAD];
    DT_UNROLL
    for (int i = 0; i < 3; i++)
        window[i + 1] = load_row(p.x, t0 - 3 + i, readable, channel);
    DT_UNROLL
    for (int i = 0; i < FORWARD_AHEAD; i++)
        ahead[i] = load_row(p.x, t0 + i, readable, channel);
    walk_to(walk, p.cu, p.n_seq_cap, t0, (int *)shared);
    if (!inside)
        return;
    load_weights(w, p, channel);
    for (int64_t t = t0; t < end; t += FORWARD_AHEAD) {
        DT_UNROLL
        for (int i = 0; i < FORWARD_AHEAD; i++) {
            window[0] = window[1], window[1] = window[2], window[2] = window[3], window[3] = ahead[i];
            ahead[i] = load_row(p.x, t + i + FORWARD_AHEAD, t + i + FORWARD_AHEAD < end ? readable : 0, channel);
            float y[8];
            walk_step(walk, t + i);
            convolve(y, w, window, (int)(t + i) - walk.start);
            if (p.silu) {
                DT_UNROLL
                for (int c = 0; c < 8; c++)
                    y[c] *= sigmoid_fast(y[c]);
            }
            if (t + i < end)
                *(uint4 *)((uint16_t *)p.y.data + (t + i) * p.y.row + channel) =
                    t + i < T ? pack8(y) : make_uint4(0, 0, 0, 0);
        }
    }
}

DT_DEVICE void store_partial(float *to, const float *x)
{
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

/* dx of the run, and this run's part of dweight (partial[run][4][channels]). Tokens
 * are visited in order, three past the run; dp[t] adds to the pending dx of t-1, t-2, t-3 as far as they are of its
 * sample. */
template <bool WEIGHTS> DT_KERNEL(RUN_THREADS, WEIGHTS ? 3 : 4) conv_run_backward_kernel(const conv_params p)
{
    DT_SHARED(shared);
    int64_t columns = (p.channels / 8 + RUN_THREADS - 1) / RUN_THREADS, run = (int64_t)blockIdx.x / columns;
    int64_t channel = ((int64_t)blockIdx.x % columns * RUN_THREADS + threadIdx.x) * 8, t0 = run * p.run;
    int64_t T = p.cu[p.n_seq_cap], end = t0 + p.run < p.T_cap ? t0 + p.run : p.T_cap;
    bool inside = channel < p.channels;
    int64_t readable = inside ? T : 0;
    token_walk walk;
    float w[4][8], pending[3][8], dw[WEIGHTS ? 4 : 1][8];
    uint4 window[4], ahead_x[BACKWARD_AHEAD], ahead_dy[BACKWARD_AHEAD];
    DT_UNROLL
    for (int i = 0; i < 3; i++)
        window[i + 1] = load_row(p.x, t0 - 3 + i, readable, channel);
    DT_UNROLL
    for (int i = 0; i < BACKWARD_AHEAD; i++) {
        ahead_x[i] = load_row(p.x, t0 + i, readable, channel);
        ahead_dy[i] = load_row(p.dy, t0 + i, readable, channel);
    }
    walk_to(walk, p.cu, p.n_seq_cap, t0, (int *)shared);
    if (!inside)
        return;
    load_weights(w, p, channel);
    DT_UNROLL
    for (int c = 0; c < 8; c++) {
        pending[0][c] = pending[1][c] = pending[2][c] = 0.0f;
        DT_UNROLL
        for (int j = 0; j < (WEIGHTS ? 4 : 1); j++)
            dw[j][c] = 0.0f;
    }
    for (int64_t base = t0; base < end + 3; base += BACKWARD_AHEAD) {
        DT_UNROLL
        for (int i = 0; i < BACKWARD_AHEAD; i++) {
            int64_t t = base + i, later = t + BACKWARD_AHEAD;
            float dp[8], out[8];
            window[0] = window[1], window[1] = window[2], window[2] = window[3], window[3] = ahead_x[i];
            unpack8(dp, ahead_dy[i]);
            ahead_x[i] = load_row(p.x, later, later < end + 3 ? readable : 0, channel);
            ahead_dy[i] = load_row(p.dy, later, later < end + 3 ? readable : 0, channel);
            walk_step(walk, t);
            int distance = (int)t - walk.start;
            if (p.silu) {
                float sum[8];
                convolve(sum, w, window, distance);
                DT_UNROLL
                for (int c = 0; c < 8; c++) {
                    float s = sigmoid_fast(sum[c]);
                    dp[c] *= s * (1.0f + sum[c] * (1.0f - s));
                }
            }
            DT_UNROLL
            for (int c = 0; c < 8; c++) {
                out[c] = pending[2][c] + (distance >= 3 ? w[0][c] * dp[c] : 0.0f);
                pending[2][c] = pending[1][c] + (distance >= 2 ? w[1][c] * dp[c] : 0.0f);
                pending[1][c] = pending[0][c] + (distance >= 1 ? w[2][c] * dp[c] : 0.0f);
                pending[0][c] = w[3][c] * dp[c];
            }
            if (t - 3 >= t0 && t - 3 < end)
                *(uint4 *)((uint16_t *)p.dx.data + (t - 3) * p.dx.row + channel) =
                    t - 3 < T ? pack8(out) : make_uint4(0, 0, 0, 0);
            if (WEIGHTS && t < end) {
                DT_UNROLL
                for (int lag = 0; lag < 4; lag++)
                    if (lag <= distance) {
                        float x[8];
                        unpack8(x, window[3 - lag]);
                        DT_UNROLL
                        for (int c = 0; c < 8; c++)
                            dw[WEIGHTS ? 3 - lag : 0][c] += dp[c] * x[c];
                    }
            }
        }
    }
    if (WEIGHTS) {
        DT_UNROLL
        for (int j = 0; j < 4; j++)
            store_partial(p.partial + (run * 4 + j) * p.channels + channel, dw[WEIGHTS ? j : 0]);
    }
}
/* Adds the runs' parts in run order. */
DT_KERNEL(CONV_THREADS, 1) conv_reduce_kernel(const conv_params p, int32_t runs)
{
    int64_t i = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    if (i >= 4 * p.channels)
        return;
    float sum = 0.0f;
    for (int run = 0; run < runs; run++)
        sum += p.partial[(int64_t)run * 4 * p.channels + i];
    p.dweight[i % p.channels * 4 + i / p.channels] += sum;
}

/* ---------------------------------------------------------------- element kernels */

struct conv_site { /* a token of a sample, one channel */
    int seq;
    int64_t start, end, channel;
};
/* Input `t` of the extended sequence: t < start reads the initial state. */
DT_DEVICE float extended(const conv_params &p, const conv_site &s, int64_t t)
{
    if (t >= s.start)
        return load_element(p.x.data, p.x.is_float, t * p.x.row + s.channel);
    int64_t slot = p.W + (t - s.start);
    if (!p.initial_state.data || slot < 0)
        return 0.0f;
    return load_element(p.initial_state.data, p.initial_state.is_float,
                        ((int64_t)s.seq * p.channels + s.channel) * p.W + slot);
}
DT_DEVICE float weight_at(const conv_params &p, int64_t channel, int j)
{
    return load_element(p.weight.data, p.weight.is_float, channel * p.W + j);
}
DT_DEVICE float before_activation(const conv_params &p, const conv_site &s, int64_t t)
{
    float sum = p.bias.data ? load_element(p.bias.data, p.bias.is_float, s.channel) : 0.0f;
    for (int j = 0; j < p.W; j++)
        sum += weight_at(p, s.channel, j) * extended(p, s, t - (p.W - 1) + j);
    return sum;
}
DT_DEVICE float gradient_before_activation(const conv_params &p, const conv_site &s, int64_t t)
{
    float dy = load_element(p.dy.data, p.dy.is_float, t * p.dy.row + s.channel);
    if (!p.silu)
        return dy;
    float x = before_activation(p, s, t), sig = 1.0f / (1.0f + expf(-x));
    return dy * sig * (1.0f + x * (1.0f - sig));
}
DT_DEVICE conv_site site_of(const conv_params &p, int64_t t, int64_t channel)
{
    conv_site s;
    s.seq = sample_of(p.cu, p.n_seq_cap, t);
    s.start = p.cu[s.seq];
    s.end = p.cu[s.seq + 1];
    s.channel = channel;
    return s;
}
DT_DEVICE conv_site site_of_sample(const conv_params &p, int seq, int64_t channel)
{
    conv_site s = {seq, p.cu[seq], p.cu[seq + 1], channel};
    return s;
}

DT_KERNEL(CONV_THREADS, 1) conv_element_forward_kernel(const conv_params p)
{
    int64_t i = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, rows = p.T_cap * p.channels, T = p.cu[p.n_seq_cap];
    if (i < rows) {
        int64_t t = i / p.channels, channel = i % p.channels;
        float y = 0.0f;
        if (t < T) {
            y = before_activation(p, site_of(p, t, channel), t);
            if (p.silu)
                y = y / (1.0f + expf(-y));
        }
        store_element(p.y.data, p.y.is_float, t * p.y.row + channel, y);
        return;
    }
    i -= rows;
    if (!p.final_state.data || i >= p.n_seq * p.channels * p.W)
        return;
    conv_site s = site_of_sample(p, (int)(i / p.W / p.channels), i / p.W % p.channels);
    store_element(p.final_state.data, p.final_state.is_float, i, extended(p, s, s.end - p.W + i % p.W));
}
DT_KERNEL(CONV_THREADS, 1) conv_element_backward_kernel(const conv_params p)
{
    int64_t i = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, rows = p.T_cap * p.channels, T = p.cu[p.n_seq_cap];
    if (i < rows) {
        int64_t t = i / p.channels, channel = i % p.channels;
        float dx = 0.0f;
        if (t < T) {
            conv_site s = site_of(p, t, channel);
            for (int lag = 0; lag < p.W && t + lag < s.end; lag++)
                dx += weight_at(p, channel, p.W - 1 - lag) * gradient_before_activation(p, s, t + lag);
            int64_t slot = t + p.W - s.end;
            if (p.dfinal_state.data && slot >= 0)
                dx += load_element(p.dfinal_state.data, p.dfinal_state.is_float,
                                   ((int64_t)s.seq * p.channels + channel) * p.W + slot);
        }
        store_element(p.dx.data, p.dx.is_float, t * p.dx.row + channel, dx);
        return;
    }
    i -= rows;
    if (!p.dinitial_state.data || i >= p.n_seq * p.channels * p.W)
        return;
    conv_site s = site_of_sample(p, (int)(i / p.W / p.channels), i / p.W % p.channels);
    int64_t slot = i % p.W, length = s.end - s.start;
    float sum = 0.0f;
    for (int64_t t = 0; t < slot && t < length; t++)
        sum += gradient_before_activation(p, s, s.start + t) * weight_at(p, s.channel, (int)(slot - 1 - t));
    if (p.dfinal_state.data && slot >= length)
        sum += load_element(p.dfinal_state.data, p.dfinal_state.is_float, i - length);
    store_element(p.dinitial_state.data, p.dinitial_state.is_float, i, sum);
}
/* dweight and dbias: one warp a channel and tap (tap W: the bias), tokens in a fixed order. */
DT_KERNEL(CONV_THREADS, 1) conv_element_weights_kernel(const conv_params p)
{
    int64_t i = ((int64_t)blockIdx.x * CONV_THREADS + threadIdx.x) / 32, channel = i / (p.W + 1), T = p.cu[p.n_seq_cap];
    int lane = (int)threadIdx.x & 31, tap = (int)(i % (p.W + 1));
    if (channel >= p.channels)
        return;
    float sum = 0.0f;
    for (int64_t t = lane; t < T; t += 32) {
        conv_site s = site_of(p, t, channel);
        float dp = gradient_before_activation(p, s, t);
        sum += tap == p.W ? dp : dp * extended(p, s, t - (p.W - 1) + tap);
    }
    for (int n = 16; n; n /= 2)
        sum += shuffle_xor(sum, n);
    if (lane)
        return;
    if (tap < p.W && p.dweight)
        p.dweight[channel * p.W + tap] += sum;
    if (tap == p.W && p.dbias)
        p.dbias[channel] += sum;
}
#endif
