/* attention: packs against the reference in F64 for every instruction set. */
#include "providers/cpu/cpu.h"
#include "providers/cpu/cpu_isa.h"
#include "providers/op_testing.h"
#include "providers/reference/reference.h"

#include <deltune/op/attention.h>

static dt_tensor rows(ot_pool *pool, dt_dtype dtype, int64_t T, int64_t heads, int64_t D, int64_t pad)
{
    return ot_tensor(pool, dtype, 3, (const int64_t[]){T, heads, D}, pad);
}

typedef struct {
    int64_t H, Hkv, D, T_cap;
    int64_t n_seq;
    const int32_t *cu, *kv_cu; /* kv_cu NULL: training */
} shape;

static dt_attention_args make(ot_pool *pool, const shape *s, dt_dtype dtype, int64_t pad)
{
    uint64_t seed = 23;
    int64_t T = s->cu[s->n_seq], keys = s->kv_cu ? s->kv_cu[s->n_seq] : s->T_cap;
    dt_attention_args a = {
        DT_ATTENTION_ARGS,
        .q = rows(pool, dtype, s->T_cap, s->H, s->D, pad),
        .k = rows(pool, dtype, keys, s->Hkv, s->D, pad),
        .v = rows(pool, dtype, keys, s->Hkv, s->D, pad),
        .o = rows(pool, dtype, s->T_cap, s->H, s->D, pad),
        .seqs = {.cu_seqlens = s->cu, .n_seq = s->n_seq, .n_seq_cap = s->n_seq, .T = T, .T_cap = s->T_cap},
        .scale = 1 / sqrtf((float)s->D)};
    ot_fill_normal(&a.q, &seed, 1.5);
    ot_fill_normal(&a.k, &seed, 1.5);
    ot_fill_normal(&a.v, &seed, 1);
    if (s->kv_cu) {
        a.kv_seqs =
            (dt_seqs){.cu_seqlens = s->kv_cu, .n_seq = s->n_seq, .n_seq_cap = s->n_seq, .T = keys, .T_cap = keys};
        return a;
    }
    a.d_o = rows(pool, dtype, s->T_cap, s->H, s->D, pad);
    a.dq = rows(pool, dtype, s->T_cap, s->H, s->D, pad);
    a.dk = rows(pool, dtype, keys, s->Hkv, s->D, pad);
    a.dv = rows(pool, dtype, keys, s->Hkv, s->D, pad);
    ot_fill_normal(&a.d_o, &seed, 1);
    return a;
}

static void run(ot_call *c, const dt_op_set *set, const dt_attention_args *a)
{
    ot_forward(c, set, a, true);
    if (!a->kv_seqs.n_seq)
        ot_backward(c, set, a);
}

static void check_shape(const shape *s)
{
    ot_call oracle = ot_begin(1);
    dt_attention_args want = make(&oracle.pool, s, DT_F64, 0);
    run(&oracle, &dtp_ref_attention, &want);
    for (dt_cpu_isa isa = DT_ISA_PORTABLE; isa <= dtp_cpu_isa_best(); isa++) {
        dtp_cpu_isa_cap(isa);
        ot_call one = ot_begin(1), many = ot_begin(3);
        dt_attention_args a = make(&one.pool, s, DT_F32, 0), b = make(&many.pool, s, DT_F32, 5);
        run(&one, &dtp_cpu_attention, &a);
        run(&many, &dtp_cpu_attention, &b);
        ot_compare("o", &a.o, &want.o, OT_HEADS, &want.seqs, NULL, 1e-5);
        ot_same("o with 3 threads", &b.o, &a.o);
        if (!s->kv_cu) {
            ot_compare("dq", &a.dq, &want.dq, OT_HEADS, &want.seqs, NULL, 1e-4);
            ot_compare("dk", &a.dk, &want.dk, OT_HEADS, &want.seqs, NULL, 1e-4);
            ot_compare("dv", &a.dv, &want.dv, OT_HEADS, &want.seqs, NULL, 1e-4);
            ot_same("dq with 3 threads", &b.dq, &a.dq);
            ot_same("dk with 3 threads", &b.dk, &a.dk);
            ot_same("dv with 3 threads", &b.dv, &a.dv);
        }
        ot_finish(&one.pool);
        ot_finish(&many.pool);
    }
    dtp_cpu_isa_cap(DT_ISA_AVX512);
    ot_finish(&oracle.pool);
}

static void packs(void **state)
{
    (void)state;
    /* Lengths 1, 0, 63, 64, 65, 127, 128, 129, 131: around the tiles of queries (64) and keys (128). */
    static const int32_t edges[] = {0, 1, 1, 64, 128, 193, 320, 448, 577, 708}, empty[] = {0, 0}, one[] = {0, 1};
    const shape list[] = {
        {.H = 2, .Hkv = 1, .D = 64, .T_cap = 768, .n_seq = 9, .cu = edges},
        {.H = 3, .Hkv = 3, .D = 20, .T_cap = 708, .n_seq = 9, .cu = edges},
        {.H = 2, .Hkv = 2, .D = 128, .T_cap = 1, .n_seq = 1, .cu = one},
        {.H = 4, .Hkv = 1, .D = 256, .T_cap = 64, .n_seq = 1, .cu = empty},
        {.H = 4, .Hkv = 2, .D = 1, .T_cap = 64, .n_seq = 3, .cu = edges},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_shape(&list[i]);
}

static void decode(void **state)
{
    (void)state;
    static const int32_t q[] = {0, 1, 2, 7, 7}, k[] = {0, 1, 200, 470, 480};
    check_shape(&(shape){.H = 8, .Hkv = 2, .D = 64, .T_cap = 7, .n_seq = 4, .cu = q, .kv_cu = k});
}

/* Other tokens in the first sample leave every bit of the others as it was. */
static void samples_do_not_leak(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 70, 205, 300};
    const shape s = {.H = 4, .Hkv = 2, .D = 64, .T_cap = 320, .n_seq = 3, .cu = cu};
    ot_call first = ot_begin(2), second = ot_begin(2);
    dt_attention_args a = make(&first.pool, &s, DT_F32, 0), b = make(&second.pool, &s, DT_F32, 0);
    const dt_tensor *inputs[] = {&b.q, &b.k, &b.v, &b.d_o};
    uint64_t seed = 99;
    for (int i = 0; i < 4; i++) {
        dt_tensor sample = dt_tensor_slice(*inputs[i], 0, 0, 70);
        ot_fill_normal(&sample, &seed, 1);
    }
    run(&first, &dtp_cpu_attention, &a);
    run(&second, &dtp_cpu_attention, &b);
    const dt_tensor *left[] = {&a.o, &a.dq, &a.dk, &a.dv}, *right[] = {&b.o, &b.dq, &b.dk, &b.dv};
    for (int i = 0; i < 4; i++) {
        dt_tensor x = dt_tensor_slice(*left[i], 0, 70, 320), y = dt_tensor_slice(*right[i], 0, 70, 320);
        ot_same("other samples", &y, &x);
    }
    ot_finish(&first.pool);
    ot_finish(&second.pool);
}

/* A sample alone and the same sample in a pack: the same bits. */
static void packed_equals_separate(void **state)
{
    (void)state;
    enum { BEGIN = 70, END = 275 };
    static const int32_t cu[] = {0, BEGIN, END, 300}, alone[] = {0, END - BEGIN};
    const shape s = {.H = 4, .Hkv = 2, .D = 64, .T_cap = 320, .n_seq = 3, .cu = cu};
    ot_call pack = ot_begin(3), one = ot_begin(1);
    dt_attention_args a = make(&pack.pool, &s, DT_F32, 0), b = make(&one.pool, &s, DT_F32, 0);
    dt_tensor *tensors[] = {&b.q, &b.k, &b.v, &b.o, &b.d_o, &b.dq, &b.dk, &b.dv};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        *tensors[i] = dt_tensor_slice(*tensors[i], 0, BEGIN, END);
    b.seqs = (dt_seqs){.cu_seqlens = alone, .n_seq = 1, .n_seq_cap = 1, .T = END - BEGIN, .T_cap = END - BEGIN};
    run(&pack, &dtp_cpu_attention, &a);
    run(&one, &dtp_cpu_attention, &b);
    const dt_tensor *left[] = {&a.o, &a.dq, &a.dk, &a.dv}, *right[] = {&b.o, &b.dq, &b.dk, &b.dv};
    for (int i = 0; i < 4; i++) {
        dt_tensor sample = dt_tensor_slice(*left[i], 0, BEGIN, END);
        ot_same("the sample", right[i], &sample);
    }
    ot_finish(&pack.pool);
    ot_finish(&one.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs),
        cmocka_unit_test(decode),
        cmocka_unit_test(samples_do_not_leak),
        cmocka_unit_test(packed_equals_separate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
