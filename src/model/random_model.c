#include "model/random_model.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/philox.h"
#include "model/catalogue.h"
#include "model/companions.h"
#include "model/safetensors.h"
#include "model/widen.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 14, BLOCKS = 256 }; /* elements of a parallel block, blocks between two writes */

enum { LEVELS = 1 << 16 };

typedef enum { NORMAL, ONES, ZEROS, LOG_UNIFORM, KINDS } kind;

typedef struct {
    char name[DT_MAX_NAME];
    dt_weight_info info;
    uint32_t number;
} entry;

typedef struct {
    const dt_random_model_options *options;
    dt_dtype dtype;
    float range;
    entry *entry;
    dt_st_spec *spec;
    size_t n;
    uint64_t done, total;
    unsigned char *out;     /* BLOCKS * BLOCK elements */
    float (*table)[LEVELS]; /* [KINDS] the values a 16-bit number stands for */
} generator;

static kind kind_of(const dt_weight_info *info)
{
    switch (info->id) {
    case DT_W_GATED_NORM:
    case DT_W_DT_BIAS: return ONES;
    case DT_W_A_LOG: return LOG_UNIFORM;
    default: return info->rank == 1 ? ZEROS : NORMAL;
    }
}

/* Quantiles of the normal distribution at (i + 1/2) / 65536, in units of `range`: by Newton's method from the middle
 * outwards, each from its neighbour. */
static void make_quantiles(float *out, float range)
{
    const double pi = 3.14159265358979323846;
    double x = 0;
    for (int i = LEVELS / 2; i < LEVELS; i++) {
        const double upper = 1 - (i + 0.5) / LEVELS; /* the probability to be above x */
        for (int step = 0; step < 6; step++)
            x += (0.5 * erfc(x / sqrt(2)) - upper) * sqrt(2 * pi) * exp(0.5 * x * x);
        out[i] = (float)(range * x);
        out[LEVELS - 1 - i] = -out[i];
    }
}

static void make_log_uniform(float *out)
{
    for (int i = 0; i < LEVELS; i++)
        out[i] = (float)log(16 * (i + 0.5) / LEVELS);
}

static void make_tables(generator *g)
{
    make_quantiles(g->table[NORMAL], g->range);
    make_log_uniform(g->table[LOG_UNIFORM]);
    for (int i = 0; i < LEVELS; i++)
        g->table[ONES][i] = 1; /* ZEROS is zero as it is */
}

static void fill_block(const generator *g, const entry *e, int64_t first, int64_t n, void *to)
{
    const float *table = g->table[kind_of(&e->info)];
    const uint32_t tag = 0x494e4954u; /* "INIT" */
    float values[BLOCK];
    for (int64_t i = 0; i < n; i += 8) {
        const uint64_t at = (uint64_t)(first + i) / 8;
        const dt_philox_block r = dt_philox(g->options->seed, (uint32_t)at, e->number, (uint32_t)(at >> 32), tag);
        for (int k = 0; k < 4; k++) { /* BLOCK is a multiple of 8 */
            values[i + 2 * k] = table[r.word[k] & 0xffff];
            values[i + 2 * k + 1] = table[r.word[k] >> 16];
        }
    }
    dtp_narrow(to, g->dtype, values, (size_t)n);
}

static dt_status emit(void *user, size_t index, dt_st_sink *sink, dt_err *err)
{
    generator *g = user;
    const entry *e = &g->entry[index];
    const int64_t count = dtp_weight_count(&e->info), stride = (int64_t)BLOCKS * BLOCK;
    const size_t element = dt_dtype_size(g->dtype);
    dt_status status = DT_OK;
    for (int64_t from = 0; status == DT_OK && from < count; from += stride) {
        const int64_t n = count - from < stride ? count - from : stride;
#pragma omp parallel for schedule(dynamic)
        for (int64_t block = 0; block < (n + BLOCK - 1) / BLOCK; block++) {
            const int64_t at = block * BLOCK;
            fill_block(g, e, from + at, n - at < BLOCK ? n - at : BLOCK, g->out + (size_t)at * element);
        }
        status = dtp_st_put(sink, g->out, (size_t)n * element, err);
        g->done += (uint64_t)n * element;
        if (g->options->progress)
            g->options->progress(g->options->user, g->done, g->total);
        if (status == DT_OK && g->options->stop && g->options->stop())
            status = dt_fail(err, DT_E_CANCELLED, "%s: stopped; nothing of it is left", g->options->folder);
    }
    return status;
}

static void add(generator *g, const dt_model_config *c, int64_t layer, const dt_weight_info *info, int64_t number)
{
    entry *e = &g->entry[g->n];
    dtp_tensor_name(e->name, c, layer, info);
    e->info = *info;
    e->number = (uint32_t)number;
    dt_st_spec *s = &g->spec[g->n++];
    *s = (dt_st_spec){.name = e->name, .dtype = dt_dtype_name(g->dtype), .rank = info->rank};
    memcpy(s->shape, info->shape, sizeof info->shape);
    g->total += (uint64_t)dtp_weight_count(info) * dt_dtype_size(g->dtype);
}

static void list_tensors(generator *g, const dt_model_config *c)
{
    dt_weight_info outer[3], info[DT_MAX_LAYER_TENSORS];
    const int n_outer = dtp_outer_tensors(c, outer);
    for (int i = 0; i < n_outer; i++)
        add(g, c, -1, &outer[i], c->layers * DT_LAYER_WEIGHTS + i);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int modules, n = dtp_layer_tensors(c, layer, info, &modules);
        for (int i = 0; i < n; i++)
            add(g, c, layer, &info[i], layer * DT_LAYER_WEIGHTS + info[i].id);
    }
}

static dt_status write_folder(generator *g, const char *folder, dt_err *err)
{
    char *config = dtp_path_join(folder, "config.json");
    dt_status status =
        config ? dtp_make_folders(folder, err) : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    if (status == DT_OK && g->options->tokenizer)
        status = dtp_copy_companions(g->options->tokenizer, folder, err);
    if (status == DT_OK)
        status = dtp_st_write_sharded(folder, g->spec, g->n, g->options->max_shard_bytes, emit, g, err);
    if (status == DT_OK)
        status = dtp_copy_file(g->options->config, config, err);
    free(config);
    return status;
}

/* Everything goes to a folder beside the final one, which then gets its name. */
static dt_status write_whole(generator *g, dt_err *err)
{
    const char *folder = g->options->folder;
    char *part = dtp_format("%s.part-%ld", folder, (long)getpid());
    if (!part)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    dt_status status = write_folder(g, part, err);
    if (status == DT_OK && rename(part, folder) != 0)
        status = dt_fail(err, DT_E_IO, "%s: cannot rename %s to it: %s", folder, part, strerror(errno));
    if (status != DT_OK)
        dtp_remove_tree(part, NULL);
    free(part);
    return status;
}

dt_status dtp_random_model(const dt_random_model_options *o, dt_err *err)
{
    dt_model_config *c;
    if (dtp_file_exists(o->folder) || dtp_is_folder(o->folder))
        return dt_fail(err, DT_E_ARG, "%s: exists already; name a new folder", o->folder);
    dt_status status = dtp_config_load(&c, o->config, err);
    if (status != DT_OK)
        return status;
    generator g = {.options = o, .dtype = c->dtype ? c->dtype : DT_BF16, .range = (float)c->initializer_range};
    const size_t most = (size_t)c->layers * DT_MAX_LAYER_TENSORS + 3;
    g.entry = dtp_calloc(most, sizeof *g.entry);
    g.spec = dtp_calloc(most, sizeof *g.spec);
    g.out = dtp_calloc((size_t)BLOCKS * BLOCK, sizeof(float));
    g.table = dtp_calloc(KINDS, sizeof *g.table);
    if (!g.entry || !g.spec || !g.out || !g.table) {
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory to make a random model", o->folder);
    } else {
        make_tables(&g);
        list_tensors(&g, c);
        status = write_whole(&g, err);
    }
    free(g.entry);
    free(g.spec);
    free(g.out);
    free(g.table);
    dtp_config_free(c);
    return status;
}
