#include <deltune/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops a UTF-8 sequence that the buffer's end cut in half, so that the text stays printable. */
static void trim_partial_utf8(char *text, size_t length)
{
    size_t begin = length;
    while (begin > 0 && ((unsigned char)text[begin - 1] & 0xC0) == 0x80 && length - begin < 3)
        begin--;
    if (begin == 0)
        return;
    unsigned char lead = (unsigned char)text[begin - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (length - (begin - 1) < want)
        text[begin - 1] = '\0';
}

dt_status dt_fail(dt_err *err, dt_status status, const char *format, ...)
{
    if (!err)
        return status;
    /* the arguments may point into err->text, so format into a copy */
    char text[DT_ERR_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= (int)sizeof text)
        trim_partial_utf8(text, sizeof text - 1);
    err->status = status;
    memcpy(err->text, text, sizeof text);
    return status;
}

dt_status dt_err_prefix(dt_err *err, const char *format, ...)
{
    if (!err)
        return DT_E_INTERNAL;
    char text[DT_ERR_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0)
        return err->status;
    if (n < (int)sizeof text - 1) {
        int m = snprintf(text + n, sizeof text - (size_t)n, "%s", err->text);
        if (n + m >= (int)sizeof text)
            trim_partial_utf8(text, sizeof text - 1);
    }
    memcpy(err->text, text, sizeof text);
    return err->status;
}

const char *dt_status_name(dt_status status)
{
    switch (status) {
    case DT_OK: return "DT_OK";
    case DT_E_ARG: return "DT_E_ARG";
    case DT_E_SHAPE: return "DT_E_SHAPE";
    case DT_E_DTYPE: return "DT_E_DTYPE";
    case DT_E_NOMEM: return "DT_E_NOMEM";
    case DT_E_IO: return "DT_E_IO";
    case DT_E_FORMAT: return "DT_E_FORMAT";
    case DT_E_UNSUPPORTED: return "DT_E_UNSUPPORTED";
    case DT_E_UNAVAILABLE: return "DT_E_UNAVAILABLE";
    case DT_E_NONFINITE: return "DT_E_NONFINITE";
    case DT_E_BUSY: return "DT_E_BUSY";
    case DT_E_CANCELLED: return "DT_E_CANCELLED";
    case DT_E_INTERNAL: return "DT_E_INTERNAL";
    }
    return "unknown status";
}
