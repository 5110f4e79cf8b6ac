/* Prepared data sets in files, found again by a hash of everything that shapes them. Library-private part of
 * data/dataset.h. */
#ifndef DT_DATA_CACHE_H
#define DT_DATA_CACHE_H

#include "data/dataset_impl.h"

/* "FOLDER/<hash>.deltune-data" for these options, to be freed. Reads all data files once. */
dt_status dtp_cache_path(char **path_out, const dt_dataset_options *options, dt_err *err);

/* *found is false when there is no such file, or when it is damaged (which is said on the log). */
dt_status dtp_cache_load(dt_dataset **train_out, dt_dataset **val_out, const char *path,
                         const dt_dataset_options *options, bool *found, dt_err *err);
dt_status dtp_cache_save(const dt_dataset *train, const dt_dataset *val, const char *path, dt_err *err);

#endif
