/* Gradients of the adapters of a call of DT_OP_LINEAR, host side. Included by linear.cu alone. */
#ifndef DT_CUDA_LINEAR_BACKWARD_CUH
#define DT_CUDA_LINEAR_BACKWARD_CUH
#include "providers/cuda/linear_call.cuh"
#include "providers/cuda/linear_wide.cuh"

/* ---------------------------------------------------------------- any rank, any dtype, any pitch */

static linear_input_params linear_input_params_of(const linear_call *c)
{
    const dt_tensor *a = &c->args->lora_a;
    linear_input_params p;
    memset(&p, 0, sizeof p);
    p.du = c->du;
    p.dx = linear_rows_of(&c->args->dx);
    p.a = (const float *)a->data;
    p.a_pitch = a->stride[0];
    p.T = c->T;
    p.R = (int32_t)c->R;
    p.row_step = c->T_cap <= LINEAR_SHORT ? 16 : 64;
    p.scale = linear_scale(c->args);
    p.mask = linear_mask_of(c);
    return p;
}
static int64_t linear_items(const linear_gradient *g, bool fast)
{
    int64_t panels = (g->first + g->rank - 1) / 64 - g->first / 64 + 1;
    return fast ? dtp_blocks(g->width, LINEAR_TILE) * panels : dtp_blocks(g->width * g->rank, LINEAR_THREADS);
}
/* dA and all dB; returns their items. */
static int64_t linear_gradient_params_of(linear_gradient_params *p, const linear_call *c, bool fast)
{
    const dt_linear_args *a = c->args;
    int64_t items = 0;
    memset(p, 0, sizeof *p);
    p->T = c->T;
    p->mask = linear_mask_of(c);
    if (dt_tensor_present(&a->dlora_a)) {
        linear_gradient *g = &p->part[p->parts++];
        g->rows = linear_rows_of(&a->x), g->width = c->in;
        g->low = c->du, g->low_width = c->R_padded;
        g->out = (float *)a->dlora_a.data, g->column_stride = 1, g->rank_stride = a->dlora_a.stride[0];
        g->rank = (int32_t)c->R;
        g->copies = 1;
        g->scale = linear_scale(a);
        g->masked = true;
    }
    for (int j = 0; j < a->n_parts; j++) {
        const dt_linear_part *part = &a->part[j];
        if (!linear_adapted(part) || !dt_tensor_present(&part->dlora_b))
            continue;
        linear_gradient *g = &p->part[p->parts++];
        g->rows = linear_rows_of(&part->dy), g->width = part->dy.shape[1];
        g->low = c->u, g->low_width = c->R_padded * c->splits;
        g->period = (int32_t)c->R_padded, g->copies = (int32_t)c->splits;
        g->out = (float *)part->dlora_b.data, g->column_stride = part->dlora_b.stride[0], g->rank_stride = 1;
        g->first = (int32_t)part->lora_row, g->rank = (int32_t)part->lora_b.shape[1];
        g->scale = 1.0f;
    }
    for (int i = 0; i < p->parts; i++) {
        p->part[i].first_item = items;
        items += linear_items(&p->part[i], fast);
    }
    return items;
}
/* dA, dB and the adapters' part of dx. */
static dt_status linear_adapter_gradients(const linear_call *c)
{
    const dt_tensor *dx = &c->args->dx;
    bool input = dt_tensor_present(dx), fast = linear_units(&c->args->x) && (!input || linear_units(dx));
    for (int j = 0; j < c->args->n_parts; j++)
        fast = fast && (!linear_adapted(&c->args->part[j]) || linear_units(&c->args->part[j].dy));
    linear_gradient_params g;
    linear_input_params p = linear_input_params_of(c);
    int64_t items = linear_gradient_params_of(&g, c, fast), blocks;
    if (!fast) {
        dt_status st = DT_LAUNCH(c->err, c->exec, items, LINEAR_THREADS, 0, linear_plain_gradient_kernel, g);
        return st != DT_OK || !input ? st
                                     : DT_LAUNCH(c->err, c->exec, dtp_blocks(c->T * c->in, LINEAR_THREADS),
                                                 LINEAR_THREADS, 0, linear_plain_input_kernel, p);
    }
    blocks = input ? dtp_blocks(c->in, 32 * LINEAR_WARPS) * dtp_blocks(c->T, p.row_step) : 0;
    dt_status st = DT_LAUNCH(c->err, c->exec, items, LINEAR_THREADS, LINEAR_COLUMNS_BYTES, linear_columns_kernel, g);
    return st != DT_OK ? st : DT_LAUNCH(c->err, c->exec, blocks, LINEAR_THREADS, 0, linear_input_kernel, p);
}

/* ---------------------------------------------------------------- rows that pass once (linear_gradient.cuh) */

/* Whether rows suit the kernels that pass over them once. */
static bool linear_streams(const linear_call *c)
{
    const dt_linear_args *a = c->args;
    bool suits = c->R && c->gradient.groups && linear_units(&a->x) && (c->kept || !dt_dropout_threshold(a->dropout)) &&
                 (!dt_tensor_present(&a->dx) || linear_units(&a->dx));
    for (int j = 0; j < a->n_parts; j++)
        suits = suits && (!linear_adapted(&a->part[j]) || linear_units(&a->part[j].dy));
    return suits;
}
static linear_output_params linear_output_params_of(const linear_call *c, int64_t *blocks, int64_t *sums)
{
    const dt_linear_args *a = c->args;
    const linear_gradient_plan *plan = &c->gradient;
    linear_output_params p;
    memset(&p, 0, sizeof p);
    p.groups = plan->groups, p.ranges = plan->output.ranges, p.tiles = plan->output.tiles;
    p.R_padded = p.period = (int32_t)c->R_padded, p.copies = (int32_t)c->splits;
    p.T = c->T, p.T_cap = c->T_cap, p.u_pitch = c->u.pitch, p.du_pitch = c->du.pitch;
    p.du = (uint16_t *)c->du.data;
    *blocks = *sums = 0;
    for (int j = 0; j < a->n_parts; j++) {
        const dt_linear_part *from = &a->part[j];
        if (!linear_adapted(from))
            continue;
        linear_output_part *part = &p.part[p.parts++];
        linear_rows b = linear_packed(c, j);
        part->first = (int32_t)(from->lora_row / 8 * 8), part->skipped = (int32_t)(from->lora_row % 8);
        part->rank = (int32_t)from->lora_b.shape[1];
        part->dy = (const uint16_t *)from->dy.data, part->dy_pitch = from->dy.stride[0];
        part->width = from->dy.shape[1];
        part->b = (const uint16_t *)b.data + part->first, part->b_pitch = b.pitch;
        part->u = (const uint16_t *)c->u.data + part->first;
        part->du = plan->du[j], part->db = plan->db[j];
        part->dlora_b = (float *)from->dlora_b.data;
        part->dlora_b_pitch = dt_tensor_present(&from->dlora_b) ? from->dlora_b.stride[0] : 0;
        part->blocks = (int32_t)dtp_blocks(part->width, plan->output.wide * LINEAR_SIDE);
        part->first_block = *blocks, part->first_sum = *sums;
        *blocks += part->blocks;
        *sums += part->width * 8 * p.groups;
    }
    return p;
}
static linear_stream_params linear_stream_params_of(const linear_call *c)
{
    const dt_linear_args *a = c->args;
    linear_stream_params p;
    memset(&p, 0, sizeof p);
    p.x = (const uint16_t *)a->x.data, p.x_pitch = a->x.stride[0];
    p.du = (const uint16_t *)c->du.data, p.du_pitch = c->du.pitch;
    if (dt_tensor_present(&a->dx))
        p.dx = (uint16_t *)a->dx.data, p.dx_pitch = a->dx.stride[0];
    p.a = (const float *)a->lora_a.data, p.a_pitch = a->lora_a.stride[0];
    p.sums = c->gradient.da;
    if (dt_tensor_present(&a->dlora_a))
        p.dlora_a = (float *)a->dlora_a.data, p.dlora_a_pitch = a->dlora_a.stride[0];
    p.T = c->T;
    p.R = (int32_t)c->R, p.R_padded = (int32_t)c->R_padded;
    p.ranges = c->gradient.input.ranges, p.tiles = c->gradient.input.tiles;
    p.sum_ranks = 8 * linear_round_groups(c->R_padded / 8);
    p.scale = linear_scale(a);
    p.mask = linear_mask_of(c);
    return p;
}
static int linear_output_bytes(const linear_output_params *p, int wide)
{
    return wide * p->groups * LINEAR_PLANE_BYTES + 2 * (LINEAR_BODY_BYTES + p->groups * p->copies * LINEAR_PLANE_BYTES);
}
static int linear_stream_bytes(const linear_stream_params *p)
{
    int groups = p->sum_ranks / 8;
    return (groups + 1) / 2 * 4096 + 2 * (LINEAR_BODY_BYTES + (groups + 1) * LINEAR_PLANE_BYTES);
}
/* dU and all dB. */
template <int GROUPS> static dt_status linear_output_gradients(const linear_call *c)
{
    int64_t blocks, sums, low = dtp_blocks(c->T * c->R_padded / 4 * LINEAR_ADDENDS, LINEAR_THREADS);
    linear_output_params p = linear_output_params_of(c, &blocks, &sums);
    linear_stream_params none;
    memset(&none, 0, sizeof none);
    int wide = c->gradient.output.wide, bytes = linear_output_bytes(&p, wide);
    dt_status st = wide == 1 ? DT_LAUNCH(c->err, c->exec, blocks * p.ranges, LINEAR_THREADS, bytes,
                                         (linear_output_gradient_kernel<GROUPS, 1>), p)
                             : DT_LAUNCH(c->err, c->exec, blocks * p.ranges, LINEAR_THREADS, bytes,
                                         (linear_output_gradient_kernel<GROUPS, 4>), p);
    sums = dtp_blocks(sums, LINEAR_THREADS);
    return st != DT_OK ? st
                       : DT_LAUNCH(c->err, c->exec, low + sums, LINEAR_THREADS, 0, linear_sum_kernel<GROUPS>, p, none,
                                   low, sums);
}
static int64_t linear_input_sums(const linear_stream_params *p)
{
    return p->dlora_a ? dtp_blocks(p->R * p->mask.width, LINEAR_THREADS) : 0;
}
/* dA and the adapters' part of dx. */
template <int GROUPS> static dt_status linear_input_gradients(const linear_call *c)
{
    linear_stream_params p = linear_stream_params_of(c);
    linear_output_params none;
    memset(&none, 0, sizeof none);
    dt_status st = DT_LAUNCH(c->err, c->exec, dtp_blocks(c->in, LINEAR_SIDE) * p.ranges, LINEAR_THREADS,
                             linear_stream_bytes(&p), linear_input_gradient_kernel<GROUPS>, p);
    return st != DT_OK ? st
                       : DT_LAUNCH(c->err, c->exec, linear_input_sums(&p), LINEAR_THREADS, 0, linear_sum_kernel<1>,
                                   none, p, (int64_t)0, (int64_t)0);
}
/* All of it at once, dU known. */
template <int OUTPUT_GROUPS, int INPUT_GROUPS> static dt_status linear_launch_joint(const linear_call *c)
{
    int64_t blocks, sums;
    linear_stream_params q = linear_stream_params_of(c);
    linear_output_params p = linear_output_params_of(c, &blocks, &sums);
    int64_t inputs = dtp_blocks(c->in, LINEAR_SIDE) * q.ranges;
    int output_bytes = linear_output_bytes(&p, 1), input_bytes = linear_stream_bytes(&q);
    for (int j = 0; j < p.parts; j++)
        p.part[j].du = NULL;
    dt_status st = DT_LAUNCH(c->err, c->exec, inputs + blocks * p.ranges, LINEAR_THREADS,
                             output_bytes > input_bytes ? output_bytes : input_bytes,
                             (linear_joint_gradient_kernel<OUTPUT_GROUPS, INPUT_GROUPS>), p, q, inputs);
    sums = dtp_blocks(sums, LINEAR_THREADS);
    return st != DT_OK ? st
                       : DT_LAUNCH(c->err, c->exec, sums + linear_input_sums(&q), LINEAR_THREADS, 0,
                                   linear_sum_kernel<OUTPUT_GROUPS>, p, q, (int64_t)0, sums);
}
static dt_status linear_joint_gradients(const linear_call *c)
{
    int inputs = linear_round_groups(c->R_padded / 8), outputs = c->gradient.groups; /* at most `inputs` */
    return inputs == 1    ? linear_launch_joint<1, 1>(c)
           : inputs == 2  ? outputs == 1 ? linear_launch_joint<1, 2>(c) : linear_launch_joint<2, 2>(c)
            : outputs == 1 ? linear_launch_joint<1, 4>(c)
           : outputs == 2 ? linear_launch_joint<2, 4>(c)
                          : linear_launch_joint<4, 4>(c);
}
static dt_status linear_stream_gradients(const linear_call *c)
{
    int inputs = linear_round_groups(c->R_padded / 8), outputs = c->gradient.groups;
    dt_status st = outputs == 1   ? linear_output_gradients<1>(c)
                   : outputs == 2 ? linear_output_gradients<2>(c)
                                  : linear_output_gradients<4>(c);
    if (st != DT_OK)
        return st;
    return inputs == 1   ? linear_input_gradients<1>(c)
           : inputs == 2 ? linear_input_gradients<2>(c)
                         : linear_input_gradients<4>(c);
}
#endif
