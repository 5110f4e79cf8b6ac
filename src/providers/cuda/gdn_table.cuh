/* The chunk table: which rows form which chunk, and in which order samples are worked on. One block.
 * Everything the other kernels need to know about the boundaries comes from here, so a captured graph can be
 * replayed with other boundaries: grids depend on capacities only. */
#ifndef DT_CUDA_GDN_TABLE_CUH
#define DT_CUDA_GDN_TABLE_CUH
#include "providers/cuda/gdn_common.cuh"

enum { TABLE_THREADS = 1024, TABLE_SORTED = 2048 };

/* Inclusive sums of x over the block; `total` is the last. sums: 32 ints of shared memory. */
DT_DEVICE int block_scan(int x, int *sums, int *total)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    for (int n = 1; n < 32; n *= 2) {
        int y = shuffle_up_int(x, n);
        x += lane >= n ? y : 0;
    }
    block_sync(); /* the previous use of sums is over */
    if (lane == 31)
        sums[warp] = x;
    block_sync();
    if (warp == 0) {
        int s = sums[lane];
        for (int n = 1; n < 32; n *= 2) {
            int y = shuffle_up_int(s, n);
            s += lane >= n ? y : 0;
        }
        sums[lane] = s;
    }
    block_sync();
    *total = sums[31];
    return x + (warp ? sums[warp - 1] : 0);
}

DT_KERNEL(TABLE_THREADS, 1) gdn_table_kernel(const int32_t *__restrict__ cu, int32_t n_seq_cap, gdn_table table)
{
    DT_SHARED(shared);
    int *sums = (int *)shared, *counts = sums + 32; /* chunks per sample, of the first TABLE_SORTED */
    int thread = (int)threadIdx.x, chunks = 0, filled = 0, T = cu[n_seq_cap];
    bool sorted = n_seq_cap <= TABLE_SORTED;
    for (int base = 0; base < n_seq_cap; base += TABLE_THREADS) {
        int seq = base + thread, row0 = 0, length = 0;
        if (seq < n_seq_cap) {
            row0 = cu[seq];
            length = cu[seq + 1] - row0;
        }
        int mine = chunk_count(length), total, end = block_scan(mine, sums, &total), first = chunks + end - mine;
        for (int c = 0; c < mine; c++) {
            int rest = length - c * CHUNK;
            table.chunk[first + c] = make_int4(row0 + c * CHUNK, rest < CHUNK ? rest : CHUNK, seq,
                                               (c == 0 ? CHUNK_FIRST : 0) | (c == mine - 1 ? CHUNK_LAST : 0));
        }
        chunks += total;
        int some = mine > 0, rank = filled + block_scan(some, sums, &total) - some;
        filled += total;
        if (seq >= n_seq_cap)
            continue;
        if (sorted)
            counts[seq] = mine;
        else /* too many to sort here; so many samples are short and balance themselves */
            table.chain[some ? rank : n_seq_cap - 1 - (seq - rank)] = make_int4(row0, length, seq, first);
    }
    if (thread == 0) {
        table.counts[0] = chunks;
        table.counts[1] = filled;
        table.counts[2] = n_seq_cap;
        table.counts[3] = T;
    }
    for (int i = chunks + thread; i < table.capacity; i += TABLE_THREADS)
        table.chunk[i] = make_int4(0, 0, 0, 0);
    block_sync();
    if (!sorted)
        return;
    /* Four threads a sample: its rank by length, and the chunks before it. Counts are exact as floats. */
    for (int base = 0; base < n_seq_cap; base += TABLE_THREADS / 4) {
        int seq = base + thread / 4, mine = seq < n_seq_cap ? counts[seq] : 0;
        float rank = 0.0f, first = 0.0f;
        for (int other = thread & 3; other < n_seq_cap; other += 4) {
            int theirs = counts[other];
            rank += theirs > mine || (theirs == mine && other < seq) ? 1.0f : 0.0f;
            first += other < seq ? (float)theirs : 0.0f;
        }
        DT_UNROLL
        for (int n = 1; n < 4; n *= 2) {
            rank += shuffle_xor(rank, n);
            first += shuffle_xor(first, n);
        }
        if (seq < n_seq_cap && (thread & 3) == 0)
            table.chain[(int)rank] = make_int4(cu[seq], cu[seq + 1] - cu[seq], seq, (int)first);
    }
}
#endif
