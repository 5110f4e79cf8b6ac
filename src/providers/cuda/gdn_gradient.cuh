/* All gradients that are local to a chunk once S0, dS1 and dW = dv are known: dq, dk, dg, dbeta.
 *
 * A block takes (chunk, key head) items and loops over the value heads of the key head, so that dq and dk are summed
 * in registers, in a fixed order. Four warpgroups hand over by barriers in shared memory and are otherwise free to run
 * ahead of each other:
 *
 *     scores   what is token x token: R, dP -> e, D; Dq; N -> Y     gdn_gradient_scores.cuh
 *     queries  Wv; Hq; T; dq                                        gdn_gradient_queries.cuh
 *     keys     dX; Hk; dk                                           gdn_gradient_keys.cuh
 *     feeders  loads, per-token factors, <S0, dS1>; dg, dbeta       gdn_gradient_feed.cuh
 *
 * The chain of a head: K S0 and Wv (queries) | dX (keys) and dP, D (scores) | T (queries) | N, Y (scores). Each tile is
 * loaded again as soon as its last reader has passed: what depends on S0 and dS1 is done first, so that their loads and
 * those of V, dO and dW, nine tenths of all bytes, go on while T, N and Y are made. Dq and Y are summed over the value
 * heads before they meet Q and K. */
#ifndef DT_CUDA_GDN_GRADIENT_CUH
#define DT_CUDA_GDN_GRADIENT_CUH
#include "providers/cuda/gdn_gradient_feed.cuh"
#include "providers/cuda/gdn_gradient_keys.cuh"
#include "providers/cuda/gdn_gradient_queries.cuh"
#include "providers/cuda/gdn_gradient_scores.cuh"

template <int ISA> DT_DEVICE void gradient_block(const gdn_params &p, const chain_maps &maps)
{
    if (threadIdx.x == 0) {
        DT_SHARED(shared);
        const uint32_t base = shared_address(shared);
        for (int i = 0; i < GB_COUNT; i++)
            barrier_init(gradient_barrier(base, i), gradient_arrivals(i));
        barrier_init_fence();
    }
    block_sync();
    const int role = uniform((int)threadIdx.x / 128);
    if (role == 0) {
        if (ISA == ISA_WGMMA)
            more_registers<SCORES_REGISTERS>();
        gradient_scores<ISA>(p);
    } else if (role == 1) {
        if (ISA == ISA_WGMMA)
            more_registers<QUERIES_REGISTERS>();
        gradient_queries<ISA>(p);
    } else if (role == 2) {
        if (ISA == ISA_WGMMA)
            more_registers<KEYS_REGISTERS>();
        gradient_keys<ISA>(p);
    } else {
        if (ISA == ISA_WGMMA)
            fewer_registers<FEED_REGISTERS>();
        if (threadIdx.x / 32 == 3 * 4)
            gradient_feed<ISA>(p, maps);
        else
            gradient_assist<ISA>(p, (int)threadIdx.x / 32 - 3 * 4 - 1);
    }
    int64_t T = p.table.counts[3];
    clear_rows(p.dq, T, p.T_cap, p.heads, p.K);
    clear_rows(p.dk, T, p.T_cap, p.heads, p.K);
    clear_scalars(p.dg, T, p.T_cap, p.value_heads);
    clear_scalars(p.dbeta, T, p.T_cap, p.value_heads);
}
template <int ISA>
DT_KERNEL(GRADIENT_THREADS, 1)
gdn_gradient_kernel(DT_GRID_CONSTANT gdn_params p, DT_GRID_CONSTANT chain_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gradient_block<ISA>(p, maps);
}
#endif
