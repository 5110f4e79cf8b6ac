/* The scanner against PCRE2 running the published patterns themselves. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/philox.h"
#include "core/test.h"
#include "text/split.h"
#include "text/unicode.h"
#include <pcre2.h>

static pcre2_code *compile(const char *pattern)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_code *regex =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    assert_non_null(regex);
    pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE);
    return regex;
}

/* End of the match at `start`, which must begin there. */
static size_t match_end(const pcre2_code *regex, pcre2_match_data *data, const char *text, size_t length, size_t start)
{
    int n = pcre2_match(regex, (PCRE2_SPTR)text, length, start, PCRE2_NO_UTF_CHECK, data, NULL);
    if (n <= 0)
        return 0;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(data);
    return at[0] == start ? at[1] : 0;
}

/* The tables know a later Unicode than an old PCRE2 may: where it sees an unassigned character they may differ. */
static void classes_equal_the_regex_engines(void **state)
{
    (void)state;
    pcre2_code *regex = compile("(\\p{L})|(\\p{M})|(\\p{N})|(\\s)|(\\p{Cn})|(?s:.)");
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);
    size_t compared = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000)
            continue;
        char bytes[4];
        size_t n = dtp_utf8_put((unsigned char *)bytes, c);
        int group = pcre2_match(regex, (PCRE2_SPTR)bytes, n, 0, PCRE2_NO_UTF_CHECK, data, NULL) - 1;
        assert_true(group >= 0);
        if (group == 5 || c == 0x180E) /* not assigned; PCRE2 alone still counts U+180E as a space */
            continue;
        unsigned got = dtp_char_info(c) & DT_CHAR_CLASS;
        if (got != (unsigned)group)
            fail_msg("U+%04X has class %u, expected %d", c, got, group);
        compared++;
    }
    assert_true(compared > 250000);
    pcre2_match_data_free(data);
    pcre2_code_free(regex);
}

/* Random text from everything that the alternatives tell apart. */
static size_t random_text(uint32_t round, char *out, size_t n_chars)
{
    static const char *const parts[] = {
        "'",
        "s",
        "S",
        "t",
        "re",
        "VE",
        "m",
        "ll",
        "D",
        "\xC5\xBF" /* long s */,
        "a",
        "Zq",
        "\xE4\xBD\xA0",
        "\xCC\x81" /* mark */,
        "\xE0\xA4\xBE" /* spacing mark */,
        "1",
        "\xD9\xA3" /* arabic digit */,
        "\xE2\x85\xAB",
        " ",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "\xC2\xA0",
        "\xC2\x85",
        "\xE2\x80\xA8",
        "\xE3\x80\x80",
        "\v",
        "!",
        "...",
        "\xEF\xBC\x8C",
        "\xF0\x9F\x9A\x80",
        "\xE2\x80\x8D",
        "\x1C",
        "_",
        "\xEF\xBF\xBD",
    };
    size_t length = 0;
    for (size_t i = 0; i < n_chars; i++) {
        const char *part = parts[dt_philox(7, round, (uint32_t)i, 0, 0).word[0] % (sizeof parts / sizeof *parts)];
        memcpy(out + length, part, strlen(part));
        length += strlen(part);
    }
    return length;
}

static void compare(dt_split_kind kind, const char *pattern)
{
    pcre2_code *regex = compile(pattern);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);
    char text[256];
    for (uint32_t round = 0; round < 60000; round++) {
        size_t length = random_text(round, text, 1 + round % 40);
        for (size_t start = 0; start < length;) {
            size_t expected = match_end(regex, data, text, length, start);
            const unsigned char *p = (const unsigned char *)text;
            size_t got = (size_t)(dtp_split_next(kind, p + start, p + length) - p);
            if (got != expected)
                fail_msg("\"%.*s\" from %zu: piece ends at %zu, expected %zu", (int)length, text, start, got, expected);
            start = got;
        }
    }
    pcre2_match_data_free(data);
    pcre2_code_free(regex);
}

static void plain_pattern_equals_pcre2(void **state)
{
    (void)state;
    compare(DT_SPLIT_PLAIN, DT_SPLIT_PLAIN_PATTERN);
}

static void marks_pattern_equals_pcre2(void **state)
{
    (void)state;
    compare(DT_SPLIT_MARKS, DT_SPLIT_MARKS_PATTERN);
}

static void only_the_two_patterns_are_known(void **state)
{
    (void)state;
    dt_split_kind kind;
    assert_true(dtp_split_kind(DT_SPLIT_PLAIN_PATTERN, &kind) && kind == DT_SPLIT_PLAIN);
    assert_true(dtp_split_kind(DT_SPLIT_MARKS_PATTERN, &kind) && kind == DT_SPLIT_MARKS);
    assert_false(dtp_split_kind("\\p{N}{1,3}", &kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_equal_the_regex_engines),
        cmocka_unit_test(plain_pattern_equals_pcre2),
        cmocka_unit_test(marks_pattern_equals_pcre2),
        cmocka_unit_test(only_the_two_patterns_are_known),
    };
    return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
