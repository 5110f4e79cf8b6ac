/* UTF-8 checks, white space, and NFC against utf8proc. */
#include "core/philox.h"
#include "core/test.h"
#include "text/unicode.h"
#include <utf8proc.h>

static void invalid_parts_become_one_replacement_each(void **state)
{
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"\xE4\xBD\xA0", "\xE4\xBD\xA0"},
        {"\x80", R},
        {"\xC3", R},
        {"\xC3(", R "("},
        {"\xC0\xAF", R R},             /* overlong */
        {"\xE0\x80\x80", R R R},       /* overlong */
        {"\xED\xA0\x80", R R R},       /* surrogate */
        {"\xF4\x90\x80\x80", R R R R}, /* past U+10FFFF */
        {"\xF0\x9F\x9A", R},           /* cut off: one maximal part */
        {"\xF0\x9F\x9Ax", R "x"},
        {"\xE4\xBD\xE4\xBD\xA0", R "\xE4\xBD\xA0"},
        {"\xFF\xFE", R R},
        {"a\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
         "A",
         "a" R R R R "A"}, /* Unicode standard, table 3-11 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_buf out = {0};
        bool needs_nfc;
        dtp_utf8_repair(cases[i].in, strlen(cases[i].in), &out);
        assert_string_equal(out.data, cases[i].out);
        assert_int_equal(dtp_utf8_scan(cases[i].in, strlen(cases[i].in), &needs_nfc),
                         !strcmp(cases[i].in, cases[i].out));
        assert_true(dtp_utf8_scan(out.data, out.length, &needs_nfc));
        dtp_buf_free(&out);
    }
}

static void strip_takes_pythons_white_space(void **state)
{
    (void)state;
    size_t spaces = 0;
    for (uint32_t c = 0; c < 0x110000; c++)
        spaces += (c < 0xD800 || c >= 0xE000) && dtp_is_python_space(c);
    assert_int_equal(spaces, 29); /* sum(chr(c).isspace() for c in range(0x110000)) */
    const char *text = "\x1C \xE3\x80\x80\xC2\x85 a \xE2\x80\x8B\xE2\x80\xA9\n";
    size_t length = strlen(text);
    dtp_python_strip(&text, &length);
    assert_int_equal(length, 5); /* a, space, U+200B */
    assert_memory_equal(text, "a \xE2\x80\x8B", 5);
    text = " \n";
    length = 2;
    dtp_python_strip(&text, &length);
    assert_int_equal(length, 0);
}

/* utf8proc knows later Unicode releases than the reference: these blocks were complete before both. U+11A7 is left out:
 * utf8proc 2.6 swallows it behind a Hangul syllable. */
static const struct {
    uint32_t first, last;
} blocks[] = {
    {0x0041, 0x005A},   {0x00C0, 0x024F},   {0x0300, 0x036F},   {0x0370, 0x03FF},   {0x0400, 0x045F},
    {0x0591, 0x05BD},   {0x0622, 0x0655},   {0x0928, 0x0934},   {0x093C, 0x094D},   {0x09BE, 0x09DF},
    {0x0B47, 0x0B57},   {0x0D3E, 0x0D4D},   {0x0DCF, 0x0DDE},   {0x0F40, 0x0F84},   {0x1025, 0x102E},
    {0x1100, 0x1112},   {0x1161, 0x1175},   {0x11A8, 0x11C2},   {0x1B05, 0x1B35},   {0x1E00, 0x1FFE},
    {0x2000, 0x2001},   {0x2126, 0x212B},   {0x219A, 0x22ED},   {0x3046, 0x30FE},   {0xAC00, 0xD7A3},
    {0xF900, 0xFAD9},   {0xFB1D, 0xFB4E},   {0x11099, 0x110BA}, {0x11131, 0x11134}, {0x1D157, 0x1D172},
    {0x1D1BB, 0x1D1C0}, {0x2F800, 0x2FA1D},
};

static uint32_t random_point(uint32_t round, uint32_t i)
{
    dt_philox_block r = dt_philox(3, round, i, 0, 0);
    if (r.word[2] % 3 == 0) /* marks often, to make them meet */
        return 0x0300 + r.word[1] % 0x70;
    size_t b = r.word[0] % (sizeof blocks / sizeof *blocks);
    return blocks[b].first + r.word[1] % (blocks[b].last - blocks[b].first + 1);
}

static void expect_nfc(const char *text, size_t length, dt_nfc_scratch *scratch)
{
    dt_err err = {0};
    dt_buf got = {0};
    utf8proc_uint8_t *expected = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &expected,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(n >= 0);
    assert_ok(dtp_nfc(text, length, scratch, &got, &err), &err);
    if (got.length != (size_t)n || memcmp(got.data, expected, got.length) != 0) {
        for (size_t i = 0; i < length; i++)
            print_error("%02X ", (unsigned char)text[i]);
        fail_msg("NFC is %s, expected %s", got.data, (char *)expected);
    }
    /* Text that the scan lets pass must be its own NFC. */
    bool needs_nfc;
    assert_true(dtp_utf8_scan(text, length, &needs_nfc));
    if (!needs_nfc) {
        assert_int_equal(got.length, length);
        assert_memory_equal(got.data, text, length);
    }
    free(expected);
    dtp_buf_free(&got);
}

static void nfc_equals_utf8proc(void **state)
{
    (void)state;
    dt_nfc_scratch scratch = {0};
    unsigned char text[4 * 64];
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (uint32_t c = blocks[b].first; c <= blocks[b].last; c++)
            expect_nfc((char *)text, dtp_utf8_put(text, c), &scratch);
    for (uint32_t round = 0; round < 40000; round++) {
        size_t length = 0;
        for (uint32_t i = 0; i < 1 + round % 48; i++)
            length += dtp_utf8_put(text + length, random_point(round, i));
        expect_nfc((char *)text, length, &scratch);
    }
    dtp_nfc_scratch_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_parts_become_one_replacement_each),
        cmocka_unit_test(strip_takes_pythons_white_space),
        cmocka_unit_test(nfc_equals_utf8proc),
    };
    return cmocka_run_group_tests_name("unicode", tests, NULL, NULL);
}
