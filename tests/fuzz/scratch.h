/* Fuzz targets whose parser wants a path: a private folder that is removed at exit, and a way to fill a file in it. */
#ifndef DT_FUZZ_SCRATCH_H
#define DT_FUZZ_SCRATCH_H

#include "core/file.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char scratch_folder[64];

static void remove_scratch(void)
{
    dtp_remove_tree(scratch_folder, NULL);
}

/* In shared memory where there is some: a fuzzer writes thousands of files a second. */
static const char *scratch(void)
{
    if (!scratch_folder[0]) {
        strcpy(scratch_folder, dtp_is_folder("/dev/shm") ? "/dev/shm/dt-fuzz-XXXXXX" : "/tmp/dt-fuzz-XXXXXX");
        if (!mkdtemp(scratch_folder))
            abort();
        atexit(remove_scratch);
    }
    return scratch_folder;
}

static void fill_file(const char *name, const void *bytes, size_t length)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch(), name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, length, file) != length || fclose(file) != 0)
        abort();
}

#endif
