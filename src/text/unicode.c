#include "text/unicode.h"
#include <string.h>

size_t dtp_utf8_put(unsigned char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (unsigned char)(0xC0 | c >> 6);
        out[1] = (unsigned char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (unsigned char)(0xE0 | c >> 12);
        out[1] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (unsigned char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (unsigned char)(0xF0 | c >> 18);
    out[1] = (unsigned char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (unsigned char)(0x80 | (c & 0x3F));
    return 4;
}

size_t dtp_utf8_check(const unsigned char *p, size_t n, size_t *bad_out, bool *incomplete_out)
{
    unsigned char lead = p[0], low = 0x80, high = 0xBF;
    size_t length;
    *bad_out = 1;
    *incomplete_out = false;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    /* The second byte's range excludes overlong forms, surrogates and values past U+10FFFF. */
    if (lead < 0xE0) {
        length = 2;
    } else if (lead < 0xF0) {
        length = 3;
        low = lead == 0xE0 ? 0xA0 : low;
        high = lead == 0xED ? 0x9F : high;
    } else {
        length = 4;
        low = lead == 0xF0 ? 0x90 : low;
        high = lead == 0xF4 ? 0x8F : high;
    }
    for (size_t i = 1; i < length; i++) {
        if (i == n) {
            *bad_out = i;
            *incomplete_out = true;
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            *bad_out = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

bool dtp_utf8_scan(const char *text, size_t length, bool *needs_nfc_out)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    uint8_t seen = 0;
    while (p < end) {
        uint64_t word;
        while (end - p >= 8 && (memcpy(&word, p, 8), !(word & 0x8080808080808080u)))
            p += 8;
        while (p < end && *p < 0x80)
            p++;
        while (p < end && *p >= 0x80) {
            size_t bad;
            bool incomplete;
            if (!dtp_utf8_check(p, (size_t)(end - p), &bad, &incomplete))
                return false;
            seen |= dtp_char_info(dtp_utf8_next(&p));
        }
    }
    *needs_nfc_out = seen & DT_CHAR_NFC;
    return true;
}

void dtp_utf8_repair(const char *text, size_t length, dt_buf *out)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t good = 0, i = 0; /* [good, i) is valid and not yet written */
    while (i < length) {
        size_t bad;
        bool incomplete;
        size_t n = dtp_utf8_check(p + i, length - i, &bad, &incomplete);
        if (n) {
            i += n;
            continue;
        }
        dtp_buf_append(out, text + good, i - good);
        dtp_buf_append(out, "\xEF\xBF\xBD", 3);
        i += bad;
        good = i;
    }
    dtp_buf_append(out, text + good, length - good);
}

bool dtp_is_python_space(uint32_t c)
{
    return (dtp_char_info(c) & DT_CHAR_CLASS) == DT_CHAR_SPACE || (c >= 0x1C && c <= 0x1F);
}

void dtp_python_strip(const char **text, size_t *length)
{
    const unsigned char *begin = (const unsigned char *)*text, *end = begin + *length;
    while (begin < end) {
        const unsigned char *next = begin;
        if (!dtp_is_python_space(dtp_utf8_next(&next)))
            break;
        begin = next;
    }
    while (begin < end) {
        const unsigned char *last = end - 1;
        while (last > begin && (*last & 0xC0) == 0x80)
            last--;
        const unsigned char *next = last;
        if (!dtp_is_python_space(dtp_utf8_next(&next)))
            break;
        end = last;
    }
    *text = (const char *)begin;
    *length = (size_t)(end - begin);
}
