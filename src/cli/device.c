#include "cli/device.h"

#include "core/file.h"
#include "core/log.h"

#include <deltune/dispatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dt_arg_spec specs[] = {
    {"device", DT_ARG_STRING, "auto", NULL, "auto, cpu, cuda or cuda:N."},
    {"threads", DT_ARG_INT, "0", NULL, "CPU threads; 0 = as many as the process may use."},
    {"provider", DT_ARG_LIST, "", NULL,
     "Who serves the operators: NAME for all of them, OP=NAME for one, or auto. Environment: DELTUNE_PROVIDER."},
    {"plugin", DT_ARG_LIST, "", NULL,
     "Provider plug-ins to load. Environment: DELTUNE_PLUGIN_PATH, files and folders separated by colons."},
};
const dt_arg_group dtp_device_arguments = DT_ARG_GROUP("Device", specs);

/* "cuda:1" -> kind and index. */
static dt_status parse_device(const char *text, dt_device_kind *kind, int *index, dt_err *err)
{
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    *index = 0;
    if (colon) {
        char *end;
        long value = strtol(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end || value > 1023)
            return dt_fail(err, DT_E_ARG, "--device: \"%s\" is not auto, cpu, cuda or cuda:N", text);
        *index = (int)value;
    }
    for (int k = 0; k < DT_DEVICE_KINDS; k++) {
        const char *name = dt_device_name((dt_device_kind)k);
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            *kind = (dt_device_kind)k;
            return DT_OK;
        }
    }
    return dt_fail(err, DT_E_ARG, "--device: \"%s\" is not auto, cpu, cuda or cuda:N", text);
}

static dt_status create(dt_exec **out, dt_ctx *ctx, const char *device, int threads, dt_err *err)
{
    dt_device_kind kind = DT_DEVICE_CPU;
    int index = 0;
    if (strcmp(device, "auto") != 0) {
        dt_status st = parse_device(device, &kind, &index, err);
        return st == DT_OK ? dt_exec_create(out, ctx, kind, index, threads, err) : st;
    }
    /* the CPU is always there, so try it last */
    static const dt_device_kind order[] = {DT_DEVICE_CUDA, DT_DEVICE_NPU, DT_DEVICE_CPU};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (dt_exec_create(out, ctx, order[i], 0, threads, err) == DT_OK)
            return DT_OK;
    return err ? err->status : DT_E_UNAVAILABLE;
}

/* PREFIX/lib/deltune beside PREFIX/bin/deltune: where an installation keeps its plug-ins. */
static char *installed_plugins(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return NULL;
    exe[n] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(exe, '/');
        if (!slash)
            return NULL;
        *slash = '\0';
    }
    return dtp_path_join(exe, "lib/deltune");
}

/* Plug-ins from folders, for the devices the run may use and no others: a CPU run opens no accelerator library. */
static dt_status load_found(dt_ctx *ctx, const char *device, dt_err *err)
{
    char *installed = installed_plugins();
    const char *paths[] = {installed && dtp_is_folder(installed) ? installed : NULL, getenv("DELTUNE_PLUGIN_PATH")};
    uint32_t devices = strcmp(device, "auto") == 0 ? ~0u : 1u << DT_DEVICE_CPU;
    for (int kind = 0; kind < DT_DEVICE_KINDS; kind++) {
        const char *name = dt_device_name((dt_device_kind)kind);
        if (strncmp(device, name, strlen(name)) == 0)
            devices |= 1u << kind;
    }
    dt_status st = DT_OK;
    for (size_t i = 0; i < 2 && st == DT_OK; i++)
        if (paths[i])
            st = dt_ctx_load_plugin_path(ctx, paths[i], devices, err);
    free(installed);
    return st;
}

static dt_status load_and_choose(dt_ctx *ctx, const dt_args *args, dt_err *err)
{
    dt_status st = load_found(ctx, dtp_args_string(args, "device"), err);
    for (size_t i = 0; i < dtp_args_list_count(args, "plugin") && st == DT_OK; i++)
        st = dt_ctx_load_plugin(ctx, dtp_args_list_at(args, "plugin", i), 0, NULL, err);
    const char *environment = getenv("DELTUNE_PROVIDER");
    if (st == DT_OK && environment && *environment) {
        st = dt_ctx_choose(ctx, environment, err);
        if (st != DT_OK)
            dt_err_prefix(err, "DELTUNE_PROVIDER: ");
    }
    for (size_t i = 0; i < dtp_args_list_count(args, "provider") && st == DT_OK; i++)
        st = dt_ctx_choose(ctx, dtp_args_list_at(args, "provider", i), err);
    return st;
}

enum { MOST_THREADS = 4096 }; /* far beyond any machine; the OpenMP runtime crashes on some larger numbers */

static dt_status thread_count(int *out, const dt_args *args, dt_err *err)
{
    int64_t threads = dtp_args_int(args, "threads", 0);
    if (threads < 0 || threads > MOST_THREADS)
        return dt_fail(err, DT_E_ARG, "--threads: %lld is outside 0..%d", (long long)threads, MOST_THREADS);
    *out = (int)threads;
    return DT_OK;
}

dt_status dtp_open_device(dt_ctx **ctx_out, dt_exec **exec_out, const dt_args *args, dt_err *err)
{
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    int threads = 0;
    dt_status st = thread_count(&threads, args, err);
    if (st == DT_OK)
        st = dt_ctx_create(&ctx, err);
    if (st == DT_OK)
        st = load_and_choose(ctx, args, err);
    if (st == DT_OK)
        st = create(&exec, ctx, dtp_args_string(args, "device"), threads, err);
    if (st != DT_OK) {
        dt_ctx_free(ctx);
        return st;
    }
    *ctx_out = ctx;
    *exec_out = exec;
    return DT_OK;
}

dt_status dtp_print_operators(FILE *to, dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    for (int op = 0; op < DT_OP_COUNT; op++) {
        dt_op_info info;
        dt_status st = dt_ctx_op_info(ctx, (dt_op)op, device, &info, err);
        if (st != DT_OK)
            return st;
        fprintf(to, "%-18s %-10s %-8s %-9s %s\n", info.op, info.provider, info.version, dt_op_source_name(info.source),
                info.file);
    }
    return DT_OK;
}
