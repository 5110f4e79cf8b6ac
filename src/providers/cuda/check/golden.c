#include "providers/cuda/check/golden.h"

#include <deltune/tensor.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_status read_tensor(golden_tensor *t, const char *name, const json_t *entry, const unsigned char *data,
                             size_t length, dt_err *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0)),
            end = json_integer_value(json_array_get(offsets, 1));
    if (!dtype || begin < 0 || end < begin || (size_t)end > length || json_array_size(shape) > 4)
        return dt_fail(err, DT_E_FORMAT, "%s: broken entry", name);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rank = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < 4; i++) {
        t->shape[i] = i < t->rank ? json_integer_value(json_array_get(shape, (size_t)i)) : 1;
        t->count *= t->shape[i];
    }
    size_t size = strcmp(dtype, "BF16") == 0 ? 2 : strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0 ? 8 : 4;
    if ((size_t)(end - begin) != (size_t)t->count * size)
        return dt_fail(err, DT_E_FORMAT, "%s: %lld bytes for %lld elements of %s", name, (long long)(end - begin),
                       (long long)t->count, dtype);
    void *to = malloc((size_t)t->count * 4 + 4);
    if (!to)
        return dt_fail(err, DT_E_NOMEM, "%s: cannot allocate", name);
    if (dtype[0] == 'I')
        t->integers = to;
    else
        t->values = to;
    for (int64_t i = 0; i < t->count; i++) {
        const unsigned char *from = data + begin + (size_t)i * size;
        if (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0) {
            memcpy((char *)to + 4 * i, from, 4);
        } else if (strcmp(dtype, "BF16") == 0) {
            uint16_t h;
            memcpy(&h, from, 2);
            t->values[i] = dt_bf16_to_f32(h);
        } else if (strcmp(dtype, "I64") == 0) {
            int64_t x;
            memcpy(&x, from, 8);
            t->integers[i] = (int32_t)x;
        } else if (strcmp(dtype, "F64") == 0) {
            double x;
            memcpy(&x, from, 8);
            t->values[i] = (float)x;
        } else
            return dt_fail(err, DT_E_DTYPE, "%s: dtype %s", name, dtype);
    }
    return DT_OK;
}

static dt_status read_parameters(golden *g, const json_t *meta, dt_err *err)
{
    const char *op = json_string_value(json_object_get(meta, "op")),
               *text = json_string_value(json_object_get(meta, "params"));
    json_t *params = text ? json_loads(text, 0, NULL) : NULL;
    if (!op || !params) {
        json_decref(params);
        return dt_fail(err, DT_E_FORMAT, "no op or params in the metadata");
    }
    const char *activation = json_string_value(json_object_get(params, "activation"));
    snprintf(g->op, sizeof g->op, "%s", op);
    g->scale = json_number_value(json_object_get(params, "scale"));
    g->eps = json_number_value(json_object_get(params, "eps"));
    g->l2norm = json_is_true(json_object_get(params, "use_qk_l2norm_in_kernel"));
    g->zero_centered = json_is_true(json_object_get(params, "zero_centered"));
    g->silu = activation && strcmp(activation, "silu") == 0;
    json_decref(params);
    return DT_OK;
}

static dt_status read_file(unsigned char **data, size_t *length, const char *path, dt_err *err)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return dt_fail(err, DT_E_IO, "%s: cannot open", path);
    fseek(f, 0, SEEK_END);
    *length = (size_t)ftell(f);
    rewind(f);
    *data = malloc(*length + 1);
    bool good = *data && fread(*data, 1, *length, f) == *length;
    fclose(f);
    return good ? DT_OK : dt_fail(err, DT_E_IO, "%s: cannot read", path);
}

dt_status golden_load(golden *out, const char *path, dt_err *err)
{
    unsigned char *data = NULL;
    size_t length = 0;
    uint64_t header = 0;
    json_t *root = NULL;
    memset(out, 0, sizeof *out);
    const char *base = strrchr(path, '/');
    snprintf(out->name, sizeof out->name, "%s", base ? base + 1 : path);
    char *dot = strstr(out->name, ".safetensors");
    if (dot)
        *dot = 0;
    dt_status st = read_file(&data, &length, path, err);
    if (st == DT_OK && length >= 8)
        memcpy(&header, data, 8);
    if (st == DT_OK && (length < 8 || header > length - 8))
        st = dt_fail(err, DT_E_FORMAT, "%s: not a safetensors file", path);
    if (st == DT_OK && !(root = json_loadb((const char *)data + 8, (size_t)header, 0, NULL)))
        st = dt_fail(err, DT_E_FORMAT, "%s: the header is not JSON", path);
    if (st == DT_OK)
        st = read_parameters(out, json_object_get(root, "__metadata__"), err);
    const char *name;
    json_t *entry;
    if (st == DT_OK)
        json_object_foreach(root, name, entry) if (st == DT_OK && strcmp(name, "__metadata__") != 0) st =
            out->count < 32 ? read_tensor(&out->tensors[out->count++], name, entry, data + 8 + header,
                                          length - 8 - (size_t)header, err)
                            : dt_fail(err, DT_E_FORMAT, "too many tensors");
    json_decref(root);
    free(data);
    if (st != DT_OK)
        golden_free(out);
    return st == DT_OK ? st : dt_err_prefix(err, "%s: ", path);
}

void golden_free(golden *g)
{
    for (int i = 0; i < g->count; i++) {
        free(g->tensors[i].values);
        free(g->tensors[i].integers);
    }
    g->count = 0;
}

const golden_tensor *golden_find(const golden *g, const char *name)
{
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}
