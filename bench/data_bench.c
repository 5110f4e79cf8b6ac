/* Prepares a data set with the sample tokenizer, packs it and walks one epoch; prints time and memory of each part.
 *   data_bench FILE [MAX_LENGTH]     FILE as for --dataset */
#include "core/log.h"
#include "data/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_line(const char *what, double seconds)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%-8s %8.2f s   peak memory so far %6.0f MiB\n", what, seconds, (double)usage.ru_maxrss / 1024);
}

static dt_status walk(dt_loader *loader, dt_err *err)
{
    int64_t steps = dtp_loader_count(loader).steps, tokens = 0;
    dt_status status = DT_OK;
    for (int64_t s = 0; status == DT_OK && s < steps; s++) {
        dt_window window;
        dt_batch batch;
        status = dtp_loader_next_window(loader, &window, NULL, err);
        for (int64_t i = 0; status == DT_OK && i < window.n_micro; i++) {
            status = dtp_loader_next(loader, &batch, err);
            tokens += status == DT_OK ? batch.T : 0;
        }
    }
    printf("%lld batches, %lld tokens\n", (long long)dtp_loader_count(loader).batches, (long long)tokens);
    return status;
}

static dt_status run(const char *path, int64_t max_length, dt_dataset_options *options, dt_err *err)
{
    dt_dataset *train, *val;
    dt_loader *loader;
    options->paths = &path;
    options->n_paths = 1;
    options->max_length = max_length;
    double start = now();
    dt_status status = dtp_dataset_prepare(&train, &val, options, err);
    if (status != DT_OK)
        return status;
    print_line("prepare", now() - start);
    start = now();
    dt_loader_options loading = {.layout = DT_LAYOUT_PACKING,
                                 .batch_size = 1,
                                 .accumulation = 16,
                                 .shuffle = true,
                                 .data_seed = 42,
                                 .world = 1,
                                 .prefetch = 2,
                                 .packing = {.length = (uint32_t)max_length}};
    status = dtp_loader_open(&loader, train, &loading, err);
    if (status == DT_OK) {
        print_line("pack", now() - start);
        start = now();
        status = walk(loader, err);
        print_line("epoch", now() - start);
        dtp_loader_close(loader);
    }
    dtp_dataset_close(train);
    return status;
}

int main(int argc, char **argv)
{
    dt_dataset_options options;
    dt_tokenizer *tokenizer = NULL;
    dt_template *chat = NULL;
    dt_template_options template_options = DT_TEMPLATE_OPTIONS_DEFAULT;
    dt_err err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: data_bench FILE [MAX_LENGTH]\n");
        return 2;
    }
    dtp_dataset_options_default(&options);
    dt_status status = dtp_tokenizer_open(&tokenizer, "data/sample", &err);
    if (status == DT_OK)
        status = dtp_template_create(&chat, tokenizer, &template_options, &err);
    options.tokenizer = tokenizer;
    options.chat = chat;
    if (status == DT_OK)
        status = run(argv[1], argc > 2 ? atoll(argv[2]) : 512, &options, &err);
    if (status != DT_OK)
        fprintf(stderr, "data_bench: %s\n", err.text);
    dtp_template_free(chat);
    dtp_tokenizer_close(tokenizer);
    return status == DT_OK ? 0 : 1;
}
