/* The two sequential kernels: forward recurrence (o, final state, chunk-start states) and its mirror in backward (dv,
 * initial state gradient, chunk-end gradients).
 *
 * A chain is one sample of one value head. Blocks are persistent: block b takes chains in snake order from the list
 * sorted by length, so that the loads balance, and the loads of the next chunk, of the same chain or the next, are
 * always in flight. Eight warps; the state is held transposed, S^T [V][K], 16 rows (columns of V) a warp, in fp32
 * registers. Its products take it, packed to bf16, as the A operand; everything per token is then a column factor.
 * Warps 0-3 build P', warps 4-7 X' (see gdn_common.cuh). */
#ifndef DT_CUDA_GDN_CHAIN_CUH
#define DT_CUDA_GDN_CHAIN_CUH
#include "providers/cuda/gdn_common.cuh"

enum { CHAIN_THREADS = 256 };

/* One stage of loads: K, Q, V (forward) or dO (backward), At. */
enum {
    STAGE_K = 0,
    STAGE_Q = ROWS_BYTES,
    STAGE_V = 2 * ROWS_BYTES,
    STAGE_AT = 3 * ROWS_BYTES,
    STAGE_BYTES = 3 * ROWS_BYTES + AT_BYTES
};
enum {
    CHAIN_P = 2 * STAGE_BYTES,
    CHAIN_X = CHAIN_P + AT_BYTES,
    CHAIN_OUT = CHAIN_X + ROWS_BYTES, /* half of the state on its way out */
    CHAIN_VECTORS = CHAIN_OUT + STATE_PANEL,
    CHAIN_SHARED = CHAIN_VECTORS + 2 * (int)sizeof(gdn_vectors)
};

/* Where a block is in its list of chunks. */
struct chain_walk {
    int4 chain, ahead; /* this chain and, already fetched, the next one */
    int head, ahead_head, key_head, round, step, chunks;
    unsigned total; /* chains of the whole call, empty ones too */
    bool valid;
};
DT_DEVICE void walk_fetch(chain_walk &w, const gdn_params &p)
{
    unsigned blocks = gridDim.x, position = w.round & 1 ? blocks - 1 - blockIdx.x : blockIdx.x;
    unsigned index = (unsigned)w.round * blocks + position, rank = index / (unsigned)p.value_heads;
    w.round++;
    w.ahead = index < w.total ? p.table.chain[rank] : make_int4(0, 0, 0, 0); /* empty samples come last */
    w.ahead_head = (int)(index - rank * (unsigned)p.value_heads);
}
DT_DEVICE void walk_enter(chain_walk &w, const gdn_params &p)
{
    w.chain = w.ahead;
    w.head = w.ahead_head;
    w.key_head = (int)((unsigned)w.head / (unsigned)p.group);
    w.chunks = chunk_count(w.chain.y);
    w.valid = w.chunks > 0;
    w.step = 0;
    if (w.valid)
        walk_fetch(w, p);
}
DT_DEVICE void walk_start(chain_walk &w, const gdn_params &p)
{
    w.round = 0;
    w.total = (unsigned)(p.n_seq_cap * p.value_heads);
    walk_fetch(w, p);
    walk_enter(w, p);
}
DT_DEVICE void walk_advance(chain_walk &w, const gdn_params &p)
{
    if (w.valid && ++w.step == w.chunks)
        walk_enter(w, p);
}

/* The chunk a walk stands at. */
struct chain_item {
    int64_t row0, image; /* first row; index of (chunk, head) among the images */
    int rows, head, key_head, seq, flags;
};
template <bool BACKWARD> DT_DEVICE chain_item walk_item(const chain_walk &w, const gdn_params &p)
{
    int c = BACKWARD ? w.chunks - 1 - w.step : w.step, rest = w.chain.y - c * CHUNK;
    chain_item it; /* rows == 0: the walk is over */
    it.row0 = w.chain.x + c * CHUNK;
    it.rows = !w.valid ? 0 : rest < CHUNK ? rest : CHUNK;
    it.head = w.head;
    it.key_head = w.key_head;
    it.seq = w.chain.z;
    it.image = (int64_t)(w.chain.w + c) * p.value_heads + w.head;
    it.flags = (c == 0 ? CHUNK_FIRST : 0) | (c == w.chunks - 1 ? CHUNK_LAST : 0);
    return it;
}

DT_DEVICE void load_stage(uint32_t stage, const gdn_params &p, const gdn_rows &v, const chain_item &it)
{
    load_rows(stage + STAGE_K, p.k, it.row0, it.rows, it.key_head, p.K, CHAIN_THREADS);
    load_rows(stage + STAGE_Q, p.q, it.row0, it.rows, it.key_head, p.K, CHAIN_THREADS);
    load_rows(stage + STAGE_V, v, it.row0, it.rows, it.head, p.V, CHAIN_THREADS);
    load_image(stage + STAGE_AT, p.at + it.image * AT_BYTES, AT_BYTES, CHAIN_THREADS);
}

/* P' from R (warps 0-3) and X' from X (warps 4-7), into shared memory. */
template <int ISA> DT_DEVICE void store_p(uint32_t tile, const float (&r)[32], const gdn_vectors *v)
{
    int lane = (int)threadIdx.x & 31, row0 = 16 * (((int)threadIdx.x >> 5) & 3), i = row0 + (lane >> 2);
    float G[2] = {v->G[i], v->G[i + 8]}, f[2] = {v->s_rq[i], v->s_rq[i + 8]};
    DT_UNROLL
    for (int half = 0; half < 2; half++) { /* two steps at a time: their loads in flight together */
        float4 of[4];                      /* G and beta of two columns */
        DT_UNROLL
        for (int n = 0; n < 4; n++)
            of[n] = *(const float4 *)(v->G_beta + 32 * half + 8 * n + 2 * (lane & 3));
        DT_UNROLL
        for (int step = 0; step < 2; step++) {
            int s = 2 * half + step;
            uint32_t a[4];
            DT_UNROLL
            for (int c = 0; c < 4; c++) {
                int y = c & 1, j = 16 * s + 8 * (c >> 1) + 2 * (lane & 3);
                float4 x = of[2 * step + (c >> 1)];
                /* select before exp2: above the diagonal the exponent may be huge */
                float e0 = exp2_fast(j <= i + 8 * y ? G[y] - x.x : -200.0f),
                      e1 = exp2_fast(j < i + 8 * y ? G[y] - x.z : -200.0f);
                a[c] = pack_bf16(f[y] * r[8 * s + 2 * c] * (e0 * x.y), f[y] * r[8 * s + 2 * c + 1] * (e1 * x.w));
            }
            store_operand<ISA>(tile, PANEL, row0, s, a);
        }
    }
}
template <int ISA, int STEPS> DT_DEVICE void store_x(uint32_t tile, const float (&x)[8 * STEPS], const gdn_vectors *v)
{
    int lane = (int)threadIdx.x & 31, row0 = 16 * (((int)threadIdx.x >> 5) & 3), j = row0 + (lane >> 2);
    float f[2] = {v->eta_beta[j], v->eta_beta[j + 8]};
    DT_UNROLL
    for (int s = 0; s < STEPS; s++) {
        uint32_t a[4];
        DT_UNROLL
        for (int c = 0; c < 4; c++)
            a[c] = pack_bf16(f[c & 1] * x[8 * s + 2 * c], f[c & 1] * x[8 * s + 2 * c + 1]);
        store_operand<ISA>(tile, PANEL, row0, s, a);
    }
}
/* low(Q K^T) as an A operand. */
DT_DEVICE void pack_lower(uint32_t (&a)[4][4], const float (&d)[32])
{
    int lane = (int)threadIdx.x & 31, i = 16 * (((int)threadIdx.x >> 5) & 3) + (lane >> 2);
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            int y = i + 8 * (c & 1), j = 16 * s + 8 * (c >> 1) + 2 * (lane & 3);
            a[s][c] = pack_bf16(j <= y ? d[8 * s + 2 * c] : 0.0f, j + 1 <= y ? d[8 * s + 2 * c + 1] : 0.0f);
        }
    }
}

/* A result's column c of token 2 (lane % 4) + 8 j belongs to that token: multiplies by a per-token factor. */
template <int N> DT_DEVICE void scale_columns(float (&d)[N], const float *factor)
{
    int t = 2 * ((int)threadIdx.x & 3);
    DT_UNROLL
    for (int j = 0; j < N / 4; j++) {
        float2 f = *(const float2 *)(factor + 8 * j + t);
        d[4 * j] *= f.x;
        d[4 * j + 1] *= f.y;
        d[4 * j + 2] *= f.x;
        d[4 * j + 3] *= f.y;
    }
}

/* State S^T rows 16 warp .., from and to fp32 [K][V] in global memory; 0 outside K x V. */
DT_DEVICE void read_state(float (&s)[64], const float *state, int K, int V)
{
    int lane = (int)threadIdx.x & 31, v0 = 16 * ((int)threadIdx.x >> 5) + (lane >> 2);
    DT_UNROLL
    for (int c = 0; c < 64; c++) {
        int v = v0 + (c >> 1 & 1) * 8, k = 8 * (c >> 2) + 2 * (lane & 3) + (c & 1);
        s[c] = state && v < V && k < K ? state[(int64_t)k * V + v] : 0.0f;
    }
}
DT_DEVICE void write_state(float *state, const float (&s)[64], int K, int V)
{
    int lane = (int)threadIdx.x & 31, v0 = 16 * ((int)threadIdx.x >> 5) + (lane >> 2);
    DT_UNROLL
    for (int c = 0; c < 64; c++) {
        int v = v0 + (c >> 1 & 1) * 8, k = 8 * (c >> 2) + 2 * (lane & 3) + (c & 1);
        if (v < V && k < K)
            state[(int64_t)k * V + v] = s[c];
    }
}
/* The packed state to its image, panel by panel through this warp's 16 rows of `staging`, so that whole lines are
 * written. */
template <int ISA> DT_DEVICE void write_image(unsigned char *image, uint32_t staging, const uint32_t (&a)[8][4])
{
    int lane = (int)threadIdx.x & 31, row0 = 16 * ((int)threadIdx.x >> 5);
    DT_UNROLL
    for (int panel = 0; panel < 2; panel++) {
        DT_UNROLL
        for (int s = 0; s < 4; s++)
            store_operand<ISA>(staging, STATE_PANEL, row0, s, a[4 * panel + s]);
        warp_sync();
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t offset = (uint32_t)(row0 * 128 + i * 512 + lane * 16);
            *(uint4 *)(image + panel * STATE_PANEL + offset) = load_shared16(staging + offset);
        }
        warp_sync();
    }
}
/* A packed [v][token] result to rows of a [T, Hv, V] tensor, through this warp's columns of a tile nobody else uses. */
template <int ISA>
DT_DEVICE void write_rows(const gdn_rows &t, const chain_item &it, int V, uint32_t tile, const uint32_t (&a)[4][4])
{
    int lane = (int)threadIdx.x & 31, v0 = 16 * ((int)threadIdx.x >> 5);
    warp_sync();
    DT_UNROLL
    for (int s = 0; s < 4; s++)
        store_operand_trans<ISA>(tile, PANEL, v0, s, a[s]);
    warp_sync();
    DT_UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 16 * i + (lane >> 1), unit = v0 / 8 + (lane & 1);
        uint32_t at =
            tile + (uint32_t)((v0 >> 6) * PANEL + (lane >> 1) * 128 + (((lane >> 1) & 7) ^ (unit & 7)) * 16 + i * 2048);
        uint4 x = load_shared16(at);
        if (row < it.rows && unit * 8 < V)
            *(uint4 *)(t.data + (it.row0 + row) * t.row + (int64_t)it.head * t.head + unit * 8) = x;
    }
}

/* A sample without tokens hands its state on unchanged. */
DT_DEVICE void copy_empty_states(float *to, const float *from, const gdn_params &p)
{
    int64_t size = (int64_t)p.K * p.V * p.value_heads;
    for (int rank = p.table.counts[1]; rank < p.table.counts[2]; rank++) {
        int seq = p.table.chain[rank].z;
        if (seq >= p.n_seq) /* the tail of the boundaries is no sample */
            continue;
        int64_t base = seq * size;
        for (int64_t i = (int64_t)blockIdx.x * CHAIN_THREADS + threadIdx.x; i < size;
             i += (int64_t)gridDim.x * CHAIN_THREADS)
            to[base + i] = from ? from[base + i] : 0.0f;
    }
}

/* The chunks of a block, one after the other: loads of the next are started before this one is computed. */
struct chain_pipe {
    chain_walk walk; /* at the chunk whose loads start next */
    chain_item item, next;
    gdn_tokens tokens;
    bool has_next;
    int stage;
};
DT_DEVICE bool is_vector_warp()
{
    return threadIdx.x / 32 == CHAIN_THREADS / 32 - 1;
}

template <bool BACKWARD>
DT_DEVICE void pipe_prefetch(chain_pipe &pipe, const gdn_params &p, const gdn_rows &v, uint32_t stage)
{
    pipe.has_next = pipe.walk.valid;
    if (pipe.has_next) {
        pipe.next = walk_item<BACKWARD>(pipe.walk, p);
        load_stage(stage, p, v, pipe.next);
        if (is_vector_warp())
            load_tokens(pipe.tokens, p, pipe.next.row0, pipe.next.rows, pipe.next.head, pipe.next.key_head);
        walk_advance(pipe.walk, p);
    }
    copy_commit();
}
/* After this the chunk's tiles and vectors are there for all, and nobody reads the previous chunk's any more. */
DT_DEVICE void pipe_arrive(chain_pipe &pipe, const gdn_params &p, unsigned char *shared)
{
    if (pipe.has_next && is_vector_warp())
        write_vectors((gdn_vectors *)(shared + CHAIN_VECTORS) + pipe.stage, pipe.tokens, p.scale);
    copy_wait<0>();
    fence_async_proxy();
    block_sync();
    pipe.item = pipe.next;
}

template <int ISA> DT_DEVICE void gdn_forward_block(const gdn_params &p)
{
    DT_SHARED(shared);
    uint32_t base = shared_address(shared), p_tile = base + CHAIN_P, x_tile = base + CHAIN_X;
    const int warp = uniform((int)threadIdx.x >> 5);
    float s[64];
    mm_clear(s);
    chain_pipe pipe;
    walk_start(pipe.walk, p);
    pipe.stage = 0;
    pipe_prefetch<false>(pipe, p, p.v, base);
    while (uniform(pipe.has_next)) {
        pipe_arrive(pipe, p, shared);
        const chain_item it = pipe.item;
        const gdn_vectors *v = (const gdn_vectors *)(shared + CHAIN_VECTORS) + pipe.stage;
        uint32_t stage = base + (uint32_t)(pipe.stage * STAGE_BYTES);
        pipe.stage ^= 1;
        pipe_prefetch<false>(pipe, p, p.v, base + (uint32_t)(pipe.stage * STAGE_BYTES));

        int64_t state_index = ((int64_t)it.seq * p.value_heads + it.head) * p.K * p.V;
        if (it.flags & CHUNK_FIRST)
            read_state(s, p.initial_state ? p.initial_state + state_index : NULL, p.K, p.V);
        uint32_t a[8][4];
        pack_operand<128>(a, s);
        if (p.h && !state_is_zero(p, it.flags))
            write_image<ISA>(p.h + it.image * STATE_BYTES, base + CHAIN_OUT, a);

        float u[32], o[32];
        mm_begin<ISA>();
        if (warp < 4) {
            float r[32];
            uint32_t qk[4][4];
            mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(r, stage + STAGE_Q, PANEL, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_rs_new<ISA, 64, 8, K_MAJOR>(u, a, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
            pack_lower(qk, r);
            mm_begin<ISA>();
            mm_rs_new<ISA, 64, 4, MN_MAJOR>(r, qk, stage + STAGE_AT, PANEL);
            mm_commit<ISA>();
            mm_rs_new<ISA, 64, 8, K_MAJOR>(o, a, stage + STAGE_Q, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
            store_p<ISA>(p_tile, r, v);
        } else {
            float x[64];
            mm_ss_new<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(x, stage + STAGE_AT, PANEL, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_rs_new<ISA, 64, 8, K_MAJOR>(u, a, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
            store_x<ISA, 8>(x_tile, x, v);
            mm_begin<ISA>();
            mm_rs_new<ISA, 64, 8, K_MAJOR>(o, a, stage + STAGE_Q, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
        }
        fence_async_proxy();
        block_sync();

        /* Wv^T = V^T - gamma rk U^T, then the two products with it */
        uint32_t w[4][4];
        scale_columns(u, v->gamma_rk);
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            load_a<MN_MAJOR>(w[i], stage + STAGE_V, PANEL, i, 16 * warp);
            DT_UNROLL
            for (int c = 0; c < 4; c++)
                w[i][c] = pack_bf16(bf16_low(w[i][c]) - u[8 * i + 2 * c], bf16_high(w[i][c]) - u[8 * i + 2 * c + 1]);
        }
        float last = v->gamma_last;
        DT_UNROLL
        for (int i = 0; i < 64; i++)
            s[i] *= last;
        mm_begin<ISA>();
        mm_rs<ISA, 128, 4, MN_MAJOR>(s, w, x_tile, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 1>();
        scale_columns(o, v->s_gamma_rq);
        mm_begin<ISA>();
        mm_rs<ISA, 64, 4, K_MAJOR>(o, w, p_tile, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        uint32_t out[4][4];
        pack_operand<64>(out, o);
        write_rows<ISA>(p.o, it, p.V, stage + STAGE_V, out);
        if ((it.flags & CHUNK_LAST) && p.final_state)
            write_state(p.final_state + state_index, s, p.K, p.V);
    }
    if (p.final_state)
        copy_empty_states(p.final_state, p.initial_state, p);
    clear_rows(p.o, p.table.counts[3], p.T_cap, p.value_heads, p.V);
}
template <int ISA> DT_KERNEL(CHAIN_THREADS, 1) gdn_forward_kernel(const gdn_params p)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gdn_forward_block<ISA>(p);
}

template <int ISA> DT_DEVICE void gdn_backward_block(const gdn_params &p)
{
    DT_SHARED(shared);
    uint32_t base = shared_address(shared), p_tile = base + CHAIN_P, x_tile = base + CHAIN_X;
    const int warp = uniform((int)threadIdx.x >> 5), t = 2 * ((int)threadIdx.x & 3);
    float s[64]; /* dS1^T, then dS0^T */
    mm_clear(s);
    chain_pipe pipe;
    walk_start(pipe.walk, p);
    pipe.stage = 0;
    pipe_prefetch<true>(pipe, p, p.d_o, base);
    while (uniform(pipe.has_next)) {
        pipe_arrive(pipe, p, shared);
        const chain_item it = pipe.item;
        const gdn_vectors *v = (const gdn_vectors *)(shared + CHAIN_VECTORS) + pipe.stage;
        uint32_t stage = base + (uint32_t)(pipe.stage * STAGE_BYTES);
        pipe.stage ^= 1;
        pipe_prefetch<true>(pipe, p, p.d_o, base + (uint32_t)(pipe.stage * STAGE_BYTES));

        int64_t state_index = ((int64_t)it.seq * p.value_heads + it.head) * p.K * p.V;
        if (it.flags & CHUNK_LAST)
            read_state(s, p.dfinal_state ? p.dfinal_state + state_index : NULL, p.K, p.V);
        uint32_t a[8][4], d[4][4], scaled[4][4];
        pack_operand<128>(a, s);
        if (!gradient_is_zero(p, it.flags))
            write_image<ISA>(p.dh + it.image * STATE_BYTES, base + CHAIN_OUT, a);
        DT_UNROLL
        for (int i = 0; i < 4; i++) { /* dO^T, and the same times s gamma rq of its token */
            load_a<MN_MAJOR>(d[i], stage + STAGE_V, PANEL, i, 16 * warp);
            DT_UNROLL
            for (int c = 0; c < 4; c++) {
                float2 f = *(const float2 *)(v->s_gamma_rq + 16 * i + 8 * (c >> 1) + t);
                scaled[i][c] = pack_bf16(f.x * bf16_low(d[i][c]), f.y * bf16_high(d[i][c]));
            }
        }
        float last = v->gamma_last;
        DT_UNROLL
        for (int i = 0; i < 64; i++)
            s[i] *= last;

        mm_begin<ISA>();
        if (warp < 4) {
            float r[32];
            uint32_t qk[4][4];
            mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(r, stage + STAGE_Q, PANEL, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            pack_lower(qk, r);
            mm_begin<ISA>();
            mm_rs_new<ISA, 64, 4, MN_MAJOR>(r, qk, stage + STAGE_AT, PANEL);
            mm_commit<ISA>();
            mm_rs<ISA, 128, 4, MN_MAJOR>(s, scaled, stage + STAGE_Q, PANEL, true);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
            store_p<ISA>(p_tile, r, v);
        } else {
            float x[64];
            mm_ss_new<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(x, stage + STAGE_AT, PANEL, stage + STAGE_K, PANEL);
            mm_commit<ISA>();
            mm_rs<ISA, 128, 4, MN_MAJOR>(s, scaled, stage + STAGE_Q, PANEL, true);
            mm_commit<ISA>();
            mm_wait<ISA, 1>();
            store_x<ISA, 8>(x_tile, x, v);
        }
        fence_async_proxy();
        block_sync();

        float z[32]; /* dW^T = P'^T dO + X' dS1, transposed */
        mm_begin<ISA>();
        mm_rs_new<ISA, 64, 4, MN_MAJOR>(z, d, p_tile, PANEL);
        mm_rs<ISA, 64, 8, K_MAJOR>(z, a, x_tile, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        uint32_t out[4][4], w[4][4];
        pack_operand<64>(out, z);
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            DT_UNROLL
            for (int c = 0; c < 4; c++) {
                float2 f = *(const float2 *)(v->gamma_rk + 16 * i + 8 * (c >> 1) + t);
                w[i][c] = pack_bf16(-f.x * z[8 * i + 2 * c], -f.y * z[8 * i + 2 * c + 1]);
            }
        }
        mm_begin<ISA>();
        mm_rs<ISA, 128, 4, MN_MAJOR>(s, w, stage + STAGE_K, PANEL, true);
        mm_commit<ISA>();
        write_rows<ISA>(p.dv, it, p.V, stage + STAGE_V, out);
        mm_wait<ISA, 0>();
        if ((it.flags & CHUNK_FIRST) && p.dinitial_state)
            write_state(p.dinitial_state + state_index, s, p.K, p.V);
    }
    if (p.dinitial_state)
        copy_empty_states(p.dinitial_state, p.dfinal_state, p);
    clear_rows(p.dv, p.table.counts[3], p.T_cap, p.value_heads, p.V);
}
template <int ISA> DT_KERNEL(CHAIN_THREADS, 1) gdn_backward_kernel(const gdn_params p)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gdn_backward_block<ISA>(p);
}
#endif
