/* The device instructions the kernels use, one inline function each.
 *
 * Under DT_EMULATE the same names come from emulation.hpp, which runs the kernels on the CPU thread by thread: that is
 * how their arithmetic, layouts and barriers are tested on machines without a GPU. Kernels therefore use nothing of
 * CUDA but these functions, threadIdx/blockIdx/gridDim and plain C. */
#ifndef DT_CUDA_PTX_CUH
#define DT_CUDA_PTX_CUH
#include <stdint.h>

#ifdef DT_EMULATE
#include "providers/cuda/emulation.hpp"
#else
#include <cuda.h> /* CUtensorMap */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define DT_DEVICE                         __device__ __forceinline__
#define DT_KERNEL(threads, blocks_per_sm) __global__ void __launch_bounds__(threads, blocks_per_sm)
#define DT_UNROLL                         _Pragma("unroll")
#define DT_ROLLED                         _Pragma("unroll 1") /* code that runs once is slow to fetch: keep it short */
#define DT_PRAGMA(text)                   _Pragma(#text)
#define DT_UNROLL_BY(n)                   DT_PRAGMA(unroll n)
/* Kernels exist for both instruction sets; their Hopper form is empty in code for other cards and never launched there.
 */
#define DT_RUNS_HERE(isa)                 ((isa) == 0 || DT_HOPPER)
/* All shared memory of a kernel is one dynamic array; 1,024-byte alignment is what 128-byte swizzled tiles need. */
#define DT_SHARED(name)                   extern __shared__ __align__(1024) unsigned char name[]

/* Hopper's own instructions exist only in the sm_90a code of this file. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DT_HOPPER 1
#else
#define DT_HOPPER 0
#endif

DT_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
DT_DEVICE void block_sync()
{
    __syncthreads();
}
DT_DEVICE void warp_sync()
{
    __syncwarp();
}
/* A barrier of `threads` threads that does not stop the others. Numbers 1..15. */
DT_DEVICE void group_sync(int barrier, int threads)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

DT_DEVICE float shuffle_xor(float x, int lanes)
{
    return __shfl_xor_sync(~0u, x, lanes);
}
DT_DEVICE float shuffle_up(float x, int lanes)
{
    return __shfl_up_sync(~0u, x, lanes);
}
DT_DEVICE float shuffle_down(float x, int lanes)
{
    return __shfl_down_sync(~0u, x, lanes);
}
DT_DEVICE float shuffle_from(float x, int lane)
{
    return __shfl_sync(~0u, x, lane);
}
DT_DEVICE int shuffle_up_int(int x, int lanes)
{
    return __shfl_up_sync(~0u, x, lanes);
}
DT_DEVICE int shuffle_xor_int(int x, int lanes)
{
    return __shfl_xor_sync(~0u, x, lanes);
}

/* How many lanes of the warp say yes. */
DT_DEVICE int count_lanes(bool yes)
{
    return __popc(__ballot_sync(~0u, yes));
}

/* x, known to the compiler to be the same in all lanes: roles of warpgroups branch on it. */
DT_DEVICE int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}

/* yes ? a : b. Written as that between elements of an array the compiler chooses an address, and the array has to lie
 * in memory. */
DT_DEVICE float choose(int yes, float a, float b)
{
    float x;
    asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}" : "=f"(x) : "f"(a), "f"(b), "r"(yes));
    return x;
}

/* 2^x, about 2 ulp; results below 2^-126 are 0. */
DT_DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DT_DEVICE float rcp_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Makes the compiler forget what it derived from v: values are unpacked again where they are used again, instead of
 * being held in twice the registers. */
DT_DEVICE void forget(uint4 &v)
{
    asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}
/* Two floats as bf16, `low` in the low half. */
DT_DEVICE uint32_t pack_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* Four of the eight bytes b:a (0..3 are a's), the first named by the low digit of `selector`. */
DT_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}
DT_DEVICE float float_from_bits(uint32_t u)
{
    return __uint_as_float(u);
}
/* Rounded to tf32 to nearest, ties away: the hardware drops the low 13 bits. For finite x. */
DT_DEVICE uint32_t to_tf32(float x)
{
    return __float_as_uint(x) + 0x1000u;
}
DT_DEVICE uint32_t float_bits(float x)
{
    return __float_as_uint(x);
}
DT_DEVICE float round_tf32(float x)
{
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & ~0x1fffu);
}

/* 16 bytes global -> shared, asynchronous; only the first `bytes` (0 or 16) are read, the rest is zero. */
DT_DEVICE void copy_async16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DT_DEVICE void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> DT_DEVICE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* 16 bytes that nobody reads soon: they leave the caches first. */
DT_DEVICE void store_streaming16(uint4 *to, uint4 v)
{
    __stcs(to, v);
}

DT_DEVICE uint4 load_shared16(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
DT_DEVICE uint2 load_shared8(uint32_t from)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}
DT_DEVICE uint32_t load_shared4(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
DT_DEVICE void store_shared16(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DT_DEVICE void store_shared4(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
DT_DEVICE void store_shared2(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"((unsigned short)v) : "memory");
}

DT_DEVICE void ldmatrix(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
DT_DEVICE void ldmatrix_trans(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
DT_DEVICE void stmatrix_trans(uint32_t to, const uint32_t (&r)[4])
{
#if DT_HOPPER
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}
DT_DEVICE void stmatrix(uint32_t to, const uint32_t (&r)[4])
{
#if DT_HOPPER
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}
DT_DEVICE void mma_bf16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DT_DEVICE void mma_tf32(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- Hopper: barriers in shared memory, bulk copies that complete on them, register budgets ---- */
typedef CUtensorMap tensor_map;
#define DT_GRID_CONSTANT const __grid_constant__

DT_DEVICE void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/* After barrier_init, before a block_sync: makes the barriers visible to the copy engine too. */
DT_DEVICE void barrier_init_fence()
{
#if DT_HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DT_DEVICE void barrier_arrive(uint32_t barrier)
{
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared::cta.b64 t, [%0];\n}" ::"r"(barrier) : "memory");
}
/* Arrives and announces bytes that copies will bring. */
DT_DEVICE void barrier_expect(uint32_t barrier, int bytes)
{
#if DT_HOPPER
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;\n}" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}
/* Waits for the end of the phase of this parity: 0, 1, 0, ... from the barrier's first. */
DT_DEVICE void barrier_wait(uint32_t barrier, int parity)
{
#if DT_HOPPER
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
                 "AGAIN;\nDONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#else
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
                 "AGAIN;\nDONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}
/* A box of 64 columns of a [T, heads, width] tensor, rows and heads as the map says; what lies outside the tensor
 * arrives as zero. */
DT_DEVICE void copy_box(uint32_t to, const tensor_map &map, int column, int head, int row, uint32_t barrier)
{
#if DT_HOPPER
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(head), "r"(row), "r"(barrier)
                 : "memory");
#endif
}
/* The first copy by a map has to fetch it; this does so ahead. */
DT_DEVICE void prefetch_map(const tensor_map &map)
{
#if DT_HOPPER
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}
/* `bytes` contiguous bytes, a multiple of 16. */
DT_DEVICE void copy_bulk(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
#if DT_HOPPER
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}
/* The registers a thread may use from here on; by all warps of a warpgroup. */
template <int REGISTERS> DT_DEVICE void more_registers()
{
#if DT_HOPPER
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}
template <int REGISTERS> DT_DEVICE void fewer_registers()
{
#if DT_HOPPER
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

/* ---- Hopper: warpgroup products. Between wgmma_commit and the wgmma_wait that covers it, neither the accumulator nor
 * an A operand in registers may be touched. ---- */
DT_DEVICE void fence_async_proxy()
{
#if DT_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
DT_DEVICE void wgmma_fence()
{
#if DT_HOPPER
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
DT_DEVICE void wgmma_commit()
{
#if DT_HOPPER
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* x is used after this point only, with regard to the instructions of this file. */
DT_DEVICE void keep_order(float &x)
{
    asm volatile("" : "+f"(x)::"memory");
}
template <int PENDING> DT_DEVICE void wgmma_wait()
{
#if DT_HOPPER
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

#define DT_F8(d, i)                                                                                                    \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define DT_F32(d, i) DT_F8(d, i), DT_F8(d, i + 8), DT_F8(d, i + 16), DT_F8(d, i + 24)
#define DT_O8(d, i)                                                                                                    \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]),        \
        "=f"(d[i + 7])
#define DT_O32(d, i) DT_O8(d, i), DT_O8(d, i + 8), DT_O8(d, i + 16), DT_O8(d, i + 24)
#define DT_R32                                                                                                         \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"  \
    "30,%31"
#define DT_R64                                                                                                         \
    DT_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
           "%58,%59,"                                                                                                  \
           "%60,%61,%62,%63"

/* d = a b (+ d when accumulate): 64 x N x 16, A in registers, B in shared memory (descriptor); B_N_MAJOR: B is stored
 * [k][n], else [n][k]. */
template <int N, int B_N_MAJOR>
DT_DEVICE void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate)
{
#if DT_HOPPER
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DT_R32
                     "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}\n"
                     : DT_F32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(B_N_MAJOR));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DT_R64
                     "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}\n"
                     : DT_F32(d, 0), DT_F32(d, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(B_N_MAJOR));
#endif
}
/* The same with A in shared memory; A_M_MAJOR: A is stored [k][m], else [m][k]. */
template <int N, int A_M_MAJOR, int B_N_MAJOR>
DT_DEVICE void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
#if DT_HOPPER
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DT_R32
                     "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
                     : DT_F32(d, 0)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_M_MAJOR), "n"(B_N_MAJOR));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DT_R64
                     "}, %64, %65, p, 1, 1, %67, %68;\n}\n"
                     : DT_F32(d, 0), DT_F32(d, 32)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_M_MAJOR), "n"(B_N_MAJOR));
#endif
}
/* d = a b: what d was is not read, and the compiler knows. */
template <int N, int B_N_MAJOR> DT_DEVICE void wgmma_rs_new(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
#if DT_HOPPER
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DT_R32
                     "}, {%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}\n"
                     : DT_O32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_N_MAJOR));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DT_R64
                     "}, {%64,%65,%66,%67}, %68, p, 1, 1, %69;\n}\n"
                     : DT_O32(d, 0), DT_O32(d, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_N_MAJOR));
#endif
}
template <int N, int A_M_MAJOR, int B_N_MAJOR> DT_DEVICE void wgmma_ss_new(float (&d)[N / 2], uint64_t a, uint64_t b)
{
#if DT_HOPPER
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DT_R32
                     "}, %32, %33, p, 1, 1, %34, %35;\n}\n"
                     : DT_O32(d, 0)
                     : "l"(a), "l"(b), "n"(A_M_MAJOR), "n"(B_N_MAJOR));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" DT_R64
                     "}, %64, %65, p, 1, 1, %66, %67;\n}\n"
                     : DT_O32(d, 0), DT_O32(d, 32)
                     : "l"(a), "l"(b), "n"(A_M_MAJOR), "n"(B_N_MAJOR));
#endif
}
#endif /* DT_EMULATE */

DT_DEVICE float bf16_low(uint32_t pair)
{
    return float_from_bits(pair << 16);
}
DT_DEVICE float bf16_high(uint32_t pair)
{
    return float_from_bits(pair & 0xffff0000u);
}
#endif
