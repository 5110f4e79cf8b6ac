/* The Qwen3 tokenizer of ../shared for tests, unpacked in memory; and a tiny tokenizer that is always there. */
#ifndef DT_TEXT_TEST_TOKENIZER_H
#define DT_TEXT_TEST_TOKENIZER_H

#include "core/file.h"
#include "core/test.h"
#include "text/tokenizer.h"

/* The whole output of a shell command; false when it fails. */
static inline bool read_command(const char *command, dt_buf *out)
{
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return false;
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, pipe)) > 0)
        dtp_buf_append(out, block, n);
    return pclose(pipe) == 0 && out->length > 0;
}

/* Copies `in` to `out` with every `from` replaced by `to`; returns how many. */
static inline size_t replace_all(const char *in, const char *from, const char *to, dt_buf *out)
{
    size_t count = 0;
    for (const char *hit; (hit = strstr(in, from)); in = hit + strlen(from), count++) {
        dtp_buf_append(out, in, (size_t)(hit - in));
        dtp_buf_puts(out, to);
    }
    dtp_buf_puts(out, in);
    return count;
}

#define SHARED_TOKENIZER DT_SHARED_DIR "/data/qwen3-tokenizer"

/* tokenizer.json of Qwen3, or false with a note why the test is skipped. */
static inline bool read_qwen3_json(dt_buf *json)
{
    if (!dtp_file_exists(SHARED_TOKENIZER "/tokenizer.json.xz")) {
        print_message("skipped: %s is missing\n", SHARED_TOKENIZER);
        return false;
    }
    if (!read_command("xz -dc '" SHARED_TOKENIZER "/tokenizer.json.xz' 2>/dev/null", json)) {
        print_message("skipped: cannot unpack the tokenizer: is xz installed?\n");
        return false;
    }
    return true;
}

/* Puts the Qwen3.5 split pattern in the place of Qwen3's. */
static inline void use_marks_pattern(const char *json, dt_buf *out)
{
    dt_buf half = {0};
    assert_int_equal(replace_all(json, "?\\\\p{L}+|", "?[\\\\p{L}\\\\p{M}]+|", &half), 1);
    assert_int_equal(replace_all(half.data, "[^\\\\s\\\\p{L}\\\\p{N}]+", "[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+", out), 1);
    dtp_buf_free(&half);
}

#endif
