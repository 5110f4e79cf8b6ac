/* Memory, ordering, marks and recordings of the emulated device.
 *
 * Work runs as late as a real device may run it: launches, zeros, and copies between device and page-locked memory wait
 * in a queue until something must see their results. Memory that the host writes again too early, or reads before it
 * has waited, therefore shows as a wrong result. A recording is the list of its work; by-value arguments are copied
 * into it, so a constant that should have changed from step to step shows as well. */
#ifndef DT_CUDA_DEVICE_EMULATED_HPP
#define DT_CUDA_DEVICE_EMULATED_HPP
#include <deque>

#include "providers/cuda/device.cuh"

namespace emu
{
typedef std::vector<std::function<void()>> recording;
struct stream {
    std::deque<std::function<void()>> queue;
    uint64_t queued, done;                /* pieces of work ever */
    recording *record;                    /* being recorded */
    std::map<const char *, size_t> known; /* blocks of device and page-locked memory: start, bytes */
};
static inline stream *stream_of(const dt_exec *exec)
{
    return (stream *)exec->stream;
}
static inline void run_until(stream *s, uint64_t end)
{
    while (s->done < end) {
        std::function<void()> work = std::move(s->queue.front());
        s->queue.pop_front();
        work();
        s->done++;
    }
}
static inline bool is_known(const stream *s, const void *memory)
{
    auto after = s->known.upper_bound((const char *)memory);
    if (after == s->known.begin())
        return false;
    --after;
    return (const char *)memory < after->first + after->second;
}
static inline dt_status allocate(const dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    *out = aligned_alloc(256, dtp_round_up(bytes + 1, 256));
    if (!*out)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes", bytes);
    memset(*out, 0xff, bytes); /* NaN */
    stream_of(exec)->known[(const char *)*out] = bytes ? bytes : 1;
    return DT_OK;
}
static inline void release(const dt_exec *exec, void *memory)
{
    run_until(stream_of(exec), stream_of(exec)->queued); /* as cudaFree does */
    stream_of(exec)->known.erase((const char *)memory);
    free(memory);
}
} /* namespace emu */

/* Execution contexts made by hand (cuda_check) have no stream: they run everything at once. */
void dtp_cuda_emulate(const dt_exec *exec, std::function<void()> work)
{
    emu::stream *s = emu::stream_of(exec);
    if (!s)
        return work();
    if (s->record)
        return s->record->push_back(work);
    s->queue.push_back(work);
    s->queued++;
}

static dt_status device_open(dt_exec *exec, dt_err *err)
{
    (void)err;
    exec->stream = new emu::stream();
    return DT_OK;
}
static void device_close(dt_exec *exec)
{
    emu::run_until(emu::stream_of(exec), emu::stream_of(exec)->queued);
    delete emu::stream_of(exec);
    exec->stream = NULL;
}
static dt_status device_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    return emu::allocate(exec, out, bytes, err);
}
static void device_release(dt_exec *exec, void *memory)
{
    emu::release(exec, memory);
}
static dt_status device_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err)
{
    (void)err;
    dtp_cuda_emulate(exec, [=]() { memset(memory, 0, bytes); });
    return DT_OK;
}
static dt_status device_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    emu::stream *s = emu::stream_of(exec);
    bool queued = emu::is_known(s, to) && emu::is_known(s, from);
    if (queued) {
        dtp_cuda_emulate(exec, [=]() { memmove(to, from, bytes); });
    } else if (s->record) {
        return dt_fail(err, DT_E_ARG, "emulated CUDA: a copy that touches ordinary host memory is recorded");
    } else if (bytes) {
        emu::run_until(s, s->queued);
        memmove(to, from, bytes);
    }
    return DT_OK;
}
static dt_status device_synchronize(dt_exec *exec, dt_err *err)
{
    (void)err;
    emu::run_until(emu::stream_of(exec), emu::stream_of(exec)->queued);
    return DT_OK;
}

static dt_status device_host_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    return emu::allocate(exec, out, bytes, err);
}
static void device_host_release(dt_exec *exec, void *memory)
{
    emu::release(exec, memory);
}
/* DELTUNE_EMULATED_MEMORY: bytes free, for tests of memory plans. */
static dt_status device_memory(dt_exec *exec, uint64_t *free_out, uint64_t *total_out, dt_err *err)
{
    const char *bytes = getenv("DELTUNE_EMULATED_MEMORY");
    (void)exec, (void)err;
    *free_out = *total_out = bytes ? strtoull(bytes, NULL, 10) : (uint64_t)16 << 30;
    return DT_OK;
}

static dt_status device_mark(dt_exec *exec, void **mark, dt_err *err)
{
    (void)err;
    if (!*mark)
        *mark = new uint64_t;
    *(uint64_t *)*mark = emu::stream_of(exec)->queued;
    return DT_OK;
}
static dt_status device_wait(dt_exec *exec, void *mark, dt_err *err)
{
    (void)err;
    emu::run_until(emu::stream_of(exec), *(uint64_t *)mark);
    return DT_OK;
}
static void device_mark_release(dt_exec *exec, void *mark)
{
    (void)exec;
    delete (uint64_t *)mark;
}

static dt_status device_record_begin(dt_exec *exec, dt_err *err)
{
    (void)err;
    emu::stream_of(exec)->record = new emu::recording();
    return DT_OK;
}
static dt_status device_record_end(dt_exec *exec, void **recording_out, dt_err *err)
{
    emu::recording *recorded = emu::stream_of(exec)->record;
    (void)err;
    emu::stream_of(exec)->record = NULL;
    if (recording_out)
        *recording_out = recorded;
    else
        delete recorded;
    return DT_OK;
}
static dt_status device_replay(dt_exec *exec, void *recording, dt_err *err)
{
    (void)err;
    for (const std::function<void()> &work : *(emu::recording *)recording)
        dtp_cuda_emulate(exec, work);
    return DT_OK;
}
static void device_recording_release(dt_exec *exec, void *recording)
{
    emu::run_until(emu::stream_of(exec), emu::stream_of(exec)->queued);
    delete (emu::recording *)recording;
}
#endif
