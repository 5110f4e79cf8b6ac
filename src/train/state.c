#include "train/state.h"

#include "core/file.h"
#include "core/memory.h"
#include "model/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "deltune-training-state-1";
enum { groups = 3, chunk = 1 << 18 }; /* param, exp_avg, exp_avg_sq; elements copied from the device at a time */
static const char *const group_names[groups] = {"param", "exp_avg", "exp_avg_sq"};

static float *group_data(const dt_trainable *t, int group)
{
    return group == 0 ? t->param : group == 1 ? t->m : t->v;
}

/* ------------------------------------------------------------------ fields as text */

typedef struct dt_field {
    const char *name;
    size_t offset;
    bool real;
} dt_field;

static const dt_field fields[] = {
#define DT_STATE_I                 false
#define DT_STATE_D                 true
#define DT_STATE_FIELD(kind, name) {#name, offsetof(dt_train_state, name), DT_STATE_##kind},
    DT_TRAIN_STATE_FIELDS(DT_STATE_FIELD)
#undef DT_STATE_FIELD
#undef DT_STATE_I
#undef DT_STATE_D
};
enum { n_fields = sizeof fields / sizeof fields[0] };

static void field_text(char out[40], const dt_train_state *state, const dt_field *field)
{
    const char *at = (const char *)state + field->offset;
    if (field->real)
        snprintf(out, 40, "%.17g", *(const double *)(const void *)at);
    else
        snprintf(out, 40, "%lld", (long long)*(const int64_t *)(const void *)at);
}

static dt_status read_fields(dt_train_state *out, const dt_st *file, dt_err *err)
{
    const char *format = dtp_st_metadata(file, "format");
    if (!format || strcmp(format, format_name) != 0)
        return dt_fail(err, DT_E_FORMAT, "%s: format is \"%s\", expected \"%s\"", dtp_st_path(file),
                       format ? format : "", format_name);
    for (int i = 0; i < n_fields; i++) {
        const char *text = dtp_st_metadata(file, fields[i].name);
        char *at = (char *)out + fields[i].offset, *end = NULL;
        errno = 0;
        if (!text && strcmp(fields[i].name, "data_digest") == 0) /* younger than the format */
            continue;
        if (text && fields[i].real)
            *(double *)(void *)at = strtod(text, &end);
        else if (text)
            *(int64_t *)(void *)at = strtoll(text, &end, 10);
        if (!text || end == text || *end || (errno && !fields[i].real))
            return dt_fail(err, DT_E_FORMAT, "%s: metadata \"%s\" is missing or not a number", dtp_st_path(file),
                           fields[i].name);
    }
    return DT_OK;
}

/* ------------------------------------------------------------------ saving */

typedef struct dt_emitter {
    dt_exec *exec;
    const dt_trainable *trainable;
    float *buffer;
} dt_emitter;

static dt_status emit(void *user, size_t index, dt_st_sink *sink, dt_err *err)
{
    dt_emitter *e = user;
    const dt_param_segment *segment = &e->trainable->segments[index / groups];
    const float *from = group_data(e->trainable, (int)(index % groups)) + segment->offset;
    dt_status st = DT_OK;
    for (int64_t done = 0; done < segment->count && st == DT_OK; done += chunk) {
        int64_t n = segment->count - done < chunk ? segment->count - done : chunk;
        st = dt_exec_download(e->exec, e->buffer, from + done, (size_t)n * sizeof(float), err);
        if (st == DT_OK)
            st = dtp_st_put(sink, e->buffer, (size_t)n * sizeof(float), err);
    }
    return st;
}

static char *tensor_name(const dt_trainable *t, size_t index)
{
    return dtp_format("%s/%s", group_names[index % groups], t->names[index / groups]);
}

dt_status dtp_state_save(const dt_train_state *state, dt_exec *exec, const dt_trainable *trainable, const char *folder,
                         dt_err *err)
{
    size_t n = (size_t)trainable->n_segments * groups;
    dt_st_spec *specs = dtp_calloc(n, sizeof *specs);
    dt_emitter emitter = {exec, trainable, dtp_calloc(chunk, sizeof(float))};
    char *path = dtp_path_join(folder, DT_STATE_FILE), texts[n_fields][40];
    dt_st_meta meta[1 + n_fields] = {{"format", format_name}};
    for (int i = 0; i < n_fields; i++) {
        field_text(texts[i], state, &fields[i]);
        meta[1 + i] = (dt_st_meta){fields[i].name, texts[i]};
    }
    bool complete = specs && emitter.buffer && path;
    for (size_t i = 0; i < n && complete; i++) {
        specs[i] = (dt_st_spec){.name = tensor_name(trainable, i),
                                .dtype = "F32",
                                .rank = 1,
                                .shape = {trainable->segments[i / groups].count}};
        complete = specs[i].name != NULL;
    }
    dt_status st = complete ? dtp_st_write(path, specs, n, meta, 1 + n_fields, emit, &emitter, err)
                            : dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    for (size_t i = 0; specs && i < n; i++)
        free((void *)(uintptr_t)specs[i].name);
    free(specs);
    free(emitter.buffer);
    free(path);
    return st;
}

/* ------------------------------------------------------------------ loading */

/* All tensors are there with the right size, and no others. */
static dt_status check_tensors(const dt_st *file, const dt_trainable *t, dt_err *err)
{
    if (dtp_st_count(file) != (size_t)t->n_segments * groups)
        return dt_fail(err, DT_E_FORMAT, "%s: holds %zu tensors, this model and tuner have %zu", dtp_st_path(file),
                       dtp_st_count(file), (size_t)t->n_segments * groups);
    for (size_t i = 0; i < (size_t)t->n_segments * groups; i++) {
        char *name = tensor_name(t, i);
        const dt_st_tensor *tensor = name ? dtp_st_find(file, name) : NULL;
        int64_t count = t->segments[i / groups].count;
        dt_status st = DT_OK;
        if (!name)
            st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", dtp_st_path(file));
        else if (!tensor)
            st = dt_fail(err, DT_E_FORMAT, "%s: no tensor %s; the checkpoint belongs to another model or tuner",
                         dtp_st_path(file), name);
        else if (tensor->dtype != DT_F32 || tensor->rank != 1 || tensor->shape[0] != count)
            st = dt_fail(err, DT_E_FORMAT, "%s: %s is %s with %lld elements, expected F32 with %lld", dtp_st_path(file),
                         name, tensor->dtype_name, (long long)(tensor->bytes / sizeof(float)), (long long)count);
        free(name);
        if (st != DT_OK)
            return st;
    }
    return DT_OK;
}

static dt_status upload(dt_exec *exec, const dt_st *file, const dt_trainable *t, dt_err *err)
{
    dt_status st = check_tensors(file, t, err);
    for (size_t i = 0; i < (size_t)t->n_segments * groups && st == DT_OK; i++) {
        char *name = tensor_name(t, i);
        const dt_st_tensor *tensor = name ? dtp_st_find(file, name) : NULL;
        st = tensor ? dt_exec_upload(exec, group_data(t, (int)(i % groups)) + t->segments[i / groups].offset,
                                     tensor->data, tensor->bytes, err)
                    : dt_fail(err, DT_E_NOMEM, "%s: out of memory", dtp_st_path(file));
        free(name);
    }
    return st == DT_OK ? dt_exec_synchronize(exec, err) : st;
}

dt_status dtp_state_load(dt_train_state *state, dt_exec *exec, const dt_trainable *trainable, const char *folder,
                         dt_err *err)
{
    char *path = dtp_path_join(folder, DT_STATE_FILE);
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    dt_st *file = NULL;
    dt_train_state read = {0};
    dt_status st = dtp_st_open(&file, path, err);
    if (st == DT_OK)
        st = read_fields(&read, file, err);
    if (st == DT_OK)
        st = upload(exec, file, trainable, err);
    if (st == DT_OK)
        *state = read;
    dtp_st_close(file);
    free(path);
    return st;
}
