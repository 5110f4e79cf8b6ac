/* Memory, ordering, marks and recordings of the emulated device.
 *
 * Work runs as late as a real device may run it: launches, zeros, and copies between device and page-locked memory wait
 * in a queue until something must see their results. Memory that the host writes again too early, or reads before it
 * has waited, therefore shows as a wrong result. A recording is the list of its work; by-value arguments are copied
 * into it, so a constant that should have changed from step to step shows as well. Device memory cannot be touched but
 * by work that runs: a host that follows a device pointer dies, as it would with a card. */
#ifndef DT_CUDA_DEVICE_EMULATED_HPP
#define DT_CUDA_DEVICE_EMULATED_HPP
#include <deque>
#include <mutex>
#include <sys/mman.h>

#include "providers/cuda/device.cuh"

namespace emu
{
typedef std::vector<std::function<void()>> recording;
struct stream {
    std::deque<std::function<void()>> queue;
    uint64_t queued, done; /* pieces of work ever */
    recording *record;     /* being recorded */
};
static inline stream *stream_of(const dt_exec *exec)
{
    return (stream *)exec->stream;
}

/* The one device of the process: its memory, and page-locked memory of the host. Work of one stream runs at a time. */
struct block {
    size_t bytes; /* whole pages */
    bool on_device;
};
static std::recursive_mutex turn;
static std::map<char *, block> known; /* by their start */

static inline void protect(bool open)
{
    for (const auto &entry : known)
        if (entry.second.on_device)
            mprotect(entry.first, entry.second.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}
static inline void run_until(stream *s, uint64_t end)
{
    std::lock_guard<std::recursive_mutex> lock(turn);
    if (s->done >= end)
        return;
    protect(true);
    while (s->done < end) {
        std::function<void()> work = std::move(s->queue.front());
        s->queue.pop_front();
        work();
        s->done++;
    }
    protect(false);
}
static inline bool is_known(const void *memory)
{
    auto after = known.upper_bound((char *)(uintptr_t)memory);
    if (after == known.begin())
        return false;
    --after;
    return (const char *)memory < after->first + after->second.bytes;
}
static inline dt_status allocate(void **out, size_t bytes, bool on_device, dt_err *err)
{
    std::lock_guard<std::recursive_mutex> lock(turn);
    size_t pages = dtp_round_up(bytes + 1, 4096);
    void *memory = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes", bytes);
    memset(memory, 0xff, bytes); /* NaN */
    if (on_device)
        mprotect(memory, pages, PROT_NONE);
    known[(char *)memory] = {pages, on_device};
    *out = memory;
    return DT_OK;
}
static inline void release(const dt_exec *exec, void *memory)
{
    std::lock_guard<std::recursive_mutex> lock(turn);
    run_until(stream_of(exec), stream_of(exec)->queued); /* as cudaFree does */
    munmap(memory, known[(char *)memory].bytes);
    known.erase((char *)memory);
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
    (void)exec;
    return emu::allocate(out, bytes, true, err);
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
    std::lock_guard<std::recursive_mutex> lock(emu::turn);
    emu::stream *s = emu::stream_of(exec);
    bool queued = emu::is_known(to) && emu::is_known(from);
    if (queued) {
        dtp_cuda_emulate(exec, [=]() { memmove(to, from, bytes); });
    } else if (s->record) {
        return dt_fail(err, DT_E_ARG, "emulated CUDA: a copy that touches ordinary host memory is recorded");
    } else if (bytes) {
        emu::run_until(s, s->queued);
        emu::protect(true);
        memmove(to, from, bytes);
        emu::protect(false);
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
    (void)exec;
    return emu::allocate(out, bytes, false, err);
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
