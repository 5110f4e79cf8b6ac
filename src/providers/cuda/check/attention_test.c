/* attention of the CUDA plug-in, its kernels run on the CPU (libdeltune-cuda-emulated.so), against the reference in
 * F64: the layout of the training step, cached keys, head sizes and rows that only the plain kernels take. */
#include "providers/cuda/check/emulated_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/attention.h>

typedef struct {
    int64_t H, Hkv, D, T_cap, n_seq, n_seq_cap;
    const int32_t *cu, *kv_cu; /* [n_seq_cap + 1], the last repeated; kv_cu NULL: training */
    dt_dtype dtype;
    int64_t pad; /* elements more in a row of each buffer; not a multiple of 8: no row is aligned */
} shape;

/* q and k side by side in one buffer, as the step has them; v in the middle of another. */
static void make_rows(ot_pool *pool, const shape *s, dt_dtype dtype, int64_t rows, int64_t key_rows, dt_tensor out[3])
{
    const int64_t q = s->H * s->D, kv = s->Hkv * s->D;
    const dt_tensor mix = ot_tensor(pool, dtype, 2, (const int64_t[]){rows, q + kv + s->pad}, 0);
    const dt_tensor keys = ot_tensor(pool, dtype, 2, (const int64_t[]){key_rows, q + kv + s->pad}, 0);
    const dt_tensor values = ot_tensor(pool, dtype, 2, (const int64_t[]){key_rows, 3 * kv + s->pad}, 0);
    out[0] = dt_tensor_split_last(dt_tensor_slice(mix, 1, 0, q), s->D);
    out[1] = dt_tensor_split_last(dt_tensor_slice(s->kv_cu ? keys : mix, 1, q, q + kv), s->D);
    out[2] = dt_tensor_split_last(dt_tensor_slice(values, 1, kv, 2 * kv), s->D);
}

static dt_seqs boundaries(const shape *s, const int32_t *cu, int64_t rows)
{
    return (dt_seqs){.cu_seqlens = cu,
                     .cu_seqlens_device = cu,
                     .n_seq = s->n_seq,
                     .n_seq_cap = s->n_seq_cap,
                     .T = cu[s->n_seq],
                     .T_cap = rows};
}

static dt_attention_args make(ot_pool *pool, const shape *s, dt_dtype dtype)
{
    const int64_t keys = s->kv_cu ? s->kv_cu[s->n_seq] + 5 : s->T_cap;
    uint64_t seed = 23;
    dt_tensor in[3], out[3], o[3];
    make_rows(pool, s, dtype, s->T_cap, keys, in);
    make_rows(pool, s, dtype, s->T_cap, keys, out);
    make_rows(pool, s, dtype, s->T_cap, keys, o);
    dt_attention_args a = {DT_ATTENTION_ARGS,
                           .q = in[0],
                           .k = in[1],
                           .v = in[2],
                           .o = o[0],
                           .seqs = boundaries(s, s->cu, s->T_cap),
                           .scale = 1 / sqrtf((float)s->D)};
    ot_fill_normal(&a.q, &seed, 1.5);
    ot_fill_normal(&a.k, &seed, 1.5);
    ot_fill_normal(&a.v, &seed, 1);
    if (s->kv_cu) {
        a.kv_seqs = boundaries(s, s->kv_cu, keys);
        return a;
    }
    dt_tensor d_o[3];
    make_rows(pool, s, dtype, s->T_cap, keys, d_o);
    a.d_o = d_o[0];
    a.dq = out[0], a.dk = out[1], a.dv = out[2];
    ot_fill_normal(&a.d_o, &seed, 1);
    return a;
}

static void run(ot_call *c, const dt_op_set *ops, const dt_attention_args *a)
{
    ot_forward(c, ops, a, !a->kv_seqs.n_seq);
    if (!a->kv_seqs.n_seq)
        ot_backward(c, ops, a);
}

static void check_shape(const shape *s)
{
    const dt_op_set *set = emulated_set(DT_OP_ATTENTION);
    const bool exact = s->dtype == DT_F32;
    ot_call oracle = ot_begin(1), device = ot_begin(1);
    device.exec.device = DT_DEVICE_CUDA;
    const dt_attention_args want = make(&oracle.pool, s, DT_F64), a = make(&device.pool, s, s->dtype);
    run(&oracle, &dtp_ref_attention, &want);
    run(&device, set, &a);
    ot_compare("o", &a.o, &want.o, OT_HEADS, &want.seqs, NULL, exact ? 1e-5 : 4e-3);
    if (!s->kv_cu) {
        ot_compare("dq", &a.dq, &want.dq, OT_HEADS, &want.seqs, NULL, exact ? 1e-4 : 5e-3);
        ot_compare("dk", &a.dk, &want.dk, OT_HEADS, &want.seqs, NULL, exact ? 1e-4 : 5e-3);
        ot_compare("dv", &a.dv, &want.dv, OT_HEADS, &want.seqs, NULL, exact ? 1e-4 : 4e-3);
    }
    ot_finish(&device.pool);
    ot_finish(&oracle.pool);
}

/* Around the tiles of keys (64) and of queries (64 / group), with empty samples and rows behind the pack. */
static void packs(void **state)
{
    (void)state;
    static const int32_t edges[] = {0, 2, 2, 65, 129, 194, 211, 211, 211, 211};
    const shape list[] = {
        {.H = 4, .Hkv = 1, .D = 256, .T_cap = 224, .n_seq = 6, .n_seq_cap = 9, .cu = edges, .dtype = DT_BF16},
        {.H = 2, .Hkv = 2, .D = 64, .T_cap = 211, .n_seq = 6, .n_seq_cap = 6, .cu = edges, .dtype = DT_BF16, .pad = 8},
        {.H = 6, .Hkv = 2, .D = 128, .T_cap = 224, .n_seq = 6, .n_seq_cap = 9, .cu = edges, .dtype = DT_BF16},
        {.H = 4, .Hkv = 1, .D = 64, .T_cap = 220, .n_seq = 6, .n_seq_cap = 9, .cu = edges, .dtype = DT_BF16, .pad = 5},
        {.H = 4, .Hkv = 2, .D = 20, .T_cap = 224, .n_seq = 6, .n_seq_cap = 9, .cu = edges, .dtype = DT_F32, .pad = 1},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}

/* Long enough that blocks of two warpgroups run. */
static void long_pack(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 130, 400, 400};
    check_shape(
        &(shape){.H = 4, .Hkv = 1, .D = 64, .T_cap = 2049, .n_seq = 2, .n_seq_cap = 3, .cu = cu, .dtype = DT_BF16});
}

/* Queries are the last of their sample's keys. */
static void cached_keys(void **state)
{
    (void)state;
    static const int32_t q[] = {0, 1, 2, 7, 7, 27, 27}, k[] = {0, 1, 200, 470, 480, 520, 520};
    shape s = {
        .H = 8, .Hkv = 2, .D = 256, .T_cap = 30, .n_seq = 5, .n_seq_cap = 6, .cu = q, .kv_cu = k, .dtype = DT_BF16};
    check_shape(&s);
    s.dtype = DT_F32;
    check_shape(&s);
}

static void fill_rows(const dt_tensor *t, int64_t from, int64_t to, double value)
{
    const dt_tensor rows = dt_tensor_slice(*t, 0, from, to);
    ot_fill(&rows, value);
}

/* NaN in one sample and behind the pack reaches nothing of the other samples: the same bits. */
static void nan_stays(void **state)
{
    (void)state;
    const dt_op_set *set = emulated_set(DT_OP_ATTENTION);
    enum { BEGIN = 70, END = 205, T = 230, ROWS = 256 };
    static const int32_t cu[] = {0, BEGIN, END, T};
    static const int64_t widths[] = {64, 256}, groups[] = {4, 3};
    for (int i = 0; i < 2; i++) {
        const shape s = {.H = groups[i],
                         .Hkv = 1,
                         .D = widths[i],
                         .T_cap = ROWS,
                         .n_seq = 3,
                         .n_seq_cap = 3,
                         .cu = cu,
                         .dtype = DT_BF16};
        ot_call clean = ot_begin(1), dirty = ot_begin(1);
        clean.exec.device = dirty.exec.device = DT_DEVICE_CUDA;
        const dt_attention_args a = make(&clean.pool, &s, DT_BF16), b = make(&dirty.pool, &s, DT_BF16);
        const dt_tensor *in[] = {&b.q, &b.k, &b.v, &b.d_o};
        for (int k = 0; k < 4; k++) {
            fill_rows(in[k], END, T, NAN);
            fill_rows(in[k], T, ROWS, NAN);
        }
        run(&clean, set, &a);
        run(&dirty, set, &b);
        const dt_tensor *want[] = {&a.o, &a.dq, &a.dk, &a.dv}, *got[] = {&b.o, &b.dq, &b.dk, &b.dv};
        for (int k = 0; k < 4; k++) {
            const dt_tensor x = dt_tensor_slice(*want[k], 0, 0, END), y = dt_tensor_slice(*got[k], 0, 0, END);
            ot_same("other samples", &y, &x);
            const dt_tensor behind = dt_tensor_slice(*got[k], 0, T, ROWS);
            for (int64_t e = 0; e < dt_tensor_numel(&behind); e++)
                assert_true(ot_get(&behind, ot_offset(&behind, e)) == 0);
        }
        ot_finish(&clean.pool);
        ot_finish(&dirty.pool);
    }
}

/* Nothing to do is no error. */
static void empty(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 0};
    check_shape(
        &(shape){.H = 4, .Hkv = 1, .D = 256, .T_cap = 64, .n_seq = 1, .n_seq_cap = 1, .cu = cu, .dtype = DT_BF16});
    check_shape(&(shape){.H = 4, .Hkv = 1, .D = 8, .T_cap = 3, .n_seq = 0, .n_seq_cap = 0, .cu = cu, .dtype = DT_F32});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packs), cmocka_unit_test(long_pack),
                                       cmocka_unit_test(cached_keys), cmocka_unit_test(nan_stays),
                                       cmocka_unit_test(empty)};
    return cmocka_run_group_tests(tests, emulated_load, NULL);
}
