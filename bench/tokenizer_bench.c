/* Encoding on one thread, every text on its own with a fresh word cache a round.
 *
 *     tokenizer_bench TOKENIZER FILE.json...      files: lists of objects; every string value is a text
 *
 * Prints one JSON object. `split_seconds` and `pcre2_seconds` are cutting the texts into pieces alone: the scanner, and
 * PCRE2's JIT running the published pattern. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/json.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5 };

typedef struct dt_texts {
    json_t **files;
    const char **text;
    size_t *length;
    size_t count, text_capacity, length_capacity, bytes;
} dt_texts;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const char *what)
{
    fprintf(stderr, "tokenizer_bench: %s\n", what);
    exit(1);
}

/* The strings stay owned by the parsed files. */
static void read_texts(dt_texts *all, int n_files, char **paths)
{
    dt_err err = {0};
    all->files = calloc((size_t)n_files, sizeof *all->files);
    for (int i = 0; i < n_files; i++) {
        if (dtp_json_load(&all->files[i], paths[i], 0, &err) != DT_OK)
            stop(err.text);
        size_t index;
        json_t *row, *value;
        const char *key;
        json_array_foreach(all->files[i], index, row)
        {
            json_object_foreach(row, key, value)
            {
                if (json_string_length(value) == 0)
                    continue;
                if (!dtp_grow((void **)&all->text, &all->text_capacity, all->count + 1, sizeof *all->text) ||
                    !dtp_grow((void **)&all->length, &all->length_capacity, all->count + 1, sizeof *all->length))
                    stop("out of memory");
                all->text[all->count] = json_string_value(value);
                all->length[all->count] = json_string_length(value);
                all->bytes += all->length[all->count++];
            }
        }
    }
}

static size_t encode_all(const dt_tokenizer *tokenizer, const dt_texts *all)
{
    dt_err err = {0};
    dt_encoder *encoder;
    if (dtp_encoder_create(&encoder, tokenizer, &err) != DT_OK)
        stop(err.text);
    dt_ids ids = {0};
    size_t tokens = 0;
    for (size_t i = 0; i < all->count; i++) {
        ids.length = 0;
        if (dtp_encode(encoder, all->text[i], all->length[i], &ids, &err) != DT_OK)
            stop(err.text);
        tokens += ids.length;
    }
    dtp_ids_free(&ids);
    dtp_encoder_free(encoder);
    return tokens;
}

static size_t split_all(const dt_texts *all)
{
    size_t pieces = 0;
    for (size_t i = 0; i < all->count; i++) {
        const unsigned char *p = (const unsigned char *)all->text[i], *end = p + all->length[i];
        for (; p < end; pieces++)
            p = dtp_split_next(DT_SPLIT_MARKS, p, end);
    }
    return pieces;
}

static size_t split_all_pcre2(const pcre2_code *regex, pcre2_match_data *data, const dt_texts *all)
{
    size_t pieces = 0;
    for (size_t i = 0; i < all->count; i++)
        for (size_t start = 0; start < all->length[i]; pieces++) {
            if (pcre2_match(regex, (PCRE2_SPTR)all->text[i], all->length[i], start, PCRE2_NO_UTF_CHECK, data, NULL) <=
                0)
                stop("the pattern does not match");
            start = pcre2_get_ovector_pointer(data)[1];
        }
    return pieces;
}

int main(int argc, char **argv)
{
    dt_err err = {0};
    dt_tokenizer *tokenizer;
    dt_texts all = {0};
    if (argc < 3)
        stop("usage: tokenizer_bench TOKENIZER FILE.json...");
    double begin = now();
    if (dtp_tokenizer_open(&tokenizer, argv[1], &err) != DT_OK)
        stop(err.text);
    double open_seconds = now() - begin;
    read_texts(&all, argc - 2, argv + 2);

    int code;
    PCRE2_SIZE offset;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)DT_SPLIT_MARKS_PATTERN, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                      &code, &offset, NULL);
    if (!regex || pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE) != 0)
        stop("PCRE2 cannot compile the pattern");
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);

    json_t *seconds = json_array(), *split = json_array(), *pcre2 = json_array();
    size_t tokens = 0;
    for (int round = 0; round < ROUNDS; round++) {
        begin = now();
        tokens = encode_all(tokenizer, &all);
        json_array_append_new(seconds, json_real(now() - begin));
        begin = now();
        size_t pieces = split_all(&all);
        json_array_append_new(split, json_real(now() - begin));
        begin = now();
        if (split_all_pcre2(regex, data, &all) != pieces)
            stop("the scanner and PCRE2 disagree");
        json_array_append_new(pcre2, json_real(now() - begin));
    }
    json_t *result = json_pack("{s:o, s:o, s:o, s:f, s:I, s:I, s:I}", "seconds", seconds, "split_seconds", split,
                               "pcre2_seconds", pcre2, "open_seconds", open_seconds, "texts", (json_int_t)all.count,
                               "tokens", (json_int_t)tokens, "bytes", (json_int_t)all.bytes);
    json_dumpf(result, stdout, JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(result);
    pcre2_match_data_free(data);
    pcre2_code_free(regex);
    for (int i = 0; i < argc - 2; i++)
        json_decref(all.files[i]);
    free(all.files);
    free(all.text);
    free(all.length);
    dtp_tokenizer_close(tokenizer);
    return 0;
}
