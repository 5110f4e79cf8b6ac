#include "conformance/generate_case.h"

#include "core/philox.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SAMPLES = 6 };

/* A stream of random numbers: one call's. */
typedef struct dt_draw {
    uint64_t seed;
    uint32_t stream, counter;
} dt_draw;

static uint32_t draw(dt_draw *d)
{
    return dt_philox(d->seed, d->counter++, d->stream, 0x6b6974u, 0).word[0];
}

static int64_t between(dt_draw *d, int64_t low, int64_t high)
{
    return low + (int64_t)(draw(d) % (uint64_t)(high - low + 1));
}

static float uniform(dt_draw *d)
{
    return (float)(draw(d) >> 8) * 0x1p-24f;
}

static float bf16_exact(float x)
{
    return dt_bf16_to_f32(dt_f32_to_bf16(x));
}

/* Roughly normal: the sum of four uniforms, variance 1. */
static float normal(dt_draw *d)
{
    return (uniform(d) + uniform(d) + uniform(d) + uniform(d) - 2) * 1.7320508f;
}

typedef enum dt_fill { FILL_NORMAL, FILL_DECAY, FILL_UNIT, FILL_SMALL, FILL_INDEX, FILL_ZERO } dt_fill;

enum { VOCABULARY = 37 }; /* and positions are below it too */

static bool add(dt_case *c, dt_draw *d, const char *name, int rank, const int64_t *shape, dt_fill fill)
{
    dt_case_tensor *t = dtp_case_add(c, name, rank, shape);
    if (!t)
        return false;
    bool given = dtp_binding_is_given(t->binding);
    for (int64_t i = 0; given && fill != FILL_ZERO && i < t->count; i++)
        t->values[i] = fill == FILL_INDEX ? (float)between(d, 0, VOCABULARY - 1)
                                          : bf16_exact(fill == FILL_DECAY   ? -uniform(d) * 0.5f
                                                       : fill == FILL_UNIT  ? uniform(d)
                                                       : fill == FILL_SMALL ? 0.1f * normal(d)
                                                                            : normal(d));
    return true;
}

#define SHAPE(...)                                                                                                     \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                 \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Sample lengths: from a single token to several chunks; now and then empty or of length 1. */
static int64_t draw_boundaries(dt_draw *d, double size, int32_t *cu)
{
    int64_t n = 1 + (int64_t)(size * (double)between(d, 1, MAX_SAMPLES - 1)), longest = 2 + (int64_t)(size * 100);
    cu[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t kind = draw(d) % 8;
        int64_t length = kind == 0 && size > 0.3   ? 0
                         : kind == 1               ? 1
                         : kind == 2 && size > 0.5 ? 64
                                                   : between(d, 1, longest);
        cu[i + 1] = cu[i] + (int32_t)length;
    }
    if (cu[n] == 0)
        cu[n] = 1;
    return n;
}

static bool make_gdn(dt_case *c, dt_draw *d, double size, int64_t T, int64_t N)
{
    static const int64_t widths[] = {64, 128, 32, 128};
    int64_t Hk = 1 + (int64_t)(size * 2), ratio = 1 + (draw(d) & 1), Hv = Hk * ratio;
    int64_t K = size < 0.2 ? 64 : widths[draw(d) % 4], V = draw(d) % 4 == 0 ? 64 : K;
    bool states = size > 0.25 && (draw(d) & 1);
    bool good = add(c, d, "q", SHAPE(T, Hk, K), FILL_NORMAL) && add(c, d, "k", SHAPE(T, Hk, K), FILL_NORMAL) &&
                add(c, d, "v", SHAPE(T, Hv, V), FILL_NORMAL) && add(c, d, "g", SHAPE(T, Hv), FILL_DECAY) &&
                add(c, d, "beta", SHAPE(T, Hv), FILL_UNIT) && add(c, d, "o", SHAPE(T, Hv, V), FILL_NORMAL) &&
                add(c, d, "do", SHAPE(T, Hv, V), FILL_NORMAL) && add(c, d, "dq", SHAPE(T, Hk, K), FILL_NORMAL) &&
                add(c, d, "dk", SHAPE(T, Hk, K), FILL_NORMAL) && add(c, d, "dv", SHAPE(T, Hv, V), FILL_NORMAL) &&
                add(c, d, "dg", SHAPE(T, Hv), FILL_NORMAL) && add(c, d, "dbeta", SHAPE(T, Hv), FILL_NORMAL);
    if (states)
        good = good && add(c, d, "initial_state", SHAPE(N, Hv, K, V), FILL_SMALL) &&
               add(c, d, "final_state", SHAPE(N, Hv, K, V), FILL_SMALL) &&
               add(c, d, "dht", SHAPE(N, Hv, K, V), FILL_SMALL) &&
               add(c, d, "dinitial_state", SHAPE(N, Hv, K, V), FILL_SMALL);
    return good;
}

static bool make_conv(dt_case *c, dt_draw *d, double size, int64_t T, int64_t N)
{
    int64_t C = 8 * between(d, 1, 1 + (int64_t)(size * 20)), W = 4;
    bool bias = draw(d) & 1, states = size > 0.25 && (draw(d) & 1);
    bool good = add(c, d, "x", SHAPE(T, C), FILL_NORMAL) && add(c, d, "weight", SHAPE(C, W), FILL_NORMAL) &&
                add(c, d, "y", SHAPE(T, C), FILL_NORMAL) && add(c, d, "dy", SHAPE(T, C), FILL_NORMAL) &&
                add(c, d, "dx", SHAPE(T, C), FILL_NORMAL) && add(c, d, "dweight", SHAPE(C, W), FILL_NORMAL);
    if (bias)
        good = good && add(c, d, "bias", SHAPE(C), FILL_NORMAL) && add(c, d, "dbias", SHAPE(C), FILL_NORMAL);
    if (states)
        good = good && add(c, d, "initial_state", SHAPE(N, C, W), FILL_NORMAL) &&
               add(c, d, "final_state", SHAPE(N, C, W), FILL_NORMAL) &&
               add(c, d, "dfinal_state", SHAPE(N, C, W), FILL_NORMAL) &&
               add(c, d, "dinitial_state", SHAPE(N, C, W), FILL_NORMAL);
    return good;
}

static bool make_attention(dt_case *c, dt_draw *d, double size, int64_t T, int64_t N)
{
    (void)N;
    static const int64_t widths[] = {64, 128, 256};
    int64_t Hk = 1 + (int64_t)(size * 1.5), H = Hk * between(d, 1, 4), D = widths[draw(d) % (size < 0.3 ? 1 : 3)];
    return add(c, d, "q", SHAPE(T, H, D), FILL_NORMAL) && add(c, d, "k", SHAPE(T, Hk, D), FILL_NORMAL) &&
           add(c, d, "v", SHAPE(T, Hk, D), FILL_NORMAL) && add(c, d, "o", SHAPE(T, H, D), FILL_NORMAL) &&
           add(c, d, "do", SHAPE(T, H, D), FILL_NORMAL) && add(c, d, "dq", SHAPE(T, H, D), FILL_NORMAL) &&
           add(c, d, "dk", SHAPE(T, Hk, D), FILL_NORMAL) && add(c, d, "dv", SHAPE(T, Hk, D), FILL_NORMAL);
}

static bool make_norm(dt_case *c, dt_draw *d, double size, bool gated)
{
    int64_t rows = 1 + (int64_t)(size * 100), D = gated ? 128 : 16 * between(d, 1, 40);
    bool good = add(c, d, "x", SHAPE(rows, D), FILL_NORMAL) && add(c, d, "weight", SHAPE(D), FILL_NORMAL) &&
                add(c, d, "y", SHAPE(rows, D), FILL_NORMAL) && add(c, d, "dy", SHAPE(rows, D), FILL_NORMAL) &&
                add(c, d, "dx", SHAPE(rows, D), FILL_NORMAL) && add(c, d, "dweight", SHAPE(D), FILL_NORMAL);
    if (gated)
        good = good && add(c, d, "z", SHAPE(rows, D), FILL_NORMAL) && add(c, d, "dz", SHAPE(rows, D), FILL_NORMAL);
    return good;
}

static bool make_gate(dt_case *c, dt_draw *d, int64_t T)
{
    int64_t C = between(d, 1, 300);
    return add(c, d, "x", SHAPE(T, C), FILL_NORMAL) && add(c, d, "gate", SHAPE(T, C), FILL_NORMAL) &&
           add(c, d, "y", SHAPE(T, C), FILL_NORMAL) && add(c, d, "dy", SHAPE(T, C), FILL_NORMAL) &&
           add(c, d, "dx", SHAPE(T, C), FILL_NORMAL) && add(c, d, "dgate", SHAPE(T, C), FILL_NORMAL);
}

static bool make_gdn_gates(dt_case *c, dt_draw *d, int64_t T)
{
    int64_t H = between(d, 1, 48);
    return add(c, d, "a", SHAPE(T, H), FILL_NORMAL) && add(c, d, "b", SHAPE(T, H), FILL_NORMAL) &&
           add(c, d, "A_log", SHAPE(H), FILL_NORMAL) && add(c, d, "dt_bias", SHAPE(H), FILL_NORMAL) &&
           add(c, d, "g", SHAPE(T, H), FILL_NORMAL) && add(c, d, "beta", SHAPE(T, H), FILL_NORMAL) &&
           add(c, d, "dg", SHAPE(T, H), FILL_NORMAL) && add(c, d, "dbeta", SHAPE(T, H), FILL_NORMAL) &&
           add(c, d, "da", SHAPE(T, H), FILL_NORMAL) && add(c, d, "db", SHAPE(T, H), FILL_NORMAL) &&
           add(c, d, "dA_log", SHAPE(H), FILL_NORMAL) && add(c, d, "ddt_bias", SHAPE(H), FILL_NORMAL);
}

static bool make_rope(dt_case *c, dt_draw *d, int64_t T)
{
    int64_t heads = between(d, 1, 4);
    return add(c, d, "x", SHAPE(T, heads, 64), FILL_NORMAL) && add(c, d, "positions", SHAPE(T), FILL_INDEX) &&
           add(c, d, "y", SHAPE(T, heads, 64), FILL_NORMAL) && add(c, d, "dy", SHAPE(T, heads, 64), FILL_NORMAL) &&
           add(c, d, "dx", SHAPE(T, heads, 64), FILL_NORMAL);
}

static bool make_embedding(dt_case *c, dt_draw *d, int64_t T)
{
    int64_t H = between(d, 1, 200);
    return add(c, d, "ids", SHAPE(T), FILL_INDEX) && add(c, d, "weight", SHAPE(VOCABULARY, H), FILL_NORMAL) &&
           add(c, d, "y", SHAPE(T, H), FILL_NORMAL) && add(c, d, "dy", SHAPE(T, H), FILL_NORMAL) &&
           add(c, d, "dweight", SHAPE(VOCABULARY, H), FILL_NORMAL);
}

static bool make_linear(dt_case *c, dt_draw *d, int64_t T)
{
    int64_t in = 8 * between(d, 1, 24), out = 8 * between(d, 1, 24), rank = 4;
    bool residual = draw(d) & 1, adapter = draw(d) & 1;
    bool good = add(c, d, "x", SHAPE(T, in), FILL_NORMAL) && add(c, d, "weight", SHAPE(out, in), FILL_SMALL) &&
                add(c, d, "y", SHAPE(T, out), FILL_NORMAL) && add(c, d, "dy", SHAPE(T, out), FILL_NORMAL) &&
                add(c, d, "dx", SHAPE(T, in), FILL_NORMAL) && add(c, d, "dweight", SHAPE(out, in), FILL_NORMAL);
    if (residual)
        good = good && add(c, d, "c", SHAPE(T, out), FILL_NORMAL);
    if (adapter)
        good = good && add(c, d, "lora_a", SHAPE(rank, in), FILL_SMALL) &&
               add(c, d, "lora_b", SHAPE(out, rank), FILL_SMALL) &&
               add(c, d, "dlora_a", SHAPE(rank, in), FILL_NORMAL) &&
               add(c, d, "dlora_b", SHAPE(out, rank), FILL_NORMAL);
    return good;
}

static bool make_gdn_step(dt_case *c, dt_draw *d, double size)
{
    int64_t n = 1 + (int64_t)(size * 5), Hk = between(d, 1, 3), Hv = Hk * between(d, 1, 2), K = 32 << draw(d) % 3,
            V = draw(d) % 4 == 0 ? 64 : K;
    return add(c, d, "q", SHAPE(n, Hk, K), FILL_NORMAL) && add(c, d, "k", SHAPE(n, Hk, K), FILL_NORMAL) &&
           add(c, d, "v", SHAPE(n, Hv, V), FILL_NORMAL) && add(c, d, "g", SHAPE(n, Hv), FILL_DECAY) &&
           add(c, d, "beta", SHAPE(n, Hv), FILL_UNIT) && add(c, d, "state", SHAPE(n, Hv, K, V), FILL_SMALL) &&
           add(c, d, "o", SHAPE(n, Hv, V), FILL_NORMAL) && add(c, d, "new_state", SHAPE(n, Hv, K, V), FILL_NORMAL);
}

static bool make_conv_step(dt_case *c, dt_draw *d, double size)
{
    int64_t n = 1 + (int64_t)(size * 5), C = 8 * between(d, 1, 1 + (int64_t)(size * 20)), W = 4;
    bool good = add(c, d, "x", SHAPE(n, C), FILL_NORMAL) && add(c, d, "weight", SHAPE(C, W), FILL_NORMAL) &&
                add(c, d, "state", SHAPE(n, C, W), FILL_NORMAL) && add(c, d, "y", SHAPE(n, C), FILL_NORMAL) &&
                add(c, d, "new_state", SHAPE(n, C, W), FILL_NORMAL);
    return good && (draw(d) & 1 || add(c, d, "bias", SHAPE(C), FILL_NORMAL));
}

/* Each hidden state points at one row of the head, so that its largest logit is the largest by a margin that no
 * rounding closes: accuracy is a number to compare. A third of the targets are that row, a third another one, a third
 * absent. */
static bool make_cross_entropy(dt_case *c, dt_draw *d, int64_t rows)
{
    int64_t H = 8 * between(d, 4, 24), V = between(d, 64, 700);
    bool weighted = draw(d) & 1, full = draw(d) & 1;
    bool good = add(c, d, "h", SHAPE(rows, H), FILL_ZERO) && add(c, d, "weight", SHAPE(V, H), FILL_NORMAL) &&
                add(c, d, "target", SHAPE(rows), FILL_ZERO) && add(c, d, "dh", SHAPE(rows, H), FILL_NORMAL) &&
                add(c, d, "row_loss", SHAPE(rows), FILL_NORMAL) && add(c, d, "loss", SHAPE(1), FILL_NORMAL) &&
                add(c, d, "targets", SHAPE(1), FILL_NORMAL) && add(c, d, "correct", SHAPE(1), FILL_NORMAL);
    if (weighted)
        good = good && add(c, d, "row_weight", SHAPE(rows), FILL_UNIT);
    if (full)
        good = good && add(c, d, "dweight", SHAPE(V, H), FILL_NORMAL);
    for (int64_t t = 0; good && t < rows; t++) {
        int64_t best = between(d, 0, V - 1);
        float *h = c->tensor[0].values + t * H;
        const float *w = c->tensor[1].values + best * H;
        for (int64_t i = 0; i < H; i++)
            h[i] = bf16_exact(3 * (w[i] + 0.5f * normal(d)) / (float)H);
        uint32_t kind = draw(d) % 3;
        c->tensor[2].values[t] = (float)(kind == 0 ? best : kind == 1 ? between(d, 0, V - 1) : -1);
    }
    return good;
}

/* Segments of any length, empty ones too; returns the number of elements. */
static int64_t add_segments(dt_case *c, dt_draw *d, double size, bool decay)
{
    int64_t n = 1 + (int64_t)(size * 7), total = 0;
    if (!add(c, d, "segment_count", SHAPE(n), FILL_ZERO) || (decay && !add(c, d, "weight_decay", SHAPE(n), FILL_ZERO)))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t count = i && draw(d) % 8 == 0 ? 0 : between(d, 1, 1 + (int64_t)(size * 3000));
        c->tensor[0].values[i] = (float)count;
        if (decay && draw(d) & 1)
            c->tensor[1].values[i] = 0.5f;
        total += count;
    }
    return total;
}

static bool make_adamw(dt_case *c, dt_draw *d, double size)
{
    int64_t n = add_segments(c, d, size, true);
    return n >= 0 && add(c, d, "param", SHAPE(n), FILL_NORMAL) && add(c, d, "grad", SHAPE(n), FILL_NORMAL) &&
           add(c, d, "m", SHAPE(n), FILL_SMALL) && add(c, d, "v", SHAPE(n), FILL_UNIT) &&
           add(c, d, "new_param", SHAPE(n), FILL_NORMAL) && add(c, d, "new_m", SHAPE(n), FILL_NORMAL) &&
           add(c, d, "new_v", SHAPE(n), FILL_NORMAL);
}

/* A third of the calls have a gradient that is not finite; their sum of squares is nothing to compare. */
static bool make_grad_norm(dt_case *c, dt_draw *d, double size)
{
    int64_t n = add_segments(c, d, size, false);
    bool infinite = size > 0.2 && draw(d) % 3 == 0;
    bool good =
        n > 0 && add(c, d, "grad", SHAPE(n), FILL_NORMAL) && add(c, d, "first_nonfinite", SHAPE(1), FILL_NORMAL);
    if (good && infinite)
        for (int i = 0; i < 3; i++)
            c->tensor[1].values[between(d, 0, n - 1)] = i ? INFINITY : NAN;
    return good && (infinite || add(c, d, "sum_of_squares", SHAPE(1), FILL_NORMAL));
}

bool dtp_can_generate(dt_op op)
{
    return dtp_op_binding(op) != NULL;
}

static const char *params_of(dt_op op, uint32_t random)
{
    switch (op) {
    case DT_OP_GDN:
    case DT_OP_GDN_STEP: return "{\"scale\": 0.08838834764831845, \"use_qk_l2norm_in_kernel\": true}";
    case DT_OP_CAUSAL_CONV1D:
    case DT_OP_CAUSAL_CONV1D_STEP: return "{\"activation\": \"silu\"}";
    case DT_OP_ATTENTION: return "{\"scale\": 0.08838834764831845, \"causal\": true}";
    case DT_OP_ROPE: return "{\"theta\": 10000, \"rotary_dim\": 32}";
    case DT_OP_LINEAR:
        return random % 2 ? "{\"lora_scale\": 2.0}" : "{\"lora_scale\": 2.0, \"dropout\": 0.25, \"seed\": 12345}";
    case DT_OP_CROSS_ENTROPY: return "{\"grad_scale\": 0.0078125}";
    case DT_OP_ADAMW:
        return random % 2 ? "{\"lr\": 0.05, \"grad_scale\": 0.3, \"step\": 7}" : "{\"lr\": 0.05, \"step\": 1}";
    case DT_OP_RMS_NORM: return "{\"eps\": 1e-6, \"zero_centered\": true}";
    default: return "{\"eps\": 1e-6}";
    }
}

static bool make(dt_case *c, dt_draw *d, dt_op op, double size, int64_t T, int64_t N)
{
    int64_t rows = 1 + (int64_t)(size * 100); /* of operators without samples */
    switch (op) {
    case DT_OP_GDN: return make_gdn(c, d, size, T, N);
    case DT_OP_CAUSAL_CONV1D: return make_conv(c, d, size, T, N);
    case DT_OP_ATTENTION: return make_attention(c, d, size, T, N);
    case DT_OP_RMS_NORM: return make_norm(c, d, size, false);
    case DT_OP_RMS_NORM_GATED: return make_norm(c, d, size, true);
    case DT_OP_SIGMOID_GATE:
    case DT_OP_SWIGLU: return make_gate(c, d, rows);
    case DT_OP_GDN_GATES: return make_gdn_gates(c, d, rows);
    case DT_OP_ROPE: return make_rope(c, d, rows);
    case DT_OP_EMBEDDING: return make_embedding(c, d, rows);
    case DT_OP_LINEAR: return make_linear(c, d, rows);
    case DT_OP_GDN_STEP: return make_gdn_step(c, d, size);
    case DT_OP_CAUSAL_CONV1D_STEP: return make_conv_step(c, d, size);
    case DT_OP_CROSS_ENTROPY: return make_cross_entropy(c, d, rows);
    case DT_OP_ADAMW: return make_adamw(c, d, size);
    case DT_OP_GRAD_NORM: return make_grad_norm(c, d, size);
    default: return false;
    }
}

dt_status dtp_generate_case(dt_case *out, dt_op op, uint64_t seed, int index, int total, dt_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s_seed%llu_%d", dt_op_name(op), (unsigned long long)seed, index);
    dt_draw d = {seed, (uint32_t)index * 64 + (uint32_t)op, 0};
    dt_status status = dtp_case_create(out, op, name, params_of(op, draw(&(dt_draw){seed, d.stream, UINT32_MAX})), err);
    if (status != DT_OK)
        return status;
    double size = total > 1 ? (double)index / (total - 1) : 1;
    int32_t cu[MAX_SAMPLES + 1];
    int64_t N = draw_boundaries(&d, size, cu), T = cu[N];
    bool good = make(out, &d, op, size, T, N);
    status = good ? DT_OK : dt_fail(err, DT_E_NOMEM, "%s: out of memory", name);
    if (status == DT_OK && out->op->seqs_offset)
        status = dtp_case_set_boundaries(out, cu, N, err);
    if (status != DT_OK)
        dtp_case_free(out);
    return status;
}
