#include "data/cache.h"

#include "core/file.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* A file is: the head; for each part (training, validation) its sizes, statistics and arrays; a hash of all that; the
 * words of the tokens of the parts' tables. Parts cut from the same files share one table, which stands in the first.
 * Numbers are in the machine's byte order: a cache is not for other machines, and the head tells them apart. */
static const char MAGIC[16] = "deltune-data 2\n";
enum { BYTE_ORDER_MARK = 0x01020304, MAX_PARTS = 2 };

typedef struct head {
    char magic[16];
    uint32_t byte_order, n_parts;
    uint64_t index_bytes; /* from the end of the head to the hash */
} head;

typedef struct part_head {
    uint32_t is_val, shares_table; /* shares_table: its table is the first part's */
    uint64_t n, n_rows;            /* of the data set */
    uint64_t table_rows, table_samples, table_files, n_words, n_sets;
    int64_t bad, dropped_keys;
    dt_dataset_stats stats;
} part_head;

/* ---- The key ---- */

static dt_status hash_file(XXH3_state_t *hash, const char *path, dt_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t length = 0;
    ssize_t n = -1;
    char *buffer = malloc(1 << 20);
    while (fd >= 0 && buffer && (n = read(fd, buffer, 1 << 20)) > 0) {
        XXH3_128bits_update(hash, buffer, (size_t)n);
        length += (uint64_t)n;
    }
    int cause = errno;
    free(buffer);
    if (fd >= 0)
        close(fd);
    if (n != 0)
        return dt_fail(err, DT_E_IO, "%s: read: %s", path, strerror(cause));
    XXH3_128bits_update(hash, &length, sizeof length);
    return DT_OK;
}

static void hash_text(XXH3_state_t *hash, const char *text)
{
    text = text ? text : "";
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

static dt_status hash_sources(XXH3_state_t *hash, const char *const *arguments, size_t n, dt_err *err)
{
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < n; i++) {
        dt_source source = {0};
        status = dtp_source_open(&source, arguments[i], err);
        uint64_t facts[3] = {source.n_files, (uint64_t)source.sample, source.is_alpaca_zh};
        XXH3_128bits_update(hash, facts, sizeof facts);
        for (size_t f = 0; status == DT_OK && f < source.n_files; f++) {
            hash_text(hash, source.files[f]); /* samples name the files they come from */
            status = hash_file(hash, source.files[f], err);
        }
        dtp_source_close(&source);
    }
    uint64_t end = n;
    XXH3_128bits_update(hash, &end, sizeof end);
    return status;
}

static dt_status hash_all(XXH3_state_t *hash, const dt_dataset_options *o, dt_err *err)
{
    int64_t settings[] = {o->data_seed,  o->shuffle,    o->val_shuffle, o->rows.strict,
                          o->truncation, o->max_length, o->vocab_size,  o->chat != NULL};
    XXH3_128bits_reset(hash);
    XXH3_128bits_update(hash, MAGIC, sizeof MAGIC);
    XXH3_128bits_update(hash, settings, sizeof settings);
    XXH3_128bits_update(hash, &o->split_ratio, sizeof o->split_ratio);
    hash_text(hash, o->rows.columns);
    hash_text(hash, o->cache_key);
    dt_status status = hash_sources(hash, o->paths, o->n_paths, err);
    if (status == DT_OK)
        status = hash_sources(hash, o->val_paths, o->n_val_paths, err);
    for (size_t i = 0; status == DT_OK && i < o->n_cache_files; i++)
        status = hash_file(hash, o->cache_files[i], err);
    return status;
}

dt_status dtp_cache_path(char **path_out, const dt_dataset_options *options, dt_err *err)
{
    if (options->chat && options->n_cache_files == 0)
        return dt_fail(err, DT_E_ARG, "data cache: the tokenizer's files are not named");
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return dt_fail(err, DT_E_NOMEM, "data cache: out of memory");
    dt_status status = hash_all(hash, options, err);
    XXH128_hash_t key = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    if (status != DT_OK)
        return status;
    *path_out = dtp_format("%s/%016llx%016llx.deltune-data", options->cache_folder, (unsigned long long)key.high64,
                           (unsigned long long)key.low64);
    return *path_out ? DT_OK : dt_fail(err, DT_E_NOMEM, "data cache: out of memory");
}

/* ---- The arrays of a part, in one place for reading and writing ---- */

typedef struct array {
    void **data;
    size_t count, size;
} array;

enum { N_ARRAYS = 9 };

/* Every plain array of a part; those of the table only where it stands. */
static size_t list_arrays(array out[N_ARRAYS], dt_dataset *d, const part_head *p)
{
    dt_table *t = &d->shared->table;
    const array all[N_ARRAYS] = {
        {(void **)&d->sample, p->n, sizeof *d->sample},
        {(void **)&d->row, p->n_rows, sizeof *d->row},
        {(void **)&t->row_line, p->table_rows, sizeof *t->row_line},
        {(void **)&t->row_sample, p->table_rows, sizeof *t->row_sample},
        {(void **)&t->outcome, p->table_rows, sizeof *t->outcome},
        {(void **)&t->place, (p->table_samples + DT_PLACE_STEP - 1) / DT_PLACE_STEP, sizeof *t->place},
        {(void **)&t->sample, p->table_samples, sizeof *t->sample},
        {(void **)&t->sample_row, p->table_samples, sizeof *t->sample_row},
        {(void **)&t->file_row, p->table_files, sizeof *t->file_row},
    };
    size_t n = p->shares_table ? 2 : N_ARRAYS;
    memcpy(out, all, n * sizeof *out);
    return n;
}

static uint64_t arrays_bytes(const array *arrays, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (uint64_t)arrays[i].count * arrays[i].size;
    return bytes;
}

/* ---- Saving ---- */

typedef struct saving {
    dt_writer *writer;
    XXH3_state_t *hash;
} saving;

static dt_status save_bytes(saving *s, const void *data, size_t n, dt_err *err)
{
    XXH3_64bits_update(s->hash, data, n);
    return dtp_writer_write(s->writer, data, n, err);
}

static part_head describe(const dt_dataset *d, bool is_val, bool shares_table)
{
    const dt_table *t = &d->shared->table;
    return (part_head){.is_val = is_val,
                       .shares_table = shares_table,
                       .n = d->n,
                       .n_rows = d->n_rows,
                       .table_rows = t->n_rows,
                       .table_samples = t->n_samples,
                       .table_files = t->n_files,
                       .n_words = dtp_token_store_size(t->store),
                       .n_sets = d->shared->n_sets,
                       .bad = t->bad,
                       .dropped_keys = t->dropped_keys,
                       .stats = d->stats};
}

static dt_status save_part(saving *s, const dt_dataset *d, const part_head *p, dt_err *err)
{
    array arrays[N_ARRAYS];
    size_t n = list_arrays(arrays, (dt_dataset *)(uintptr_t)d, p);
    dt_status status = save_bytes(s, p, sizeof *p, err);
    for (size_t i = 0; status == DT_OK && i < n; i++)
        status = save_bytes(s, *arrays[i].data, arrays[i].count * arrays[i].size, err);
    return status;
}

static dt_status save_words(saving *s, const dt_token_store *store, dt_err *err)
{
    enum { CHUNK_WORDS = 1 << 18 };
    uint32_t *words = dtp_calloc(CHUNK_WORDS, sizeof *words);
    uint64_t size = dtp_token_store_size(store);
    dt_status status = words ? DT_OK : dt_fail(err, DT_E_NOMEM, "data cache: out of memory");
    for (uint64_t at = 0; status == DT_OK && at < size; at += CHUNK_WORDS) {
        size_t n = size - at < CHUNK_WORDS ? (size_t)(size - at) : CHUNK_WORDS;
        status = dtp_token_store_read(store, at, words, n, err);
        if (status == DT_OK)
            status = dtp_writer_write(s->writer, words, n * sizeof *words, err);
    }
    free(words);
    return status;
}

static dt_status save_all(saving *s, const dt_dataset *const parts[], const part_head heads[], uint32_t n_parts,
                          dt_err *err)
{
    head h = {.byte_order = BYTE_ORDER_MARK, .n_parts = n_parts};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    for (uint32_t i = 0; i < n_parts; i++) {
        array arrays[N_ARRAYS];
        size_t n = list_arrays(arrays, (dt_dataset *)(uintptr_t)parts[i], &heads[i]);
        h.index_bytes += sizeof heads[i] + arrays_bytes(arrays, n);
    }
    XXH3_64bits_reset(s->hash);
    dt_status status = save_bytes(s, &h, sizeof h, err);
    for (uint32_t i = 0; status == DT_OK && i < n_parts; i++)
        status = save_part(s, parts[i], &heads[i], err);
    uint64_t digest = XXH3_64bits_digest(s->hash);
    if (status == DT_OK)
        status = dtp_writer_write(s->writer, &digest, sizeof digest, err);
    for (uint32_t i = 0; status == DT_OK && i < n_parts; i++)
        if (!heads[i].shares_table)
            status = save_words(s, parts[i]->shared->table.store, err);
    return status;
}

dt_status dtp_cache_save(const dt_dataset *train, const dt_dataset *val, const char *path, dt_err *err)
{
    const dt_dataset *parts[MAX_PARTS];
    part_head heads[MAX_PARTS];
    uint32_t n_parts = 0;
    if (train) {
        parts[n_parts] = train;
        heads[n_parts++] = describe(train, false, false);
    }
    if (val) {
        parts[n_parts] = val;
        heads[n_parts++] = describe(val, true, train && train->shared == val->shared);
    }
    char *folder = dtp_strndup(path, (size_t)(dtp_path_base(path) - path));
    saving s = {.hash = XXH3_createState()};
    dt_status status =
        folder && s.hash ? dtp_make_folders(folder, err) : dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    if (status == DT_OK)
        status = dtp_writer_open(&s.writer, path, err);
    if (status == DT_OK)
        status = save_all(&s, parts, heads, n_parts, err);
    if (status == DT_OK) {
        status = dtp_writer_commit(s.writer, err);
        s.writer = NULL;
    }
    dtp_writer_close(s.writer);
    XXH3_freeState(s.hash);
    free(folder);
    return status;
}

/* ---- Loading ---- */

typedef struct loading {
    const unsigned char *at, *end; /* of the index, in memory */
    uint64_t words_at;             /* byte of the file where the next table's words are */
    const char *path;
} loading;

static bool take(loading *l, void *out, size_t n)
{
    if ((size_t)(l->end - l->at) < n)
        return false;
    memcpy(out, l->at, n);
    l->at += n;
    return true;
}

static bool load_arrays(loading *l, dt_dataset *d, const part_head *p)
{
    array arrays[N_ARRAYS];
    size_t n = list_arrays(arrays, d, p);
    for (size_t i = 0; i < n; i++) {
        if (arrays[i].count > (size_t)(l->end - l->at) / arrays[i].size ||
            !(*arrays[i].data = dtp_calloc(arrays[i].count, arrays[i].size)) ||
            !take(l, *arrays[i].data, arrays[i].count * arrays[i].size))
            return false;
    }
    return true;
}

/* The sources of a table: the same arguments, whose files are known to be unchanged. */
static dt_status reopen_sets(dt_shared *shared, const part_head *p, const dt_dataset_options *o, dt_err *err)
{
    bool from_val = p->is_val && o->n_val_paths > 0;
    const char *const *paths = from_val ? o->val_paths : o->paths;
    size_t n = from_val ? o->n_val_paths : o->n_paths, file = 0;
    dt_table *t = &shared->table;
    dt_status status = DT_OK;
    shared->sets = dtp_calloc(n, sizeof *shared->sets);
    t->file = dtp_calloc(p->table_files, sizeof *t->file);
    if (!shared->sets || !t->file)
        return dt_fail(err, DT_E_NOMEM, "data cache: out of memory");
    for (size_t i = 0; status == DT_OK && i < n; i++) {
        dt_scanned *set = &shared->sets[shared->n_sets++];
        status = dtp_source_open(&set->source, paths[i], err);
        if (status == DT_OK && file + set->source.n_files > p->table_files)
            return dt_fail(err, DT_E_FORMAT, "its list of files is not that of the data sets");
        set->first_file = file;
        for (size_t f = 0; status == DT_OK && f < set->source.n_files; f++) {
            if (!(t->file[file++] = dtp_strdup(set->source.files[f])))
                return dt_fail(err, DT_E_NOMEM, "data cache: out of memory");
            t->n_files = file;
        }
        set->first_row = status == DT_OK ? t->file_row[set->first_file] : 0;
    }
    for (size_t i = 0; status == DT_OK && i < n; i++)
        shared->sets[i].n_rows = (i + 1 < n ? shared->sets[i + 1].first_row : t->n_rows) - shared->sets[i].first_row;
    return status;
}

/* Every index inside its array, the samples one behind the other in the words. */
static bool is_sound(const dt_dataset *d, uint64_t n_words)
{
    const dt_table *t = &d->shared->table;
    bool sound = true;
    uint64_t place = 0;
    for (size_t i = 0; i < d->n; i++)
        sound &= d->sample[i] < t->n_samples;
    for (size_t i = 0; i < d->n_rows; i++)
        sound &= d->row[i] < t->n_rows;
    for (size_t i = 0; i < t->n_samples; i++) {
        sound &= t->sample_row[i] < t->n_rows && (i % DT_PLACE_STEP || t->place[i / DT_PLACE_STEP] == place);
        place += dtp_sample_words(&t->sample[i]);
    }
    return sound && place == n_words;
}

static dt_status load_table(loading *l, dt_shared *shared, const part_head *p, const dt_dataset_options *o, dt_err *err)
{
    dt_table *t = &shared->table;
    t->n_rows = p->table_rows;
    t->n_samples = p->table_samples;
    t->bad = p->bad;
    t->dropped_keys = p->dropped_keys;
    shared->columns = dtp_strdup(o->rows.columns ? o->rows.columns : "");
    dt_status status = shared->columns ? reopen_sets(shared, p, o, err) : dt_fail(err, DT_E_NOMEM, "out of memory");
    int fd = status == DT_OK ? open(l->path, O_RDONLY | O_CLOEXEC) : -1;
    if (status == DT_OK && fd < 0)
        status = dt_fail(err, DT_E_IO, "open: %s", strerror(errno));
    if (status == DT_OK)
        status = dtp_token_store_attach(&t->store, fd, l->words_at, p->n_words, err);
    l->words_at += p->n_words * sizeof(uint32_t);
    return status;
}

static dt_status load_part(loading *l, dt_dataset **parts, uint32_t index, const dt_dataset_options *o, dt_err *err)
{
    part_head p;
    if (!take(l, &p, sizeof p) || p.shares_table > (index > 0) || (p.shares_table == 0 && p.table_files == 0))
        return dt_fail(err, DT_E_FORMAT, "it is damaged");
    dt_dataset *d = parts[index] = dtp_calloc(1, sizeof *d);
    if (d)
        d->shared = p.shares_table ? parts[0]->shared : dtp_calloc(1, sizeof *d->shared);
    if (!d || !d->shared)
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    d->shared->references++;
    d->n = p.n;
    d->n_rows = p.n_rows;
    d->stats = p.stats;
    d->is_val = p.is_val;
    dt_status status =
        load_arrays(l, d, &p) ? DT_OK : dt_fail(err, DT_E_FORMAT, "it is damaged, or too large for memory");
    if (status == DT_OK && !p.shares_table)
        status = load_table(l, d->shared, &p, o, err);
    if (status == DT_OK && !is_sound(d, dtp_token_store_size(d->shared->table.store)))
        status = dt_fail(err, DT_E_FORMAT, "it is damaged");
    return status;
}

/* Checks the head, the index's hash and the length of the file. */
static dt_status open_index(loading *l, const dt_map *map, uint32_t *n_parts, dt_err *err)
{
    head h;
    uint64_t digest;
    if (map->length < sizeof h + sizeof digest)
        return dt_fail(err, DT_E_FORMAT, "it is cut off");
    memcpy(&h, map->data, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) || h.byte_order != BYTE_ORDER_MARK || h.n_parts < 1 ||
        h.n_parts > MAX_PARTS || h.index_bytes > map->length - sizeof h - sizeof digest)
        return dt_fail(err, DT_E_FORMAT, "it is no data cache of this version and machine");
    memcpy(&digest, map->data + sizeof h + h.index_bytes, sizeof digest);
    if (XXH3_64bits(map->data, sizeof h + h.index_bytes) != digest)
        return dt_fail(err, DT_E_FORMAT, "it is damaged");
    l->at = map->data + sizeof h;
    l->end = l->at + h.index_bytes;
    l->words_at = sizeof h + h.index_bytes + sizeof digest;
    *n_parts = h.n_parts;
    return DT_OK;
}

dt_status dtp_cache_load(dt_dataset **train_out, dt_dataset **val_out, const char *path,
                         const dt_dataset_options *options, bool *found, dt_err *err)
{
    dt_map map;
    loading l = {.path = path};
    dt_dataset *parts[MAX_PARTS] = {0};
    uint32_t n_parts = 0;
    dt_err why = {0};
    *found = false;
    if (!dtp_file_exists(path))
        return DT_OK;
    dt_status status = dtp_map_open(&map, path, err);
    if (status != DT_OK)
        return status;
    status = open_index(&l, &map, &n_parts, &why);
    for (uint32_t i = 0; status == DT_OK && i < n_parts; i++)
        status = load_part(&l, parts, i, options, &why);
    if (status == DT_OK && l.words_at != map.length)
        status = dt_fail(&why, DT_E_FORMAT, "it is cut off");
    dtp_map_close(&map);
    for (uint32_t i = 0; i < MAX_PARTS; i++) {
        if (status != DT_OK)
            dtp_dataset_close(parts[i]);
        else if (parts[i])
            *(parts[i]->is_val ? val_out : train_out) = parts[i];
    }
    *found = status == DT_OK;
    if (status == DT_E_NOMEM)
        return dt_fail(err, status, "%s: %s", path, why.text);
    if (status != DT_OK)
        dt_warning("%s: not used, the data is prepared again: %s", path, why.text);
    return DT_OK;
}
