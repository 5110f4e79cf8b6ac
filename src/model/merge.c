#include "model/merge.h"
#include "core/file.h"
#include "core/memory.h"
#include "model/companions.h"
#include "model/lora.h"
#include "model/save.h"
#include "model/widen.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The float that keeps the sticky bit of x: rounding it again to a shorter format equals rounding x once. */
static float round_to_odd(double x)
{
    union {
        float f;
        uint32_t u;
    } v = {(float)x};
    const double back = v.f;
    if (back != x && x == x && back - back == 0) {
        if ((back > x) == (x > 0)) /* away from zero: one step back */
            v.u--;
        v.u |= 1;
    }
    return v.f;
}

void dtp_merge_rows(void *out, const void *w, dt_dtype dtype, int64_t rows, int64_t in, const float *b, const float *a,
                    int64_t rank, double scale)
{
    enum { COLUMNS = 512 }; /* sums of a piece of a row stay in the first cache */
    const size_t element = dt_dtype_size(dtype);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t from = 0; from < in; from += COLUMNS) {
            const int64_t n = in - from < COLUMNS ? in - from : COLUMNS;
            const size_t at = (size_t)(row * in + from) * element;
            double sum[COLUMNS] = {0};
            float piece[COLUMNS];
            for (int64_t r = 0; r < rank; r++) {
                const double factor = (double)b[row * rank + r];
                for (int64_t i = 0; i < n; i++)
                    sum[i] += factor * (double)a[r * in + from + i];
            }
            dtp_widen(piece, (const char *)w + at, dtype, (size_t)n);
            for (int64_t i = 0; i < n; i++) {
                const double value = piece[i] + scale * sum[i];
                piece[i] = dtype == DT_F32 ? (float)value : round_to_odd(value);
            }
            dtp_narrow((char *)out + at, dtype, piece, (size_t)n);
        }
}

/* ---- a whole model ---- */

typedef struct {
    const dt_merge_options *options;
    dt_model_config *config;
    dt_checkpoint *checkpoint;
    dt_lora *lora;
    float *a, *b;
    unsigned char *out;
    int64_t done;
} merge;

/* Which adapted module a tensor is the weight of. */
static bool find_module(const merge *m, const char *name, int64_t *layer_out, int *index_out, dt_weight_info *info_out)
{
    const char *prefix = dtp_config_prefix(m->config);
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || strncmp(name + n, "layers.", 7) != 0)
        return false;
    const long layer = strtol(name + n + 7, NULL, 10);
    if (layer < 0 || layer >= m->config->layers)
        return false;
    dt_weight_info info[DT_MAX_LAYER_TENSORS];
    int modules;
    dtp_layer_tensors(m->config, layer, info, &modules);
    for (int i = 0; i < modules; i++) {
        char own[DT_MAX_NAME];
        dtp_tensor_name(own, m->config, layer, &info[i]);
        if (!strcmp(own, name) && dtp_lora_targets(m->lora, layer, i)) {
            *layer_out = layer;
            *index_out = i;
            *info_out = info[i];
            return true;
        }
    }
    return false;
}

static bool covers(void *user, const char *name)
{
    int64_t layer;
    int index;
    dt_weight_info info;
    return find_module(user, name, &layer, &index, &info);
}

static dt_status emit(void *user, dt_stored stored, dt_st_sink *sink, dt_err *err)
{
    merge *m = user;
    const dt_st_tensor *t = stored.tensor;
    int64_t layer;
    int index;
    dt_weight_info info;
    if (!find_module(m, t->name, &layer, &index, &info))
        return dt_fail(err, DT_E_INTERNAL, "%s: no adapter to merge into it", t->name);
    dt_status status = dtp_lora_read(m->lora, layer, index, m->a, m->b, err);
    if (status != DT_OK)
        return status;
    dtp_merge_rows(m->out, t->data, t->dtype, info.shape[0], info.shape[1], m->b, m->a, dtp_lora_settings(m->lora).rank,
                   dtp_lora_exact_scale(m->lora));
    status = dtp_st_put(sink, m->out, t->bytes, err);
    if (m->options->progress)
        m->options->progress(m->options->user, ++m->done, dtp_lora_count(m->lora));
    return status;
}

/* Every adapted module has a weight of the right shape and a dtype that can be merged; also finds the largest sizes. */
static dt_status check_base(const merge *m, size_t *largest, int64_t *widest, dt_err *err)
{
    for (int64_t layer = 0; layer < m->config->layers; layer++) {
        dt_weight_info info[DT_MAX_LAYER_TENSORS];
        int modules;
        dtp_layer_tensors(m->config, layer, info, &modules);
        for (int i = 0; i < modules; i++) {
            char name[DT_MAX_NAME];
            if (!dtp_lora_targets(m->lora, layer, i))
                continue;
            dtp_tensor_name(name, m->config, layer, &info[i]);
            const dt_st_tensor *t = dtp_checkpoint_find(m->checkpoint, name).tensor;
            if (!t)
                return dt_fail(err, DT_E_FORMAT, "%s: tensor %s is missing", m->options->base, name);
            if (t->rank != 2 || t->shape[0] != info[i].shape[0] || t->shape[1] != info[i].shape[1])
                return dt_fail(err, DT_E_SHAPE,
                               "%s: tensor %s: config.json makes it [%lld, %lld], the file has %d "
                               "dimensions [%lld, %lld]",
                               m->options->base, name, (long long)info[i].shape[0], (long long)info[i].shape[1],
                               t->rank, (long long)t->shape[0], (long long)t->shape[1]);
            if (t->dtype != DT_BF16 && t->dtype != DT_F32 && t->dtype != DT_F16)
                return dt_fail(err, DT_E_DTYPE, "%s: tensor %s: expected BF16, F32 or F16, found %s", m->options->base,
                               name, t->dtype_name);
            *largest = t->bytes > *largest ? t->bytes : *largest;
            for (int d = 0; d < 2; d++)
                *widest = info[i].shape[d] > *widest ? info[i].shape[d] : *widest;
        }
    }
    return DT_OK;
}

static dt_status open_parts(merge *m, dt_err *err)
{
    char *config = dtp_path_join(m->options->base, "config.json");
    size_t largest = 0;
    int64_t widest = 0;
    dt_status status = config ? dtp_config_load(&m->config, config, err)
                              : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", m->options->base);
    free(config);
    if (status == DT_OK)
        status = dtp_checkpoint_open(&m->checkpoint, m->options->base, err);
    if (status == DT_OK)
        status = dtp_lora_open(&m->lora, m->config, m->options->adapter, err);
    if (status == DT_OK)
        status = check_base(m, &largest, &widest, err);
    if (status != DT_OK)
        return status;
    const size_t values = (size_t)(widest * dtp_lora_settings(m->lora).rank);
    m->a = dtp_calloc(values, sizeof *m->a);
    m->b = dtp_calloc(values, sizeof *m->b);
    m->out = dtp_calloc(largest, 1);
    return m->a && m->b && m->out ? DT_OK
                                  : dt_fail(err, DT_E_NOMEM, "no memory to merge a tensor of %zu bytes", largest);
}

/* A new folder is written beside its place and then gets its name. */
static dt_status write_folder(merge *m, dt_err *err)
{
    const dt_merge_options *o = m->options;
    const dt_replacement replacement = {covers, emit, m};
    const bool exists = dtp_is_folder(o->folder);
    if ((exists && !o->exist_ok) || (!exists && dtp_file_exists(o->folder)))
        return dt_fail(err, DT_E_ARG, "%s: exists already; name a new folder or give --exist_ok true", o->folder);
    if (exists && dtp_same_folder(o->adapter, o->folder))
        return dt_fail(err, DT_E_ARG, "%s: is the folder of the adapter, which is never overwritten", o->folder);
    if (exists)
        return dtp_save_checkpoint(m->checkpoint, o->base, o->folder, o->max_shard_bytes, &replacement, err);
    char *part = dtp_format("%s.part-%ld", o->folder, (long)getpid());
    dt_status status =
        part ? dtp_make_folders(part, err) : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", o->folder);
    if (status == DT_OK)
        status = dtp_save_checkpoint(m->checkpoint, o->base, part, o->max_shard_bytes, &replacement, err);
    if (status == DT_OK && rename(part, o->folder) != 0)
        status = dt_fail(err, DT_E_IO, "%s: cannot rename %s to it: %s", o->folder, part, strerror(errno));
    if (status != DT_OK && part)
        dtp_remove_tree(part, NULL);
    free(part);
    return status;
}

dt_status dtp_merge_adapter(const dt_merge_options *options, dt_err *err)
{
    merge m = {.options = options};
    dt_status status = open_parts(&m, err);
    if (status == DT_OK)
        status = write_folder(&m, err);
    free(m.a);
    free(m.b);
    free(m.out);
    dtp_lora_free(m.lora);
    dtp_checkpoint_close(m.checkpoint);
    dtp_config_free(m.config);
    return status;
}
