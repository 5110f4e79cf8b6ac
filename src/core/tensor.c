#include <deltune/tensor.h>

#include <string.h>

size_t dt_dtype_size(dt_dtype dtype)
{
    switch (dtype) {
    case DT_NONE: return 0;
    case DT_U8: return 1;
    case DT_BF16:
    case DT_F16: return 2;
    case DT_F32:
    case DT_I32: return 4;
    case DT_F64:
    case DT_I64: return 8;
    }
    return 0;
}

const char *dt_dtype_name(dt_dtype dtype)
{
    switch (dtype) {
    case DT_NONE: return "none";
    case DT_U8: return "U8";
    case DT_BF16: return "BF16";
    case DT_F16: return "F16";
    case DT_F32: return "F32";
    case DT_F64: return "F64";
    case DT_I32: return "I32";
    case DT_I64: return "I64";
    }
    return "unknown dtype";
}

dt_tensor dt_tensor_4d(void *data, dt_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return (dt_tensor){
        .data = data, .dtype = dtype, .rank = 4, .shape = {n0, n1, n2, n3}, .stride = {n1 * n2 * n3, n2 * n3, n3, 1}};
}

dt_tensor dt_tensor_3d(void *data, dt_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
    return (dt_tensor){
        .data = data, .dtype = dtype, .rank = 3, .shape = {n0, n1, n2, 1}, .stride = {n1 * n2, n2, 1, 1}};
}

dt_tensor dt_tensor_2d(void *data, dt_dtype dtype, int64_t n0, int64_t n1)
{
    return (dt_tensor){.data = data, .dtype = dtype, .rank = 2, .shape = {n0, n1, 1, 1}, .stride = {n1, 1, 1, 1}};
}

dt_tensor dt_tensor_1d(void *data, dt_dtype dtype, int64_t n0)
{
    return (dt_tensor){.data = data, .dtype = dtype, .rank = 1, .shape = {n0, 1, 1, 1}, .stride = {1, 1, 1, 1}};
}

dt_tensor dt_tensor_slice(dt_tensor t, int dim, int64_t begin, int64_t end)
{
    t.data = (char *)t.data + (size_t)(begin * t.stride[dim]) * dt_dtype_size(t.dtype);
    t.shape[dim] = end - begin;
    return t;
}

dt_tensor dt_tensor_split_last(dt_tensor t, int64_t m)
{
    int last = t.rank - 1;
    t.shape[last + 1] = m;
    t.stride[last + 1] = 1;
    t.shape[last] /= m;
    t.stride[last] = m;
    t.rank++;
    return t;
}

int64_t dt_tensor_numel(const dt_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

bool dt_tensor_is_contiguous(const dt_tensor *t)
{
    int64_t expected = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != expected)
            return false;
        expected *= t->shape[i];
    }
    return true;
}

float dt_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu, bits;
    if (exponent == 0x1f) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent == 0) { /* zero or subnormal: the value is mantissa * 2^-24, exact in fp32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &magnitude, 4);
        bits |= sign;
    } else {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}
