/* Execution contexts: counted memory, and work that is queued, marked, recorded and replayed. The device is the
 * emulated CUDA plug-in, which runs queued work as late as a real one may. */
#include "core/test.h"

#include "core/file.h"
#include "operators/recorded.h"

#include <deltune/dispatch.h>
#include <deltune/op/causal_conv1d.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    dt_ctx *ctx;
    dt_exec *exec;
} fixture;

static void begin(fixture *f, dt_device_kind device)
{
    dt_err err = {0};
    assert_int_equal(dt_ctx_create(&f->ctx, &err), DT_OK);
    if (device == DT_DEVICE_CUDA) {
        char path[4096];
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
        assert_true(n > 0);
        path[n] = '\0';
        strcpy(strrchr(path, '/') + 1, "libdeltune-cuda-emulated.so");
        if (!dtp_file_exists(path)) { /* built without it, as with sanitizers */
            dt_ctx_free(f->ctx);
            f->ctx = NULL;
            skip();
        }
        assert_ok(dt_ctx_load_plugin(f->ctx, path, 0, NULL, &err), &err);
    }
    assert_ok(dt_exec_create(&f->exec, f->ctx, device, 0, 1, &err), &err);
}

static void end(fixture *f)
{
    dt_exec_free(f->exec);
    dt_ctx_free(f->ctx);
}

static void usage_is_counted(void **state)
{
    (void)state;
    fixture f;
    dt_err err = {0};
    begin(&f, DT_DEVICE_CPU);
    void *a, *b;
    assert_ok(dt_exec_alloc(f.exec, &a, 1000, &err), &err);
    assert_ok(dt_exec_alloc(f.exec, &b, 500, &err), &err);
    assert_int_equal(dt_exec_memory_usage(f.exec).bytes, 1500);
    dt_exec_release(f.exec, a);
    assert_ok(dt_exec_reserve(f.exec, 300, &err), &err); /* workspace counts */
    assert_int_equal(dt_exec_memory_usage(f.exec).bytes, 800);
    assert_int_equal(dt_exec_memory_usage(f.exec).peak, 1500);
    dt_exec_release(f.exec, b);
    end(&f);
}

/* Without marks and recordings of its own, a device still keeps the promises of exec.h. */
static void host_does_without(void **state)
{
    (void)state;
    fixture f;
    dt_err err = {0};
    begin(&f, DT_DEVICE_CPU);
    void *memory;
    dt_mark *mark = NULL;
    uint64_t available, total;
    assert_ok(dt_exec_host_alloc(f.exec, &memory, 100, &err), &err);
    memset(memory, 1, 100);
    dt_exec_host_release(f.exec, memory);
    assert_ok(dt_exec_mark(f.exec, &mark, &err), &err);
    assert_non_null(mark);
    assert_ok(dt_exec_wait(f.exec, mark, &err), &err);
    dt_exec_mark_release(f.exec, mark);
    assert_false(dt_exec_can_record(f.exec));
    assert_int_equal(dt_exec_record_begin(f.exec, &err), DT_E_UNSUPPORTED);
    assert_int_equal(dt_exec_device_memory(f.exec, &available, &total, &err), DT_E_UNSUPPORTED);
    end(&f);
}

enum { T = 6, C = 8, W = 4, BYTES = T * C * (int)sizeof(float) };

/* y = conv(x) on the device, through page-locked memory. */
typedef struct step {
    fixture f;
    float *in, *out;           /* page-locked */
    void *x, *y, *weight, *cu; /* device */
    int32_t boundaries[3];
} step;

static void make_step(step *s)
{
    dt_err err = {0};
    begin(&s->f, DT_DEVICE_CUDA);
    dt_exec *exec = s->f.exec;
    void **device[] = {&s->x, &s->y, &s->weight, &s->cu};
    for (size_t i = 0; i < 4; i++)
        assert_ok(dt_exec_alloc(exec, device[i], BYTES, &err), &err);
    assert_ok(dt_exec_host_alloc(exec, (void **)&s->in, BYTES, &err), &err);
    assert_ok(dt_exec_host_alloc(exec, (void **)&s->out, BYTES, &err), &err);
    float weight[C * W];
    for (int i = 0; i < C * W; i++)
        weight[i] = (float)(i % 5) - 1.5f;
    memcpy(s->boundaries, (int32_t[]){0, 2, T}, sizeof s->boundaries);
    assert_ok(dt_exec_upload(exec, s->weight, weight, sizeof weight, &err), &err);
    assert_ok(dt_exec_upload(exec, s->cu, s->boundaries, sizeof s->boundaries, &err), &err);
}

static void free_step(step *s)
{
    dt_exec_host_release(s->f.exec, s->in);
    dt_exec_host_release(s->f.exec, s->out);
    void *device[] = {s->x, s->y, s->weight, s->cu};
    for (size_t i = 0; i < 4; i++)
        dt_exec_release(s->f.exec, device[i]);
    end(&s->f);
}

/* What a recorded step does: input, a zero, a call, output. */
static dt_status queue_step(step *s, dt_err *err)
{
    dt_exec *exec = s->f.exec;
    dt_causal_conv1d_args a = {DT_CAUSAL_CONV1D_ARGS, .x = dt_tensor_2d(s->x, DT_F32, T, C),
                               .weight = dt_tensor_2d(s->weight, DT_F32, C, W), .y = dt_tensor_2d(s->y, DT_F32, T, C),
                               .seqs = {s->boundaries, s->cu, 2, 2, T, T}};
    dt_status status = dt_exec_upload(exec, s->x, s->in, BYTES, err);
    if (status == DT_OK)
        status = dt_exec_zero(exec, s->y, BYTES, err);
    if (status == DT_OK)
        status = dt_op_forward(exec, DT_OP_CAUSAL_CONV1D, &a, NULL, err);
    return status == DT_OK ? dt_exec_download(exec, s->out, s->y, BYTES, err) : status;
}

static void fill(float *in, int seed)
{
    for (int i = 0; i < T * C; i++)
        in[i] = (float)((i * 7 + seed * 13) % 11) - 5;
}

static void replay_has_the_bits_of_calls(void **state)
{
    (void)state;
    step s;
    dt_err err = {0};
    dt_recording *recording;
    float want[2][T * C];
    make_step(&s);
    dt_exec *exec = s.f.exec;
    for (int i = 0; i < 2; i++) {
        fill(s.in, i);
        assert_ok(queue_step(&s, &err), &err);
        assert_ok(dt_exec_synchronize(exec, &err), &err);
        memcpy(want[i], s.out, BYTES);
    }
    assert_memory_not_equal(want[0], want[1], BYTES);
    assert_ok(dt_exec_record_begin(exec, &err), &err);
    assert_ok(queue_step(&s, &err), &err);
    assert_ok(dt_exec_record_end(exec, &recording, &err), &err);
    memset(s.out, 0, BYTES);
    assert_ok(dt_exec_synchronize(exec, &err), &err);
    assert_true(s.out[0] == 0); /* recorded, not run */
    for (int i = 0; i < 2; i++) {
        dt_mark *mark = NULL;
        fill(s.in, i);
        assert_ok(dt_exec_replay(exec, recording, &err), &err);
        assert_ok(dt_exec_mark(exec, &mark, &err), &err);
        assert_ok(dt_exec_wait(exec, mark, &err), &err);
        assert_memory_equal(s.out, want[i], BYTES);
        dt_exec_mark_release(exec, mark);
    }
    assert_ok(dt_exec_reserve(exec, 1 << 20, &err), &err); /* the workspace moves: the recording is stale */
    assert_int_equal(dt_exec_replay(exec, recording, &err), DT_E_ARG);
    dt_exec_recording_release(exec, recording);
    free_step(&s);
}

typedef struct counted_step {
    step s;
    int calls;
} counted_step;

static dt_status count_and_queue(void *user, dt_err *err)
{
    counted_step *c = user;
    c->calls++;
    return queue_step(&c->s, err);
}

/* Call by call, then recorded, then replayed; all again when somebody else serves an operator or the workspace moves.
 */
static void recorded_work_is_recorded_again(void **state)
{
    (void)state;
    counted_step c = {.calls = 0};
    dt_recorded r = {0};
    dt_err err = {0};
    make_step(&c.s);
    dt_exec *exec = c.s.f.exec;
    fill(c.s.in, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            memset(c.s.out, 0, BYTES);
            assert_ok(dtp_recorded_run(&r, exec, true, count_and_queue, &c, &err), &err);
            assert_ok(dt_exec_synchronize(exec, &err), &err);
            assert_true(c.s.out[T * C - 1] != 0); /* it ran, each way */
        }
        assert_int_equal(c.calls, 2 * (round + 1));
        if (round == 0)
            assert_ok(dt_ctx_choose(c.s.f.ctx, "gdn=cuda", &err), &err);
        else
            assert_ok(dt_exec_reserve(exec, 1 << 20, &err), &err);
    }
    assert_ok(dtp_recorded_run(&r, exec, false, count_and_queue, &c, &err), &err); /* not wanted: the calls */
    assert_int_equal(c.calls, 7);
    dtp_recorded_release(&r, exec);
    free_step(&c.s);
}

static void recordings_only_queue(void **state)
{
    (void)state;
    step s;
    dt_err err = {0};
    void *memory;
    make_step(&s);
    dt_exec *exec = s.f.exec;
    assert_ok(dt_exec_record_begin(exec, &err), &err);
    assert_int_equal(dt_exec_alloc(exec, &memory, 8, &err), DT_E_ARG);
    assert_int_equal(dt_exec_synchronize(exec, &err), DT_E_ARG);
    assert_int_equal(dt_exec_record_begin(exec, &err), DT_E_ARG);
    assert_int_equal(dt_exec_upload(exec, s.x, (float[]){1}, sizeof(float), &err), DT_E_ARG);
    assert_ok(dt_exec_record_end(exec, NULL, &err), &err); /* dropped */
    assert_int_equal(dt_exec_record_end(exec, NULL, &err), DT_E_ARG);
    fill(s.in, 0);
    assert_ok(queue_step(&s, &err), &err); /* and calls run again */
    assert_ok(dt_exec_synchronize(exec, &err), &err);
    free_step(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_is_counted),
        cmocka_unit_test(host_does_without),
        cmocka_unit_test(replay_has_the_bits_of_calls),
        cmocka_unit_test(recorded_work_is_recorded_again),
        cmocka_unit_test(recordings_only_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
