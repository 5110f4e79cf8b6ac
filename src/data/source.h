/* Turns one --dataset argument into the files it means.
 * "[hf::|ms::]PATH[:SUBSET][#N]": a file, or a folder that holds a data set. Ids of hubs are refused with the command
 * that downloads them: nothing here touches the network. */
#ifndef DT_DATA_SOURCE_H
#define DT_DATA_SOURCE_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dt_source {
    char *path;   /* without prefix, subset and #N */
    char **files; /* in reading order */
    size_t n_files;
    int64_t sample;    /* N, -1 when not given */
    bool is_alpaca_zh; /* a copy of the registered alpaca-gpt4-data-zh: its leading marker of `input` is removed */
} dt_source;

dt_status dtp_source_open(dt_source *out, const char *argument, dt_err *err);
void dtp_source_close(dt_source *source); /* accepts a zeroed struct */

#endif
