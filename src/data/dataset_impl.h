/* The inside of a dt_dataset, shared by the files that prepare, write and cache it. */
#ifndef DT_DATA_DATASET_IMPL_H
#define DT_DATA_DATASET_IMPL_H

#include "data/scan.h"

/* Training and validation rows of the same files share their table and store. */
typedef struct dt_shared {
    int references;
    dt_table table;
    dt_scanned *sets;
    size_t n_sets;
    char *columns; /* --columns, for reading the rows again */
} dt_shared;

struct dt_dataset {
    dt_shared *shared;
    uint32_t *sample; /* [n] index in shared->table, in data set order */
    size_t n;
    uint32_t *row; /* [n_rows] the selected rows, in data set order */
    size_t n_rows;
    dt_dataset_stats stats;
    bool is_val;
};

#endif
