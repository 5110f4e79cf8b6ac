/* Files and folders: whole reads, read-only maps, atomic writes, and errors that name path and cause.
 * All paths are UTF-8 byte strings as the system has them. Every error is DT_E_IO "PATH: what: strerror". */
#ifndef DT_CORE_FILE_H
#define DT_CORE_FILE_H

#include "core/memory.h"
#include <stdio.h>

bool dtp_file_exists(const char *path);
bool dtp_is_folder(const char *path);
/* DIR/NAME (no double slash); NULL when out of memory. */
char *dtp_path_join(const char *folder, const char *name);
/* The part after the last slash (trailing slashes ignored); points into path or is a static ".". Never NULL. */
const char *dtp_path_base(const char *path);
/* mkdir -p. */
dt_status dtp_make_folders(const char *path, dt_err *err);
/* Removes a folder and all below it; a missing one is fine. Does not follow links. */
dt_status dtp_remove_tree(const char *path, dt_err *err);

/* Reads a whole regular file, NUL-terminated; refuses files over `maximum` bytes (0 = no limit). */
dt_status dtp_read_file(const char *path, size_t maximum, char **data_out, size_t *length_out, dt_err *err);

/* A read-only map of a whole file. Length 0 maps to data == NULL. */
typedef struct dt_map {
    const unsigned char *data;
    size_t length;
} dt_map;
dt_status dtp_map_open(dt_map *map_out, const char *path, dt_err *err);
void dtp_map_close(dt_map *map); /* accepts a zeroed map */

/* Writes PATH whole or not at all: a temporary file beside it, fsync, rename, fsync of the folder. */
dt_status dtp_write_file(const char *path, const void *data, size_t length, dt_err *err);
dt_status dtp_copy_file(const char *from, const char *to, dt_err *err);

/* A file being written. dt_writer_commit makes it appear under its name (fsync, rename); closing without commit
 * removes the temporary file. Write errors (a full disk) are kept and reported by the next call. */
typedef struct dt_writer dt_writer;
dt_status dtp_writer_open(dt_writer **out, const char *path, dt_err *err);
dt_status dtp_writer_write(dt_writer *writer, const void *data, size_t length, dt_err *err);
dt_status dtp_writer_commit(dt_writer *writer, dt_err *err); /* also closes */
void dtp_writer_close(dt_writer *writer);                    /* accepts NULL */
/* fsync of a folder, so that names created in it survive a crash. */
dt_status dtp_sync_folder(const char *path, dt_err *err);

#endif
