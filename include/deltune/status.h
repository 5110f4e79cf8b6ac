/* Status codes and error text: how every deltune function reports failure.
 *
 * Functions return dt_status: DT_OK (0) or a negative DT_E_* code. The place that first detects a
 * fault writes one line into dt_err that says what, where and what to do; callers may put context
 * in front of it (dt_err_prefix) but never log it again. Outputs are set only on success.
 * Not for: logging (log goes through src/core/log.h). */
#ifndef DELTUNE_STATUS_H
#define DELTUNE_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DT_API                          __attribute__((visibility("default")))
#define DT_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define DT_API
#define DT_PRINTF(fmt_index, first_arg)
#endif

typedef enum dt_status {
    DT_OK = 0,
    DT_E_ARG = -1,         /* a caller's argument is out of its documented range */
    DT_E_SHAPE = -2,       /* tensor shapes disagree */
    DT_E_DTYPE = -3,       /* a dtype is not allowed there */
    DT_E_NOMEM = -4,       /* memory of host or device is exhausted */
    DT_E_IO = -5,          /* the operating system refused a file operation (errno is in the text) */
    DT_E_FORMAT = -6,      /* foreign bytes (safetensors, JSON, a data row) break their format */
    DT_E_UNSUPPORTED = -7, /* well formed, but not implemented here */
    DT_E_UNAVAILABLE = -8, /* a provider or device cannot run on this machine */
    DT_E_NONFINITE = -9,   /* a NaN or infinity where training must stop */
    DT_E_BUSY = -10,       /* still in use (unload of a provider with live handles) */
    DT_E_CANCELLED = -11,  /* the user asked to stop (SIGINT, SIGTERM) */
    DT_E_INTERNAL = -12    /* a broken promise of our own code: please report it */
} dt_status;

#define DT_ERR_TEXT 1024

/* Filled on failure. Zero-initialise it (`dt_err err = {0};`). Every `dt_err *` parameter may be NULL. */
typedef struct dt_err {
    dt_status status;
    char text[DT_ERR_TEXT]; /* one line, UTF-8, NUL-terminated, cut at a character boundary when too long */
} dt_err;

/* Writes the text and returns `status`, so that a failing branch is one line:
 *     return dt_fail(err, DT_E_SHAPE, "%s: q has %lld heads, k has %lld", where, a, b); */
DT_API dt_status dt_fail(dt_err *err, dt_status status, const char *format, ...) DT_PRINTF(3, 4);

/* Puts context in front of an existing text ("FILE: " ...); returns err's status (DT_E_INTERNAL when err is NULL). */
DT_API dt_status dt_err_prefix(dt_err *err, const char *format, ...) DT_PRINTF(2, 3);

/* "DT_E_SHAPE" and the like; never NULL. */
DT_API const char *dt_status_name(dt_status status);

#ifdef __cplusplus
}
#endif
#endif
