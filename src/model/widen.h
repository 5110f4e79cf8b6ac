/* Conversion of stored weights: to F32 exactly, and back with one rounding. */
#ifndef DT_MODEL_WIDEN_H
#define DT_MODEL_WIDEN_H

#include <deltune/tensor.h>

/* from: n elements of F32, BF16 or F16, any alignment. */
void dtp_widen(float *to, const void *from, dt_dtype dtype, size_t n);
/* to: n elements of F32, BF16 or F16, rounded to nearest even. */
void dtp_narrow(void *to, dt_dtype dtype, const float *from, size_t n);

#endif
