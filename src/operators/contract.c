#include "operators/contract.h"

#include "operators/check_tensor.h"

#include <deltune/op/activation.h>
#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/cross_entropy.h>
#include <deltune/op/embedding.h>
#include <deltune/op/gdn.h>
#include <deltune/op/linear.h>
#include <deltune/op/optimizer.h>
#include <deltune/op/rms_norm.h>
#include <deltune/op/rms_norm_gated.h>
#include <deltune/op/rope.h>
#include <deltune/provider.h>

#define BEGIN(op_name)                                                                                                 \
    dt_check c = {.op = op_name, .exec = exec, .phase = phase, .err = err};                                            \
    *needs_out = phase == DT_PHASE_BACKWARD ? DT_CAP_BACKWARD : 0
#define BACKWARD (phase == DT_PHASE_BACKWARD)

static uint32_t packed(const dt_seqs *s)
{
    return s->n_seq > 1 ? DT_CAP_PACKED : 0;
}

static dt_status check_embedding(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                 dt_err *err)
{
    const dt_embedding_args *a = args;
    BEGIN("embedding");
    dtp_check_tensor(&c, "ids", &a->ids, DT_KIND_I32, DT_1D(DT_ANY));
    dtp_check_used_rows(&c, a->T, a->ids.shape[0]);
    if (!BACKWARD) {
        dtp_check_tensor(&c, "weight", &a->weight, DT_KIND_WEIGHT, DT_2D(DT_ANY, DT_ANY));
        dtp_check_tensor(&c, "y", &a->y, DT_KIND_ACTIVATION, DT_2D(a->ids.shape[0], a->weight.shape[1]));
    } else {
        dtp_check_tensor(&c, "dweight", &a->dweight, DT_KIND_F32, DT_2D(DT_ANY, DT_ANY));
        dtp_check_tensor(&c, "dy", &a->dy, DT_KIND_ACTIVATION, DT_2D(a->ids.shape[0], a->dweight.shape[1]));
    }
    if (phase == DT_PHASE_SIZE || c.status != DT_OK || exec->device != DT_DEVICE_CPU)
        return c.status;
    const int32_t *ids = a->ids.data;
    int64_t vocabulary = BACKWARD ? a->dweight.shape[0] : a->weight.shape[0];
    for (int64_t t = 0; t < a->T && c.status == DT_OK; t++)
        dtp_check_that(&c, ids[t] >= 0 && ids[t] < vocabulary, DT_E_ARG,
                       "ids[%lld] is %d, outside the %lld rows of the weight", (long long)t, ids[t],
                       (long long)vocabulary);
    return c.status;
}

static dt_status check_rms_norm(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_rms_norm_args *a = args;
    BEGIN("rms_norm");
    dtp_check_rows(&c, "x", &a->x, DT_KIND_ACTIVATION);
    dtp_check_tensor(&c, "weight", &a->weight, DT_KIND_WEIGHT, DT_1D(a->x.shape[a->x.rank == 3 ? 2 : 1]));
    dtp_check_used_rows(&c, a->T, a->x.shape[0]);
    dtp_check_that(&c, a->eps > 0, DT_E_ARG, "eps is %g, expected a positive number", a->eps);
    if (!BACKWARD) {
        dtp_check_like(&c, "y", &a->y, DT_KIND_ACTIVATION, "x", &a->x);
        return c.status;
    }
    dtp_check_like(&c, "dy", &a->dy, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dx", &a->dx, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_optional(&c, "residual_grad", &a->residual_grad, DT_KIND_ACTIVATION, a->x.rank, a->x.shape);
    dtp_check_optional(&c, "dweight", &a->dweight, DT_KIND_F32, 1, a->weight.shape);
    return c.status;
}

static dt_status check_rms_norm_gated(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                      dt_err *err)
{
    const dt_rms_norm_gated_args *a = args;
    BEGIN("rms_norm_gated");
    dtp_check_rows(&c, "x", &a->x, DT_KIND_ACTIVATION);
    dtp_check_like(&c, "z", &a->z, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_tensor(&c, "weight", &a->weight, DT_KIND_WEIGHT, DT_1D(a->x.shape[a->x.rank == 3 ? 2 : 1]));
    dtp_check_used_rows(&c, a->T, a->x.shape[0]);
    dtp_check_that(&c, a->eps > 0, DT_E_ARG, "eps is %g, expected a positive number", a->eps);
    if (!BACKWARD) {
        dtp_check_like(&c, "y", &a->y, DT_KIND_ACTIVATION, "x", &a->x);
        return c.status;
    }
    dtp_check_like(&c, "dy", &a->dy, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dx", &a->dx, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dz", &a->dz, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_optional(&c, "dweight", &a->dweight, DT_KIND_F32, 1, a->weight.shape);
    return c.status;
}

static void check_linear_part(dt_check *c, const dt_linear_args *a, const dt_linear_part *p)
{
    int64_t rows = a->x.shape[0], in = a->x.shape[1], out = p->weight.shape[0];
    bool backward = c->phase == DT_PHASE_BACKWARD;
    dtp_check_tensor(c, "part.weight", &p->weight, DT_KIND_WEIGHT, DT_2D(DT_ANY, in));
    if (!backward) {
        dtp_check_tensor(c, "part.y", &p->y, DT_KIND_ACTIVATION, DT_2D(rows, out));
        dtp_check_optional(c, "part.c", &p->c, DT_KIND_ACTIVATION, DT_2D(rows, out));
    } else {
        dtp_check_tensor(c, "part.dy", &p->dy, DT_KIND_ACTIVATION, DT_2D(rows, out));
        dtp_check_optional(c, "part.dweight", &p->dweight, DT_KIND_F32, DT_2D(out, in));
    }
    if (!p->lora_b.data)
        return;
    int64_t rank = p->lora_b.shape[1];
    dtp_check_tensor(c, "part.lora_b", &p->lora_b, DT_KIND_F32, DT_2D(out, DT_ANY));
    dtp_check_that(c, a->lora_a.data != NULL, DT_E_ARG, "part.lora_b is given, but lora_a is missing");
    dtp_check_that(c, p->lora_row >= 0 && p->lora_row + rank <= a->lora_a.shape[0], DT_E_SHAPE,
                   "part.lora_row %lld and rank %lld lie outside the %lld rows of lora_a", (long long)p->lora_row,
                   (long long)rank, (long long)a->lora_a.shape[0]);
    if (backward)
        dtp_check_tensor(c, "part.dlora_b", &p->dlora_b, DT_KIND_F32, DT_2D(out, rank));
}

static dt_status check_linear(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_linear_args *a = args;
    BEGIN("linear");
    dtp_check_tensor(&c, "x", &a->x, DT_KIND_ACTIVATION, DT_2D(DT_ANY, DT_ANY));
    dtp_check_used_rows(&c, a->T, a->x.shape[0]);
    dtp_check_that(&c, a->n_parts >= 1 && a->n_parts <= DT_LINEAR_MAX_PARTS, DT_E_ARG,
                   "n_parts is %d, expected 1 to %d", a->n_parts, DT_LINEAR_MAX_PARTS);
    dtp_check_that(&c, a->dropout >= 0 && a->dropout < 1, DT_E_ARG, "dropout is %g, expected 0 <= p < 1", a->dropout);
    dtp_check_optional(&c, "lora_a", &a->lora_a, DT_KIND_F32, DT_2D(DT_ANY, a->x.shape[1]));
    for (int i = 0; i < a->n_parts && c.status == DT_OK; i++) {
        check_linear_part(&c, a, &a->part[i]);
        if (c.status != DT_OK)
            dt_err_prefix(err, "part %d of ", i);
    }
    if (BACKWARD) {
        dtp_check_optional(&c, "dx", &a->dx, DT_KIND_ACTIVATION, 2, a->x.shape);
        dtp_check_optional(&c, "dx_add", &a->dx_add, DT_KIND_ACTIVATION, 2, a->x.shape);
        if (a->lora_a.data)
            dtp_check_tensor(&c, "dlora_a", &a->dlora_a, DT_KIND_F32, 2, a->lora_a.shape);
    }
    return c.status;
}

static dt_status check_rope(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_rope_args *a = args;
    BEGIN("rope");
    const dt_tensor *x = BACKWARD ? &a->dy : &a->x;
    dtp_check_tensor(&c, BACKWARD ? "dy" : "x", x, DT_KIND_ACTIVATION, DT_3D(DT_ANY, DT_ANY, DT_ANY));
    dtp_check_like(&c, BACKWARD ? "dx" : "y", BACKWARD ? &a->dx : &a->y, DT_KIND_ACTIVATION, BACKWARD ? "dy" : "x", x);
    dtp_check_tensor(&c, "positions", &a->positions, DT_KIND_I32, DT_1D(x->shape[0]));
    dtp_check_used_rows(&c, a->T, x->shape[0]);
    dtp_check_that(&c, a->rotary_dim >= 0 && a->rotary_dim % 2 == 0 && a->rotary_dim <= x->shape[2], DT_E_ARG,
                   "rotary_dim is %d, expected an even number up to the head size %lld", a->rotary_dim,
                   (long long)x->shape[2]);
    dtp_check_that(&c, a->theta > 0, DT_E_ARG, "theta is %g, expected a positive number", a->theta);
    return c.status;
}

static dt_status check_attention(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                 dt_err *err)
{
    const dt_attention_args *a = args;
    BEGIN("attention");
    bool cached = a->kv_seqs.n_seq > 0;
    int64_t key_rows = cached ? a->kv_seqs.T_cap : a->q.shape[0], heads = a->q.shape[1], D = a->q.shape[2];
    dtp_check_tensor(&c, "q", &a->q, DT_KIND_ACTIVATION, DT_3D(DT_ANY, DT_ANY, DT_ANY));
    dtp_check_tensor(&c, "k", &a->k, DT_KIND_ACTIVATION, DT_3D(key_rows, DT_ANY, D));
    dtp_check_tensor(&c, "v", &a->v, DT_KIND_ACTIVATION, DT_3D(key_rows, a->k.shape[1], D));
    if (c.status != DT_OK)
        return c.status;
    dtp_check_that(&c, a->k.shape[1] > 0 && heads % a->k.shape[1] == 0, DT_E_SHAPE,
                   "%lld query heads are not a multiple of %lld key heads", (long long)heads, (long long)a->k.shape[1]);
    dtp_check_like(&c, "o", &a->o, DT_KIND_ACTIVATION, "q", &a->q);
    dtp_check_seqs(&c, "seqs", &a->seqs, a->q.shape[0]);
    if (cached) {
        dtp_check_seqs(&c, "kv_seqs", &a->kv_seqs, key_rows);
        dtp_check_that(&c, a->kv_seqs.n_seq == a->seqs.n_seq, DT_E_SHAPE, "seqs has %lld samples, kv_seqs %lld",
                       (long long)a->seqs.n_seq, (long long)a->kv_seqs.n_seq);
        for (int64_t n = 0; phase != DT_PHASE_SIZE && c.status == DT_OK && n < a->seqs.n_seq; n++) {
            const int32_t *qc = a->seqs.cu_seqlens, *kc = a->kv_seqs.cu_seqlens;
            dtp_check_that(&c, kc[n + 1] - kc[n] >= qc[n + 1] - qc[n], DT_E_ARG,
                           "sample %lld has %d queries but only %d keys", (long long)n, qc[n + 1] - qc[n],
                           kc[n + 1] - kc[n]);
        }
    }
    *needs_out |= packed(&a->seqs) | (a->k.shape[1] != heads ? DT_CAP_GVA : 0);
    if (BACKWARD) {
        dtp_check_that(&c, !cached, DT_E_ARG, "backward is defined for equal query and key boundaries only");
        dtp_check_like(&c, "d_o", &a->d_o, DT_KIND_ACTIVATION, "q", &a->q);
        dtp_check_like(&c, "dq", &a->dq, DT_KIND_ACTIVATION, "q", &a->q);
        dtp_check_like(&c, "dk", &a->dk, DT_KIND_ACTIVATION, "k", &a->k);
        dtp_check_like(&c, "dv", &a->dv, DT_KIND_ACTIVATION, "v", &a->v);
    }
    return c.status;
}

static dt_status check_gate(const char *op, const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                            dt_err *err)
{
    const dt_gate_args *a = args;
    BEGIN(op);
    dtp_check_rows(&c, "x", &a->x, DT_KIND_ACTIVATION);
    dtp_check_like(&c, "gate", &a->gate, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_used_rows(&c, a->T, a->x.shape[0]);
    if (!BACKWARD) {
        dtp_check_like(&c, "y", &a->y, DT_KIND_ACTIVATION, "x", &a->x);
        return c.status;
    }
    dtp_check_like(&c, "dy", &a->dy, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dx", &a->dx, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dgate", &a->dgate, DT_KIND_ACTIVATION, "x", &a->x);
    return c.status;
}

static dt_status check_sigmoid_gate(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                    dt_err *err)
{
    return check_gate("sigmoid_gate", exec, args, phase, needs_out, err);
}

static dt_status check_swiglu(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    return check_gate("swiglu", exec, args, phase, needs_out, err);
}

static void check_conv_weight(dt_check *c, const dt_tensor *weight, const dt_tensor *bias, int64_t channels)
{
    dtp_check_tensor(c, "weight", weight, DT_KIND_WEIGHT, DT_2D(channels, DT_ANY));
    dtp_check_that(c, weight->shape[1] >= 1 && weight->shape[1] <= 8, DT_E_SHAPE, "the width is %lld, expected 1 to 8",
                   (long long)weight->shape[1]);
    dtp_check_optional(c, "bias", bias, DT_KIND_WEIGHT, DT_1D(channels));
}

static dt_status check_causal_conv1d(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                     dt_err *err)
{
    const dt_causal_conv1d_args *a = args;
    BEGIN("causal_conv1d");
    int64_t C = a->x.shape[1], W = a->weight.shape[1], N = a->seqs.n_seq;
    dtp_check_tensor(&c, "x", &a->x, DT_KIND_ACTIVATION, DT_2D(DT_ANY, DT_ANY));
    check_conv_weight(&c, &a->weight, &a->bias, C);
    dtp_check_seqs(&c, "seqs", &a->seqs, a->x.shape[0]);
    dtp_check_optional(&c, "initial_state", &a->initial_state, DT_KIND_ACTIVATION, DT_3D(N, C, W));
    dtp_check_optional(&c, "final_state", &a->final_state, DT_KIND_ACTIVATION, DT_3D(N, C, W));
    *needs_out |= packed(&a->seqs) | (a->initial_state.data || a->final_state.data ? DT_CAP_STATE : 0);
    if (!BACKWARD) {
        dtp_check_like(&c, "y", &a->y, DT_KIND_ACTIVATION, "x", &a->x);
        return c.status;
    }
    dtp_check_like(&c, "dy", &a->dy, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_like(&c, "dx", &a->dx, DT_KIND_ACTIVATION, "x", &a->x);
    dtp_check_optional(&c, "dfinal_state", &a->dfinal_state, DT_KIND_ACTIVATION, DT_3D(N, C, W));
    dtp_check_optional(&c, "dinitial_state", &a->dinitial_state, DT_KIND_ACTIVATION, DT_3D(N, C, W));
    dtp_check_optional(&c, "dweight", &a->dweight, DT_KIND_F32, DT_2D(C, W));
    dtp_check_optional(&c, "dbias", &a->dbias, DT_KIND_F32, DT_1D(C));
    return c.status;
}

static dt_status check_causal_conv1d_step(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                          dt_err *err)
{
    const dt_causal_conv1d_step_args *a = args;
    BEGIN("causal_conv1d_step");
    dtp_check_tensor(&c, "x", &a->x, DT_KIND_ACTIVATION, DT_2D(DT_ANY, DT_ANY));
    check_conv_weight(&c, &a->weight, &a->bias, a->x.shape[1]);
    dtp_check_tensor(&c, "state", &a->state, DT_KIND_ACTIVATION,
                     DT_3D(a->x.shape[0], a->x.shape[1], a->weight.shape[1]));
    dtp_check_like(&c, "y", &a->y, DT_KIND_ACTIVATION, "x", &a->x);
    return c.status;
}

static dt_status check_gdn_gates(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                 dt_err *err)
{
    const dt_gdn_gates_args *a = args;
    BEGIN("gdn_gates");
    int64_t heads = a->a.shape[1];
    dtp_check_tensor(&c, "a", &a->a, DT_KIND_ACTIVATION, DT_2D(DT_ANY, DT_ANY));
    dtp_check_like(&c, "b", &a->b, DT_KIND_ACTIVATION, "a", &a->a);
    dtp_check_tensor(&c, "A_log", &a->A_log, DT_KIND_WEIGHT, DT_1D(heads));
    dtp_check_tensor(&c, "dt_bias", &a->dt_bias, DT_KIND_WEIGHT, DT_1D(heads));
    dtp_check_like(&c, "g", &a->g, DT_KIND_F32, "a", &a->a);
    dtp_check_like(&c, "beta", &a->beta, DT_KIND_F32, "a", &a->a);
    dtp_check_used_rows(&c, a->T, a->a.shape[0]);
    if (!BACKWARD)
        return c.status;
    dtp_check_like(&c, "dg", &a->dg, DT_KIND_F32, "a", &a->a);
    dtp_check_like(&c, "dbeta", &a->dbeta, DT_KIND_F32, "a", &a->a);
    dtp_check_like(&c, "da", &a->da, DT_KIND_ACTIVATION, "a", &a->a);
    dtp_check_like(&c, "db", &a->db, DT_KIND_ACTIVATION, "a", &a->a);
    dtp_check_optional(&c, "dA_log", &a->dA_log, DT_KIND_F32, DT_1D(heads));
    dtp_check_optional(&c, "ddt_bias", &a->ddt_bias, DT_KIND_F32, DT_1D(heads));
    return c.status;
}

static void check_gdn_heads(dt_check *c, const dt_tensor *k, const dt_tensor *v)
{
    dtp_check_that(c, k->shape[1] > 0 && v->shape[1] % k->shape[1] == 0, DT_E_SHAPE,
                   "%lld value heads are not a multiple of %lld key heads", (long long)v->shape[1],
                   (long long)k->shape[1]);
}

static dt_status check_gdn(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_gdn_args *a = args;
    BEGIN("gdn");
    int64_t rows = a->q.shape[0], N = a->seqs.n_seq, Hv = a->v.shape[1], K = a->q.shape[2], V = a->v.shape[2];
    dtp_check_tensor(&c, "q", &a->q, DT_KIND_ACTIVATION, DT_3D(DT_ANY, DT_ANY, DT_ANY));
    dtp_check_like(&c, "k", &a->k, DT_KIND_ACTIVATION, "q", &a->q);
    dtp_check_tensor(&c, "v", &a->v, DT_KIND_ACTIVATION, DT_3D(rows, DT_ANY, DT_ANY));
    if (c.status == DT_OK)
        check_gdn_heads(&c, &a->k, &a->v);
    dtp_check_tensor(&c, "g", &a->g, DT_KIND_F32, DT_2D(rows, Hv));
    dtp_check_tensor(&c, "beta", &a->beta, DT_KIND_F32, DT_2D(rows, Hv));
    dtp_check_seqs(&c, "seqs", &a->seqs, rows);
    dtp_check_optional(&c, "initial_state", &a->initial_state, DT_KIND_F32, DT_4D(N, Hv, K, V));
    *needs_out |= packed(&a->seqs) | (a->initial_state.data || a->final_state.data ? DT_CAP_STATE : 0) |
                  (Hv != a->k.shape[1] ? DT_CAP_GVA : 0);
    if (!BACKWARD) {
        dtp_check_like(&c, "o", &a->o, DT_KIND_ACTIVATION, "v", &a->v);
        dtp_check_optional(&c, "final_state", &a->final_state, DT_KIND_F32, DT_4D(N, Hv, K, V));
        return c.status;
    }
    dtp_check_like(&c, "d_o", &a->d_o, DT_KIND_ACTIVATION, "v", &a->v);
    dtp_check_like(&c, "dq", &a->dq, DT_KIND_ACTIVATION, "q", &a->q);
    dtp_check_like(&c, "dk", &a->dk, DT_KIND_ACTIVATION, "k", &a->k);
    dtp_check_like(&c, "dv", &a->dv, DT_KIND_ACTIVATION, "v", &a->v);
    dtp_check_like(&c, "dg", &a->dg, DT_KIND_F32, "g", &a->g);
    dtp_check_like(&c, "dbeta", &a->dbeta, DT_KIND_F32, "beta", &a->beta);
    dtp_check_optional(&c, "dfinal_state", &a->dfinal_state, DT_KIND_F32, DT_4D(N, Hv, K, V));
    dtp_check_optional(&c, "dinitial_state", &a->dinitial_state, DT_KIND_F32, DT_4D(N, Hv, K, V));
    return c.status;
}

static dt_status check_gdn_step(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_gdn_step_args *a = args;
    BEGIN("gdn_step");
    int64_t n = a->q.shape[0], Hv = a->v.shape[1];
    dtp_check_tensor(&c, "q", &a->q, DT_KIND_ACTIVATION, DT_3D(DT_ANY, DT_ANY, DT_ANY));
    dtp_check_like(&c, "k", &a->k, DT_KIND_ACTIVATION, "q", &a->q);
    dtp_check_tensor(&c, "v", &a->v, DT_KIND_ACTIVATION, DT_3D(n, DT_ANY, DT_ANY));
    if (c.status == DT_OK)
        check_gdn_heads(&c, &a->k, &a->v);
    dtp_check_tensor(&c, "g", &a->g, DT_KIND_F32, DT_2D(n, Hv));
    dtp_check_tensor(&c, "beta", &a->beta, DT_KIND_F32, DT_2D(n, Hv));
    dtp_check_tensor(&c, "state", &a->state, DT_KIND_F32, DT_4D(n, Hv, a->k.shape[2], a->v.shape[2]));
    dtp_check_like(&c, "o", &a->o, DT_KIND_ACTIVATION, "v", &a->v);
    *needs_out |= Hv != a->k.shape[1] ? DT_CAP_GVA : 0;
    return c.status;
}

static dt_status check_cross_entropy(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                     dt_err *err)
{
    const dt_cross_entropy_args *a = args;
    BEGIN("cross_entropy");
    int64_t rows = a->h.shape[0];
    dtp_check_tensor(&c, "h", &a->h, DT_KIND_ACTIVATION, DT_2D(DT_ANY, DT_ANY));
    dtp_check_tensor(&c, "weight", &a->weight, DT_KIND_WEIGHT, DT_2D(DT_ANY, a->h.shape[1]));
    dtp_check_tensor(&c, "target", &a->target, DT_KIND_I32, DT_1D(rows));
    dtp_check_used_rows(&c, a->T, rows);
    dtp_check_optional(&c, "row_weight", &a->row_weight, DT_KIND_F32, DT_1D(rows));
    dtp_check_optional(&c, "row_loss", &a->row_loss, DT_KIND_F32, DT_1D(rows));
    dtp_check_optional(&c, "dh", &a->dh, DT_KIND_ACTIVATION, 2, a->h.shape);
    dtp_check_optional(&c, "dweight", &a->dweight, DT_KIND_F32, 2, a->weight.shape);
    if (a->dh.data)
        *needs_out |= DT_CAP_BACKWARD; /* gradients come out of the forward pass */
    dtp_check_that(&c, !a->dweight.data || a->dh.data, DT_E_ARG, "dweight is asked for without dh");
    if (phase == DT_PHASE_SIZE || c.status != DT_OK)
        return c.status;
    dtp_check_that(&c, a->result || a->result_device, DT_E_ARG, "result is missing");
    if (exec->device != DT_DEVICE_CPU)
        return c.status;
    const int32_t *target = a->target.data;
    for (int64_t t = 0; t < a->T && c.status == DT_OK; t++)
        dtp_check_that(&c, target[t] < a->weight.shape[0], DT_E_ARG,
                       "target[%lld] is %d, outside the vocabulary of %lld", (long long)t, target[t],
                       (long long)a->weight.shape[0]);
    return c.status;
}

static void check_segments(dt_check *c, const dt_param_segment *segments, int64_t n, int64_t total)
{
    dtp_check_that(c, n == 0 || segments != NULL, DT_E_ARG, "segments are missing");
    int64_t at = 0;
    for (int64_t i = 0; i < n && c->status == DT_OK; i++) {
        dtp_check_that(c, segments[i].offset == at && segments[i].count >= 0, DT_E_ARG,
                       "segment %lld starts at %lld, expected %lld", (long long)i, (long long)segments[i].offset,
                       (long long)at);
        at += segments[i].count;
    }
    dtp_check_that(c, at == total, DT_E_SHAPE, "the segments cover %lld of %lld elements", (long long)at,
                   (long long)total);
}

static dt_status check_adamw(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out, dt_err *err)
{
    const dt_adamw_args *a = args;
    BEGIN("adamw");
    dtp_check_tensor(&c, "param", &a->param, DT_KIND_F32, DT_1D(DT_ANY));
    dtp_check_like(&c, "grad", &a->grad, DT_KIND_F32, "param", &a->param);
    dtp_check_like(&c, "m", &a->m, DT_KIND_F32, "param", &a->param);
    dtp_check_like(&c, "v", &a->v, DT_KIND_F32, "param", &a->param);
    check_segments(&c, a->segments, a->n_segments, a->param.shape[0]);
    dtp_check_that(&c, a->values || a->step >= 1, DT_E_ARG, "step is %lld, it counts from 1", (long long)a->step);
    dtp_check_that(&c, a->values || !a->norm, DT_E_ARG, "norm is given without values, which hold max_grad_norm");
    return c.status;
}

static dt_status check_grad_norm(const dt_exec *exec, const void *args, dt_phase phase, uint32_t *needs_out,
                                 dt_err *err)
{
    const dt_grad_norm_args *a = args;
    BEGIN("grad_norm");
    dtp_check_tensor(&c, "grad", &a->grad, DT_KIND_F32, DT_1D(DT_ANY));
    check_segments(&c, a->segments, a->n_segments, a->grad.shape[0]);
    dtp_check_that(&c, phase == DT_PHASE_SIZE || a->result || a->result_device, DT_E_ARG, "result is missing");
    return c.status;
}

static const dt_contract contracts[DT_OP_COUNT] = {
    [DT_OP_EMBEDDING] = {"embedding", sizeof(dt_embedding_args), true, false, check_embedding},
    [DT_OP_RMS_NORM] = {"rms_norm", sizeof(dt_rms_norm_args), true, false, check_rms_norm},
    [DT_OP_RMS_NORM_GATED] = {"rms_norm_gated", sizeof(dt_rms_norm_gated_args), true, false, check_rms_norm_gated},
    [DT_OP_LINEAR] = {"linear", sizeof(dt_linear_args), true, false, check_linear},
    [DT_OP_ROPE] = {"rope", sizeof(dt_rope_args), true, false, check_rope},
    [DT_OP_ATTENTION] = {"attention", sizeof(dt_attention_args), true, true, check_attention},
    [DT_OP_SIGMOID_GATE] = {"sigmoid_gate", sizeof(dt_gate_args), true, false, check_sigmoid_gate},
    [DT_OP_SWIGLU] = {"swiglu", sizeof(dt_gate_args), true, false, check_swiglu},
    [DT_OP_CAUSAL_CONV1D] = {"causal_conv1d", sizeof(dt_causal_conv1d_args), true, true, check_causal_conv1d},
    [DT_OP_CAUSAL_CONV1D_STEP] = {"causal_conv1d_step", sizeof(dt_causal_conv1d_step_args), false, false,
                                  check_causal_conv1d_step},
    [DT_OP_GDN_GATES] = {"gdn_gates", sizeof(dt_gdn_gates_args), true, false, check_gdn_gates},
    [DT_OP_GDN] = {"gdn", sizeof(dt_gdn_args), true, true, check_gdn},
    [DT_OP_GDN_STEP] = {"gdn_step", sizeof(dt_gdn_step_args), false, false, check_gdn_step},
    [DT_OP_CROSS_ENTROPY] = {"cross_entropy", sizeof(dt_cross_entropy_args), false, false, check_cross_entropy},
    [DT_OP_ADAMW] = {"adamw", sizeof(dt_adamw_args), false, false, check_adamw},
    [DT_OP_GRAD_NORM] = {"grad_norm", sizeof(dt_grad_norm_args), false, false, check_grad_norm},
};

const dt_contract *dtp_contract(dt_op op)
{
    return (unsigned)op < DT_OP_COUNT ? &contracts[op] : NULL;
}
