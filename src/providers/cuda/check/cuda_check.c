/* Checks a build of the CUDA plug-in on its own: reference cases on the device, then timings.
 *
 *     cuda_check [--dtype bf16|f32] [--json FILE] CASE.safetensors...
 *     cuda_check --bench [NAME] [--json FILE]
 * Exit status: 0 all passed, 1 something failed, 77 no device. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/cuda/check/bench.h"
#include "providers/cuda/check/cases.h"

const dt_provider *dt_provider_entry(void);

static bool check_file(const dt_provider *provider, dt_exec *exec, const char *path, const case_options *options,
                       FILE *json)
{
    golden g;
    case_report r;
    dt_err err = {0};
    dt_status st = golden_load(&g, path, &err);
    if (st == DT_OK)
        st = case_run(&r, provider, exec, &g, options, &err);
    if (st == DT_E_UNSUPPORTED) {
        printf("%-24s SKIP %s\n", g.name, err.text);
        golden_free(&g);
        return true;
    }
    if (st != DT_OK) {
        printf("%-24s ERROR %s\n", path, err.text);
        return false;
    }
    bool pass = r.pass && r.identical;
    printf("%-24s %s %s", g.name, pass ? "ok  " : "FAIL", r.identical ? "" : "NOT REPEATABLE ");
    for (int i = 0; i < r.count; i++)
        printf(" %s %.2f%s(%.2f)", r.results[i].tensor, 1e3 * r.results[i].ratio, r.results[i].pass ? "" : "!",
               r.results[i].slice);
    printf("\n");
    for (int i = 0; json && i < r.count; i++)
        fprintf(
            json,
            "{\"case\": \"%s\", \"tensor\": \"%s\", \"ratio\": %.4g, \"limit\": %.4g, \"slice\": %.4g, \"pass\": %s}\n",
            g.name, r.results[i].tensor, r.results[i].ratio, r.results[i].limit, r.results[i].slice,
            r.results[i].pass ? "true" : "false");
    golden_free(&g);
    return pass;
}

int main(int argc, char **argv)
{
    const dt_provider *provider = dt_provider_entry();
    case_options options = {DT_BF16, 71, 3};
    dt_exec exec = {.struct_size = sizeof exec, .device = provider->device, .threads = 1};
    dt_err err = {0};
    FILE *json = NULL;
    char why[256] = "";
    bool good = true;
    if (!provider->probe(0, why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    if (provider->device_ops->open(&exec, &err) != DT_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc)
            options.dtype = strcmp(argv[++i], "f32") == 0 ? DT_F32 : DT_BF16;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = fopen(argv[++i], "a");
#ifndef DT_EMULATE
        else if (strcmp(argv[i], "--bench") == 0)
            bench_all(provider, &exec, i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : NULL, json);
#endif
        else
            good = check_file(provider, &exec, argv[i], &options, json) && good;
    }
    if (json)
        fclose(json);
    provider->device_ops->close(&exec);
    return good ? 0 : 1;
}
