#include "model/safetensors.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include <stdlib.h>
#include <string.h>

/* The format's own limit; also keeps a lying length from reserving memory. */
#define MAX_HEADER 100000000u

static const struct {
    const char *name;
    size_t size;
    dt_dtype dtype;
} dtypes[] = {
    {"F32", 4, DT_F32},      {"BF16", 2, DT_BF16}, {"F16", 2, DT_F16},      {"F64", 8, DT_F64},
    {"I32", 4, DT_I32},      {"I64", 8, DT_I64},   {"U8", 1, DT_U8},        {"BOOL", 1, DT_NONE},
    {"I8", 1, DT_NONE},      {"I16", 2, DT_NONE},  {"U16", 2, DT_NONE},     {"U32", 4, DT_NONE},
    {"U64", 8, DT_NONE},     {"C64", 8, DT_NONE},  {"F8_E4M3", 1, DT_NONE}, {"F8_E5M2", 1, DT_NONE},
    {"F8_E8M0", 1, DT_NONE},
};

struct dt_st {
    char *path;
    dt_map map; /* closed with the file; data NULL for memory files */
    const unsigned char *bytes;
    size_t length, header_end;
    json_t *header; /* owns names and dtype names */
    dt_st_tensor *tensor;
    const dt_st_tensor **by_name;
    size_t count;
};

static int find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, name))
            return (int)i;
    return -1;
}

size_t dtp_st_dtype_size(const char *dtype_name)
{
    int i = find_dtype(dtype_name);
    return i < 0 ? 0 : dtypes[i].size;
}

dt_dtype dtp_st_dtype(const char *dtype_name)
{
    int i = find_dtype(dtype_name);
    return i < 0 ? DT_NONE : dtypes[i].dtype;
}

/* Product of shape and element size, refused when it leaves int64. */
static bool span_of(const int64_t *shape, int rank, size_t element, uint64_t *bytes_out)
{
    uint64_t n = element;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
            return false;
    *bytes_out = n;
    return true;
}

/* ---- header checks ---- */

static uint64_t read_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static dt_status parse_header(dt_st *st, dt_err *err)
{
    if (st->length < 8)
        return dt_fail(err, DT_E_FORMAT, "%s: a safetensors file has at least 8 bytes, this one has %zu", st->path,
                       st->length);
    uint64_t header = read_u64(st->bytes);
    if (header > st->length - 8)
        return dt_fail(err, DT_E_FORMAT, "%s: header says %llu bytes, only %zu follow (truncated file?)", st->path,
                       (unsigned long long)header, st->length - 8);
    if (header > MAX_HEADER)
        return dt_fail(err, DT_E_FORMAT, "%s: header of %llu bytes is over the format's limit of %u", st->path,
                       (unsigned long long)header, MAX_HEADER);
    if (header == 0 || st->bytes[8] != '{')
        return dt_fail(err, DT_E_FORMAT, "%s: header does not begin with '{': not a safetensors file", st->path);
    st->header_end = 8 + (size_t)header;
    dt_status status = dtp_json_parse(&st->header, (const char *)st->bytes + 8, (size_t)header, st->path, err);
    if (status == DT_OK && !json_is_object(st->header))
        status = dt_fail(err, DT_E_FORMAT, "%s: header is not a JSON object", st->path);
    return status;
}

static dt_status check_metadata(const dt_st *st, json_t *metadata, dt_err *err)
{
    if (!json_is_object(metadata))
        return dt_fail(err, DT_E_FORMAT, "%s: __metadata__ is not an object", st->path);
    for (void *i = json_object_iter(metadata); i; i = json_object_iter_next(metadata, i))
        if (!json_is_string(json_object_iter_value(i)))
            return dt_fail(err, DT_E_FORMAT, "%s: __metadata__.%s is not a string", st->path, json_object_iter_key(i));
    return DT_OK;
}

static dt_status read_shape(const dt_st *st, const json_t *shape, dt_st_tensor *t, dt_err *err)
{
    if (!json_is_array(shape))
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: shape is missing or not a list", st->path, t->name);
    if (json_array_size(shape) > DT_ST_MAX_RANK)
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: %zu dimensions, at most %d are supported", st->path, t->name,
                       json_array_size(shape), DT_ST_MAX_RANK);
    t->rank = (int32_t)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: shape[%d] is not a non-negative integer", st->path,
                           t->name, i);
        t->shape[i] = json_integer_value(n);
    }
    return DT_OK;
}

static dt_status read_tensor(const dt_st *st, const char *name, const json_t *entry, dt_st_tensor *t, dt_err *err)
{
    t->name = name;
    if (!name[0] || !json_is_object(entry))
        return dt_fail(err, DT_E_FORMAT, "%s: header entry '%s' is not a tensor description", st->path, name);
    t->dtype_name = json_string_value(json_object_get(entry, "dtype"));
    int dtype = t->dtype_name ? find_dtype(t->dtype_name) : -1;
    if (dtype < 0)
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: unknown dtype %s", st->path, name,
                       t->dtype_name ? t->dtype_name : "(missing)");
    t->dtype = dtypes[dtype].dtype;
    dt_status status = read_shape(st, json_object_get(entry, "shape"), t, err);
    if (status != DT_OK)
        return status;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: data_offsets is not a pair of integers", st->path, name);
    int64_t begin = json_integer_value(from), end = json_integer_value(to);
    if (begin < 0 || end < begin || (uint64_t)end > st->length - st->header_end)
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s: data_offsets [%lld, %lld] leave the %zu bytes of data",
                       st->path, name, (long long)begin, (long long)end, st->length - st->header_end);
    uint64_t span;
    if (!span_of(t->shape, t->rank, dtypes[dtype].size, &span) || span != (uint64_t)(end - begin))
        return dt_fail(err, DT_E_FORMAT,
                       "%s: tensor %s: data_offsets span %lld bytes, shape and dtype %s need another "
                       "number",
                       st->path, name, (long long)(end - begin), t->dtype_name);
    t->data = st->bytes + st->header_end + begin;
    t->bytes = (size_t)span;
    return DT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const dt_st_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    if (x->bytes != y->bytes) /* empty tensors before the one that starts at the same byte */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const dt_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static dt_status check_cover(const dt_st *st, dt_err *err)
{
    const unsigned char *next = st->bytes + st->header_end;
    for (size_t i = 0; i < st->count; i++) {
        const dt_st_tensor *t = &st->tensor[i];
        const unsigned char *data = t->data;
        if (data < next)
            return dt_fail(err, DT_E_FORMAT, "%s: tensor %s overlaps tensor %s", st->path, t->name,
                           st->tensor[i - 1].name);
        if (data > next)
            return dt_fail(err, DT_E_FORMAT, "%s: %lld bytes before tensor %s belong to no tensor", st->path,
                           (long long)(data - next), t->name);
        next = data + t->bytes;
    }
    if (next != st->bytes + st->length)
        return dt_fail(err, DT_E_FORMAT, "%s: %lld bytes at the end belong to no tensor", st->path,
                       (long long)(st->bytes + st->length - next));
    return DT_OK;
}

static dt_status read_tensors(dt_st *st, dt_err *err)
{
    size_t entries = json_object_size(st->header);
    st->tensor = dtp_calloc(entries ? entries : 1, sizeof *st->tensor);
    st->by_name = dtp_calloc(entries ? entries : 1, sizeof *st->by_name);
    if (!st->tensor || !st->by_name)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for %zu tensors", st->path, entries);
    const char *name;
    json_t *entry;
    json_object_foreach(st->header, name, entry)
    {
        dt_status status = !strcmp(name, "__metadata__") ? check_metadata(st, entry, err)
                                                         : read_tensor(st, name, entry, &st->tensor[st->count++], err);
        if (status != DT_OK)
            return status;
    }
    qsort(st->tensor, st->count, sizeof *st->tensor, by_offset);
    for (size_t i = 0; i < st->count; i++)
        st->by_name[i] = &st->tensor[i];
    qsort(st->by_name, st->count, sizeof *st->by_name, by_name);
    return check_cover(st, err);
}

static dt_status open_bytes(dt_st *st, dt_err *err)
{
    dt_status status = parse_header(st, err);
    return status == DT_OK ? read_tensors(st, err) : status;
}

static dt_st *new_file(const char *where, dt_err *err)
{
    dt_st *st = dtp_calloc(1, sizeof *st);
    if (st && (st->path = dtp_strdup(where)))
        return st;
    free(st);
    dt_fail(err, DT_E_NOMEM, "%s: cannot allocate a reader", where);
    return NULL;
}

dt_status dtp_st_open(dt_st **out, const char *path, dt_err *err)
{
    dt_st *st = new_file(path, err);
    if (!st)
        return DT_E_NOMEM;
    dt_status status = dtp_map_open(&st->map, path, err);
    if (status == DT_OK) {
        st->bytes = st->map.data;
        st->length = st->map.length;
        status = open_bytes(st, err);
    }
    if (status != DT_OK) {
        dtp_st_close(st);
        return status;
    }
    *out = st;
    return DT_OK;
}

dt_status dtp_st_open_memory(dt_st **out, const void *bytes, size_t length, const char *where, dt_err *err)
{
    dt_st *st = new_file(where, err);
    if (!st)
        return DT_E_NOMEM;
    st->bytes = bytes;
    st->length = length;
    dt_status status = open_bytes(st, err);
    if (status != DT_OK) {
        dtp_st_close(st);
        return status;
    }
    *out = st;
    return DT_OK;
}

void dtp_st_close(dt_st *st)
{
    if (!st)
        return;
    free(st->by_name);
    free(st->tensor);
    json_decref(st->header);
    dtp_map_close(&st->map);
    free(st->path);
    free(st);
}

/* ---- access ---- */

const char *dtp_st_path(const dt_st *st)
{
    return st->path;
}
size_t dtp_st_count(const dt_st *st)
{
    return st->count;
}
const dt_st_tensor *dtp_st_at(const dt_st *st, size_t index)
{
    return &st->tensor[index];
}

const dt_st_tensor *dtp_st_find(const dt_st *st, const char *name)
{
    size_t low = 0, high = st->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, st->by_name[middle]->name);
        if (order == 0)
            return st->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *dtp_st_metadata(const dt_st *st, const char *key)
{
    return json_string_value(json_object_get(json_object_get(st->header, "__metadata__"), key));
}

dt_status dtp_st_view(const dt_st *st, const dt_st_tensor *t, dt_tensor *view_out, dt_err *err)
{
    if (t->dtype == DT_NONE)
        return dt_fail(err, DT_E_DTYPE, "%s: tensor %s: dtype %s cannot be computed with", st->path, t->name,
                       t->dtype_name);
    if (t->rank > DT_MAX_RANK)
        return dt_fail(err, DT_E_SHAPE, "%s: tensor %s has %d dimensions, at most %d expected", st->path, t->name,
                       t->rank, DT_MAX_RANK);
    if ((uintptr_t)t->data % dt_dtype_size(t->dtype))
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s is not aligned for %s", st->path, t->name, t->dtype_name);
    dt_tensor v = {.data = (void *)(uintptr_t)t->data, .dtype = t->dtype, .rank = t->rank ? t->rank : 1};
    int64_t stride = 1;
    for (int i = DT_MAX_RANK - 1; i >= 0; i--) {
        v.shape[i] = i < t->rank ? t->shape[i] : 1;
        v.stride[i] = stride;
        stride *= v.shape[i];
    }
    *view_out = v;
    return DT_OK;
}

dt_status dtp_st_get(const dt_st *st, const char *name, dt_tensor *view_out, dt_err *err)
{
    const dt_st_tensor *t = dtp_st_find(st, name);
    if (!t)
        return dt_fail(err, DT_E_FORMAT, "%s: tensor %s is missing", st->path, name);
    return dtp_st_view(st, t, view_out, err);
}
