/* Helpers of the data room's tests: a folder of their own, small files in it, checksums, captured log lines. */
#ifndef DT_DATA_TEST_DATA_H
#define DT_DATA_TEST_DATA_H

#include "core/file.h"
#include "core/test.h"

#include <unistd.h>

/* cmocka setup and teardown: *state is the path of a fresh folder. */
static inline int test_folder(void **state)
{
    const char *temporary = getenv("TMPDIR");
    char *path = dtp_format("%s/deltune-test-XXXXXX", temporary ? temporary : "/tmp");
    *state = path;
    return path && mkdtemp(path) ? 0 : -1;
}

static inline int test_folder_remove(void **state)
{
    dt_err err = {0};
    dt_status status = dtp_remove_tree(*state, &err);
    free(*state);
    return status == DT_OK ? 0 : -1;
}

/* Writes a file into the folder; returns its path, to be freed. */
static inline char *test_write(const char *folder, const char *name, const char *text)
{
    char *path = dtp_path_join(folder, name);
    FILE *file = path ? fopen(path, "wb") : NULL;
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    return path;
}

#endif
