#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "model/safetensors.h"
#include <stdlib.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct dt_st_sink {
    dt_writer *writer;
    const char *path, *name;
    uint64_t left; /* bytes the current tensor still needs */
};

/* One tensor of the file being laid out. */
typedef struct {
    const dt_st_spec *spec;
    size_t index;
    uint64_t bytes;
} slot;

dt_status dtp_st_spec_bytes(const dt_st_spec *spec, uint64_t *bytes_out, dt_err *err)
{
    uint64_t n = dtp_st_dtype_size(spec->dtype);
    if (!n || spec->rank < 0 || spec->rank > DT_ST_MAX_RANK)
        return dt_fail(err, DT_E_FORMAT, "tensor %s: dtype %s of rank %d cannot be written", spec->name, spec->dtype,
                       spec->rank);
    for (int i = 0; i < spec->rank; i++)
        if (spec->shape[i] < 0 || __builtin_mul_overflow(n, (uint64_t)spec->shape[i], &n) || n > INT64_MAX)
            return dt_fail(err, DT_E_FORMAT, "tensor %s: shape is too large", spec->name);
    *bytes_out = n;
    return DT_OK;
}

dt_status dtp_st_put(dt_st_sink *sink, const void *bytes, size_t length, dt_err *err)
{
    if (length > sink->left)
        return dt_fail(err, DT_E_INTERNAL, "%s: tensor %s: %zu bytes given, %llu are left", sink->path, sink->name,
                       length, (unsigned long long)sink->left);
    sink->left -= length;
    return dtp_writer_write(sink->writer, bytes, length, err);
}

/* The order of the format's own writer: it keeps every tensor aligned because sizes are powers of two. */
static int by_size_then_name(const void *a, const void *b)
{
    const slot *x = a, *y = b;
    size_t p = dtp_st_dtype_size(x->spec->dtype), q = dtp_st_dtype_size(y->spec->dtype);
    return p != q ? (p > q ? -1 : 1) : strcmp(x->spec->name, y->spec->name);
}

static dt_status build_header(const slot *slots, size_t n, const dt_st_meta *meta, size_t n_meta, dt_buf *out,
                              dt_err *err)
{
    json_t *header = json_object(), *metadata = json_object();
    uint64_t offset = 0;
    for (size_t i = 0; i < n_meta; i++)
        json_object_set_new(metadata, meta[i].key, json_string(meta[i].value));
    json_object_set_new(header, "__metadata__", metadata);
    for (size_t i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < slots[i].spec->rank; d++)
            json_array_append_new(shape, json_integer(slots[i].spec->shape[d]));
        json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", slots[i].spec->dtype, "shape", shape, "data_offsets",
                                  (json_int_t)offset, (json_int_t)(offset + slots[i].bytes));
        json_object_set_new(header, slots[i].spec->name, entry);
        offset += slots[i].bytes;
    }
    bool complete = json_object_size(header) == n + 1;
    char *text = complete ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return dt_fail(err, DT_E_ARG,
                       "cannot describe %zu tensors: a name appears twice, is not UTF-8, or memory is "
                       "exhausted",
                       n);
    dtp_buf_puts(out, text);
    free(text);
    while (out->length % 8 && !out->failed) /* data begins on a multiple of 8 */
        dtp_buf_putc(out, ' ');
    return dtp_buf_status(out, "safetensors header", err);
}

static dt_status write_tensor(dt_st_sink *sink, const slot *s, dt_st_emit emit, void *user, dt_err *err)
{
    sink->name = s->spec->name;
    sink->left = s->bytes;
    dt_status status = s->spec->data ? dtp_st_put(sink, s->spec->data, s->bytes, err) : emit(user, s->index, sink, err);
    if (status == DT_OK && sink->left)
        status = dt_fail(err, DT_E_INTERNAL, "%s: tensor %s ends %llu bytes early", sink->path, sink->name,
                         (unsigned long long)sink->left);
    return status;
}

/* `slots` is put into file order. */
static dt_status write_file(const char *path, slot *slots, size_t n, const dt_st_meta *meta, size_t n_meta,
                            dt_st_emit emit, void *user, dt_err *err)
{
    static const dt_st_meta pt = {"format", "pt"};
    dt_buf header = {0};
    dt_st_sink sink = {.path = path};
    qsort(slots, n, sizeof *slots, by_size_then_name);
    dt_status status = build_header(slots, n, meta ? meta : &pt, meta ? n_meta : 1, &header, err);
    if (status == DT_OK)
        status = dtp_writer_open(&sink.writer, path, err);
    if (status == DT_OK) {
        unsigned char length[8];
        for (int i = 0; i < 8; i++)
            length[i] = (unsigned char)((uint64_t)header.length >> (8 * i));
        status = dtp_writer_write(sink.writer, length, 8, err);
    }
    if (status == DT_OK)
        status = dtp_writer_write(sink.writer, header.data, header.length, err);
    for (size_t i = 0; status == DT_OK && i < n; i++)
        status = write_tensor(&sink, &slots[i], emit, user, err);
    dtp_buf_free(&header);
    if (status != DT_OK) {
        dtp_writer_close(sink.writer);
        return status;
    }
    return dtp_writer_commit(sink.writer, err);
}

static dt_status make_slots(const dt_st_spec *specs, size_t n, slot **out, dt_err *err)
{
    slot *slots = dtp_calloc(n ? n : 1, sizeof *slots);
    if (!slots)
        return dt_fail(err, DT_E_NOMEM, "no memory to describe %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        slots[i] = (slot){&specs[i], i, 0};
        dt_status status = dtp_st_spec_bytes(&specs[i], &slots[i].bytes, err);
        if (status != DT_OK) {
            free(slots);
            return status;
        }
    }
    *out = slots;
    return DT_OK;
}

dt_status dtp_st_write(const char *path, const dt_st_spec *specs, size_t n, const dt_st_meta *meta, size_t n_meta,
                       dt_st_emit emit, void *user, dt_err *err)
{
    slot *slots;
    dt_status status = make_slots(specs, n, &slots, err);
    if (status != DT_OK)
        return status;
    status = write_file(path, slots, n, meta, n_meta, emit, user, err);
    free(slots);
    return status;
}

/* First slot of the shard after the one that begins at `first`. */
static size_t shard_end(const slot *slots, size_t n, size_t first, uint64_t max_bytes)
{
    uint64_t bytes = slots[first].bytes;
    size_t end = first + 1;
    while (end < n && bytes + slots[end].bytes <= max_bytes)
        bytes += slots[end++].bytes;
    return end;
}

static dt_status write_shard(const char *folder, const char *name, slot *slots, size_t n, json_t *weight_map,
                             dt_st_emit emit, void *user, dt_err *err)
{
    char *path = dtp_path_join(folder, name);
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    for (size_t i = 0; i < n; i++)
        json_object_set_new(weight_map, slots[i].spec->name, json_string(name));
    dt_status status = write_file(path, slots, n, NULL, 0, emit, user, err);
    free(path);
    return status;
}

static dt_status write_index(const char *folder, json_t *weight_map, uint64_t total, dt_err *err)
{
    char *path = dtp_path_join(folder, "model.safetensors.index.json");
    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", weight_map);
    dt_status status = path && index ? dtp_python_save(index, path, true, err)
                                     : dt_fail(err, DT_E_NOMEM, "%s: no memory for the weight index", folder);
    json_decref(index);
    free(path);
    return status;
}

/* Readers prefer model.safetensors to an index: what an earlier save of the other kind left must go. */
static dt_status remove_other_kind(const char *folder, bool sharded, dt_err *err)
{
    char *path = dtp_path_join(folder, sharded ? "model.safetensors" : "model.safetensors.index.json");
    dt_status status = DT_OK;
    if (!path)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    else if (unlink(path) != 0 && errno != ENOENT)
        status = dt_fail(err, DT_E_IO, "%s: cannot remove it: %s", path, strerror(errno));
    free(path);
    return status;
}

dt_status dtp_st_write_sharded(const char *folder, const dt_st_spec *specs, size_t n, uint64_t max_shard_bytes,
                               dt_st_emit emit, void *user, dt_err *err)
{
    slot *slots;
    dt_status status = make_slots(specs, n, &slots, err);
    if (status != DT_OK)
        return status;
    size_t shards = 0;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += slots[i].bytes;
    for (size_t i = 0; i < n; i = shard_end(slots, n, i, max_shard_bytes))
        shards++;
    json_t *weight_map = json_object();
    size_t shard = 0;
    for (size_t i = 0, end; status == DT_OK && i < n; i = end) {
        char name[64] = "model.safetensors";
        if (shards > 1)
            snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", ++shard, shards);
        end = shard_end(slots, n, i, max_shard_bytes);
        status = write_shard(folder, name, slots + i, end - i, weight_map, emit, user, err);
    }
    if (status == DT_OK && shards > 1)
        status = write_index(folder, weight_map, total, err);
    if (status == DT_OK)
        status = remove_other_kind(folder, shards > 1, err);
    json_decref(weight_map);
    free(slots);
    return status;
}
