/* Work that is the same each time but for what lies in device memory: run call by call the first time, then recorded,
 * then replayed. The first run loads what the device loads lazily and is what a replay must equal bit for bit.
 *
 * It is recorded again when the provider of any operator changed or the workspace moved. Anything else a recording
 * refers to is the owner's to keep in place. */
#ifndef DT_OPERATORS_RECORDED_H
#define DT_OPERATORS_RECORDED_H

#include <deltune/operators.h>

/* Queues the work: operator calls, zeros, copies within the device. */
typedef dt_status (*dt_work_fn)(void *user, dt_err *err);

/* Zero-initialise. */
typedef struct dt_recorded {
    dt_recording *recording;
    uint64_t slots, moves; /* of what it was recorded with */
    bool ran;              /* call by call, with these */
} dt_recorded;

/* Queues the work. `record` false, or a device that cannot: call by call every time. */
dt_status dtp_recorded_run(dt_recorded *r, dt_exec *exec, bool record, dt_work_fn work, void *user, dt_err *err);
void dtp_recorded_release(dt_recorded *r, dt_exec *exec);

#endif
