/* One record -> one row -> samples: what a thread does with a record, on memory of its own. */
#ifndef DT_DATA_ENCODE_H
#define DT_DATA_ENCODE_H

#include "data/reader.h"
#include "data/row_format.h"
#include "data/scan.h"

/* The scratch of one thread. */
typedef struct dt_encode_worker {
    dt_encoder *encoder; /* NULL without a tokenizer */
    dt_row row;
    dt_encoded encoded;
    dt_buf out; /* samples of this batch: dt_sample, then its words, one after another */
} dt_encode_worker;

dt_status dtp_encode_worker_open(dt_encode_worker *worker, const dt_dataset_options *options, dt_err *err);
void dtp_encode_worker_close(dt_encode_worker *worker);

/* What came of a record. */
typedef struct dt_encode_result {
    bool usable;     /* a row that a rule of data/row_format.h reads */
    uint8_t outcome; /* of a usable row */
    dt_status fatal; /* ends the whole preparation (memory, no tokenizer); else DT_OK */
    char *reason; /* of a row that is not usable, empty, failed, too long, or of `fatal`; NULL otherwise; to be freed */
    size_t out_at; /* where its samples are in worker->out */
    uint32_t n_samples;
    int64_t dropped_keys;
} dt_encode_result;

/* `encode` false: only checks that the row is usable. */
void dtp_encode_record(dt_encode_worker *worker, const dt_reader *reader, const dt_record *record,
                       const dt_row_format *format, const dt_dataset_options *options, bool encode,
                       dt_encode_result *result_out);

#endif
