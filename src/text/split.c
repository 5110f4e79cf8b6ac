#include "text/split.h"
#include "text/unicode.h"
#include <string.h>

bool dtp_split_kind(const char *pattern, dt_split_kind *kind_out)
{
    if (!strcmp(pattern, DT_SPLIT_PLAIN_PATTERN))
        *kind_out = DT_SPLIT_PLAIN;
    else if (!strcmp(pattern, DT_SPLIT_MARKS_PATTERN))
        *kind_out = DT_SPLIT_MARKS;
    else
        return false;
    return true;
}

/* A set of character classes, one bit each. */
enum {
    OTHERS = 1u << DT_CHAR_OTHER,
    LETTERS = 1u << DT_CHAR_LETTER,
    MARKS = 1u << DT_CHAR_MARK,
    NUMBERS = 1u << DT_CHAR_NUMBER,
    SPACES = 1u << DT_CHAR_SPACE,
};

static inline unsigned class_bit(uint32_t c)
{
    return 1u << (dtp_char_info(c) & DT_CHAR_CLASS);
}

/* First position at or after p whose character is not in the set. */
static inline const unsigned char *skip(const unsigned char *p, const unsigned char *end, unsigned set)
{
    while (p < end) {
        const unsigned char *next = p;
        if (!(class_bit(dtp_utf8_next(&next)) & set))
            break;
        p = next;
    }
    return p;
}

static inline bool is_newline(unsigned char c)
{
    return c == '\n' || c == '\r';
}

/* Alternative 1: (?i:'s|'t|'re|'ve|'m|'ll|'d). Returns its end, or p. U+017F folds to s. */
static const unsigned char *contraction(const unsigned char *p, const unsigned char *end)
{
    size_t n = (size_t)(end - p);
    if (n < 2 || p[0] != '\'')
        return p;
    unsigned char a = p[1] | 0x20, b = n > 2 ? p[2] | 0x20 : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p[1] < 0x80 ? p + 2 : p;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    return n > 2 && p[1] == 0xC5 && p[2] == 0xBF ? p + 3 : p;
}

/* Alternatives 5 to 7, for a text that starts with white space: \s*[\r\n]+ | \s+(?!\S) | \s+ */
static const unsigned char *space_run(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *q = p, *last = p, *after_newline = NULL;
    while (q < end) {
        const unsigned char *next = q;
        if (!(class_bit(dtp_utf8_next(&next)) & SPACES))
            break;
        if (is_newline(*q))
            after_newline = next;
        last = q;
        q = next;
    }
    if (after_newline)
        return after_newline;
    /* The look-ahead gives the last space back to the word behind it, unless it is the only one. */
    return q == end || last == p ? q : last;
}

static inline const unsigned char *next_piece(bool marks, const unsigned char *p, const unsigned char *end)
{
    const unsigned word = marks ? LETTERS | MARKS : LETTERS;
    const unsigned punctuation = marks ? OTHERS : OTHERS | MARKS;
    const unsigned char *second = p;
    unsigned bit = class_bit(dtp_utf8_next(&second));

    if (bit & word)
        return skip(second, end, word);
    if (bit & NUMBERS)
        return second;
    if (*p == '\'') {
        const unsigned char *after = contraction(p, end);
        if (after != p)
            return after;
    }
    /* Alternative 2: any one character but a newline, letter or number may lead a word. */
    const unsigned char *run = second < end && !is_newline(*p) ? skip(second, end, word) : second;
    if (run != second)
        return run;
    /* Alternative 4: punctuation, with a space before it and newlines behind it. */
    run = bit & punctuation || *p == ' ' ? skip(second, end, punctuation) : second;
    if (bit & punctuation || run != second) {
        while (run < end && is_newline(*run))
            run++;
        return run;
    }
    return space_run(p, end);
}

const unsigned char *dtp_split_next(dt_split_kind kind, const unsigned char *p, const unsigned char *end)
{
    return kind == DT_SPLIT_MARKS ? next_piece(true, p, end) : next_piece(false, p, end);
}
