/* Timings of all operators, or of the one named (bench.cu). */
#ifndef DT_CUDA_CHECK_BENCH_H
#define DT_CUDA_CHECK_BENCH_H
#include <deltune/provider.h>
#include <stdio.h>
#ifdef __cplusplus
extern "C" {
#endif

void bench_all(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json);
/* Those of one operator, in a file of its own. "attention/8192/1": of one pack, here 8,192 tokens in one sample. */
void bench_attention(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json);
/* "rows/rms_norm": only those whose name starts so. */
void bench_rows(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json);
/* NULL when the provider does not serve the operator. */
const dt_op_set *bench_find_op(const dt_provider *provider, dt_op op);

#ifdef __cplusplus
}
#endif
#endif
