/* The way of a pack to a device: one block that has the same layout in page-locked host memory and on the device, so
 * that one copy brings everything a queued step reads. The host fills one slot of a ring while the device still copies
 * from others. Private to the model room. */
#ifndef DT_MODEL_INPUTS_H
#define DT_MODEL_INPUTS_H

#include "model/model.h"

/* A pack runs with the rows of the smallest capacity that holds it: quarters of the plan's. */
enum { DT_CAPACITIES = 4, DT_INPUT_SLOTS = 3 };

typedef struct dt_input_ring {
    char *slot[DT_INPUT_SLOTS];
    dt_mark *sent[DT_INPUT_SLOTS]; /* behind the copy from the slot */
    int next;
} dt_input_ring;

struct dt_memory;
int dtp_capacity_of(const struct dt_memory *m, int64_t tokens);
int64_t dtp_capacity_rows(const struct dt_memory *m, int capacity);

/* Fills m->stand_in with boundaries of n_seq samples that end at `rows`. */
void dtp_stand_in(struct dt_memory *m, int64_t rows);

dt_status dtp_ring_open(dt_input_ring *ring, dt_exec *exec, size_t bytes, dt_err *err);
void dtp_ring_close(dt_input_ring *ring, dt_exec *exec); /* accepts a zeroed or half-opened one */

/* Queues the copy. Rows behind the pack become finite rows without target. */
dt_status dtp_send_inputs(struct dt_memory *m, const dt_pack *pack, const dt_step_values *values, dt_err *err);

#endif
