/* Helpers of the data room's tests: a folder of their own, small files in it, checksums, captured log lines. */
#ifndef DT_DATA_TEST_DATA_H
#define DT_DATA_TEST_DATA_H

#include "core/environment.h"
#include "core/file.h"
#include "core/test.h"

#include <unistd.h>

/* cmocka setup and teardown: *state is the path of a fresh folder. */
static inline int test_folder(void **state)
{
    const char *temporary = dtp_environment("TMPDIR");
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

/* CRC-32 (zlib's) of little-endian words: order.py prints whole permutations and plans as one such number. */
static inline uint32_t test_crc32(const uint32_t *words, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8) {
            crc ^= words[i] >> shift & 0xff;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    return ~crc;
}

#endif
