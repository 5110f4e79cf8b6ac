/* Shared by the tests of the model room: a context, the committed model, packs made of random tokens. */
#ifndef DT_MODEL_MODEL_TESTING_H
#define DT_MODEL_MODEL_TESTING_H

#include "core/test.h"

#include "core/file.h"
#include "core/philox.h"
#include "model/model.h"
#include <deltune/operators.h>

#define TINY         DT_TEST_DATA "/tiny_dense/model"
#define TINY_ADAPTER DT_TEST_DATA "/tiny_dense/adapter_init"

typedef struct fixture {
    dt_ctx *ctx;
    dt_exec *exec;
} fixture;

static inline fixture open_fixture(void)
{
    fixture f;
    dt_err err = {0};
    assert_ok(dt_ctx_create(&f.ctx, &err), &err);
    assert_ok(dt_exec_create(&f.exec, f.ctx, DT_DEVICE_CPU, 0, 1, &err), &err);
    return f;
}

static inline void close_fixture(fixture *f)
{
    dt_exec_free(f->exec);
    dt_ctx_free(f->ctx);
}

static inline dt_model *open_model(fixture *f, dt_model_options options)
{
    dt_err err = {0};
    dt_model *m = NULL;
    options.activation = DT_F32;
    if (!options.folder)
        options.folder = TINY;
    assert_ok(dtp_model_open(&m, f->exec, &options, &err), &err);
    return m;
}

static inline dt_plan_report plan(dt_model *m, int64_t tokens, int64_t n_seq, bool train, dt_recompute recompute)
{
    dt_err err = {0};
    dt_plan_report report;
    const dt_plan_options o = {.max_tokens = tokens, .max_n_seq = n_seq, .train = train, .recompute = recompute};
    assert_ok(dtp_model_plan(m, &o, &report, &err), &err);
    return report;
}

/* Samples of the given lengths; token t of sample n depends on (seed, n, t) only, so that a sample is the same alone.
 */
typedef struct sample_pack {
    dt_pack pack;
    int32_t tokens[4096], targets[4096], positions[4096], cu[65];
} sample_pack;

static inline int32_t random_token(uint64_t seed, int n, int t, int vocab)
{
    return (int32_t)(dt_philox(seed, (uint32_t)n, (uint32_t)t, 0, 0).word[0] % (uint32_t)vocab);
}

/* Samples first..first+count of `lengths`. */
static inline void make_pack(sample_pack *p, uint64_t seed, const int *lengths, int first, int count, int vocab)
{
    int T = 0;
    p->cu[0] = 0;
    for (int n = 0; n < count; n++) {
        for (int t = 0; t < lengths[first + n]; t++, T++) {
            p->tokens[T] = random_token(seed, first + n, t, vocab);
            p->positions[T] = t;
            p->targets[T] = t + 1 < lengths[first + n] && t % 5 ? random_token(seed, first + n, t + 1, vocab) : -1;
        }
        p->cu[n + 1] = T;
    }
    p->pack = (dt_pack){.T = T,
                        .n_seq = count,
                        .tokens = p->tokens,
                        .positions = p->positions,
                        .targets = p->targets,
                        .cu_seqlens = p->cu};
}

static inline double relative_l2(const float *x, const float *reference, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - reference[i];
        difference += d * d;
        norm += (double)reference[i] * reference[i];
    }
    return sqrt(difference) / (sqrt(norm) + 1e-30);
}

static inline char *temporary_folder(void)
{
    char *folder = strdup("/tmp/dt_model_XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static inline void remove_folder(char *folder)
{
    dt_err err = {0};
    assert_ok(dtp_remove_tree(folder, &err), &err);
    free(folder);
}

#endif
