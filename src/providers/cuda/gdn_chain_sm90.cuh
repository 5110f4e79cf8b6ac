/* The two sequential kernels for Hopper. The arithmetic is that of gdn_chain.cuh; the work is divided differently.
 *
 * Four warpgroups. Two carry the state, 64 columns of V each, and run only what depends on it. The third, the helper,
 * works one chunk ahead: it makes P' and X', and zeroes the rows past a sample's end (the copies run on into the next
 * sample). Of the fourth, one warp (the loader) starts the bulk copies and three (the tellers) compute the per-token
 * factors; all walk the chains on their own. Hand-over is by barriers in shared memory: loader and tellers -> helper
 * (`tiles`, `told`), helper -> state groups (`ready`), state groups -> all others (`done`, which frees the buffers). K,
 * Q, At and the factors have three stages (the helper reads those of the next chunk while the state groups read this
 * one's and the one after is on its way), the others two. */
#ifndef DT_CUDA_GDN_CHAIN_SM90_CUH
#define DT_CUDA_GDN_CHAIN_SM90_CUH
#include "providers/cuda/gdn_chain.cuh"

enum { HOPPER_CHAIN_THREADS = 512, STATE_THREADS = 256 };
enum { STATE_REGISTERS = 192, HELPER_REGISTERS = 96, LOADER_REGISTERS = 32 }; /* 128 threads each: 512 in all */

/* What the tellers tell the others about a chunk; rows == 0: there are no more. */
struct chain_message {
    gdn_vectors v;
    chain_item item;
};
enum {
    HC_K = 0,
    HC_Q = HC_K + 3 * ROWS_BYTES,
    HC_V = HC_Q + 3 * ROWS_BYTES,
    HC_AT = HC_V + 2 * ROWS_BYTES,
    HC_X = HC_AT + 3 * AT_BYTES,
    HC_P = HC_X + 2 * ROWS_BYTES,
    HC_OUT = HC_P + 2 * AT_BYTES,
    HC_MESSAGE = HC_OUT + STATE_PANEL,
    HC_BARRIERS = HC_MESSAGE + 3 * (int)sizeof(chain_message),
    HC_SHARED = HC_BARRIERS + 16 * 8
};
/* Offsets of the barriers: K, Q and At of a chunk are there (3 stages); V is there; the message is written; P' and X'
 * are made and all else is fit to use; the buffers are free (4: the teller may look three chunks back, and a barrier
 * tells only the parity of its last phase). */
enum { BAR_TILES = 0, BAR_V = 24, BAR_TOLD = 40, BAR_READY = 64, BAR_DONE = 80 };

DT_DEVICE chain_message *message_at(unsigned char *shared, int n)
{
    return (chain_message *)(shared + HC_MESSAGE) + n % 3;
}
/* Waits until the state groups are done with chunk n; before the first chunk there is nothing to wait for. */
DT_DEVICE void wait_done(uint32_t barriers, int n)
{
    if (n >= 0)
        barrier_wait(barriers + BAR_DONE + 8 * (n & 3), n / 4 & 1);
}

/* ---- loader: one thread ---- */
DT_DEVICE void load_tiles(uint32_t base, const gdn_params &p, const chain_maps &maps, const chain_item &it, int n)
{
    uint32_t barrier = base + HC_BARRIERS + BAR_TILES + 8 * (n % 3), k = base + HC_K + n % 3 * ROWS_BYTES,
             q = base + HC_Q + n % 3 * ROWS_BYTES;
    int key_head = it.key_head, row = (int)it.row0;
    barrier_expect(barrier, 2 * ROWS_BYTES + AT_BYTES);
    copy_box(k, maps.k, 0, key_head, row, barrier);
    copy_box(k + PANEL, maps.k, 64, key_head, row, barrier);
    copy_box(q, maps.q, 0, key_head, row, barrier);
    copy_box(q + PANEL, maps.q, 64, key_head, row, barrier);
    copy_bulk(base + HC_AT + n % 3 * AT_BYTES, p.at + it.image * AT_BYTES, AT_BYTES, barrier);
}
template <bool BACKWARD> DT_DEVICE void chain_loader(const gdn_params &p, const chain_maps &maps, unsigned char *shared)
{
    const uint32_t base = shared_address(shared), barriers = base + HC_BARRIERS;
    chain_walk walk;
    walk_start(walk, p);
    chain_item it = walk_item<BACKWARD>(walk, p); /* rows == 0: there is none */
    if (it.rows > 0)
        load_tiles(base, p, maps, it, 0);
    for (int n = 0; it.rows > 0; n++) {
        uint32_t v = base + HC_V + n % 2 * ROWS_BYTES, barrier = barriers + BAR_V + 8 * (n & 1);
        wait_done(barriers, n - 2);
        barrier_expect(barrier, ROWS_BYTES);
        copy_box(v, maps.v, 0, it.head, (int)it.row0, barrier);
        copy_box(v + PANEL, maps.v, 64, it.head, (int)it.row0, barrier);
        walk_advance(walk, p);
        it = walk_item<BACKWARD>(walk, p);
        if (it.rows > 0)
            load_tiles(base, p, maps, it, n + 1);
    }
}
/* ---- tellers: three warps, every third chunk each, since one takes longer than a chunk ---- */
template <bool BACKWARD> DT_DEVICE void chain_teller(const gdn_params &p, unsigned char *shared, int first)
{
    const uint32_t barriers = shared_address(shared) + HC_BARRIERS;
    chain_walk walk;
    walk_start(walk, p);
    for (int n = 0;; n++) {
        const chain_item it = walk_item<BACKWARD>(walk, p);
        if (n % 3 == first) {
            chain_message *message = message_at(shared, n);
            gdn_tokens tokens;
            if (it.rows > 0)
                load_tokens(tokens, p, it.row0, it.rows, it.head, it.key_head);
            wait_done(barriers, n - 3);
            if (it.rows > 0)
                write_vectors(&message->v, tokens, p.scale);
            if ((threadIdx.x & 31) == 0)
                message->item = it;
            barrier_arrive(barriers + BAR_TOLD + 8 * (n % 3));
        }
        if (it.rows == 0)
            break;
        walk_advance(walk, p);
    }
}

/* ---- helper: one warpgroup ---- */
/* P' and, where somebody needs it, X' of chunk n. */
DT_DEVICE void helper_compute(uint32_t base, int n, bool needs_x, const gdn_vectors *v)
{
    uint32_t k = base + HC_K + n % 3 * ROWS_BYTES, q = base + HC_Q + n % 3 * ROWS_BYTES,
             at = base + HC_AT + n % 3 * AT_BYTES;
    uint32_t x_tile = base + HC_X + n % 2 * ROWS_BYTES;
    float r[32], x[32];
    {
        uint32_t qk[4][4];
        mm_begin<ISA_WGMMA>();
        mm_ss<ISA_WGMMA, 64, 8, K_MAJOR, K_MAJOR>(r, q, PANEL, k, PANEL, false);
        mm_commit<ISA_WGMMA>();
        mm_wait<ISA_WGMMA, 0>();
        pack_lower(qk, r);
        mm_begin<ISA_WGMMA>();
        mm_rs<ISA_WGMMA, 64, 4, MN_MAJOR>(r, qk, at, PANEL, false);
        mm_commit<ISA_WGMMA>();
        mm_wait<ISA_WGMMA, 0>();
    }
    /* one half of X at a time: registers are short */
    mm_begin<ISA_WGMMA>();
    mm_ss<ISA_WGMMA, 64, 4, MN_MAJOR, MN_MAJOR>(x, at, PANEL, k, PANEL, false);
    mm_commit<ISA_WGMMA>();
    wait_done(base + HC_BARRIERS, n - 2); /* the buffers of P' and X' */
    store_p<ISA_WGMMA>(base + HC_P + n % 2 * AT_BYTES, r, v);
    mm_wait<ISA_WGMMA, 0>();
    if (needs_x) {
        store_x<ISA_WGMMA, 4>(x_tile, x, v);
        mm_begin<ISA_WGMMA>();
        mm_ss<ISA_WGMMA, 64, 4, MN_MAJOR, MN_MAJOR>(x, at, PANEL, k + PANEL, PANEL, false);
        mm_commit<ISA_WGMMA>();
        mm_wait<ISA_WGMMA, 0>();
        store_x<ISA_WGMMA, 4>(x_tile + PANEL, x, v);
    }
}
template <bool BACKWARD> DT_DEVICE void chain_helper(const gdn_params &p, unsigned char *shared)
{
    const uint32_t base = shared_address(shared), barriers = base + HC_BARRIERS;
    for (int n = 0;; n++) {
        const chain_message *message = message_at(shared, n);
        barrier_wait(barriers + BAR_TOLD + 8 * (n % 3), n / 3 & 1);
        const int rows = uniform(message->item.rows), flags = uniform(message->item.flags);
        if (rows == 0) {
            wait_done(barriers, n - 2);
            barrier_arrive(barriers + BAR_READY + 8 * (n & 1));
            break;
        }
        barrier_wait(barriers + BAR_TILES + 8 * (n % 3), n / 3 & 1);
        if (rows < CHUNK) {
            zero_rows(base + HC_K + n % 3 * ROWS_BYTES, rows, 128);
            zero_rows(base + HC_Q + n % 3 * ROWS_BYTES, rows, 128);
            fence_async_proxy();
            group_sync(1, 128);
        }
        bool needs_x = BACKWARD ? !gradient_is_zero(p, flags) : !(flags & CHUNK_LAST) || p.final_state;
        helper_compute(base, n, needs_x, &message->v);
        barrier_wait(barriers + BAR_V + 8 * (n & 1), n / 2 & 1);
        if (rows < CHUNK)
            zero_rows(base + HC_V + n % 2 * ROWS_BYTES, rows, 128);
        fence_async_proxy();
        barrier_arrive(barriers + BAR_READY + 8 * (n & 1));
        barrier_arrive(barriers + BAR_DONE + 8 * (n & 3)); /* the helper reads no more of it either */
    }
}

/* ---- state groups ---- */
/* Where the buffers of chunk n are. */
struct chain_buffers {
    uint32_t k, q, v, x, p, done;
    const chain_message *message;
};
DT_DEVICE chain_buffers receive(unsigned char *shared, int n)
{
    uint32_t base = shared_address(shared), barriers = base + HC_BARRIERS;
    chain_buffers b;
    b.k = base + HC_K + n % 3 * ROWS_BYTES;
    b.q = base + HC_Q + n % 3 * ROWS_BYTES;
    b.v = base + HC_V + n % 2 * ROWS_BYTES;
    b.x = base + HC_X + n % 2 * ROWS_BYTES;
    b.p = base + HC_P + n % 2 * AT_BYTES;
    b.done = barriers + BAR_DONE + 8 * (n & 3);
    b.message = message_at(shared, n);
    barrier_wait(barriers + BAR_READY + 8 * (n & 1), n / 2 & 1);
    return b;
}
DT_DEVICE void give_back(const chain_buffers &b)
{
    fence_async_proxy();
    barrier_arrive(b.done);
}
template <int N> DT_DEVICE void scale_all(float (&s)[N], float f)
{
    DT_UNROLL
    for (int i = 0; i < N; i++)
        s[i] *= f;
}

/* Of the chunk's sample and head in the [n_seq, Hv, K, V] tensors. */
DT_DEVICE int64_t state_offset(const gdn_params &p, const chain_message *m)
{
    return ((int64_t)m->item.seq * p.value_heads + m->item.head) * p.K * p.V;
}

/* One chunk of a state group. Products run asynchronously only where no branch lies between issue and wait: so whether
 * there is a state at the start, and whether anybody wants the one at the end, are template parameters. */
template <bool HAS_STATE, bool WANTS_STATE>
DT_DEVICE void forward_chunk(float (&s)[64], const gdn_params &p, const chain_buffers &b, uint32_t out_tile)
{
    const gdn_vectors *v = &b.message->v;
    const int warp = (int)threadIdx.x >> 5;
    float u[32], o[32];
    uint32_t a[8][4], w[4][4];
    if (HAS_STATE) {
        pack_operand<128>(a, s);
        mm_begin<ISA_WGMMA>();
        mm_rs<ISA_WGMMA, 64, 8, K_MAJOR>(u, a, b.k, PANEL, false);
        mm_commit<ISA_WGMMA>();
        mm_rs<ISA_WGMMA, 64, 8, K_MAJOR>(o, a, b.q, PANEL, false);
        mm_commit<ISA_WGMMA>();
    }
    DT_UNROLL
    for (int i = 0; i < 4; i++)
        load_a<MN_MAJOR>(w[i], b.v, PANEL, i, 16 * warp);
    if (HAS_STATE) { /* Wv^T = V^T - gamma rk U^T */
        if (p.h)
            write_image<ISA_WGMMA>(p.h + b.message->item.image * STATE_BYTES, out_tile, a);
        mm_wait<ISA_WGMMA, 1>();
        scale_columns(u, v->gamma_rk);
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            DT_UNROLL
            for (int c = 0; c < 4; c++)
                w[i][c] = pack_bf16(bf16_low(w[i][c]) - u[8 * i + 2 * c], bf16_high(w[i][c]) - u[8 * i + 2 * c + 1]);
        }
    }
    if (WANTS_STATE) {
        if (HAS_STATE)
            scale_all(s, v->gamma_last);
        mm_begin<ISA_WGMMA>();
        mm_rs<ISA_WGMMA, 128, 4, MN_MAJOR>(s, w, b.x, PANEL, HAS_STATE);
        mm_commit<ISA_WGMMA>();
    }
    if (HAS_STATE) {
        mm_wait<ISA_WGMMA, WANTS_STATE ? 1 : 0>();
        scale_columns(o, v->s_gamma_rq);
    }
    mm_begin<ISA_WGMMA>();
    mm_rs<ISA_WGMMA, 64, 4, K_MAJOR>(o, w, b.p, PANEL, HAS_STATE);
    mm_commit<ISA_WGMMA>();
    mm_wait<ISA_WGMMA, 0>();
    pack_operand<64>(w, o);
    write_rows<ISA_WGMMA>(p.o, b.message->item, p.V, b.v, w);
    give_back(b);
}
DT_DEVICE void forward_state_group(const gdn_params &p, unsigned char *shared)
{
    const uint32_t out_tile = shared_address(shared) + HC_OUT;
    float s[64];
    for (int n = 0;; n++) {
        chain_buffers b = receive(shared, n);
        if (uniform(b.message->item.rows) == 0)
            break;
        const int flags = uniform(b.message->item.flags);
        const int has = !state_is_zero(p, flags), wants = !(flags & CHUNK_LAST) || p.final_state;
        if (has && (flags & CHUNK_FIRST)) /* else the state is in registers */
            read_state(s, p.initial_state + state_offset(p, b.message), p.K, p.V);
        float *out = (flags & CHUNK_LAST) && p.final_state ? p.final_state + state_offset(p, b.message) : NULL;
        if (has && wants)
            forward_chunk<true, true>(s, p, b, out_tile);
        else if (has)
            forward_chunk<true, false>(s, p, b, out_tile);
        else if (wants)
            forward_chunk<false, true>(s, p, b, out_tile);
        else
            forward_chunk<false, false>(s, p, b, out_tile);
        if (out)
            write_state(out, s, p.K, p.V);
    }
}

template <bool HAS_GRADIENT, bool WANTS_STATE>
DT_DEVICE void backward_chunk(float (&s)[64], const gdn_params &p, const chain_buffers &b, uint32_t out_tile)
{
    const gdn_vectors *v = &b.message->v;
    const int warp = (int)threadIdx.x >> 5, t = 2 * ((int)threadIdx.x & 3);
    float z[32]; /* dW^T = P'^T dO + X' dS1, transposed */
    uint32_t a[8][4], d[4][4], w[4][4], out[4][4];
    DT_UNROLL
    for (int i = 0; i < 4; i++)
        load_a<MN_MAJOR>(d[i], b.v, PANEL, i, 16 * warp);
    if (WANTS_STATE) {
        DT_UNROLL
        for (int i = 0; i < 4; i++) /* dO^T times s gamma rq of its token */ {
            DT_UNROLL
            for (int c = 0; c < 4; c++) {
                float2 f = *(const float2 *)(v->s_gamma_rq + 16 * i + 8 * (c >> 1) + t);
                w[i][c] = pack_bf16(f.x * bf16_low(d[i][c]), f.y * bf16_high(d[i][c]));
            }
        }
    }
    if (HAS_GRADIENT) {
        pack_operand<128>(a, s);
        if (WANTS_STATE)
            scale_all(s, v->gamma_last);
    }
    mm_begin<ISA_WGMMA>();
    if (HAS_GRADIENT)
        mm_rs<ISA_WGMMA, 64, 8, K_MAJOR>(z, a, b.x, PANEL, false);
    mm_rs<ISA_WGMMA, 64, 4, MN_MAJOR>(z, d, b.p, PANEL, HAS_GRADIENT);
    mm_commit<ISA_WGMMA>();
    if (WANTS_STATE) {
        mm_rs<ISA_WGMMA, 128, 4, MN_MAJOR>(s, w, b.q, PANEL, HAS_GRADIENT);
        mm_commit<ISA_WGMMA>();
    }
    if (HAS_GRADIENT)
        write_image<ISA_WGMMA>(p.dh + b.message->item.image * STATE_BYTES, out_tile, a);
    mm_wait<ISA_WGMMA, WANTS_STATE ? 1 : 0>();
    pack_operand<64>(out, z);
    if (WANTS_STATE) {
        uint32_t m[4][4];
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            DT_UNROLL
            for (int c = 0; c < 4; c++) {
                float2 f = *(const float2 *)(v->gamma_rk + 16 * i + 8 * (c >> 1) + t);
                m[i][c] = pack_bf16(-f.x * z[8 * i + 2 * c], -f.y * z[8 * i + 2 * c + 1]);
            }
        }
        mm_begin<ISA_WGMMA>();
        mm_rs<ISA_WGMMA, 128, 4, MN_MAJOR>(s, m, b.k, PANEL, true);
        mm_commit<ISA_WGMMA>();
        write_rows<ISA_WGMMA>(p.dv, b.message->item, p.V, b.v, out);
        mm_wait<ISA_WGMMA, 0>();
    } else
        write_rows<ISA_WGMMA>(p.dv, b.message->item, p.V, b.v, out);
    give_back(b);
}
DT_DEVICE void backward_state_group(const gdn_params &p, unsigned char *shared)
{
    const uint32_t out_tile = shared_address(shared) + HC_OUT;
    float s[64]; /* dS1^T, then dS0^T */
    for (int n = 0;; n++) {
        chain_buffers b = receive(shared, n);
        if (uniform(b.message->item.rows) == 0)
            break;
        const int flags = uniform(b.message->item.flags);
        const int has = !gradient_is_zero(p, flags), wants = !(flags & CHUNK_FIRST) || p.dinitial_state;
        if (has && (flags & CHUNK_LAST)) /* else the state is in registers */
            read_state(s, p.dfinal_state + state_offset(p, b.message), p.K, p.V);
        float *out = (flags & CHUNK_FIRST) && p.dinitial_state ? p.dinitial_state + state_offset(p, b.message) : NULL;
        if (has && wants)
            backward_chunk<true, true>(s, p, b, out_tile);
        else if (has)
            backward_chunk<true, false>(s, p, b, out_tile);
        else if (wants)
            backward_chunk<false, true>(s, p, b, out_tile);
        else
            backward_chunk<false, false>(s, p, b, out_tile);
        if (out)
            write_state(out, s, p.K, p.V);
    }
}

template <bool BACKWARD> DT_DEVICE void hopper_chain_block(const gdn_params &p, const chain_maps &maps)
{
    DT_SHARED(shared);
    uint32_t barriers = shared_address(shared) + HC_BARRIERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; i++) {
            barrier_init(barriers + BAR_TILES + 8 * i, 1);
            barrier_init(barriers + BAR_TOLD + 8 * i, 32);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(barriers + BAR_V + 8 * i, 1);
            barrier_init(barriers + BAR_READY + 8 * i, 128);
        }
        for (int i = 0; i < 4; i++)
            barrier_init(barriers + BAR_DONE + 8 * i, STATE_THREADS + 128);
        barrier_init_fence();
    }
    block_sync();
    const int role = uniform((int)threadIdx.x / 128);
    if (role == 3) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == STATE_THREADS + 128)
            chain_loader<BACKWARD>(p, maps, shared);
        else if (threadIdx.x / 32 > STATE_THREADS / 32 + 4)
            chain_teller<BACKWARD>(p, shared, (int)threadIdx.x / 32 - STATE_THREADS / 32 - 5);
    } else if (role == 2) {
        fewer_registers<HELPER_REGISTERS>();
        chain_helper<BACKWARD>(p, shared);
    } else {
        more_registers<STATE_REGISTERS>();
        if (BACKWARD)
            backward_state_group(p, shared);
        else
            forward_state_group(p, shared);
    }
    const gdn_rows &rows = BACKWARD ? p.dv : p.o;
    float *to = BACKWARD ? p.dinitial_state : p.final_state;
    if (to)
        copy_empty_states(to, BACKWARD ? p.dfinal_state : p.initial_state, p);
    clear_rows(rows, p.table.counts[3], p.T_cap, p.value_heads, p.V);
}
DT_KERNEL(HOPPER_CHAIN_THREADS, 1)
gdn_forward_sm90_kernel(DT_GRID_CONSTANT gdn_params p, DT_GRID_CONSTANT chain_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA_WGMMA))
        hopper_chain_block<false>(p, maps);
}
DT_KERNEL(HOPPER_CHAIN_THREADS, 1)
gdn_backward_sm90_kernel(DT_GRID_CONSTANT gdn_params p, DT_GRID_CONSTANT chain_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA_WGMMA))
        hopper_chain_block<true>(p, maps);
}
#endif
