#include "model/pass.h"

#include <string.h>

int64_t dtp_capacity_rows(const dt_memory *m, int capacity)
{
    return (m->rows * (capacity + 1) / DT_CAPACITIES + 63) / 64 * 64;
}

int dtp_capacity_of(const dt_memory *m, int64_t tokens)
{
    int capacity = 0;
    while (capacity < DT_CAPACITIES - 1 && dtp_capacity_rows(m, capacity) < tokens)
        capacity++;
    return capacity;
}

void dtp_stand_in(dt_memory *m, int64_t rows)
{
    for (int64_t i = 0; i <= m->n_seq; i++)
        m->stand_in[i] = (int32_t)(rows * i / m->n_seq);
}

dt_status dtp_ring_open(dt_input_ring *ring, dt_exec *exec, size_t bytes, dt_err *err)
{
    dt_status status = DT_OK;
    for (int i = 0; i < DT_INPUT_SLOTS && status == DT_OK; i++)
        status = dt_exec_host_alloc(exec, (void **)&ring->slot[i], bytes, err);
    return status == DT_OK ? status : dt_err_prefix(err, "inputs of a step: ");
}

void dtp_ring_close(dt_input_ring *ring, dt_exec *exec)
{
    for (int i = 0; i < DT_INPUT_SLOTS; i++) {
        dt_exec_mark_release(exec, ring->sent[i]);
        dt_exec_host_release(exec, ring->slot[i]);
    }
    *ring = (dt_input_ring){0};
}

/* Where a field of the device's block lies in the host's. */
static void *in_slot(const dt_memory *m, char *slot, const void *field)
{
    return slot + ((const char *)field - m->inputs);
}

static void put_rows(int32_t *to, const int32_t *from, int64_t used, int64_t rows, int32_t rest)
{
    memcpy(to, from, (size_t)used * sizeof *to);
    for (int64_t t = used; t < rows; t++)
        to[t] = rest;
}

static void fill(const dt_memory *m, char *slot, const dt_pack *k, const dt_step_values *values)
{
    float *weights = in_slot(m, slot, m->weights);
    int32_t *boundaries = in_slot(m, slot, m->cu_seqlens);
    memcpy(in_slot(m, slot, m->values), values, sizeof *values);
    put_rows(in_slot(m, slot, m->tokens), k->tokens, k->T, m->rows, 0);
    put_rows(in_slot(m, slot, m->targets), k->targets, k->T, m->rows, -1);
    put_rows(in_slot(m, slot, m->positions), k->positions, k->T, m->rows, 0);
    for (int64_t t = 0; t < m->rows; t++)
        weights[t] = k->weights && t < k->T ? k->weights[t] : 1;
    for (int64_t n = 0; n <= m->n_seq; n++) /* those behind the pack repeat T */
        boundaries[n] = k->cu_seqlens[n < k->n_seq ? n : k->n_seq];
}

dt_status dtp_send_inputs(dt_memory *m, const dt_pack *pack, const dt_step_values *values, dt_err *err)
{
    dt_input_ring *ring = &m->ring;
    const int i = ring->next;
    dt_status status = ring->sent[i] ? dt_exec_wait(m->exec, ring->sent[i], err) : DT_OK;
    if (status != DT_OK)
        return status;
    fill(m, ring->slot[i], pack, values);
    status = dt_exec_upload(m->exec, m->inputs, ring->slot[i], m->input_bytes, err);
    if (status == DT_OK)
        status = dt_exec_mark(m->exec, &ring->sent[i], err);
    ring->next = (i + 1) % DT_INPUT_SLOTS;
    return status;
}
