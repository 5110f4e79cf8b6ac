/* One operator of libdeltune: the gated delta rule on two samples packed into one row.
 *
 * The point to see: the second sample does not notice the first. We run it packed behind another sample and alone,
 * and compare the two results bit for bit. */
#include <deltune/op/gdn.h>
#include <stdio.h>
#include <string.h>

enum { FIRST = 5, SECOND = 7, T = FIRST + SECOND, HEADS = 1, K = 16, V = 16 };

static float q[T][K], k[T][K], v[T][V], g[T], beta[T];

static void fill(void)
{
    unsigned state = 1;
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < K; i++) {
            state = state * 1664525u + 1013904223u;
            q[t][i] = (float)(state >> 16 & 0xff) / 128.0f - 1.0f;
            k[t][i] = (float)(state >> 8 & 0xff) / 128.0f - 1.0f;
            v[t][i] = (float)(state >> 24 & 0xff) / 128.0f - 1.0f;
        }
        g[t] = -0.1f * (float)(t % 3);
        beta[t] = 0.5f;
    }
}

/* Rows [begin, end) of the arrays above, cut into samples at cu_seqlens. */
static dt_status run(dt_exec *exec, int begin, int end, const int32_t *cu_seqlens, int n_seq, float (*o)[V],
                     dt_err *err)
{
    int64_t rows = end - begin;
    dt_gdn_args args = {DT_GDN_ARGS};
    args.q = dt_tensor_3d(q[begin], DT_F32, rows, HEADS, K);
    args.k = dt_tensor_3d(k[begin], DT_F32, rows, HEADS, K);
    args.v = dt_tensor_3d(v[begin], DT_F32, rows, HEADS, V);
    args.g = dt_tensor_2d(g + begin, DT_F32, rows, HEADS);
    args.beta = dt_tensor_2d(beta + begin, DT_F32, rows, HEADS);
    args.o = dt_tensor_3d(o, DT_F32, rows, HEADS, V);
    args.seqs = (dt_seqs){.cu_seqlens = cu_seqlens, .n_seq = n_seq, .n_seq_cap = n_seq, .T = rows, .T_cap = rows};
    args.scale = 0.25f; /* 1 / sqrt(K) */
    args.qk_l2norm = true;
    return dt_op_forward(exec, DT_OP_GDN, &args, NULL, err);
}

int main(void)
{
    static const int32_t packed[] = {0, FIRST, T}, alone[] = {0, SECOND};
    float o_packed[T][V], o_alone[SECOND][V];
    dt_err err = {0};
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_op_info info;
    int rc = 1;

    fill();
    if (dt_ctx_create(&ctx, &err) != DT_OK || dt_exec_create(&exec, ctx, DT_DEVICE_CPU, 0, 0, &err) != DT_OK ||
        run(exec, 0, T, packed, 2, o_packed, &err) != DT_OK || run(exec, FIRST, T, alone, 1, o_alone, &err) != DT_OK ||
        dt_ctx_op_info(ctx, DT_OP_GDN, DT_DEVICE_CPU, &info, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
    } else {
        bool same = memcmp(o_packed[FIRST], o_alone, sizeof o_alone) == 0;
        printf("%s ran on %s %s (%s)\n", info.op, info.provider, info.version, info.file);
        printf("the second sample, packed and alone: %s\n", same ? "the same bits" : "DIFFERENT");
        rc = same ? 0 : 1;
    }
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    return rc;
}
