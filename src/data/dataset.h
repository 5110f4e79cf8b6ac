/* A prepared data set: rows of the given files, sampled, split, shuffled and encoded to tokens and labels.
 *
 * The order of samples equals the incumbent's for the same files, data_seed and options (docs/data-formats.md,
 * "Order"). Encoded samples live in memory while small and in an unlinked temporary file when large, so that preparing
 * 2 GB of text needs far less memory than the text. Reading is thread-safe. Not for: batches (data/loader.h), single
 * rows of a file (data/rows.h). */
#ifndef DT_DATA_DATASET_H
#define DT_DATA_DATASET_H

#include "data/rows.h"
#include "data/sample.h"

typedef struct dt_dataset_options {
    /* --dataset and --val_dataset: "[hf::|ms::]PATH[:SUBSET][#N]" */
    const char *const *paths, *const *val_paths;
    size_t n_paths, n_val_paths;
    double split_ratio; /* split_dataset_ratio, 0..1; not used when there are val_paths */
    uint32_t data_seed; /* default 42 */
    bool shuffle;       /* dataset_shuffle, default true */
    bool val_shuffle;   /* val_dataset_shuffle, default false */

    dt_row_options rows; /* columns, strict */

    dt_truncation truncation;
    int64_t max_length; /* tokens of a sample; with packing the smaller of max_length and packing_length */
    int64_t vocab_size; /* ids must be below; 0 = not checked */

    /* How conversations are encoded; NULL: only rows that bring input_ids can be prepared. */
    const dt_template *chat;
    const dt_tokenizer *tokenizer; /* of the template */

    int threads;              /* <= 0: all available */
    const char *spill_folder; /* where large data sets spill; NULL: $TMPDIR, else /var/tmp */

    /* A folder where prepared data is stored and taken from when nothing that shapes it has changed: contents of the
     * data files and of `cache_files` (tokenizer.json, ...), these options, and the text `cache_key` (the template's
     * settings). NULL: no cache. With a template, cache_files must not be empty. */
    const char *cache_folder, *cache_key;
    const char *const *cache_files;
    size_t n_cache_files;

    void (*progress)(void *user, const char *what, int64_t done, int64_t total); /* in bytes; may be NULL */
    void *progress_user;
} dt_dataset_options;

void dtp_dataset_options_default(dt_dataset_options *options);

/* What became of the rows. rows = used + bad (+ unused when #N selects fewer); for the selected ones:
 * selected = kept rows + too_long + empty + failed, where a row split in pieces counts once. */
typedef struct dt_dataset_stats {
    int64_t rows, bad; /* rows in the files; those no rule of data/rows.h reads (reported) */
    int64_t selected;  /* entries after sampling and split; a row repeated by #N counts each time */
    int64_t too_long, empty,
        failed;        /* dropped: over max_length (delete), no token at all, could not be encoded (reported) */
    int64_t truncated; /* rows cut by left, right or split */
    int64_t samples, tokens, targets;
    int64_t without_targets; /* samples whose labels are all -100: kept in their place */
    int64_t dropped_keys;    /* unknown message keys ignored */
    int64_t assistant_first; /* conversations that start with the assistant (they get an empty user turn) */
    int64_t control_text;    /* rows with control-token text inside a user's content */
    int64_t min_length, max_length;
    double mean_length, std_length;
} dt_dataset_stats;

typedef struct dt_dataset dt_dataset;

/* `val_out` is set to NULL when there is no validation data. Errors: DT_E_IO, DT_E_FORMAT (a bad row under strict; no
 * usable row; no target in the whole training set), DT_E_ARG, DT_E_UNSUPPORTED (hub ids), DT_E_NOMEM. Prints a summary
 * on the log. */
dt_status dtp_dataset_prepare(dt_dataset **train_out, dt_dataset **val_out, const dt_dataset_options *options,
                              dt_err *err);
void dtp_dataset_close(dt_dataset *dataset); /* accepts NULL */

size_t dtp_dataset_size(const dt_dataset *dataset);
const dt_dataset_stats *dtp_dataset_statistics(const dt_dataset *dataset);
/* "171.943000±102.110000, min=21.000000, max=512.000000, size=990": the incumbent's line about lengths. */
void dtp_dataset_length_line(const dt_dataset *dataset, char *out, size_t n);

/* Tokens and targets (labels other than -100) of sample `index`, without reading it. */
uint32_t dtp_dataset_length(const dt_dataset *dataset, size_t index);
uint32_t dtp_dataset_targets(const dt_dataset *dataset, size_t index);
bool dtp_dataset_has_weights(const dt_dataset *dataset, size_t index);
/* FILE and line of the row a sample comes from; *file borrowed. */
void dtp_dataset_origin(const dt_dataset *dataset, size_t index, const char **file, int64_t *line);

/* Copies sample `index` to arrays of its length; labels[0] is -100. `weights` (loss weight of each label) may be NULL;
 * it is filled with 1 where the sample has none. Thread-safe. */
dt_status dtp_dataset_read(const dt_dataset *dataset, size_t index, int32_t *ids, int32_t *labels, float *weights,
                           dt_err *err);

/* A hash of all samples in their order: tokens, labels, weights. Reads the whole data set. */
dt_status dtp_dataset_digest(const dt_dataset *dataset, uint64_t *out, dt_err *err);

/* Writes the rows of a data set in its order as {"messages": [...]} (or input_ids) lines: val_dataset.jsonl. Atomic. */
dt_status dtp_dataset_write_rows(const dt_dataset *dataset, const char *path, dt_err *err);

#endif
