/* Host memory: overflow-checked allocation and a growable byte buffer with a hard maximum.
 * Not for: memory of a training step, which is planned once (core/arena.h) and never allocated inside a step. */
#ifndef DT_CORE_MEMORY_H
#define DT_CORE_MEMORY_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stdint.h>

/* NULL when out of memory or when count * size overflows. Freed with free(). */
void *dtp_calloc(size_t count, size_t size);
/* realloc(old, count * size) with the same checks; `old` stays valid on failure. */
void *dtp_realloc_array(void *old, size_t count, size_t size);
/* 64-byte aligned, not zeroed; freed with free(). */
void *dtp_alloc_aligned(size_t bytes);
char *dtp_strdup(const char *text);
char *dtp_strndup(const char *text, size_t n);
/* asprintf that returns NULL on failure. */
char *dtp_format(const char *format, ...) DT_PRINTF(1, 2);

/* Grows a typed array to hold `need` elements: at least doubles, so that appending is linear.
 * Usage: if (!dtp_grow((void **)&list, &capacity, count + 1, sizeof *list)) -> out of memory. */
bool dtp_grow(void **array, size_t *capacity, size_t need, size_t element_size);

/* Bytes that grow. Zero-initialise; `data` is always NUL-terminated after the first append. */
typedef struct dt_buf {
    char *data;
    size_t length, capacity;
    size_t maximum; /* 0 = no limit */
    bool failed;    /* an append ran out of memory or over the maximum; later appends do nothing */
} dt_buf;

void dtp_buf_append(dt_buf *buf, const void *bytes, size_t n);
void dtp_buf_puts(dt_buf *buf, const char *text);
void dtp_buf_putc(dt_buf *buf, char c);
void dtp_buf_printf(dt_buf *buf, const char *format, ...) DT_PRINTF(2, 3);
void dtp_buf_clear(dt_buf *buf); /* keeps the memory, resets `failed` */
void dtp_buf_free(dt_buf *buf);
/* DT_E_NOMEM with `what` when an append has failed. */
dt_status dtp_buf_status(const dt_buf *buf, const char *what, dt_err *err);

#endif
