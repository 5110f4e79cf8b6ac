/* deltune sft: supervised fine-tuning. */
#include "cli/cli.h"
#include "cli/device.h"
#include "cli/self_test.h"
#include "cli/sft_args.h"
#include "core/log.h"
#include "train/available_memory.h"
#include "train/run.h"
#include "train/stop.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Launchers set these; several ranks are not part of this program yet, and must not train the same thing twice. */
static dt_status check_one_rank(dt_err *err)
{
    static const char *const names[] = {"WORLD_SIZE", "NPROC_PER_NODE", "NNODES", "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && atoi(value) > 1)
            return dt_fail(err, DT_E_UNSUPPORTED, "%s=%s: training on several ranks is not implemented here; unset it",
                           names[i], value);
    }
    return DT_OK;
}

/* On a device kept free of what the run counts: code of kernels and libraries, recordings, fragments. */
#define DEVICE_RESERVE ((uint64_t)768 << 20)

static dt_status memory_limit(uint64_t *out, const dt_args *args, dt_exec *exec, dt_err *err)
{
    const char *given = dtp_args_string(args, "memory_limit");
    uint64_t available, total;
    *out = 0;
    if (given)
        return dtp_parse_size(out, given, "--memory_limit", err);
    if (exec->device == DT_DEVICE_CPU) {
        *out = dtp_available_memory();
        return DT_OK;
    }
    dt_status st = dt_exec_device_memory(exec, &available, &total, err);
    if (st != DT_OK)
        return st == DT_E_UNSUPPORTED ? DT_OK : st; /* no limit is known */
    *out = available > DEVICE_RESERVE ? available - DEVICE_RESERVE : 1;
    printf("device memory: %.2f GiB, %.2f free, of which the run may use all but %.2f\n", (double)total / 0x1p30,
           (double)available / 0x1p30, (double)DEVICE_RESERVE / 0x1p30);
    return DT_OK;
}

static dt_status self_test(const dt_args *args, const dt_train_config *config, const dt_exec *exec, dt_err *err)
{
    const bool device = exec->device != DT_DEVICE_CPU;
    const json_t *given = json_object_get(dtp_args_values(args), "self_test");
    if (json_is_boolean(given) ? !json_is_true(given) : !device)
        return DT_OK;
    return dtp_self_test(exec, device && !config->float32 ? DT_BF16 : DT_F32, err);
}

static dt_status train(const dt_train_config *config, dt_exec *exec, uint64_t limit, dt_err *err)
{
    dt_run run;
    dt_status st = dtp_run_open(&run, config, exec, limit, err);
    if (st == DT_OK)
        st = dtp_run_train(&run, err);
    dtp_run_close(&run);
    return st;
}

static int run_sft(const dt_args *args, dt_err *err)
{
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_train_config config = {0};
    uint64_t limit = 0;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit becomes an error with a path */
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves does not end the run: train/logger.c */
    json_t *values = json_deep_copy(dtp_args_values(args));
    dt_status st = values ? check_one_rank(err) : dt_fail(err, DT_E_NOMEM, "arguments: out of memory");
    if (st == DT_OK)
        st = dtp_config_resolve(&config, values, dtp_args_given_names(args), 1, err);
    if (st ==
        DT_E_UNSUPPORTED) /* a value that the reference trainer takes and deltune does not: wrong usage all the same */
        st = DT_E_ARG;
    if (st == DT_OK)
        st = dtp_open_device(&ctx, &exec, args, err);
    if (st == DT_OK) {
        printf("deltune %s, device %s, %d threads\n", DT_VERSION, dt_device_name(exec->device), (int)exec->threads);
        st = dtp_print_operators(stdout, ctx, exec->device, err);
        fflush(stdout);
    }
    if (st == DT_OK)
        st = self_test(args, &config, exec, err);
    if (st == DT_OK)
        st = memory_limit(&limit, args, exec, err);
    if (st == DT_OK)
        st = train(&config, exec, limit, err);
    dtp_config_release(&config);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    json_decref(values);
    if (st == DT_E_CANCELLED) { /* not an error, but not the end of the run either */
        dt_warning("%s", err->text);
        return 128 + dtp_stop_requested();
    }
    return st;
}

const dt_command dtp_command_sft = {
    .name = "sft",
    .summary = "Fine-tune a model on instruction data.",
    .about = "Arguments, defaults and files are those of `swift sft`;\n"
             "docs/training.md explains every one.",
    .table = dtp_sft_table,
    .incumbent = true,
    .run = run_sft,
};
