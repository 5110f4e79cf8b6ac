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

/* A plug-in of a device that nobody named. */
typedef struct dt_found_plugin {
    char *file; /* NULL: there is none, or the user's own serves the device */
    char why[512];
} dt_found_plugin;

/* Device auto: the best there is, the CPU last since it is always there. */
static dt_status create_best(dt_exec **out, dt_ctx *ctx, int threads, const dt_found_plugin *found, dt_err *err)
{
    static const dt_device_kind order[] = {DT_DEVICE_CUDA, DT_DEVICE_NPU};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        dt_err why = {0};
        if (dt_exec_create(out, ctx, order[i], 0, threads, &why) == DT_OK)
            return DT_OK;
        if (found[order[i]].file)
            dt_info("%s; going on without it", found[order[i]].why[0] ? found[order[i]].why : why.text);
    }
    return dt_exec_create(out, ctx, DT_DEVICE_CPU, 0, threads, err);
}

static dt_status create(dt_exec **out, dt_ctx *ctx, const char *device, int threads, const dt_found_plugin *found,
                        dt_err *err)
{
    dt_device_kind kind = DT_DEVICE_CPU;
    int index = 0;
    dt_status st;
    if (strcmp(device, "auto") == 0) {
        st = create_best(out, ctx, threads, found, err);
    } else {
        st = parse_device(device, &kind, &index, err);
        if (st == DT_OK)
            st = dt_exec_create(out, ctx, kind, index, threads, err);
        if (st == DT_E_UNAVAILABLE && found[kind].why[0])
            dt_err_prefix(err, "%s: ", found[kind].why);
    }
    if (st == DT_OK && found[(*out)->device].file)
        dt_info("device %s by %s", dt_device_name((*out)->device), found[(*out)->device].file);
    return st;
}

/* The folder of this program's file; NULL when it is not known. */
static char *program_folder(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (!slash)
        return NULL;
    *slash = '\0';
    return dtp_strdup(exe);
}

static bool is_served(dt_ctx *ctx, dt_device_kind kind)
{
    for (int op = 0; op < DT_OP_COUNT; op++)
        if (dt_ctx_candidate(ctx, (dt_op)op, kind, 0))
            return true;
    return false;
}

/* libdeltune-DEVICE.so beside the program, else where an installation keeps plug-ins. */
static void load_device_plugin(dt_ctx *ctx, dt_device_kind kind, const char *program, dt_found_plugin *found)
{
    const char *const folders[] = {"", "/" DT_PLUGIN_FOLDER};
    for (size_t i = 0; !found->file && i < sizeof folders / sizeof *folders; i++) {
        found->file = dtp_format("%s%s/libdeltune-%s.so", program, folders[i], dt_device_name(kind));
        if (found->file && !dtp_file_exists(found->file)) {
            free(found->file);
            found->file = NULL;
        }
    }
    dt_err fault = {0};
    if (found->file && dt_ctx_load_plugin(ctx, found->file, DT_REGISTER_FOUND, NULL, &fault) != DT_OK)
        snprintf(found->why, sizeof found->why, "plug-in not loaded: %.480s", fault.text);
}

/* Plug-ins for the devices the run may use and no others: a CPU run opens no accelerator library. What the user named
 * comes first; a device that it serves is not looked for any more. */
static dt_status load_plugins(dt_ctx *ctx, const dt_args *args, dt_found_plugin *found, dt_err *err)
{
    const char *device = dtp_args_string(args, "device"), *listed = getenv("DELTUNE_PLUGIN_PATH");
    uint32_t devices = strcmp(device, "auto") == 0 ? ~0u : 1u << DT_DEVICE_CPU;
    for (int kind = 0; kind < DT_DEVICE_KINDS; kind++) {
        const char *name = dt_device_name((dt_device_kind)kind);
        if (strncmp(device, name, strlen(name)) == 0)
            devices |= 1u << kind;
    }
    dt_status st = DT_OK;
    for (size_t i = 0; i < dtp_args_list_count(args, "plugin") && st == DT_OK; i++)
        st = dt_ctx_load_plugin(ctx, dtp_args_list_at(args, "plugin", i), 0, NULL, err);
    if (st == DT_OK && listed)
        st = dt_ctx_load_plugin_path(ctx, listed, devices, err);
    char *program = program_folder(), *installed = program ? dtp_path_join(program, DT_PLUGIN_FOLDER) : NULL;
    for (int kind = DT_DEVICE_CPU + 1; kind < DT_DEVICE_KINDS && st == DT_OK && program; kind++)
        if (devices >> kind & 1 && !is_served(ctx, (dt_device_kind)kind))
            load_device_plugin(ctx, (dt_device_kind)kind, program, &found[kind]);
    if (st == DT_OK && installed && dtp_is_folder(installed)) /* those of no certain device */
        st = dt_ctx_load_plugin_path(ctx, installed, 1u << DT_DEVICE_CPU, err);
    free(installed);
    free(program);
    return st;
}

static dt_status choose_providers(dt_ctx *ctx, const dt_args *args, dt_err *err)
{
    dt_status st = DT_OK;
    const char *environment = getenv("DELTUNE_PROVIDER");
    if (environment && *environment) {
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
    dt_found_plugin found[DT_DEVICE_KINDS] = {{0}};
    int threads = 0;
    dt_status st = thread_count(&threads, args, err);
    if (st == DT_OK)
        st = dt_ctx_create(&ctx, err);
    if (st == DT_OK)
        st = load_plugins(ctx, args, found, err);
    if (st == DT_OK)
        st = choose_providers(ctx, args, err);
    if (st == DT_OK)
        st = create(&exec, ctx, dtp_args_string(args, "device"), threads, found, err);
    for (int kind = 0; kind < DT_DEVICE_KINDS; kind++)
        free(found[kind].file);
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
