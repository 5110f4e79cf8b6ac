/* Reads all rows of some data sets once and encodes them in parallel, keeping their order: the table of rows and
 * samples that a data set picks from. Library-private half of data/dataset.h. */
#ifndef DT_DATA_SCAN_H
#define DT_DATA_SCAN_H

#include "data/dataset.h"
#include "data/source.h"
#include "data/token_store.h"

/* What became of a row; the low bits of dt_table.outcome. */
typedef enum dt_outcome {
    DT_ROW_UNUSED, /* read, not encoded: no data set entry wants it */
    DT_ROW_KEPT,
    DT_ROW_CUT, /* kept, truncated or split */
    DT_ROW_TOO_LONG,
    DT_ROW_EMPTY,
    DT_ROW_FAILED,
    DT_OUTCOME_MASK = 7,
    DT_ROW_ASSISTANT_FIRST = 8, /* flags */
    DT_ROW_CONTROL_TEXT = 16
} dt_outcome;

#define DT_NO_SAMPLE  UINT32_MAX
#define DT_PLACE_STEP 16

/* Usable rows, numbered through all files, and the samples made of them. Arrays of their own, so that a row costs 9
 * bytes and a sample 13. */
typedef struct dt_table {
    uint32_t *row_line, *row_sample; /* line in its file; first sample, or DT_NO_SAMPLE */
    uint8_t *outcome;
    size_t n_rows, line_capacity, sample_of_capacity, outcome_capacity;
    uint64_t *place; /* in the store, of every DT_PLACE_STEP-th sample: they lie there one behind the other */
    dt_sample *sample;
    uint32_t *sample_row; /* the samples of a row are consecutive */
    size_t n_samples, place_capacity, sample_capacity, sample_row_capacity;
    char **file;
    size_t *file_row; /* first row of each file */
    size_t n_files, file_capacity, file_row_capacity;
    dt_token_store *store;
    int64_t bad, dropped_keys;
} dt_table;

/* One --dataset argument and its place in the table. */
typedef struct dt_scanned {
    dt_source source;
    size_t first_row, n_rows, first_file;
    uint8_t *is_bad; /* per record of its files: not usable; kept only when a second pass may follow */
    size_t n_records, record_capacity;
} dt_scanned;

typedef struct dt_scanner dt_scanner;
dt_status dtp_scanner_open(dt_scanner **out, dt_table *table, const dt_dataset_options *options, dt_err *err);
void dtp_scanner_close(dt_scanner *scanner); /* accepts NULL */

/* Adds the rows of a source to the table, in order. They are encoded at once unless the source takes a sample ("#N").
 */
dt_status dtp_scan(dt_scanner *scanner, dt_scanned *set, dt_err *err);
/* Encodes the rows r of a sampled source for which wanted[set->first_row + r] is not 0: a second pass over its files.
 */
dt_status dtp_scan_wanted(dt_scanner *scanner, const dt_scanned *set, const uint8_t *wanted, dt_err *err);

/* Calls `visit` with each row r of the source that is wanted, in order of the files. */
typedef dt_status (*dt_row_visitor)(void *user, size_t row_number, const dt_row *row, dt_err *err);
dt_status dtp_scan_visit(const dt_scanned *set, const dt_dataset_options *options, const uint8_t *wanted,
                         dt_row_visitor visit, void *user, dt_err *err);

/* Where the words of a sample begin in the store. */
uint64_t dtp_table_place(const dt_table *table, size_t sample);

void dtp_scanned_close(dt_scanned *set);
void dtp_table_close(dt_table *table);

#endif
