/* The gradient kernel's feeders: the first warp walks the items, starts their loads and tells the others what they are;
 * the second finishes dg and dbeta, the other two make <S0, dS1>. All four zero the rows past a sample's end. */
#ifndef DT_CUDA_GDN_GRADIENT_FEED_CUH
#define DT_CUDA_GDN_GRADIENT_FEED_CUH
#include "providers/cuda/gdn_gradient_common.cuh"

/* Items are (chunk, key head) and, inside, its value heads. */
struct gradient_walk {
    unsigned index;
    int member;
};
DT_DEVICE gradient_item walk_head(const gradient_walk &w, const gdn_params &p)
{
    unsigned chunk = w.index / (unsigned)p.heads;
    int4 rows = chunk < (unsigned)p.table.capacity ? p.table.chunk[chunk] : make_int4(0, 0, 0, 0);
    gradient_item it;
    it.row0 = rows.x;
    it.rows = rows.y;
    it.chunk = (int)chunk;
    it.flags = rows.w | (w.member == 0 ? HEAD_FIRST : 0) | (w.member == p.group - 1 ? HEAD_LAST : 0);
    it.key_head = (int)(w.index - chunk * (unsigned)p.heads);
    it.head = it.key_head * p.group + w.member;
    return it;
}
DT_DEVICE void walk_next(gradient_walk &w, const gdn_params &p)
{
    bool last = w.member == p.group - 1;
    w.index += last ? gridDim.x : 0;
    w.member = last ? 0 : w.member + 1;
}

/* Loads come in four parts, each into buffers that become free at its own time. On Hopper one thread starts the copies,
 * which complete on a barrier; elsewhere the first warp takes part, and stands in for the copy engine at the barrier.
 */
DT_DEVICE bool starts_copies()
{
    return threadIdx.x % 32 == 0;
}
DT_DEVICE void copy_rows(uint32_t tile, const tensor_map &map, int head, int row, uint32_t barrier)
{
    copy_box(tile, map, 0, head, row, barrier);
    copy_box(tile + PANEL, map, 64, head, row, barrier);
}
template <int ISA>
DT_DEVICE void feed_s(uint32_t base, const gdn_params &p, const chain_maps &maps, const gradient_item &it)
{
    const bool state = !state_is_zero(p, it.flags);
    const unsigned char *image = p.h + image_of(p, it) * STATE_BYTES;
    if constexpr (ISA == ISA_WGMMA) {
        const uint32_t barrier = gradient_barrier(base, GB_LOADED_S);
        if (starts_copies()) {
            barrier_expect(barrier, ROWS_BYTES + (state ? STATE_BYTES : 0));
            if (state)
                copy_bulk(base + GRAD_S, image, STATE_BYTES, barrier);
            copy_rows(base + GRAD_DW, maps.dv, it.head, it.row0, barrier);
        }
    } else {
        if (state)
            load_image(base + GRAD_S, image, STATE_BYTES, 32);
        load_rows(base + GRAD_DW, p.dv, it.row0, it.rows, it.head, p.V, 32);
    }
}
template <int ISA>
DT_DEVICE void feed_v(uint32_t base, const gdn_params &p, const chain_maps &maps, const gradient_item &it)
{
    const bool gradient = !gradient_is_zero(p, it.flags);
    const unsigned char *image = p.dh + image_of(p, it) * STATE_BYTES;
    if constexpr (ISA == ISA_WGMMA) {
        const uint32_t barrier = gradient_barrier(base, GB_LOADED_V);
        if (starts_copies()) {
            barrier_expect(barrier, 2 * ROWS_BYTES + (gradient ? STATE_BYTES : 0));
            copy_rows(base + GRAD_V, maps.v, it.head, it.row0, barrier);
            copy_rows(base + GRAD_DO, maps.d_o, it.head, it.row0, barrier);
            if (gradient)
                copy_bulk(base + GRAD_DS, image, STATE_BYTES, barrier);
        }
    } else {
        load_rows(base + GRAD_V, p.v, it.row0, it.rows, it.head, p.V, 32);
        load_rows(base + GRAD_DO, p.d_o, it.row0, it.rows, it.head, p.V, 32);
        if (gradient)
            load_image(base + GRAD_DS, image, STATE_BYTES, 32);
    }
}
template <int ISA> DT_DEVICE void feed_at(uint32_t base, const gdn_params &p, const gradient_item &it)
{
    const unsigned char *image = p.at + image_of(p, it) * AT_BYTES;
    if constexpr (ISA == ISA_WGMMA) {
        if (starts_copies()) {
            barrier_expect(gradient_barrier(base, GB_LOADED_AT), AT_BYTES);
            copy_bulk(base + GRAD_AT, image, AT_BYTES, gradient_barrier(base, GB_LOADED_AT));
        }
    } else
        load_image(base + GRAD_AT, image, AT_BYTES, 32);
}
template <int ISA>
DT_DEVICE void feed_qk(uint32_t base, const gdn_params &p, const chain_maps &maps, const gradient_item &it, int pair)
{
    const uint32_t q = q_tile_of(base, pair), k = k_tile_of(base, pair);
    if constexpr (ISA == ISA_WGMMA) {
        const uint32_t barrier = gradient_barrier(base, GB_LOADED_QK + (pair & 1));
        if (starts_copies()) {
            barrier_expect(barrier, 2 * ROWS_BYTES);
            copy_rows(k, maps.k, it.key_head, it.row0, barrier);
            copy_rows(q, maps.q, it.key_head, it.row0, barrier);
        }
    } else {
        load_rows(q, p.q, it.row0, it.rows, it.key_head, p.K, 32);
        load_rows(k, p.k, it.row0, it.rows, it.key_head, p.K, 32);
    }
}
/* All loads so far have come in, if it is this warp that makes them. */
template <int ISA> DT_DEVICE void feed_loaded(uint32_t base, int which)
{
    if (ISA == ISA_WGMMA)
        return;
    copy_commit();
    copy_wait<0>();
    warp_sync();
    if (starts_copies())
        gradient_arrive(base, which);
}
/* The copies ran on into the next sample. By all feeders. */
template <int ISA> DT_DEVICE void zero_tail(uint32_t tile, int rows)
{
    if (ISA == ISA_WGMMA && rows < CHUNK)
        zero_rows(tile, rows, FEEDERS);
}

/* This warp's part of <S0, dS1>: every second block of 16 rows, as the diagonal of S0 dS1^T. */
DT_DEVICE void feed_states(uint32_t base, float *sums, int part)
{
    const int lane = (int)threadIdx.x & 31, g = lane >> 2;
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    DT_ROLLED
    for (int row0 = 16 * part; row0 < WIDTH; row0 += 32) {
        DT_UNROLL
        for (int s = 0; s < 8; s++) {
            uint32_t x[4], y[4];
            load_a<K_MAJOR>(x, base + GRAD_S, STATE_PANEL, s, row0);
            load_a<K_MAJOR>(y, base + GRAD_DS, STATE_PANEL, s, row0);
            mma_bf16(low, x, y[0], y[2]);
            mma_bf16(high, x, y[1], y[3]);
        }
    }
    /* columns 2 (lane % 4) + {0, 1} meet rows lane/4 (+8) in these lanes only */
    float even = low[0] + high[2], odd = low[1] + high[3], sum = (g >> 1) == (lane & 3) ? (g & 1 ? odd : even) : 0.0f;
    DT_UNROLL
    for (int n = 16; n; n /= 2)
        sum += shuffle_xor(sum, n);
    if (lane == 0)
        sums[part] = sum;
}

/* dbeta, and dG summed backwards over the chunk. */
DT_DEVICE void finish_gates(const gdn_params &p, const gradient_message *message, const gradient_sums *sums)
{
    const gradient_item &it = message->item;
    const gdn_vectors *v = &message->v;
    const bool has_states = !state_is_zero(p, it.flags) && !gradient_is_zero(p, it.flags);
    int lane = (int)threadIdx.x & 31;
    float dG[2], beta_x = 0.0f;
    DT_UNROLL
    for (int i = 0; i < 2; i++) {
        int j = 2 * lane + i;
        float x = sums->x[j];
        float e = (sums->e_cols[0][j] + sums->e_cols[1][j]) + (sums->e_cols[2][j] + sums->e_cols[3][j]);
        if (j < it.rows)
            p.dbeta.data[(int64_t)(it.row0 + j) * p.dbeta.row + it.head] = x + e + sums->n_rows[j];
        dG[i] = sums->aq[j] + sums->ak[j] + sums->e_rows[j] - v->beta[j] * (e + x);
        beta_x += v->beta[j] * x;
    }
    DT_UNROLL
    for (int n = 16; n; n /= 2)
        beta_x += shuffle_xor(beta_x, n);
    float states = has_states ? sums->states[0] + sums->states[1] : 0.0f;
    float last = beta_x + v->gamma_last * states;
    DT_UNROLL
    for (int i = 0; i < 2; i++)
        dG[i] += 2 * lane + i == it.rows - 1 ? last : 0.0f;
    float sum = dG[0] + dG[1];
    DT_UNROLL
    for (int n = 1; n < 32; n *= 2) {
        float x = shuffle_down(sum, n);
        sum += lane + n < 32 ? x : 0.0f;
    }
    float dg[2] = {sum, sum - dG[0]};
    DT_UNROLL
    for (int i = 0; i < 2; i++)
        if (2 * lane + i < it.rows)
            p.dg.data[(int64_t)(it.row0 + 2 * lane + i) * p.dg.row + it.head] = dg[i];
}

/* What all feeders do for head n: once its tiles have come in they make them fit for use. */
template <int ISA> DT_DEVICE void feed_head(uint32_t base, int rows, int flags, int n, int pair)
{
    if (flags & HEAD_FIRST) {
        gradient_wait_turn(base, GB_LOADED_QK, pair);
        zero_tail<ISA>(q_tile_of(base, pair), rows);
        zero_tail<ISA>(k_tile_of(base, pair), rows);
    }
    gradient_wait(base, GB_LOADED_S, n);
    zero_tail<ISA>(base + GRAD_DW, rows);
    gradient_publish(base, GB_READY_S);
    gradient_wait(base, GB_LOADED_V, n);
    zero_tail<ISA>(base + GRAD_V, rows);
    zero_tail<ISA>(base + GRAD_DO, rows);
    gradient_publish(base, GB_READY_V);
}
/* The feeders' second to fourth warp: dg and dbeta of the head before; <S0, dS1>. */
template <int ISA> DT_DEVICE void gradient_assist(const gdn_params &p, int part)
{
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared);
    const gradient_message *messages = (const gradient_message *)(shared + GRAD_MESSAGES);
    gradient_sums *sums = (gradient_sums *)(shared + GRAD_SUMS);
    for (int n = 0, pair = -1;; n++) {
        group_sync(3, FEEDERS); /* the message is written */
        const int rows = messages[n & 1].item.rows, flags = messages[n & 1].item.flags;
        if (rows > 0) {
            pair += flags & HEAD_FIRST ? 1 : 0;
            feed_head<ISA>(base, rows, flags, n, pair);
        } else
            gradient_arrive(base, GB_READY_S);
        if (part == 0 && n > 0) {
            gradient_wait_turn(base, GB_SUMS, n - 1);
            finish_gates(p, messages + ((n - 1) & 1), sums + ((n - 1) & 1));
        }
        if (rows == 0)
            break;
        if (part > 0 && !state_is_zero(p, flags) && !gradient_is_zero(p, flags))
            feed_states(base, sums[n & 1].states, part - 1);
        gradient_arrive(base, GB_FREE_S);
        gradient_arrive(base, GB_FREE_V);
    }
}
template <int ISA> DT_DEVICE void gradient_feed(const gdn_params &p, const chain_maps &maps)
{
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared);
    gradient_message *messages = (gradient_message *)(shared + GRAD_MESSAGES);
    gradient_walk walk = {blockIdx.x, 0};
    gradient_item it = walk_head(walk, p);
    gdn_tokens tokens;
    int pair = -1;
    if (it.rows > 0) {
        feed_qk<ISA>(base, p, maps, it, 0);
        feed_loaded<ISA>(base, GB_LOADED_QK);
        feed_s<ISA>(base, p, maps, it);
        feed_v<ISA>(base, p, maps, it);
        load_tokens(tokens, p, it.row0, it.rows, it.head, it.key_head);
    }
    for (int n = 0;; n++) {
        gradient_message *message = messages + (n & 1);
        if ((threadIdx.x & 31) == 0)
            message->item = it;
        if (it.rows > 0)
            write_vectors(&message->v, tokens, p.scale);
        group_sync(3, FEEDERS);
        if (it.rows > 0) {
            pair += it.flags & HEAD_FIRST ? 1 : 0;
            feed_loaded<ISA>(base, GB_LOADED_S);
            feed_loaded<ISA>(base, GB_LOADED_V);
            feed_head<ISA>(base, it.rows, it.flags, n, pair);
        } else
            gradient_arrive(base, GB_READY_S);
        if (n > 0)
            gradient_wait_turn(base, GB_FREE_AT, n - 1);
        if (it.rows > 0) {
            feed_at<ISA>(base, p, it);
            feed_loaded<ISA>(base, GB_LOADED_AT);
        }
        if (it.rows == 0)
            break;
        if (it.flags & HEAD_FIRST) { /* the next key head, into the tiles of the one before */
            gradient_walk ahead = {walk.index + gridDim.x, 0};
            gradient_item next = walk_head(ahead, p);
            if (pair > 0)
                gradient_wait_turn(base, GB_FREE_QK, pair - 1);
            if (next.rows > 0) {
                feed_qk<ISA>(base, p, maps, next, pair + 1);
                feed_loaded<ISA>(base, GB_LOADED_QK + ((pair + 1) & 1));
            }
        }
        walk_next(walk, p);
        it = walk_head(walk, p);
        if (it.rows > 0)
            load_tokens(tokens, p, it.row0, it.rows, it.head, it.key_head);
        gradient_wait(base, GB_FREE_S, n);
        if (it.rows > 0)
            feed_s<ISA>(base, p, maps, it);
        gradient_wait(base, GB_FREE_V, n);
        if (it.rows > 0)
            feed_v<ISA>(base, p, maps, it);
    }
}
#endif
