/* TensorBoard event files: scalars only, written as torch's SummaryWriter writes them (simple_value summaries), so that
 * TensorBoard and every reader of its files show a run next to those of the reference trainer.
 *
 * A file is a sequence of records: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data; the data
 * is a protobuf Event {1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary {1: Value {1: tag,
 * 2: float simple_value}}}. Source: tensorflow/core/util/event.proto, core/lib/io/record_writer. */
#ifndef DT_TRAIN_TENSORBOARD_H
#define DT_TRAIN_TENSORBOARD_H

#include <deltune/status.h>
#include <stdint.h>

typedef struct dt_tensorboard dt_tensorboard;

/* Creates FOLDER/events.out.tfevents.<time>.<host>.<pid>.0; makes the folder. */
dt_status dtp_tensorboard_open(dt_tensorboard **out, const char *folder, dt_err *err);
dt_status dtp_tensorboard_scalar(dt_tensorboard *tb, const char *tag, int64_t step, double value, dt_err *err);
/* Makes what was written visible to readers. */
dt_status dtp_tensorboard_flush(dt_tensorboard *tb, dt_err *err);
const char *dtp_tensorboard_path(const dt_tensorboard *tb);
void dtp_tensorboard_close(dt_tensorboard *tb); /* accepts NULL */

/* CRC-32C (Castagnoli), for the tests too. */
uint32_t dtp_crc32c(const void *data, size_t length);

#endif
