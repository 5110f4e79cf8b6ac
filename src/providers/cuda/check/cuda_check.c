/* Timings of the CUDA plug-in's operators on their own, for a machine with a card; `deltune check` has the checks.
 *
 *     cuda_check --bench [NAME] [--json FILE]
 * Exit status: 0 measured, 2 wrong usage, 77 no device. */
#include <stdio.h>
#include <string.h>

#include "providers/cuda/check/bench.h"

const dt_provider *dt_provider_entry(void);

const dt_op_set *bench_find_op(const dt_provider *provider, dt_op op)
{
    for (size_t i = 0; i < provider->n_ops; i++)
        if (provider->ops[i]->op == op)
            return provider->ops[i];
    return NULL;
}

int main(int argc, char **argv)
{
    const dt_provider *provider = dt_provider_entry();
    dt_exec exec = {.struct_size = sizeof exec, .device = provider->device, .threads = 1};
    dt_err err = {0};
    FILE *json = NULL;
    const char *only = NULL;
    char why[256] = "";
    if (argc < 2 || strcmp(argv[1], "--bench") != 0) {
        fprintf(stderr, "usage: cuda_check --bench [NAME] [--json FILE]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = fopen(argv[++i], "a");
        else
            only = argv[i];
    }
    if (!provider->probe(0, why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    if (provider->device_ops->open(&exec, &err) != DT_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    bench_all(provider, &exec, only, json);
    if (json)
        fclose(json);
    provider->device_ops->close(&exec);
    return 0;
}
