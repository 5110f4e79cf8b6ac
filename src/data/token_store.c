#include "data/token_store.h"

#include "core/environment.h"
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dt_token_store {
    uint32_t *words; /* words written .. size - 1 */
    size_t capacity, limit;
    uint64_t size, written; /* words in all; of these in the file */
    int fd;                 /* -1: no file yet */
    uint64_t first_byte;    /* where word 0 is in the file */
    char *folder;
};

static const char *spill_folder(const char *folder)
{
    const char *temporary = dtp_environment("TMPDIR");
    return folder ? folder : temporary ? temporary : "/var/tmp";
}

dt_status dtp_token_store_create(dt_token_store **out, const char *folder, size_t memory, dt_err *err)
{
    dt_token_store *store = dtp_calloc(1, sizeof *store);
    if (store)
        *store = (dt_token_store){
            .fd = -1, .limit = memory / sizeof *store->words, .folder = dtp_strdup(spill_folder(folder))};
    if (!store || !store->folder) {
        dtp_token_store_close(store);
        return dt_fail(err, DT_E_NOMEM, "data set: out of memory");
    }
    *out = store;
    return DT_OK;
}

dt_status dtp_token_store_attach(dt_token_store **out, int fd, uint64_t first_byte, uint64_t n_words, dt_err *err)
{
    dt_token_store *store = dtp_calloc(1, sizeof *store);
    if (!store) {
        close(fd);
        return dt_fail(err, DT_E_NOMEM, "data set: out of memory");
    }
    *store = (dt_token_store){.fd = fd, .first_byte = first_byte, .size = n_words, .written = n_words};
    *out = store;
    return DT_OK;
}

void dtp_token_store_close(dt_token_store *store)
{
    if (!store)
        return;
    if (store->fd >= 0)
        close(store->fd);
    free(store->words);
    free(store->folder);
    free(store);
}

uint64_t dtp_token_store_size(const dt_token_store *store)
{
    return store->size;
}

static dt_status open_file(dt_token_store *store, dt_err *err)
{
    char *path = dtp_format("%s/deltune-data-XXXXXX", store->folder);
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "data set: out of memory");
    store->fd = mkostemp(path, O_CLOEXEC);
    if (store->fd >= 0)
        unlink(path); /* it lives as long as it is open */
    free(path);
    if (store->fd < 0)
        return dt_fail(err, DT_E_IO,
                       "%s: cannot create a temporary file for tokens: %s (set TMPDIR to a folder with room)",
                       store->folder, strerror(errno));
    return DT_OK;
}

static dt_status flush(dt_token_store *store, dt_err *err)
{
    dt_status status = store->fd < 0 ? open_file(store, err) : DT_OK;
    const char *data = (const char *)store->words;
    size_t left = (size_t)(store->size - store->written) * sizeof *store->words;
    off_t at = (off_t)(store->written * sizeof *store->words);
    while (status == DT_OK && left > 0) {
        ssize_t n = pwrite(store->fd, data, left, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return dt_fail(err, DT_E_IO,
                           "%s: cannot write tokens to a temporary file: %s (set TMPDIR to a folder with room)",
                           store->folder, n < 0 ? strerror(errno) : "nothing was written");
        data += n;
        at += n;
        left -= (size_t)n;
    }
    if (status == DT_OK)
        store->written = store->size;
    return status;
}

dt_status dtp_token_store_append(dt_token_store *store, const uint32_t *words, size_t n, uint64_t *place_out,
                                 dt_err *err)
{
    size_t held = (size_t)(store->size - store->written);
    if (held > 0 && held + n > store->limit) {
        dt_status status = flush(store, err);
        if (status != DT_OK)
            return status;
        held = 0;
    }
    if (!dtp_grow((void **)&store->words, &store->capacity, held + n, sizeof *words))
        return dt_fail(err, DT_E_NOMEM, "data set: out of memory for tokens");
    if (n)
        memcpy(store->words + held, words, n * sizeof *words);
    *place_out = store->size;
    store->size += n;
    return DT_OK;
}

static dt_status read_file(const dt_token_store *store, uint64_t place, uint32_t *words, size_t n, dt_err *err)
{
    char *data = (char *)words;
    size_t left = n * sizeof *words;
    off_t at = (off_t)(store->first_byte + place * sizeof *words);
    while (left > 0) {
        ssize_t got = pread(store->fd, data, left, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return dt_fail(err, DT_E_IO, "cannot read prepared tokens back: %s",
                           got < 0 ? strerror(errno) : "the file is too short");
        data += got;
        at += got;
        left -= (size_t)got;
    }
    return DT_OK;
}

dt_status dtp_token_store_read(const dt_token_store *store, uint64_t place, uint32_t *words, size_t n, dt_err *err)
{
    if (place > store->size || n > store->size - place)
        return dt_fail(err, DT_E_INTERNAL, "data set: word %llu of %llu", (unsigned long long)(place + n),
                       (unsigned long long)store->size);
    if (n == 0)
        return DT_OK;
    if (place >= store->written) { /* a sample lies wholly in memory or wholly in the file */
        memcpy(words, store->words + (place - store->written), n * sizeof *words);
        return DT_OK;
    }
    return read_file(store, place, words, n, err);
}
