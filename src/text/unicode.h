/* Characters as the reference tokenizer sees them: classes for the split pattern, NFC, and UTF-8.
 * The tables come from the reference's own engine (tools/make_unicode_tables.py), so that ids do not depend on the
 * Unicode release of a system library.
 * Not for: display width, case mapping. */
#ifndef DT_TEXT_UNICODE_H
#define DT_TEXT_UNICODE_H

#include "core/memory.h"

/* What the split pattern asks about a character. */
enum { DT_CHAR_OTHER, DT_CHAR_LETTER, DT_CHAR_MARK, DT_CHAR_NUMBER, DT_CHAR_SPACE };
#define DT_CHAR_CLASS 7u /* mask of the above */
#define DT_CHAR_NFC   8u /* flag: NFC may change this character, or join it to the one before */

typedef struct dt_combining_range {
    uint32_t first, last;
    uint8_t combining_class;
} dt_combining_range;
typedef struct dt_decomposition {
    uint32_t code_point;
    uint16_t start; /* in dtp_decomposition_pool */
    uint8_t length; /* 1 to 4: decomposed fully */
} dt_decomposition;
typedef struct dt_composition {
    uint32_t first, second, composed;
} dt_composition;

/* Sorted by code point, or by first and second. Hangul syllables are arithmetic and not in the tables. */
extern const uint8_t dtp_class_index[8704];
extern const uint8_t dtp_class_blocks[];
extern const dt_combining_range dtp_combining_ranges[];
extern const size_t dtp_n_combining_ranges;
extern const dt_decomposition dtp_decompositions[];
extern const size_t dtp_n_decompositions;
extern const uint32_t dtp_decomposition_pool[];
extern const dt_composition dtp_compositions[];
extern const size_t dtp_n_compositions;

/* Class and flag of a code point below 0x110000. */
static inline uint8_t dtp_char_info(uint32_t code_point)
{
    return dtp_class_blocks[(size_t)dtp_class_index[code_point >> 7] * 128 + (code_point & 127)];
}

/* Reads one character of VALID UTF-8 and moves *p behind it. */
static inline uint32_t dtp_utf8_next(const unsigned char **p)
{
    const unsigned char *s = *p;
    if (s[0] < 0x80) {
        *p = s + 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *p = s + 2;
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    }
    if (s[0] < 0xF0) {
        *p = s + 3;
        return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    }
    *p = s + 4;
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

/* Writes 1 to 4 bytes; returns how many. */
size_t dtp_utf8_put(unsigned char *out, uint32_t code_point);

/* Length of the valid character at p (1 to 4), else 0 with *bad_out = the length of the maximal invalid part: what
 * becomes ONE U+FFFD. *incomplete_out is set when that part is a good beginning cut off by the end of the text. */
size_t dtp_utf8_check(const unsigned char *p, size_t n, size_t *bad_out, bool *incomplete_out);

/* True when the text is valid UTF-8; *needs_nfc_out says whether some character carries DT_CHAR_NFC. */
bool dtp_utf8_scan(const char *text, size_t length, bool *needs_nfc_out);

/* Appends the text with every maximal invalid part replaced by U+FFFD. */
void dtp_utf8_repair(const char *text, size_t length, dt_buf *out);

/* White space as Python's str.strip() and `\s` see it: White_Space plus U+001C to U+001F. Text must be valid. */
bool dtp_is_python_space(uint32_t code_point);
/* Narrows [*text, *text + *length) by white space at both ends. */
void dtp_python_strip(const char **text, size_t *length);

/* Scratch of dtp_nfc; zero-initialise. */
typedef struct dt_nfc_scratch {
    uint32_t *points;
    uint8_t *classes;
    uint32_t *sorted;
    size_t points_capacity, classes_capacity, sorted_capacity;
} dt_nfc_scratch;

/* Appends the NFC form of valid UTF-8; linear in its length also for endless combining marks. */
dt_status dtp_nfc(const char *text, size_t length, dt_nfc_scratch *scratch, dt_buf *out, dt_err *err);
void dtp_nfc_scratch_free(dt_nfc_scratch *scratch);

#endif
