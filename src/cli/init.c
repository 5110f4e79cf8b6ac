/* deltune init: a random model of any Qwen3.5 shape. */
#include "cli/cli.h"
#include "core/log.h"
#include "core/progress.h"
#include "model/random_model.h"
#include "train/config.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static const dt_arg_spec specs[] = {
    {"config", DT_ARG_STRING, NULL, NULL, "The config.json that gives the shape."},
    {"seed", DT_ARG_INT, "42", NULL, "Seed of the weights; the same seed gives the same bytes."},
    {"output_dir", DT_ARG_STRING, NULL, NULL, "Folder to make; it must not exist."},
    {"tokenizer", DT_ARG_STRING, NULL, NULL, "Folder whose tokenizer and chat template files are copied along."},
    {"max_shard_size", DT_ARG_STRING, "5GB", NULL, "Largest weight file."},
};
static const dt_arg_group group = DT_ARG_GROUP("Model", specs);
static const dt_arg_group *const table[] = {&group, NULL};

/* The bar counts megabytes. */
static void show(void *user, uint64_t done, uint64_t total)
{
    dt_progress *bar = user;
    if (!bar->total)
        dtp_progress_start(bar, stderr, isatty(STDERR_FILENO) != 0, "Init (MB)", 0, (int64_t)(total / 1000000) + 1);
    dtp_progress_update(bar, (int64_t)(done / 1000000) + (done == total), NULL);
}

/* Ctrl-C takes back what was written; a second one leaves at once. */
static volatile sig_atomic_t stop_signal;

static void handle(int signal_number)
{
    if (stop_signal)
        _exit(128 + signal_number);
    stop_signal = signal_number;
}

static bool stop_requested(void)
{
    return stop_signal != 0;
}

static void catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int run(const dt_args *args, dt_err *err)
{
    dt_progress bar = {0};
    dt_random_model_options o = {
        .config = dtp_args_string(args, "config"),
        .tokenizer = dtp_args_string(args, "tokenizer"),
        .seed = (uint64_t)dtp_args_int(args, "seed", 42),
        .folder = dtp_args_string(args, "output_dir"),
        .progress = show,
        .user = &bar,
        .stop = stop_requested,
    };
    if (!o.config || !o.folder)
        return dt_fail(err, DT_E_ARG, "--config FILE and --output_dir FOLDER are needed");
    dt_status status =
        dtp_parse_size(&o.max_shard_bytes, dtp_args_string(args, "max_shard_size"), "--max_shard_size", err);
    catch_signals();
    if (status == DT_OK)
        status = dtp_random_model(&o, err);
    if (bar.total)
        status == DT_OK ? dtp_progress_finish(&bar, NULL) : dtp_progress_clear(&bar);
    if (status == DT_OK)
        printf("%s\n", o.folder);
    if (status == DT_E_CANCELLED) {
        dt_warning("%s", err->text);
        return 128 + stop_signal;
    }
    return status;
}

const dt_command dtp_command_init = {
    .name = "init",
    .summary = "Make a random model of a given shape.",
    .about = "Weights are drawn as the reference initialises them. Same\n"
             "config and seed, same bytes.",
    .table = table,
    .run = run,
};
