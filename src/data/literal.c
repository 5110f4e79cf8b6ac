#include "data/literal.h"

#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef struct parser {
    const char *p, *end;
    const char *fault;
    int depth;
} parser;

static json_t *parse_value(parser *s);

static json_t *fail(parser *s, const char *fault)
{
    if (!s->fault)
        s->fault = fault;
    return NULL;
}

static void skip_space(parser *s)
{
    while (s->p < s->end && *s->p && strchr(" \t\r\n\f", *s->p))
        s->p++;
}

static bool take(parser *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static void append_utf8(dt_buf *out, uint32_t code)
{
    if (code < 0x80)
        dtp_buf_putc(out, (char)code);
    else if (code < 0x800) {
        dtp_buf_putc(out, (char)(0xc0 | code >> 6));
        dtp_buf_putc(out, (char)(0x80 | (code & 63)));
    } else if (code < 0x10000) {
        dtp_buf_putc(out, (char)(0xe0 | code >> 12));
        dtp_buf_putc(out, (char)(0x80 | (code >> 6 & 63)));
        dtp_buf_putc(out, (char)(0x80 | (code & 63)));
    } else {
        dtp_buf_putc(out, (char)(0xf0 | code >> 18));
        dtp_buf_putc(out, (char)(0x80 | (code >> 12 & 63)));
        dtp_buf_putc(out, (char)(0x80 | (code >> 6 & 63)));
        dtp_buf_putc(out, (char)(0x80 | (code & 63)));
    }
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Up to `most` digits of the base, at least `least`; false when there are fewer. */
static bool take_digits(parser *s, int base, int least, int most, uint32_t *value)
{
    int n = 0;
    *value = 0;
    for (; n < most && s->p < s->end && digit(*s->p) < base; n++)
        *value = *value * (uint32_t)base + (uint32_t)digit(*s->p++);
    return n >= least;
}

/* What follows a backslash in a string. */
static bool parse_escape(parser *s, dt_buf *out)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    if (s->p == s->end)
        return false;
    char c = *s->p++;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            dtp_buf_putc(out, plain[i + 1]);
            return true;
        }
    uint32_t code;
    bool good = true;
    switch (c) {
    case '\n': return true; /* line continuation */
    case 'x': good = take_digits(s, 16, 2, 2, &code); break;
    case 'u': good = take_digits(s, 16, 4, 4, &code); break;
    case 'U': good = take_digits(s, 16, 8, 8, &code); break;
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
        s->p--;
        good = take_digits(s, 8, 1, 3, &code);
        break;
    default: /* Python keeps the backslash of an escape it does not know */
        dtp_buf_putc(out, '\\');
        dtp_buf_putc(out, c);
        return true;
    }
    if (!good || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return false;
    append_utf8(out, code);
    return true;
}

static bool parse_string_body(parser *s, dt_buf *out)
{
    char quote = *s->p++;
    bool triple = s->end - s->p >= 2 && s->p[0] == quote && s->p[1] == quote;
    if (triple)
        s->p += 2;
    while (s->p < s->end) {
        char c = *s->p++;
        if (c == quote && !triple)
            return true;
        if (c == quote && s->end - s->p >= 2 && s->p[0] == quote && s->p[1] == quote) {
            s->p += 2;
            return true;
        }
        if (c == '\\') {
            if (!parse_escape(s, out))
                return false;
        } else if (c == '\n' && !triple)
            return false;
        else
            dtp_buf_putc(out, c);
    }
    return false;
}

/* One string, or several side by side, which Python joins. */
static json_t *parse_string(parser *s)
{
    dt_buf out = {0};
    bool good = true;
    do {
        good = parse_string_body(s, &out);
        skip_space(s);
    } while (good && s->p < s->end && (*s->p == '"' || *s->p == '\''));
    json_t *value = good && !out.failed ? json_stringn(out.data ? out.data : "", out.length) : NULL;
    dtp_buf_free(&out);
    return value ? value : fail(s, "a string is not closed, or not valid");
}

static json_t *parse_list(parser *s, char close)
{
    json_t *list = json_array();
    s->p++;
    while (list && !take(s, close)) {
        json_t *item = parse_value(s);
        if (!item || json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
        if (!take(s, ',')) {
            if (take(s, close))
                break;
            json_decref(list);
            return fail(s, "expected ',' or the end of a list");
        }
    }
    return list;
}

/* One `key: value` of a dictionary. */
static bool parse_entry(parser *s, json_t *object)
{
    json_t *key = parse_value(s), *value = NULL;
    bool good = json_is_string(key) && strlen(json_string_value(key)) == json_string_length(key) && take(s, ':') &&
                (value = parse_value(s)) != NULL &&
                json_object_set_new_nocheck(object, json_string_value(key), value) == 0;
    json_decref(key);
    return good;
}

static json_t *parse_dictionary(parser *s)
{
    json_t *object = json_object();
    s->p++;
    while (object && !take(s, '}')) {
        bool good = parse_entry(s, object);
        if (good && take(s, ','))
            continue;
        if (good && take(s, '}'))
            break;
        json_decref(object);
        return fail(s, "expected key: value pairs, each key a string");
    }
    return object;
}

static json_t *parse_number(parser *s)
{
    char text[64];
    size_t n = 0;
    bool real = false;
    while (n + 1 < sizeof text && s->p < s->end && *s->p && strchr("+-.0123456789eE_", *s->p)) {
        real |= strchr(".eE", *s->p) != NULL;
        if (*s->p != '_')
            text[n++] = *s->p;
        s->p++;
    }
    text[n] = '\0';
    char *end;
    json_t *value = real ? json_real(strtod(text, &end)) : json_integer(strtoll(text, &end, 10));
    if (n > 0 && *end == '\0' && value)
        return value;
    json_decref(value);
    return fail(s, "not a number");
}

static json_t *parse_word(parser *s)
{
    static const struct {
        const char *word;
        int value;
    } words[] = {{"True", 1}, {"true", 1}, {"False", 0}, {"false", 0}, {"None", -1}, {"null", -1}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);
        if ((size_t)(s->end - s->p) >= n && !memcmp(s->p, words[i].word, n)) {
            s->p += n;
            return words[i].value < 0 ? json_null() : json_boolean(words[i].value);
        }
    }
    return fail(s, "not a list, dictionary, string, number, True, False or None");
}

static json_t *parse_value(parser *s)
{
    skip_space(s);
    if (s->p == s->end)
        return fail(s, "the text ends early");
    if (++s->depth > MAX_DEPTH)
        return fail(s, "nested too deeply");
    char c = *s->p;
    json_t *value = c == '['                          ? parse_list(s, ']')
                    : c == '('                        ? parse_list(s, ')')
                    : c == '{'                        ? parse_dictionary(s)
                    : c == '"' || c == '\''           ? parse_string(s)
                    : strchr("+-.0123456789", c) && c ? parse_number(s)
                                                      : parse_word(s);
    s->depth--;
    return value;
}

json_t *dtp_literal_parse(const char *text, size_t n, char *why, size_t n_why)
{
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (value)
        return value;
    parser s = {.p = text, .end = text + n};
    value = parse_value(&s);
    if (value) {
        skip_space(&s);
        if (s.p == s.end)
            return value;
        json_decref(value);
        fail(&s, "text after the value");
    }
    snprintf(why, n_why, "neither JSON nor a literal: %s (byte %zu)", s.fault ? s.fault : "out of memory",
             (size_t)(s.p - text));
    return NULL;
}
