#include "model/checkpoint.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX_BYTES = 64 << 20 };

struct dt_checkpoint {
    dt_st **file;
    char **file_name;
    size_t n_files;
    dt_stored *tensor;  /* file by file */
    dt_stored *by_name; /* the same, sorted */
    size_t n_tensors;
};

static dt_status add_file(dt_checkpoint *c, const char *folder, const char *name, dt_err *err)
{
    dt_st **files = dtp_realloc_array(c->file, c->n_files + 1, sizeof *files);
    if (files)
        c->file = files;
    char **names = dtp_realloc_array(c->file_name, c->n_files + 1, sizeof *names);
    if (names)
        c->file_name = names;
    char *path = dtp_path_join(folder, name), *copy = dtp_strdup(name);
    if (!files || !names || !path || !copy) {
        free(path);
        free(copy);
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for the list of weight files", folder);
    }
    dt_status status = dtp_st_open(&c->file[c->n_files], path, err);
    free(path);
    if (status != DT_OK) {
        free(copy);
        return status;
    }
    c->file_name[c->n_files++] = copy;
    return DT_OK;
}

static dt_st *file_named(const dt_checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->n_files; i++)
        if (!strcmp(c->file_name[i], name))
            return c->file[i];
    return NULL;
}

/* Opens each file of the weight map once; every tensor it names must be there. */
static dt_status read_weight_map(dt_checkpoint *c, const char *folder, const char *index_path, json_t *map, dt_err *err)
{
    if (!json_is_object(map))
        return dt_fail(err, DT_E_FORMAT, "%s: weight_map: expected an object, found none", index_path);
    for (void *i = json_object_iter(map); i; i = json_object_iter_next(map, i)) {
        const char *tensor = json_object_iter_key(i), *name = json_string_value(json_object_iter_value(i));
        if (!name || !name[0] || name[0] == '.' || strchr(name, '/'))
            return dt_fail(err, DT_E_FORMAT, "%s: weight_map.%s: expected the name of a file in this folder, found %s",
                           index_path, tensor, name ? name : "something else");
        dt_status status = file_named(c, name) ? DT_OK : add_file(c, folder, name, err);
        if (status != DT_OK)
            return status;
        if (!dtp_st_find(file_named(c, name), tensor))
            return dt_fail(err, DT_E_FORMAT, "%s: weight_map says tensor %s is in %s, but it is not there", index_path,
                           tensor, name);
    }
    return DT_OK;
}

static int compare_names(const void *a, const void *b)
{
    const dt_stored *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* map NULL: every tensor of the one file. */
static dt_status list_tensors(dt_checkpoint *c, const json_t *map, dt_err *err)
{
    size_t n = 0, unlisted = 0;
    for (size_t f = 0; f < c->n_files; f++)
        n += dtp_st_count(c->file[f]);
    c->tensor = dtp_calloc(n ? n : 1, sizeof *c->tensor);
    c->by_name = dtp_calloc(n ? n : 1, sizeof *c->by_name);
    if (!c->tensor || !c->by_name)
        return dt_fail(err, DT_E_NOMEM, "no memory for a list of %zu tensors", n);
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < dtp_st_count(c->file[f]); i++) {
            const dt_st_tensor *t = dtp_st_at(c->file[f], i);
            const char *home = map ? json_string_value(json_object_get(map, t->name)) : c->file_name[f];
            if (home && !strcmp(home, c->file_name[f]))
                c->tensor[c->n_tensors++] = (dt_stored){c->file[f], t};
            else
                unlisted++;
        }
    memcpy(c->by_name, c->tensor, c->n_tensors * sizeof *c->tensor);
    qsort(c->by_name, c->n_tensors, sizeof *c->by_name, compare_names);
    if (unlisted)
        dt_warning("%s and its fellows hold %zu tensors that the weight index does not assign to them: ignored",
                   dtp_st_path(c->file[0]), unlisted);
    return DT_OK;
}

static dt_status open_index(dt_checkpoint *c, const char *folder, const char *index_path, dt_err *err)
{
    json_t *index;
    dt_status status = dtp_json_load(&index, index_path, MAX_INDEX_BYTES, err);
    if (status != DT_OK)
        return status;
    json_t *map = json_object_get(index, "weight_map");
    status = read_weight_map(c, folder, index_path, map, err);
    if (status == DT_OK)
        status = list_tensors(c, map, err);
    json_decref(index);
    return status;
}

dt_status dtp_checkpoint_open(dt_checkpoint **out, const char *folder, dt_err *err)
{
    dt_checkpoint *c = dtp_calloc(1, sizeof *c);
    char *single = dtp_path_join(folder, "model.safetensors");
    char *index = dtp_path_join(folder, "model.safetensors.index.json");
    dt_status status;
    if (!c || !single || !index)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory to open the checkpoint", folder);
    else if (dtp_file_exists(single)) {
        status = add_file(c, folder, "model.safetensors", err);
        if (status == DT_OK)
            status = list_tensors(c, NULL, err);
    } else if (dtp_file_exists(index)) {
        status = open_index(c, folder, index, err);
    } else {
        status =
            dt_fail(err, DT_E_IO, "%s: neither model.safetensors nor model.safetensors.index.json is there", folder);
    }
    free(single);
    free(index);
    if (status != DT_OK) {
        dtp_checkpoint_close(c);
        return status;
    }
    *out = c;
    return DT_OK;
}

void dtp_checkpoint_close(dt_checkpoint *c)
{
    if (!c)
        return;
    for (size_t f = 0; f < c->n_files; f++) {
        dtp_st_close(c->file[f]);
        free(c->file_name[f]);
    }
    free(c->file);
    free(c->file_name);
    free(c->tensor);
    free(c->by_name);
    free(c);
}

size_t dtp_checkpoint_count(const dt_checkpoint *c)
{
    return c->n_tensors;
}
dt_stored dtp_checkpoint_at(const dt_checkpoint *c, size_t index)
{
    return c->tensor[index];
}
size_t dtp_checkpoint_files(const dt_checkpoint *c)
{
    return c->n_files;
}

dt_stored dtp_checkpoint_find(const dt_checkpoint *c, const char *name)
{
    const dt_st_tensor key_tensor = {.name = name};
    const dt_stored key = {NULL, &key_tensor};
    const dt_stored *found = bsearch(&key, c->by_name, c->n_tensors, sizeof key, compare_names);
    return found ? *found : (dt_stored){NULL, NULL};
}
