/* Unicode NFC (UAX #15): decompose, order marks by combining class, compose.
 * Marks are ordered by a counting sort: a run of a million marks must not take a million squared. */
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

enum {
    HANGUL_S = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    N_HANGUL_L = 19,
    N_HANGUL_V = 21,
    N_HANGUL_T = 28,
    N_HANGUL_S = N_HANGUL_L * N_HANGUL_V * N_HANGUL_T,
};

static uint8_t combining_class(uint32_t c)
{
    size_t low = 0, high = dtp_n_combining_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > dtp_combining_ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < dtp_n_combining_ranges && c >= dtp_combining_ranges[low].first)
        return dtp_combining_ranges[low].combining_class;
    return 0;
}

/* Fills up to 4 code points; returns how many. */
static size_t decompose(uint32_t c, uint32_t out[4])
{
    if (c >= HANGUL_S && c < HANGUL_S + N_HANGUL_S) {
        uint32_t s = c - HANGUL_S, t = s % N_HANGUL_T;
        out[0] = HANGUL_L + s / (N_HANGUL_V * N_HANGUL_T);
        out[1] = HANGUL_V + s % (N_HANGUL_V * N_HANGUL_T) / N_HANGUL_T;
        out[2] = HANGUL_T + t;
        return t ? 3 : 2;
    }
    size_t low = 0, high = dtp_n_decompositions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > dtp_decompositions[middle].code_point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == dtp_n_decompositions || dtp_decompositions[low].code_point != c) {
        out[0] = c;
        return 1;
    }
    const dt_decomposition *d = &dtp_decompositions[low];
    memcpy(out, dtp_decomposition_pool + d->start, d->length * sizeof *out);
    return d->length;
}

/* The primary composite of two characters, or 0. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= HANGUL_L && a < HANGUL_L + N_HANGUL_L && b >= HANGUL_V && b < HANGUL_V + N_HANGUL_V)
        return HANGUL_S + ((a - HANGUL_L) * N_HANGUL_V + (b - HANGUL_V)) * N_HANGUL_T;
    if (a >= HANGUL_S && a < HANGUL_S + N_HANGUL_S && (a - HANGUL_S) % N_HANGUL_T == 0 && b > HANGUL_T &&
        b < HANGUL_T + N_HANGUL_T)
        return a + (b - HANGUL_T);
    size_t low = 0, high = dtp_n_compositions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const dt_composition *pair = &dtp_compositions[middle];
        if (a > pair->first || (a == pair->first && b > pair->second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low < dtp_n_compositions && dtp_compositions[low].first == a && dtp_compositions[low].second == b)
        return dtp_compositions[low].composed;
    return 0;
}

/* Stable sort of one run of marks by class. */
static void order_marks(uint32_t *points, uint8_t *classes, size_t n, uint32_t *sorted)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            uint32_t point = points[i];
            uint8_t class = classes[i];
            size_t j = i;
            for (; j > 0 && classes[j - 1] > class; j--) {
                points[j] = points[j - 1];
                classes[j] = classes[j - 1];
            }
            points[j] = point;
            classes[j] = class;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[classes[i] + 1]++;
    for (size_t c = 0; c < 256; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        sorted[start[classes[i]]++] = points[i];
    memcpy(points, sorted, n * sizeof *points);
    /* start[c] is now the end of class c. */
    for (size_t c = 0, i = 0; c < 256; c++) {
        memset(classes + i, (int)c, start[c] - i);
        i = start[c];
    }
}

/* Composes in place; returns the new length. */
static size_t compose_all(uint32_t *points, const uint8_t *classes, size_t n)
{
    size_t length = 0, starter = SIZE_MAX;
    uint8_t last_class = 0; /* of the character before, among those kept since the starter */
    bool adjacent = false;  /* nothing was kept since the starter */
    for (size_t i = 0; i < n; i++) {
        uint32_t point = points[i];
        uint8_t class = classes[i];
        if (starter != SIZE_MAX && (adjacent || (last_class < class && last_class != 0))) {
            uint32_t composed = compose(points[starter], point);
            if (composed) {
                points[starter] = composed;
                continue;
            }
        }
        if (class == 0) {
            starter = length;
            adjacent = true;
        } else {
            adjacent = false;
        }
        last_class = class;
        points[length++] = point;
    }
    return length;
}

dt_status dtp_nfc(const char *text, size_t length, dt_nfc_scratch *s, dt_buf *out, dt_err *err)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    size_t n = 0;
    while (p < end) {
        uint32_t parts[4];
        size_t n_parts = decompose(dtp_utf8_next(&p), parts);
        if (!dtp_grow((void **)&s->points, &s->points_capacity, n + n_parts, sizeof *s->points) ||
            !dtp_grow((void **)&s->classes, &s->classes_capacity, n + n_parts, sizeof *s->classes))
            return dt_fail(err, DT_E_NOMEM, "cannot normalise %zu bytes of text: out of memory", length);
        for (size_t i = 0; i < n_parts; i++, n++) {
            s->points[n] = parts[i];
            s->classes[n] = combining_class(parts[i]);
        }
    }
    if (!dtp_grow((void **)&s->sorted, &s->sorted_capacity, n, sizeof *s->sorted))
        return dt_fail(err, DT_E_NOMEM, "cannot normalise %zu bytes of text: out of memory", length);
    for (size_t i = 0; i < n;) {
        size_t j = i;
        while (j < n && s->classes[j])
            j++;
        if (j > i + 1)
            order_marks(s->points + i, s->classes + i, j - i, s->sorted);
        i = j + 1;
    }
    n = compose_all(s->points, s->classes, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char bytes[4];
        dtp_buf_append(out, bytes, dtp_utf8_put(bytes, s->points[i]));
    }
    return dtp_buf_status(out, "normalised text", err);
}

void dtp_nfc_scratch_free(dt_nfc_scratch *scratch)
{
    free(scratch->points);
    free(scratch->classes);
    free(scratch->sorted);
    *scratch = (dt_nfc_scratch){0};
}
