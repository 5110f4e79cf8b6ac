#include "operators/recorded.h"

#include "operators/exec.h"

/* Grows with every change of any slot of the device. */
static uint64_t generation_of_slots(const dt_exec *exec)
{
    uint64_t sum = 0;
    dtp_ctx_lock(exec->ctx);
    for (int op = 0; op < DT_OP_COUNT; op++) {
        const dt_slot_table *table = dtp_slot(exec->ctx, (dt_op)op, exec->device);
        sum += table ? table->generation : 0;
    }
    dtp_ctx_unlock(exec->ctx);
    return sum;
}

static dt_status record(dt_recorded *r, dt_exec *exec, dt_work_fn work, void *user, dt_err *err)
{
    dt_status status = dt_exec_record_begin(exec, err);
    if (status != DT_OK)
        return status;
    status = work(user, err);
    if (status == DT_OK)
        return dt_exec_record_end(exec, &r->recording, err);
    dt_exec_record_end(exec, NULL, NULL);
    return status;
}

dt_status dtp_recorded_run(dt_recorded *r, dt_exec *exec, bool wanted, dt_work_fn work, void *user, dt_err *err)
{
    if (!wanted || !dt_exec_can_record(exec))
        return work(user, err);
    const uint64_t slots = generation_of_slots(exec), moves = dtp_scratch(exec)->moves;
    if (r->slots != slots || r->moves != moves)
        dtp_recorded_release(r, exec);
    dt_status status = DT_OK;
    if (!r->ran) {
        status = work(user, err);
        r->ran = status == DT_OK;
        r->slots = slots;
        r->moves = dtp_scratch(exec)->moves; /* the calls may have grown it */
        return status;
    }
    if (!r->recording)
        status = record(r, exec, work, user, err);
    return status == DT_OK ? dt_exec_replay(exec, r->recording, err) : status;
}

void dtp_recorded_release(dt_recorded *r, dt_exec *exec)
{
    dt_exec_recording_release(exec, r->recording);
    *r = (dt_recorded){0};
}
