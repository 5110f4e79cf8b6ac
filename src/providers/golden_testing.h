/* Runs the reference cases of the delta-rule family (tests/data/ops, or ../shared/golden/ops when present) on an
 * operator set, inside NaN-filled memory and with strided views. For tests only. */
#ifndef DT_PROVIDERS_GOLDEN_TESTING_H
#define DT_PROVIDERS_GOLDEN_TESTING_H

#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/op/rms_norm_gated.h>

#include "core/json.h"
#include "model/safetensors.h"
#include "providers/op_testing.h"

#include <unistd.h>

/* The tolerances of fp32: outputs, gradients, gradients of the gates. */
static const double golden_output = 1e-5, golden_gradient = 1e-4, golden_gate_gradient = 1e-3;

static const char *const golden_gdn_cases[] = {
    "one_chunk", "no_decay_full_write", "strong_decay", "zero_qk", "zero_write", "empty_sequence",
    "many_tiny", "no_l2norm",           "packed_edges", "states",  "k_ne_v",     "long"};
static const char *const golden_conv_cases[] = {"packed_edges", "bias_state", "linear", "empty_sequence"};
static const char *const golden_gnorm_cases[] = {"gate", "tiny_values"};
#define GOLDEN_COUNT(list) (sizeof(list) / sizeof *(list))

typedef struct {
    dt_st *file;
    json_t *params;
    dt_dtype dtype; /* of activations */
    int64_t pad;
    ot_call call;
    double worst_output, worst_gradient;
} golden;

/* false: the case is neither committed nor shared. */
static MAYBE_UNUSED bool golden_open(golden *g, const char *prefix, const char *name, int threads)
{
    const char *const folders[] = {DT_TEST_DATA "/ops", DT_SHARED_DIR "/golden/ops"};
    dt_err err = {0};
    *g = (golden){.dtype = DT_F32, .pad = 3, .call = ot_begin(threads)};
    for (size_t i = 0; i < GOLDEN_COUNT(folders) && !g->file; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s_%s.safetensors", folders[i], prefix, name);
        if (access(path, R_OK) == 0)
            assert_ok(dtp_st_open(&g->file, path, &err), &err);
    }
    if (!g->file) {
        print_message("skipped: %s_%s is not in tests/data and ../shared is absent\n", prefix, name);
        return false;
    }
    const char *params = dtp_st_metadata(g->file, "params");
    assert_non_null(params);
    assert_ok(dtp_json_parse(&g->params, params, strlen(params), name, &err), &err);
    return true;
}

static MAYBE_UNUSED void golden_close(golden *g)
{
    ot_finish(&g->call.pool);
    json_decref(g->params);
    dtp_st_close(g->file);
}

static MAYBE_UNUSED double golden_number(const golden *g, const char *key)
{
    return json_number_value(json_object_get(g->params, key));
}

static MAYBE_UNUSED bool golden_has(const golden *g, const char *name)
{
    return dtp_st_find(g->file, name) != NULL;
}

/* The tensor as it is in the file, copied: the bytes there need not be aligned. */
static MAYBE_UNUSED dt_tensor golden_view(golden *g, const char *name)
{
    const dt_st_tensor *t = dtp_st_find(g->file, name);
    if (!t)
        fail_msg("%s has no tensor %s", dtp_st_path(g->file), name);
    dt_tensor view = ot_tensor(&g->call.pool, t->dtype, t->rank, t->shape, 0);
    memcpy(view.data, t->data, t->bytes);
    return view;
}

/* An input in guarded memory; absent when the file has none. */
static MAYBE_UNUSED dt_tensor golden_input(golden *g, const char *name, dt_dtype dtype, int64_t pad)
{
    if (!golden_has(g, name))
        return (dt_tensor){0};
    dt_tensor view = golden_view(g, name);
    return ot_like(&g->call.pool, &view, dtype, pad);
}

/* A NaN-filled output with the shape of a tensor of the file; absent when the file has none. */
static MAYBE_UNUSED dt_tensor golden_output_like(golden *g, const char *name, dt_dtype dtype, int64_t pad)
{
    if (!golden_has(g, name))
        return (dt_tensor){0};
    dt_tensor view = golden_view(g, name);
    return ot_tensor(&g->call.pool, dtype, view.rank, view.shape, pad);
}

static MAYBE_UNUSED dt_seqs golden_seqs(golden *g)
{
    dt_tensor cu = golden_view(g, "cu_seqlens");
    int32_t *copy = ot_alloc(&g->call.pool, (size_t)cu.shape[0] * sizeof *copy, 0);
    memcpy(copy, cu.data, (size_t)cu.shape[0] * sizeof *copy);
    int64_t n = cu.shape[0] - 1;
    return (dt_seqs){.cu_seqlens = copy, .n_seq = n, .n_seq_cap = n, .T = copy[n], .T_cap = copy[n]};
}

static MAYBE_UNUSED void golden_check(golden *g, const char *name, const dt_tensor *got, ot_slicing slicing,
                                      const dt_seqs *seqs, const dt_tensor *zero_rows, double tolerance)
{
    if (!dt_tensor_present(got))
        return;
    dt_tensor want = golden_view(g, name);
    double ratio = ot_compare(name, got, &want, slicing, seqs, zero_rows, tolerance);
    double *worst = name[0] == 'd' ? &g->worst_gradient : &g->worst_output;
    *worst = fmax(*worst, ratio);
}

static MAYBE_UNUSED void golden_report(const golden *g, const char *prefix, const char *name)
{
    print_message("%s_%s: worst ratio %.2e outputs, %.2e gradients\n", prefix, name, g->worst_output,
                  g->worst_gradient);
}

static MAYBE_UNUSED void golden_gdn(const dt_op_set *set, const char *name, int threads)
{
    golden g;
    if (!golden_open(&g, "gdn", name, threads))
        return;
    dt_gdn_args a = {DT_GDN_ARGS,
                     .q = golden_input(&g, "q", g.dtype, g.pad),
                     .k = golden_input(&g, "k", g.dtype, g.pad),
                     .v = golden_input(&g, "v", g.dtype, g.pad),
                     .g = golden_input(&g, "g", DT_F32, 0),
                     .beta = golden_input(&g, "beta", DT_F32, 0),
                     .initial_state = golden_input(&g, "initial_state", DT_F32, 0),
                     .o = golden_output_like(&g, "o", g.dtype, 0),
                     .final_state = golden_output_like(&g, "final_state", DT_F32, 0),
                     .seqs = golden_seqs(&g),
                     .scale = (float)golden_number(&g, "scale"),
                     .qk_l2norm = json_is_true(json_object_get(g.params, "use_qk_l2norm_in_kernel")),
                     .d_o = golden_input(&g, "do", g.dtype, 0),
                     .dfinal_state = golden_input(&g, "dht", DT_F32, 0),
                     .dq = golden_output_like(&g, "dq", g.dtype, g.pad),
                     .dk = golden_output_like(&g, "dk", g.dtype, g.pad),
                     .dv = golden_output_like(&g, "dv", g.dtype, g.pad),
                     .dg = golden_output_like(&g, "dg", DT_F32, 0),
                     .dbeta = golden_output_like(&g, "dbeta", DT_F32, 0),
                     .dinitial_state = golden_output_like(&g, "dinitial_state", DT_F32, 0)};
    ot_forward(&g.call, set, &a, true);
    ot_backward(&g.call, set, &a);
    golden_check(&g, "o", &a.o, OT_HEADS, &a.seqs, NULL, golden_output);
    golden_check(&g, "final_state", &a.final_state, OT_STATES, &a.seqs, NULL, golden_output);
    golden_check(&g, "dq", &a.dq, OT_HEADS, &a.seqs, &a.q, golden_gradient);
    golden_check(&g, "dk", &a.dk, OT_HEADS, &a.seqs, &a.k, golden_gradient);
    golden_check(&g, "dv", &a.dv, OT_HEADS, &a.seqs, NULL, golden_gradient);
    golden_check(&g, "dg", &a.dg, OT_HEADS, &a.seqs, NULL, golden_gate_gradient);
    golden_check(&g, "dbeta", &a.dbeta, OT_HEADS, &a.seqs, NULL, golden_gate_gradient);
    golden_check(&g, "dinitial_state", &a.dinitial_state, OT_STATES, &a.seqs, NULL, golden_gradient);
    golden_report(&g, "gdn", name);
    golden_close(&g);
}

static MAYBE_UNUSED void golden_conv(const dt_op_set *set, const char *name, int threads)
{
    golden g;
    if (!golden_open(&g, "conv", name, threads))
        return;
    const char *activation = json_string_value(json_object_get(g.params, "activation"));
    dt_causal_conv1d_args a = {DT_CAUSAL_CONV1D_ARGS,
                               .x = golden_input(&g, "x", g.dtype, g.pad),
                               .weight = golden_input(&g, "weight", DT_F32, 0),
                               .bias = golden_input(&g, "bias", DT_F32, 0),
                               .initial_state = golden_input(&g, "initial_state", g.dtype, 0),
                               .y = golden_output_like(&g, "y", g.dtype, g.pad),
                               .final_state = golden_output_like(&g, "final_state", g.dtype, 0),
                               .seqs = golden_seqs(&g),
                               .silu = strcmp(activation, "silu") == 0,
                               .dy = golden_input(&g, "dy", g.dtype, 0),
                               .dfinal_state = golden_input(&g, "dfinal_state", g.dtype, 0),
                               .dx = golden_output_like(&g, "dx", g.dtype, g.pad),
                               .dweight = golden_output_like(&g, "dweight", DT_F32, 0),
                               .dbias = golden_output_like(&g, "dbias", DT_F32, 0),
                               .dinitial_state = golden_output_like(&g, "dinitial_state", g.dtype, 0)};
    ot_fill(&a.dweight, 0.0);
    if (dt_tensor_present(&a.dbias))
        ot_fill(&a.dbias, 0.0);
    ot_forward(&g.call, set, &a, true);
    ot_backward(&g.call, set, &a);
    golden_check(&g, "y", &a.y, OT_ROWS, &a.seqs, NULL, golden_output);
    golden_check(&g, "final_state", &a.final_state, OT_STATES, &a.seqs, NULL, golden_output);
    golden_check(&g, "dx", &a.dx, OT_ROWS, &a.seqs, NULL, golden_gradient);
    golden_check(&g, "dweight", &a.dweight, OT_WHOLE, NULL, NULL, golden_gradient);
    golden_check(&g, "dbias", &a.dbias, OT_WHOLE, NULL, NULL, golden_gradient);
    golden_check(&g, "dinitial_state", &a.dinitial_state, OT_STATES, &a.seqs, NULL, golden_gradient);
    golden_report(&g, "conv", name);
    golden_close(&g);
}

static MAYBE_UNUSED void golden_gnorm(const dt_op_set *set, const char *name, int threads)
{
    golden g;
    if (!golden_open(&g, "gnorm", name, threads))
        return;
    dt_rms_norm_gated_args a = {DT_RMS_NORM_GATED_ARGS,
                                .x = golden_input(&g, "x", g.dtype, 0),
                                .z = golden_input(&g, "z", g.dtype, g.pad),
                                .weight = golden_input(&g, "weight", DT_F32, 0),
                                .y = golden_output_like(&g, "y", g.dtype, 0),
                                .eps = (float)golden_number(&g, "eps"),
                                .dy = golden_input(&g, "dy", g.dtype, 0),
                                .dx = golden_output_like(&g, "dx", g.dtype, 0),
                                .dz = golden_output_like(&g, "dz", g.dtype, g.pad),
                                .dweight = golden_output_like(&g, "dweight", DT_F32, 0)};
    a.T = a.x.shape[0];
    ot_fill(&a.dweight, 0.0);
    ot_forward(&g.call, set, &a, true);
    ot_backward(&g.call, set, &a);
    golden_check(&g, "y", &a.y, OT_WHOLE, NULL, NULL, golden_output);
    golden_check(&g, "dx", &a.dx, OT_WHOLE, NULL, NULL, golden_gradient);
    golden_check(&g, "dz", &a.dz, OT_WHOLE, NULL, NULL, golden_gradient);
    golden_check(&g, "dweight", &a.dweight, OT_WHOLE, NULL, NULL, golden_gradient);
    golden_report(&g, "gnorm", name);
    golden_close(&g);
}

#endif
