/* Loads, stores and small functions that the elementwise kernels share. */
#ifndef DT_CUDA_ELEMENTS_CUH
#define DT_CUDA_ELEMENTS_CUH
#include <deltune/tensor.h>

#include "providers/cuda/ptx.cuh"

DT_DEVICE float sigmoid_fast(float x)
{
    return rcp_fast(1.0f + exp2_fast(-1.4426950408889634f * x));
}

DT_DEVICE uint16_t bf16_bits(float x)
{
    return (uint16_t)pack_bf16(x, 0.0f);
}

/* One element of a tensor whose dtype is known only at run time. */
DT_DEVICE float load_element(const void *data, int is_float, int64_t i)
{
    return is_float ? ((const float *)data)[i] : float_from_bits((uint32_t)((const uint16_t *)data)[i] << 16);
}
DT_DEVICE void store_element(void *data, int is_float, int64_t i, float x)
{
    if (is_float)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = bf16_bits(x);
}

DT_DEVICE void unpack8(float (&x)[8], const uint4 &v)
{
    x[0] = bf16_low(v.x), x[1] = bf16_high(v.x);
    x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
    x[4] = bf16_low(v.z), x[5] = bf16_high(v.z);
    x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
}
DT_DEVICE uint4 pack8(const float (&x)[8])
{
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

/* The sample that holds row t < T: the last n with cu[n] <= t. */
DT_DEVICE int sample_of(const int32_t *cu, int n_seq, int64_t t)
{
    int low = 0, high = n_seq; /* cu[low] <= t < cu[high] */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (cu[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}
#endif
