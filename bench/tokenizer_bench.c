/* Times encoding on one thread. usage: tokenizer_bench TOKENIZER FILE...   FILE: a JSON list of objects with texts;
 * every text is encoded on its own, five rounds. Prints one JSON object. */
#include "core/json.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void encode_file(dt_encoder *encoder, json_t *rows, dt_ids *ids, size_t *texts, size_t *tokens)
{
    size_t i;
    json_t *row, *value;
    const char *key;
    json_array_foreach(rows, i, row)
    {
        json_object_foreach(row, key, value)
        {
            if (json_string_length(value) == 0)
                continue;
            ids->length = 0;
            if (dtp_encode(encoder, json_string_value(value), json_string_length(value), ids, NULL) != DT_OK)
                exit(1);
            *texts += 1;
            *tokens += ids->length;
        }
    }
}

int main(int argc, char **argv)
{
    enum { ROUNDS = 5, FILES = 16 };
    dt_err err = {0};
    dt_tokenizer *tokenizer = NULL;
    dt_encoder *encoder = NULL;
    json_t *rows[FILES];
    dt_ids ids = {0};
    if (argc < 3 || argc > 2 + FILES)
        return 2;
    if (dtp_tokenizer_open(&tokenizer, argv[1], &err) != DT_OK ||
        dtp_encoder_create(&encoder, tokenizer, &err) != DT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int i = 2; i < argc; i++)
        if (dtp_json_load(&rows[i - 2], argv[i], 0, &err) != DT_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    size_t texts = 0, tokens = 0;
    printf("{\"seconds\": [");
    for (int round = 0; round < ROUNDS; round++) {
        double begin = now();
        texts = tokens = 0;
        for (int i = 2; i < argc; i++)
            encode_file(encoder, rows[i - 2], &ids, &texts, &tokens);
        printf("%s%.6f", round ? ", " : "", now() - begin);
    }
    printf("], \"texts\": %zu, \"tokens\": %zu}\n", texts, tokens);
    return 0;
}
