/* Random models of any Qwen3.5 shape, for tests, benchmarks and demonstrations; `deltune init`. */
#ifndef DT_MODEL_RANDOM_MODEL_H
#define DT_MODEL_RANDOM_MODEL_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dt_random_model_options {
    const char *config;    /* config.json, checked and copied */
    const char *tokenizer; /* folder whose tokenizer and template files are copied along, or NULL */
    uint64_t seed;
    const char *folder; /* must not exist; appears whole or not at all */
    uint64_t max_shard_bytes;
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes written; may be NULL */
    void *user;
    bool (*stop)(void); /* asked often; true ends the work, and nothing is left behind. May be NULL */
} dt_random_model_options;

/* Weights in the config's dtype (BF16 when it has none), as the reference initialises them: matrices and the
 * convolution normal with initializer_range, norms 0 (offsets from one), the gated norm and dt_bias 1, A_log =
 * ln(uniform(0, 16)). Each value is one of 65,536 quantiles of its distribution, chosen by 16 bits: element i of tensor
 * n (layer * DT_LAYER_WEIGHTS + id; outer tensors after the last layer) takes half i % 2 (low first) of word i % 8 / 2
 * of Philox(seed, counter {i / 8, n, i / 8 >> 32, "INIT"}). The same bytes for any number of threads. Streams; memory
 * is a few MiB. Errors: those of the config reader; DT_E_ARG when the folder exists; DT_E_IO; DT_E_CANCELLED. */
dt_status dtp_random_model(const dt_random_model_options *options, dt_err *err);

#endif
