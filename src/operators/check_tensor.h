/* Helpers of the contracts: one line per rule, and an error text that names operator, tensor, found and expected. */
#ifndef DT_OPERATORS_CHECK_TENSOR_H
#define DT_OPERATORS_CHECK_TENSOR_H

#include "operators/contract.h"

/* The call being checked. The first fault is kept in err; later checks do nothing. */
typedef struct dt_check {
    const char *op;
    const dt_exec *exec;
    dt_phase phase;
    dt_dtype activation; /* set by the first activation tensor; the others must agree */
    dt_status status;
    dt_err *err;
} dt_check;

enum { DT_ANY = -1 }; /* an extent that is not constrained */

/* Which dtypes a tensor may have. */
typedef enum dt_kind { DT_KIND_ACTIVATION, DT_KIND_WEIGHT, DT_KIND_F32, DT_KIND_I32 } dt_kind;

/* A tensor of the given rank and extents (DT_ANY: free). In DT_PHASE_SIZE the data pointer may be NULL. */
void dtp_check_tensor(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, int rank, const int64_t *extent);
/* Same shape as `like`, which is named in the error. */
void dtp_check_like(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, const char *like_name,
                    const dt_tensor *like);
/* As dtp_check_like / dtp_check_tensor, but absent (data == NULL) is fine. */
void dtp_check_optional(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, int rank,
                        const int64_t *extent);
/* Rank 2 or 3 (rows first). */
void dtp_check_rows(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind);
/* Boundaries: 0 = first <= ... <= last = T, T <= T_cap, and `rows` of the tensors == T_cap. */
void dtp_check_seqs(dt_check *c, const char *name, const dt_seqs *s, int64_t rows);
void dtp_check_used_rows(dt_check *c, int64_t T, int64_t rows);
/* Any other rule: dtp_check_that(c, holds, status, format, ...). A macro, so that a rule that holds costs its condition
 * only: checks are on the way into every call. */
#define dtp_check_that(c, holds, ...) ((holds) ? (void)0 : dtp_check_failed(c, __VA_ARGS__))
void dtp_check_failed(dt_check *c, dt_status status, const char *format, ...) DT_PRINTF(3, 4);

#define DT_EXTENT(...)    ((const int64_t[]){__VA_ARGS__})
#define DT_2D(a, b)       2, DT_EXTENT(a, b)
#define DT_1D(a)          1, DT_EXTENT(a)
#define DT_3D(a, b, c)    3, DT_EXTENT(a, b, c)
#define DT_4D(a, b, c, d) 4, DT_EXTENT(a, b, c, d)

#endif
