/* The gated MLP of a layer: h + down(silu(gate(b)) * up(b)), b = norm(h). */
#include "model/pass.h"
#include <deltune/op/activation.h>

static const dt_weight_id gate_up[] = {DT_W_GATE, DT_W_UP};
static const dt_weight_id down[] = {DT_W_DOWN};

static dt_status norm_in(dt_pass *p, dt_layer *l, dt_layer_memory *m, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const dt_rms_norm_args a =
        dtp_pass_norm(p, &l->w[DT_W_POST_NORM], dtp_pass_rows(p, m->h1, H), dtp_pass_inputs(p, p->memory->x, H));
    return dtp_pass_forward(p, DT_OP_RMS_NORM, &a, &m->saved[DT_S_POST_NORM], err);
}

static dt_gate_args swiglu_args(const dt_pass *p, const dt_layer_memory *m)
{
    const int64_t I = p->config->intermediate;
    return (dt_gate_args){
        DT_GATE_ARGS,
        .gate = dtp_pass_columns(p, m->gate_up, 2 * I, 0, I),
        .x = dtp_pass_columns(p, m->gate_up, 2 * I, I, I),
        .y = dtp_pass_inputs(p, p->memory->mid, I),
        .T = p->T,
    };
}

dt_status dtp_mlp_forward(dt_pass *p, dt_layer *l, dt_layer_memory *m, void *out, dt_err *err)
{
    const int64_t H = p->config->hidden;
    const dt_gate_args swiglu = swiglu_args(p, m);
    dt_status status = norm_in(p, l, m, err);
    dt_linear_args in = dtp_pass_linear(p, l, gate_up, 2, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].y = swiglu.gate;
    in.part[1].y = swiglu.x;
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &in, &m->saved[DT_S_MLP], err);
    if (status == DT_OK)
        status = dtp_pass_forward(p, DT_OP_SWIGLU, &swiglu, &m->saved[DT_S_SWIGLU], err);
    dt_linear_args last = dtp_pass_linear(p, l, down, 1, swiglu.y);
    last.part[0].c = dtp_pass_rows(p, m->h1, H);
    last.part[0].y = dtp_pass_rows(p, out, H);
    if (status == DT_OK && out)
        status = dtp_pass_forward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_DOWN], err);
    return status;
}

dt_status dtp_mlp_backward(dt_pass *p, dt_layer *l, dt_layer_memory *m, bool fresh, dt_err *err)
{
    const int64_t H = p->config->hidden, I = p->config->intermediate;
    const dt_tensor dh = dtp_pass_rows(p, p->memory->dh, H), dx = dtp_pass_inputs(p, p->memory->dx, H);
    const dt_tensor dmid = dtp_pass_inputs(p, p->memory->dmid, I);
    dt_gate_args swiglu = swiglu_args(p, m);
    dt_status status = fresh ? DT_OK : norm_in(p, l, m, err);
    if (status == DT_OK && !fresh)
        status = dtp_pass_forward(p, DT_OP_SWIGLU, &swiglu, &m->saved[DT_S_SWIGLU], err);

    dt_linear_args last = dtp_pass_linear(p, l, down, 1, swiglu.y);
    last.part[0].dy = dh;
    last.dx = dmid;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_LINEAR, &last, &m->saved[DT_S_DOWN], err);
    swiglu.dy = dmid;
    swiglu.dx = swiglu.x; /* up and gate are not needed again */
    swiglu.dgate = swiglu.gate;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_SWIGLU, &swiglu, &m->saved[DT_S_SWIGLU], err);
    dt_linear_args in = dtp_pass_linear(p, l, gate_up, 2, dtp_pass_inputs(p, p->memory->x, H));
    in.part[0].dy = swiglu.dgate;
    in.part[1].dy = swiglu.dx;
    in.dx = dx;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_LINEAR, &in, &m->saved[DT_S_MLP], err);
    dt_rms_norm_args norm = dtp_pass_norm(p, &l->w[DT_W_POST_NORM], dtp_pass_rows(p, m->h1, H), in.x);
    norm.dy = dx;
    norm.dx = norm.residual_grad = dh;
    if (status == DT_OK)
        status = dtp_pass_backward(p, DT_OP_RMS_NORM, &norm, &m->saved[DT_S_POST_NORM], err);
    return status;
}
