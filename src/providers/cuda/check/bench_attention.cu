/* Timings of attention at the shapes of the 4B model: 16 query heads, 4 key heads of 256, q, k, v as the step keeps
 * them (q and k in one buffer, v in that of the projection). */
#include <deltune/op/attention.h>

#include "providers/cuda/check/bench.h"
#include "providers/cuda/check/bench_tools.cuh"

enum { HEADS = 16, KEY_HEADS = 4, WIDTH = 256 };
enum { MIX = (HEADS + KEY_HEADS) * WIDTH, PROJECTION = (2 * HEADS + 2 * KEY_HEADS) * WIDTH };

/* `heads` heads from `column` on of a [T, width] buffer. */
static dt_tensor heads_of(const dt_tensor *buffer, int64_t column, int64_t heads)
{
    dt_tensor t = *buffer;
    t.data = (uint16_t *)buffer->data + column;
    t.rank = 3;
    t.shape[1] = heads, t.shape[2] = WIDTH, t.shape[3] = 1;
    t.stride[0] = buffer->stride[0], t.stride[1] = WIDTH, t.stride[2] = 1, t.stride[3] = 1;
    return t;
}

static dt_attention_args *make_call(const std::vector<int32_t> &cu, std::vector<void *> &memory)
{
    const int64_t T = cu.back();
    dt_tensor mix = make(DT_BF16, 0, {T, MIX}), dmix = make(DT_BF16, 0, {T, MIX});
    dt_tensor projection = make(DT_BF16, 0, {T, PROJECTION}), dprojection = make(DT_BF16, 0, {T, PROJECTION});
    dt_tensor o = make(DT_BF16, 0, {T, HEADS * WIDTH}), d_o = make(DT_BF16, 0, {T, HEADS * WIDTH});
    for (const dt_tensor *t : {&mix, &dmix, &projection, &dprojection, &o, &d_o})
        memory.push_back(t->data);
    dt_attention_args *a = new dt_attention_args();
    a->struct_size = sizeof *a;
    a->q = heads_of(&mix, 0, HEADS), a->k = heads_of(&mix, HEADS * WIDTH, KEY_HEADS);
    a->v = heads_of(&projection, PROJECTION - KEY_HEADS * WIDTH, KEY_HEADS);
    a->o = heads_of(&o, 0, HEADS), a->d_o = heads_of(&d_o, 0, HEADS);
    a->dq = heads_of(&dmix, 0, HEADS), a->dk = heads_of(&dmix, HEADS * WIDTH, KEY_HEADS);
    a->dv = heads_of(&dprojection, PROJECTION - KEY_HEADS * WIDTH, KEY_HEADS);
    a->seqs = make_seqs(cu);
    a->scale = 1.0f / 16;
    memory.push_back((void *)a->seqs.cu_seqlens_device);
    return a;
}

/* The tensors once at copy speed, and the products of the causal half at the rate of large GEMMs. */
static void print_floor(const std::vector<int32_t> &cu)
{
    double pairs = 0, T = cu.back();
    for (size_t n = 0; n + 1 < cu.size(); n++) {
        double length = cu[n + 1] - cu[n];
        pairs += length * (length + 1) / 2;
    }
    double product = 2.0 * pairs * HEADS * WIDTH, row = WIDTH * 2.0;
    double forward = T * row * (2 * HEADS + 2 * KEY_HEADS), backward = T * row * (4 * HEADS + 4 * KEY_HEADS);
    printf("%-16s bytes %.4f, products %.4f ms; backward bytes %.4f, 5 products %.4f ms\n", "  floors: forward",
           forward / 4.26e9, 2 * product / 660e9, backward / 4.26e9, 5 * product / 660e9);
}

static void bench_pack(const dt_provider *provider, dt_exec *exec, int64_t T, int n, FILE *json)
{
    std::vector<int32_t> cu = boundaries(T, n);
    if (T <= 512) /* one sample of three may be long: its blocks alone would be timed */
        for (int i = 0; i <= n; i++)
            cu[(size_t)i] = (int32_t)(T * i / n);
    std::vector<void *> sets, memory;
    size_t before = allocated;
    do /* small packs stay in the L2, as in the step; large ones do not */
        sets.push_back(make_call(cu, memory));
    while (T > 512 && sets.size() < 8 && allocated - before < 400u << 20);
    double row = (double)T * WIDTH * 2;
    report(json, "attention", T, n, time_op(exec, bench_find_op(provider, DT_OP_ATTENTION), sets),
           row * (2 * HEADS + 2 * KEY_HEADS), row * (4 * HEADS + 4 * KEY_HEADS));
    print_floor(cu);
    for (void *set : sets)
        delete (dt_attention_args *)set;
    for (void *m : memory)
        cudaFree(m);
}

extern "C" void bench_attention(const dt_provider *provider, dt_exec *exec, const char *only, FILE *json)
{
    long long T;
    int n;
    if (only && sscanf(only, "attention/%lld/%d", &T, &n) == 2) {
        bench_pack(provider, exec, T, n, json);
        return;
    }
    static const struct {
        int64_t T;
        int n;
    } packs[] = {{512, 3}, {2048, 12}, {8192, 48}, {8192, 8}, {8192, 1}};
    for (const auto &p : packs)
        bench_pack(provider, exec, p.T, p.n, json);
}
