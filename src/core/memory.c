#include "core/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *dtp_calloc(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1); /* calloc checks the product; never NULL for an empty request */
}

void *dtp_realloc_array(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return realloc(old, bytes ? bytes : 1);
}

void *dtp_alloc_aligned(size_t bytes)
{
    if (bytes > SIZE_MAX - 64)
        return NULL;
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + (bytes == 0) * 64);
}

char *dtp_strndup(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

char *dtp_strdup(const char *text)
{
    return dtp_strndup(text, strlen(text));
}

char *dtp_format(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (text)
        vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

bool dtp_grow(void **array, size_t *capacity, size_t need, size_t element_size)
{
    if (need <= *capacity)
        return true;
    size_t grown = *capacity < 8 ? 16 : *capacity;
    while (grown < need)
        if (__builtin_mul_overflow(grown, (size_t)2, &grown))
            return false;
    void *moved = dtp_realloc_array(*array, grown, element_size);
    if (!moved)
        return false;
    *array = moved;
    *capacity = grown;
    return true;
}

/* Room for n more bytes and the final NUL. */
static bool reserve(dt_buf *buf, size_t n)
{
    if (buf->failed)
        return false;
    size_t need;
    bool too_long =
        __builtin_add_overflow(buf->length, n, &need) || need == SIZE_MAX || (buf->maximum && need > buf->maximum);
    if (too_long || !dtp_grow((void **)&buf->data, &buf->capacity, need + 1, 1))
        buf->failed = true;
    return !buf->failed;
}

void dtp_buf_append(dt_buf *buf, const void *bytes, size_t n)
{
    if (!reserve(buf, n))
        return;
    if (n)
        memcpy(buf->data + buf->length, bytes, n);
    buf->length += n;
    buf->data[buf->length] = '\0';
}

void dtp_buf_puts(dt_buf *buf, const char *text)
{
    dtp_buf_append(buf, text, strlen(text));
}

void dtp_buf_putc(dt_buf *buf, char c)
{
    dtp_buf_append(buf, &c, 1);
}

void dtp_buf_printf(dt_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        buf->failed = true;
    else if (reserve(buf, (size_t)n)) {
        vsnprintf(buf->data + buf->length, (size_t)n + 1, format, again);
        buf->length += (size_t)n;
    }
    va_end(again);
}

void dtp_buf_clear(dt_buf *buf)
{
    buf->length = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

void dtp_buf_free(dt_buf *buf)
{
    free(buf->data);
    *buf = (dt_buf){.maximum = buf->maximum};
}

dt_status dtp_buf_status(const dt_buf *buf, const char *what, dt_err *err)
{
    if (!buf->failed)
        return DT_OK;
    return dt_fail(err, DT_E_NOMEM, "%s: %s after %zu bytes", what,
                   buf->maximum ? "over the limit, or out of memory," : "out of memory", buf->length);
}
