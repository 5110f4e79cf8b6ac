/* Safetensors files: a read-only map that is checked before anything in it is used, and a streaming writer.
 *
 * Layout of a file: u64 little-endian header length, JSON header (name -> dtype, shape, data_offsets relative to the
 * end of the header; optional __metadata__ of string -> string), raw little-endian data. A file is refused, with its
 * path and the tensor's name, when the header is longer than the file, tensors overlap, leave holes, end outside the
 * file, appear twice, have an unknown dtype, or a shape whose size is not that of their bytes.
 *
 * Not for: what the tensors mean (model/store.h), or which files make up a checkpoint (model/checkpoint.h). */
#ifndef DT_MODEL_SAFETENSORS_H
#define DT_MODEL_SAFETENSORS_H

#include <deltune/tensor.h>

enum { DT_ST_MAX_RANK = 8 };

/* ---- reading ---- */

typedef struct dt_st dt_st;

/* Everything in here is borrowed from the file and lives until dtp_st_close. */
typedef struct dt_st_tensor {
    const char *name;
    const char *dtype_name; /* as in the file: "BF16", "F32", "I8", ... */
    dt_dtype dtype;         /* DT_NONE for a known dtype that dt_dtype does not have (I8, F8_E4M3, ...) */
    int32_t rank;
    int64_t shape[DT_ST_MAX_RANK];
    const void *data; /* may be unaligned for its dtype: see dtp_st_view */
    size_t bytes;
} dt_st_tensor;

/* Errors: DT_E_IO, DT_E_FORMAT (all breaches above), DT_E_NOMEM. */
dt_status dtp_st_open(dt_st **out, const char *path, dt_err *err);
/* The same on bytes in memory, borrowed until close; `where` names them in errors. */
dt_status dtp_st_open_memory(dt_st **out, const void *bytes, size_t length, const char *where, dt_err *err);
void dtp_st_close(dt_st *st); /* accepts NULL */

const char *dtp_st_path(const dt_st *st);
size_t dtp_st_count(const dt_st *st);
const dt_st_tensor *dtp_st_at(const dt_st *st, size_t index); /* in file order, index < count */
/* NULL when there is none. */
const dt_st_tensor *dtp_st_find(const dt_st *st, const char *name);
/* Value of a __metadata__ key, or NULL. */
const char *dtp_st_metadata(const dt_st *st, const char *key);

/* A dt_tensor over the mapped bytes (which must not be written).
 * Errors: DT_E_DTYPE for a dtype dt_dtype lacks, DT_E_SHAPE for rank > DT_MAX_RANK, DT_E_FORMAT when the bytes are not
 * aligned for their dtype (a header whose length is no multiple of 8). */
dt_status dtp_st_view(const dt_st *st, const dt_st_tensor *tensor, dt_tensor *view_out, dt_err *err);
/* Finds and views in one; a missing name is DT_E_FORMAT. Rank 0 becomes [1]. */
dt_status dtp_st_get(const dt_st *st, const char *name, dt_tensor *view_out, dt_err *err);

/* ---- writing ---- */

typedef struct dt_st_spec {
    const char *name;
    const char *dtype; /* as the format spells it */
    int32_t rank;
    int64_t shape[DT_ST_MAX_RANK];
    const void *data; /* the bytes, or NULL: the emit function gives them */
} dt_st_spec;

typedef struct dt_st_meta {
    const char *key, *value;
} dt_st_meta;

/* Where an emit function puts the bytes of the tensor it was called for, in any number of pieces. */
typedef struct dt_st_sink dt_st_sink;
dt_status dtp_st_put(dt_st_sink *sink, const void *bytes, size_t length, dt_err *err);
/* Called once per spec without data, in file order (not spec order): the bytes of specs[index]. */
typedef dt_status (*dt_st_emit)(void *user, size_t index, dt_st_sink *sink, dt_err *err);

/* Bytes of one tensor. Errors: DT_E_FORMAT for an unknown dtype or a size beyond 2^63. */
dt_status dtp_st_spec_bytes(const dt_st_spec *spec, uint64_t *bytes_out, dt_err *err);

/* Writes PATH whole or not at all. Tensors are laid out by element size, largest first, then by name, so that each is
 * aligned for its dtype. `meta` may be NULL: {"format": "pt"}. */
dt_status dtp_st_write(const char *path, const dt_st_spec *specs, size_t n, const dt_st_meta *meta, size_t n_meta,
                       dt_st_emit emit, void *user, dt_err *err);

/* Writes a checkpoint folder's weights: FOLDER/model.safetensors when everything fits into max_shard_bytes, else
 * model-0000i-of-0000n.safetensors and, last, model.safetensors.index.json. Specs fill shards in their order; one
 * tensor larger than the limit gets a shard of its own. The folder must exist; weights of the other form (one file, or
 * an index) that an earlier save left there are removed at the end. */
dt_status dtp_st_write_sharded(const char *folder, const dt_st_spec *specs, size_t n, uint64_t max_shard_bytes,
                               dt_st_emit emit, void *user, dt_err *err);

/* ---- dtypes of the format ---- */

/* Bytes of one element by the format's name, 0 when unknown (sub-byte types are unknown here). */
size_t dtp_st_dtype_size(const char *dtype_name);
/* DT_NONE when dt_dtype has no such type. */
dt_dtype dtp_st_dtype(const char *dtype_name);

#endif
