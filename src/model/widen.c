#include "model/widen.h"
#include <string.h>

/* IEEE half, round to nearest even; overflow becomes infinity, NaN stays NaN. */
static uint16_t f32_to_f16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    uint32_t sign = v.u >> 16 & 0x8000u, a = v.u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x47800000u) /* 65536 and above */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below the smallest normal half: adding 0.5 lines the bits up and rounds in hardware */
        union {
            uint32_t u;
            float f;
        } m = {a};
        m.f += 0.5f;
        return (uint16_t)(sign | (m.u - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a + 0xc8000fffu + (a >> 13 & 1)) >> 13));
}

void dtp_widen(float *to, const void *from, dt_dtype dtype, size_t n)
{
    if (dtype == DT_F32) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)from + 2 * i, 2);
        to[i] = dtype == DT_BF16 ? dt_bf16_to_f32(h) : dt_f16_to_f32(h);
    }
}

void dtp_narrow(void *to, dt_dtype dtype, const float *from, size_t n)
{
    if (dtype == DT_F32) {
        memcpy(to, from, n * sizeof *from);
        return;
    }
    uint16_t *half = to;
    for (size_t i = 0; i < n; i++)
        half[i] = dtype == DT_BF16 ? dt_f32_to_bf16(from[i]) : f32_to_f16(from[i]);
}
