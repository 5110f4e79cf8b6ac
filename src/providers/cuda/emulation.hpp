/* Runs a kernel on the CPU, one fiber per CUDA thread, so that its arithmetic, tile layouts and barriers can be tested
 * without a GPU. Included by ptx.cuh under DT_EMULATE; not for production and not fast.
 *
 * Asynchronous instructions (cp.async, wgmma) take effect as late as the ISA allows: at the wait that covers them. A
 * missing wait, or an operand overwritten too early, therefore shows as a wrong result. What cannot be seen here are
 * missing proxy fences and races between warps that the scheduling order hides (it can be shuffled: emu::seed). */
#ifndef DT_CUDA_EMULATION_HPP
#define DT_CUDA_EMULATION_HPP
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#define DT_DEVICE                         static inline
#define DT_KERNEL(threads, blocks_per_sm) static void
#define DT_UNROLL
#define DT_ROLLED
#define DT_UNROLL_BY(n)
#define DT_RUNS_HERE(isa) true
#define DT_SHARED(name)   unsigned char *name = emu::shared
#define __restrict__
#define __grid_constant__

struct emu_index {
    unsigned x, y, z;
};
struct uint4 {
    uint32_t x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct int4 {
    int x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

static emu_index threadIdx, blockIdx, gridDim, blockDim;

namespace emu
{
static const size_t stack_bytes = 192 * 1024, shared_bytes = 232448;
alignas(1024) static unsigned char shared[shared_bytes];

struct pending_copy {
    uint32_t to;
    const void *from;
    int bytes;
};
struct pending_product {
    std::function<void()> run;
};
struct fiber {
    ucontext_t start;
    jmp_buf at;
    bool started, done;
    int wait_key; /* what it waits for, for the report of a deadlock */
    std::vector<std::vector<pending_copy>> copies;
    std::vector<pending_copy> open_copies;
};
/* Threads that meet: a warp, a warpgroup, a block. The last to come runs the operation for all. */
struct meeting {
    int arrived;
    unsigned generation;
    void *arguments[1024];
};
struct products { /* of one warpgroup */
    std::vector<std::vector<std::function<void()>>> groups;
    std::vector<std::function<void()>> open;
};

static std::vector<fiber> fibers;
static std::vector<char> stacks;
static meeting warps[32], warpgroups[8], whole, named[16];
static products queues[8];
static int current, n_threads;
static unsigned seed; /* 0: threads run in order; else warps are visited in a shuffled order */
static jmp_buf scheduler;
static std::function<void()> body;
static std::mutex device;      /* held during a launch */
static unsigned long progress; /* meetings held and barrier phases ended: none for long means deadlock */

static inline void fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u, thread %d)\n", what, blockIdx.x, current);
    abort();
}
static inline void yield()
{
    if (_setjmp(fibers[(size_t)current].at) == 0)
        _longjmp(scheduler, 1);
}
template <class F> static inline void meet(meeting &m, int count, int index, void *arguments, F operation)
{
    m.arguments[index] = arguments;
    if (++m.arrived == count) {
        operation(m.arguments);
        m.arrived = 0;
        m.generation++;
        progress++;
        return;
    }
    unsigned generation = m.generation;
    while (m.generation == generation)
        yield();
}
template <class F> static inline void warp_meet(void *arguments, F operation)
{
    meet(warps[current / 32], 32, current % 32, arguments, operation);
}
static inline void nothing(void **) {}

static void fiber_main()
{
    body();
    fibers[(size_t)current].done = true;
    progress++;
    _longjmp(scheduler, 1);
}
__attribute__((noinline)) static void resume(int thread)
{
    fiber &f = fibers[(size_t)thread];
    current = thread;
    threadIdx.x = (unsigned)thread;
    if (_setjmp(scheduler) == 0) {
        if (!f.started) {
            f.started = true;
            setcontext(&f.start);
        }
        _longjmp(f.at, 1);
    }
}
static unsigned next_random()
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed * 2654435761u >> 8;
}
static void run_block(int threads)
{
    n_threads = threads;
    fibers.assign((size_t)threads, fiber());
    stacks.resize((size_t)threads * stack_bytes);
    memset(warps, 0, sizeof warps);
    memset(warpgroups, 0, sizeof warpgroups);
    memset(named, 0, sizeof named);
    memset(&whole, 0, sizeof whole);
    for (products &q : queues)
        q = products();
    for (int i = 0; i < threads; i++) {
        fiber &f = fibers[(size_t)i];
        f.started = f.done = false;
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = stacks.data() + (size_t)i * stack_bytes;
        f.start.uc_stack.ss_size = stack_bytes;
        f.start.uc_link = NULL;
        makecontext(&f.start, fiber_main, 0);
    }
    unsigned long seen = progress;
    std::vector<int> asleep((size_t)(threads / 32), 0); /* rounds a warp sits out: only when shuffled */
    for (int idle = 0;; idle++) {
        bool any = false;
        int shift = seed ? (int)(next_random() % (unsigned)(threads / 32)) : 0;
        for (int w = 0; w < threads / 32; w++) {
            int warp = (w + shift) % (threads / 32), &sleep = asleep[(size_t)warp];
            if (seed && sleep == 0 && next_random() % 1024 == 0)
                sleep = (int)(next_random() % 3000);
            if (sleep > 0) {
                sleep--;
                for (int lane = 0; lane < 32; lane++)
                    any = any || !fibers[(size_t)(warp * 32 + lane)].done;
                continue;
            }
            for (int lane = 0; lane < 32; lane++)
                if (!fibers[(size_t)(warp * 32 + lane)].done) {
                    any = true;
                    resume(warp * 32 + lane);
                }
        }
        if (!any)
            break;
        if (progress != seen)
            idle = 0, seen = progress;
        if (idle > 20000)
            fail("deadlock");
    }
}
/* kernel() is called in every thread of every block. Shared memory starts as NaN. Threads of the host take turns: there
 * is one emulated device. */
template <class F> static void launch(unsigned blocks, unsigned threads, F kernel)
{
    std::lock_guard<std::mutex> lock(device);
    body = kernel;
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx = {b, 0, 0};
        memset(shared, 0xff, sizeof shared);
        run_block((int)threads);
    }
}

static inline unsigned char *at(uint32_t address, uint32_t bytes)
{
    if (address + bytes > shared_bytes || address % (bytes > 16 ? 16 : bytes))
        fail("shared memory access out of range or unaligned");
    return shared + address;
}
static inline float f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t u32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float half_of(uint32_t pair, int high)
{
    return f32(high ? pair & 0xffff0000u : pair << 16);
}
static inline float bf16_at(uint32_t address)
{
    uint16_t h;
    memcpy(&h, at(address, 2), 2);
    return f32((uint32_t)h << 16);
}
static inline uint32_t to_bf16(float x)
{
    uint32_t u = u32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u >> 16) | 0x40u;
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
/* Element (mn, k) of a shared wgmma operand, read as the matrix descriptor says (128-byte swizzle). */
static inline float element(uint64_t descriptor, int mn_major, int mn, int k)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
             stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, offset;
    if (descriptor >> 62 != 1)
        fail("descriptor without 128-byte swizzle");
    if (mn_major)
        offset = (uint32_t)(mn / 64) * leading + (uint32_t)(k / 8) * stride + (uint32_t)(k % 8) * 128u +
                 (uint32_t)(mn % 64) * 2u;
    else
        offset = (uint32_t)(mn / 8) * stride + (uint32_t)(mn % 8) * 128u + (uint32_t)k * 2u;
    uint32_t address = start + offset;
    return bf16_at(address ^ ((address >> 7 & 7u) << 4));
}
struct wgmma_arguments {
    float *d;
    const uint32_t *a;
};
static inline void wgmma(int n, float *d, const uint32_t *a_registers, uint64_t a, int a_mn, uint64_t b, int b_mn,
                         int accumulate)
{
    wgmma_arguments mine = {d, a_registers};
    int group = current / 128;
    meet(warpgroups[group], 128, current % 128, &mine, [=](void **all) {
        std::vector<wgmma_arguments> threads(128);
        for (int t = 0; t < 128; t++)
            threads[(size_t)t] = *(wgmma_arguments *)all[t];
        queues[group].open.push_back([=]() {
            static float bm[16][128], am[64][16];
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < n; j++)
                    bm[k][j] = element(b, b_mn, j, k);
            for (int i = 0; i < 64; i++)
                for (int k = 0; k < 16; k++) {
                    if (a_registers) {
                        int lane = (i % 8) * 4 + (k % 8) / 2, reg = (i % 16) / 8 + 2 * (k / 8);
                        am[i][k] = half_of(threads[(size_t)(i / 16 * 32 + lane)].a[reg], k & 1);
                    } else
                        am[i][k] = element(a, a_mn, i, k);
                }
            for (int i = 0; i < 64; i++)
                for (int j = 0; j < n; j++) {
                    float *x = &threads[(size_t)(i / 16 * 32 + (i % 8) * 4 + (j % 8) / 2)]
                                    .d[4 * (j / 8) + 2 * ((i % 16) / 8) + (j & 1)];
                    double s = accumulate ? *x : 0.0;
                    for (int k = 0; k < 16; k++)
                        s += (double)am[i][k] * bm[k][j];
                    *x = (float)s;
                }
        });
    });
}
} /* namespace emu */

static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - emu::shared);
}
static inline void block_sync()
{
    emu::meet(emu::whole, emu::n_threads, emu::current, NULL, emu::nothing);
}
static inline void warp_sync()
{
    emu::warp_meet(NULL, emu::nothing);
}
static inline void group_sync(int barrier, int threads)
{
    emu::meeting &m = emu::named[barrier];
    emu::meet(m, threads, m.arrived, NULL, emu::nothing);
}
template <class T, class F> static inline T emu_shuffle(T x, F source)
{
    struct slot {
        T in, out;
    } mine = {x, x};
    emu::warp_meet(&mine, [&](void **all) {
        for (int lane = 0; lane < 32; lane++) {
            int from = source(lane);
            ((slot *)all[lane])->out = ((slot *)all[from < 0 || from > 31 ? lane : from])->in;
        }
    });
    return mine.out;
}
static inline float choose(int yes, float a, float b)
{
    return yes ? a : b;
}
static inline float shuffle_xor(float x, int n)
{
    return emu_shuffle(x, [=](int lane) { return lane ^ n; });
}
static inline float shuffle_up(float x, int n)
{
    return emu_shuffle(x, [=](int lane) { return lane - n; });
}
static inline float shuffle_down(float x, int n)
{
    return emu_shuffle(x, [=](int lane) { return lane + n; });
}
static inline float shuffle_from(float x, int n) /* each lane names its own */
{
    struct slot {
        float in, out;
        int from;
    } mine = {x, x, n & 31};
    emu::warp_meet(&mine, [](void **all) {
        for (int lane = 0; lane < 32; lane++)
            ((slot *)all[lane])->out = ((slot *)all[((slot *)all[lane])->from])->in;
    });
    return mine.out;
}
static inline int shuffle_up_int(int x, int n)
{
    return emu_shuffle(x, [=](int lane) { return lane - n; });
}
static inline int shuffle_xor_int(int x, int n)
{
    return emu_shuffle(x, [=](int lane) { return lane ^ n; });
}

static inline int count_lanes(bool yes)
{
    struct slot {
        bool yes;
        int count;
    } mine = {yes, 0};
    emu::warp_meet(&mine, [](void **all) {
        int count = 0;
        for (int lane = 0; lane < 32; lane++)
            count += ((slot *)all[lane])->yes;
        for (int lane = 0; lane < 32; lane++)
            ((slot *)all[lane])->count = count;
    });
    return mine.count;
}

static inline int uniform(int x)
{
    return x;
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}
static inline float rcp_fast(float x)
{
    return 1.0f / x;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline void sincospif(float x, float *sine, float *cosine)
{
    *sine = (float)sin(3.14159265358979323846 * (double)x);
    *cosine = (float)cos(3.14159265358979323846 * (double)x);
}
static inline float float_from_bits(uint32_t u)
{
    return emu::f32(u);
}
static inline void forget(uint4 &) {}
static inline uint32_t pack_bf16(float low, float high)
{
    return emu::to_bf16(low) | emu::to_bf16(high) << 16;
}
static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(all >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
}
static inline uint32_t to_tf32(float x)
{
    return (emu::u32(x) + 0x1000u) & ~0x1fffu;
}
static inline float round_tf32(float x)
{
    return emu::f32(to_tf32(x));
}
static inline uint32_t float_bits(float x)
{
    return emu::u32(x);
}

static inline void copy_async16(uint32_t to, const void *from, int bytes)
{
    emu::fibers[(size_t)emu::current].open_copies.push_back({to, from, bytes});
}
static inline void copy_commit()
{
    emu::fiber &f = emu::fibers[(size_t)emu::current];
    f.copies.push_back(f.open_copies);
    f.open_copies.clear();
}
template <int PENDING> static inline void copy_wait()
{
    emu::fiber &f = emu::fibers[(size_t)emu::current];
    while (f.copies.size() > (size_t)PENDING) {
        for (emu::pending_copy &c : f.copies[0]) {
            unsigned char *to = emu::at(c.to, 16);
            memset(to, 0, 16);
            memcpy(to, c.from, (size_t)c.bytes);
        }
        f.copies.erase(f.copies.begin());
    }
}
static inline void store_streaming16(uint4 *to, uint4 v)
{
    *to = v;
}
static inline uint4 load_shared16(uint32_t from)
{
    uint4 v;
    memcpy(&v, emu::at(from, 16), 16);
    return v;
}
static inline uint2 load_shared8(uint32_t from)
{
    uint2 v;
    memcpy(&v, emu::at(from, 8), 8);
    return v;
}
static inline uint32_t load_shared4(uint32_t from)
{
    uint32_t v;
    memcpy(&v, emu::at(from, 4), 4);
    return v;
}
static inline void store_shared16(uint32_t to, uint4 v)
{
    memcpy(emu::at(to, 16), &v, 16);
}
static inline void store_shared4(uint32_t to, uint32_t v)
{
    memcpy(emu::at(to, 4), &v, 4);
}
static inline void store_shared2(uint32_t to, uint32_t v)
{
    memcpy(emu::at(to, 2), &v, 2);
}

static inline void emu_matrix(uint32_t *r, uint32_t address, bool transposed, bool store)
{
    struct slot {
        uint32_t *r, address;
    } mine = {r, address};
    emu::warp_meet(&mine, [=](void **all) {
        for (int m = 0; m < 4; m++)
            for (int row = 0; row < 8; row++)
                for (int col = 0; col < 8; col++) {
                    int i = transposed ? col : row, j = transposed ? row : col; /* position in the fragment */
                    uint32_t *reg = &((slot *)all[i * 4 + j / 2])->r[m],
                             cell = ((slot *)all[m * 8 + row])->address + (uint32_t)col * 2;
                    if (col == 0)
                        emu::at(cell, 16);
                    uint16_t h;
                    if (store) {
                        h = (uint16_t)(j & 1 ? *reg >> 16 : *reg & 0xffff);
                        memcpy(emu::at(cell, 2), &h, 2);
                    } else {
                        memcpy(&h, emu::at(cell, 2), 2);
                        *reg = j & 1 ? (*reg & 0xffffu) | (uint32_t)h << 16 : (*reg & 0xffff0000u) | h;
                    }
                }
    });
}
static inline void ldmatrix(uint32_t (&r)[4], uint32_t from)
{
    emu_matrix(r, from, false, false);
}
static inline void ldmatrix_trans(uint32_t (&r)[4], uint32_t from)
{
    emu_matrix(r, from, true, false);
}
static inline void stmatrix(uint32_t to, const uint32_t (&r)[4])
{
    emu_matrix((uint32_t *)(uintptr_t)r, to, false, true);
}
static inline void stmatrix_trans(uint32_t to, const uint32_t (&r)[4])
{
    emu_matrix((uint32_t *)(uintptr_t)r, to, true, true);
}

struct emu_mma {
    float *d;
    const uint32_t *a;
    uint32_t b0, b1;
};
static inline void mma_bf16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emu_mma mine = {d, a, b0, b1};
    emu::warp_meet(&mine, [](void **all) {
        float am[16][16], bm[16][8];
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                am[i][k] = emu::half_of(((emu_mma *)all[(i % 8) * 4 + (k % 8) / 2])->a[i / 8 + 2 * (k / 8)], k & 1);
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) {
                emu_mma *t = (emu_mma *)all[j * 4 + (k % 8) / 2];
                bm[k][j] = emu::half_of(k < 8 ? t->b0 : t->b1, k & 1);
            }
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float *x = &((emu_mma *)all[(i % 8) * 4 + j / 2])->d[2 * (i / 8) + (j & 1)];
                double s = *x;
                for (int k = 0; k < 16; k++)
                    s += (double)am[i][k] * bm[k][j];
                *x = (float)s;
            }
    });
}
static inline void mma_tf32(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emu_mma mine = {d, a, b0, b1};
    emu::warp_meet(&mine, [](void **all) {
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float *x = &((emu_mma *)all[(i % 8) * 4 + j / 2])->d[2 * (i / 8) + (j & 1)];
                double s = *x;
                for (int k = 0; k < 8; k++) {
                    emu_mma *t = (emu_mma *)all[j * 4 + k % 4];
                    s += (double)emu::f32(((emu_mma *)all[(i % 8) * 4 + k % 4])->a[i / 8 + 2 * (k / 4)]) *
                         emu::f32(k < 4 ? t->b0 : t->b1);
                }
                *x = (float)s;
            }
    });
}

/* A [T, heads, width] bf16 tensor of which boxes of 64 columns are copied. */
struct tensor_map {
    const uint16_t *data;
    int64_t width, heads, rows, head_stride, row_stride; /* strides in elements */
    int box_heads, box_rows;
};
#define DT_GRID_CONSTANT const

/* Copies take effect when a thread waits for the phase they complete, no earlier. */
struct emu_barrier {
    int arrivals, pending, bytes;
    unsigned phase;
    std::vector<std::function<int()>> copies; /* each returns the bytes it brought */
};
static std::map<uint32_t, emu_barrier> emu_barriers;
static inline void barrier_init(uint32_t barrier, int arrivals)
{
    emu_barrier b = {arrivals, arrivals, 0, 0, {}};
    emu_barriers[barrier] = b;
}
static inline void barrier_init_fence() {}
static inline void emu_complete(emu_barrier &b)
{
    if (b.pending == 0 && b.bytes == 0) {
        b.pending = b.arrivals;
        b.phase++;
        emu::progress++;
    }
}
static inline void barrier_arrive(uint32_t barrier)
{
    emu_barrier &b = emu_barriers.at(barrier);
    if (--b.pending < 0)
        emu::fail("more arrivals than a barrier expects");
    emu_complete(b);
}
static inline void barrier_expect(uint32_t barrier, int bytes)
{
    emu_barriers.at(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
static inline void barrier_wait(uint32_t barrier, int parity)
{
    emu_barrier &b = emu_barriers.at(barrier);
    while ((int)(b.phase & 1) == parity) {
        if (b.pending == 0) {
            for (auto &copy : b.copies)
                b.bytes -= copy();
            b.copies.clear();
            emu_complete(b);
        }
        if ((int)(b.phase & 1) == parity)
            emu::yield();
    }
}
static inline void copy_box(uint32_t to, const tensor_map &map, int column, int head, int row, uint32_t barrier)
{
    if (to % 1024)
        emu::fail("a box must lie on 1,024 bytes");
    tensor_map m = map;
    emu_barriers.at(barrier).copies.push_back([=]() {
        for (int i = 0; i < m.box_rows * m.box_heads; i++)
            for (int j = 0; j < 64; j++) {
                int64_t r = row + i / m.box_heads, h = head + i % m.box_heads;
                bool inside = r < m.rows && column + j < m.width && h < m.heads;
                uint16_t x = inside ? m.data[r * m.row_stride + h * m.head_stride + column + j] : (uint16_t)0;
                memcpy(emu::at(to + (uint32_t)(i * 128 + ((j / 8 ^ (i & 7)) << 4) + j % 8 * 2), 2), &x, 2);
            }
        return m.box_rows * m.box_heads * 128;
    });
}
static inline void prefetch_map(const tensor_map &) {}
static inline void copy_bulk(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    emu_barriers.at(barrier).copies.push_back([=]() {
        for (int i = 0; i < bytes; i += 16)
            memcpy(emu::at(to + (uint32_t)i, 16), (const char *)from + i, 16);
        return bytes;
    });
}
template <int REGISTERS> static inline void more_registers() {}
template <int REGISTERS> static inline void fewer_registers() {}

static inline void fence_async_proxy() {}
static inline void wgmma_fence() {}
static inline void keep_order(float &) {}
static inline void wgmma_commit()
{
    int group = emu::current / 128;
    emu::meet(emu::warpgroups[group], 128, emu::current % 128, NULL, [=](void **) {
        emu::queues[group].groups.push_back(emu::queues[group].open);
        emu::queues[group].open.clear();
    });
}
template <int PENDING> static inline void wgmma_wait()
{
    int group = emu::current / 128;
    emu::meet(emu::warpgroups[group], 128, emu::current % 128, NULL, [=](void **) {
        emu::products &q = emu::queues[group];
        while (q.groups.size() > (size_t)PENDING) {
            for (auto &run : q.groups[0])
                run();
            q.groups.erase(q.groups.begin());
        }
    });
}
template <int N, int B_N_MAJOR>
static inline void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate)
{
    emu::wgmma(N, d, a, 0, 0, b, B_N_MAJOR, accumulate);
}
template <int N, int A_M_MAJOR, int B_N_MAJOR>
static inline void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
    emu::wgmma(N, d, NULL, a, A_M_MAJOR, b, B_N_MAJOR, accumulate);
}
template <int N, int B_N_MAJOR> static inline void wgmma_rs_new(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
    wgmma_rs<N, B_N_MAJOR>(d, a, b, 0);
}
template <int N, int A_M_MAJOR, int B_N_MAJOR>
static inline void wgmma_ss_new(float (&d)[N / 2], uint64_t a, uint64_t b)
{
    wgmma_ss<N, A_M_MAJOR, B_N_MAJOR>(d, a, b, 0);
}
#endif
