/* What the way into an operator costs: contract check, slot, hazard mark, workspace, status - around a function that
 * does nothing. Two threads at once, each with its own execution context. */
#include <deltune/dispatch.h>
#include <deltune/op/gdn.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2, CALLS = 2000000, ROUNDS = 7 };

static dt_status nothing(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)args, (void)saved, (void)workspace, (void)err;
    return DT_OK;
}

static const dt_op_set gdn = {
    .struct_size = sizeof(dt_op_set), .op = DT_OP_GDN, .caps = DT_CAP_PACKED | DT_CAP_GVA, .forward = nothing};
static const dt_op_set *const operators[] = {&gdn};
static const dt_provider provider = {.abi = DT_PROVIDER_ABI,
                                     .struct_size = sizeof(dt_provider),
                                     .name = "nothing",
                                     .version = "1",
                                     .device = DT_DEVICE_CPU,
                                     .priority = 1000,
                                     .ops = operators,
                                     .n_ops = 1};

typedef struct dt_worker {
    dt_ctx *ctx;
    double nanoseconds; /* a call */
    dt_err err;
} dt_worker;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *work(void *argument)
{
    dt_worker *w = argument;
    static float data[5 * 2 * 64];
    int32_t cu[3] = {0, 2, 5};
    dt_tensor qk = dt_tensor_3d(data, DT_F32, 5, 1, 64), v = dt_tensor_3d(data, DT_F32, 5, 2, 64),
              gate = dt_tensor_2d(data, DT_F32, 5, 2);
    dt_gdn_args args = {DT_GDN_ARGS, .q = qk,      .k = qk, .v = v,
                        .g = gate,   .beta = gate, .o = v,  .seqs = {cu, NULL, 2, 2, 5, 5},
                        .scale = 1};
    dt_exec *exec;
    if (dt_exec_create(&exec, w->ctx, DT_DEVICE_CPU, 0, 1, &w->err) != DT_OK)
        return NULL;
    double begin = now();
    for (int i = 0; i < CALLS && w->err.status == DT_OK; i++)
        (void)dt_op_forward(exec, DT_OP_GDN, &args, NULL, &w->err);
    w->nanoseconds = (now() - begin) / CALLS;
    dt_exec_free(exec);
    return NULL;
}

int main(void)
{
    dt_err err = {0};
    dt_ctx *ctx;
    if (dt_ctx_create(&ctx, &err) != DT_OK || dt_ctx_register(ctx, &provider, "bench", 0, NULL, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        dt_worker workers[THREADS] = {{.ctx = ctx}, {.ctx = ctx}};
        pthread_t threads[THREADS];
        double mean = 0;
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, work, &workers[i]);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            if (workers[i].err.status != DT_OK) {
                fprintf(stderr, "%s\n", workers[i].err.text);
                return 1;
            }
            mean += workers[i].nanoseconds / THREADS;
        }
        if (mean < best)
            best = mean;
        printf("round %d: %.1f ns a call\n", round + 1, mean);
    }
    printf("{\"bench\": \"dispatch\", \"threads\": %d, \"ns_per_call\": %.1f}\n", THREADS, best);
    dt_ctx_free(ctx);
    return 0;
}
