/* deltune export: an adapter merged into its base, as a model folder of its own. */
#include "cli/cli.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/progress.h"
#include "core/python_json.h"
#include "model/merge.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dt_arg_spec specs[] = {
    {"adapters", DT_ARG_LIST, NULL, NULL, "The adapter folder (a checkpoint of a LoRA run)."},
    {"merge_lora", DT_ARG_BOOL, "false", NULL, "Add the adapter to the weights it adapts."},
    {"model", DT_ARG_STRING, NULL, NULL, "Base model folder (default: as the adapter's args.json or settings say)."},
    {"output_dir", DT_ARG_STRING, NULL, NULL, "Folder to make (default: the adapter's, with -merged)."},
    {"exist_ok", DT_ARG_BOOL, "false", NULL, "Replace files of an output folder that exists."},
    {"max_shard_size", DT_ARG_STRING, "5GB", NULL, "Largest weight file."},
};
static const dt_arg_group group = DT_ARG_GROUP("Export", specs);
static const dt_arg_group *const table[] = {&group, NULL};

enum { MAX_JSON = 16 << 20 };

/* The string `field` of FOLDER/NAME, to be freed; NULL when the file or the field is not there. */
static char *string_in(const char *folder, const char *name, const char *field)
{
    char *path = dtp_path_join(folder, name), *value = NULL;
    json_t *root = NULL;
    if (path && dtp_file_exists(path) && dtp_json_load(&root, path, MAX_JSON, NULL) == DT_OK) {
        const char *text = json_string_value(json_object_get(root, field));
        value = text ? dtp_strdup(text) : NULL;
    }
    json_decref(root);
    free(path);
    return value;
}

static char *find_base(const dt_args *args, const char *adapter)
{
    const char *given = dtp_args_string(args, "model");
    if (given)
        return dtp_strdup(given);
    char *base = string_in(adapter, "args.json", "model");
    return base ? base : string_in(adapter, "adapter_config.json", "base_model_name_or_path");
}

static char *default_output(const char *adapter)
{
    size_t n = strlen(adapter);
    while (n > 1 && adapter[n - 1] == '/')
        n--;
    return dtp_format("%.*s-merged", (int)n, adapter);
}

static void show(void *user, int64_t done, int64_t total)
{
    dt_progress *bar = user;
    if (!bar->total)
        dtp_progress_start(bar, stderr, isatty(STDERR_FILENO) != 0, "Merge", 0, total);
    dtp_progress_update(bar, done, NULL);
}

static dt_status save_args(const dt_args *args, const char *folder, dt_err *err)
{
    char *path = dtp_path_join(folder, "args.json");
    dt_status status = path ? dtp_python_save(dtp_args_values(args), path, false, err)
                            : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", folder);
    free(path);
    return status;
}

static dt_status merge(const dt_args *args, const char *adapter, const char *base, const char *folder, dt_err *err)
{
    dt_progress bar = {0};
    dt_merge_options o = {
        .base = base,
        .adapter = adapter,
        .folder = folder,
        .exist_ok = dtp_args_bool(args, "exist_ok"),
        .progress = show,
        .user = &bar,
    };
    dt_status status =
        dtp_parse_size(&o.max_shard_bytes, dtp_args_string(args, "max_shard_size"), "--max_shard_size", err);
    if (status == DT_OK)
        status = dtp_merge_adapter(&o, err);
    if (bar.total)
        status == DT_OK ? dtp_progress_finish(&bar, NULL) : dtp_progress_clear(&bar);
    if (status == DT_OK)
        status = save_args(args, folder, err);
    if (status == DT_OK)
        printf("%s\n", folder);
    return status;
}

static int run(const dt_args *args, dt_err *err)
{
    if (dtp_args_list_count(args, "adapters") != 1)
        return dt_fail(err, DT_E_ARG, "--adapters: expected one adapter folder");
    if (!dtp_args_bool(args, "merge_lora"))
        return dt_fail(err, DT_E_ARG, "nothing to do: give --merge_lora true (other exports are not implemented here)");
    const char *adapter = dtp_args_list_at(args, "adapters", 0), *given = dtp_args_string(args, "output_dir");
    char *base = find_base(args, adapter), *folder = given ? dtp_strdup(given) : default_output(adapter);
    dt_status status;
    if (!base)
        status = dt_fail(err, DT_E_ARG, "%s: names no base model; give it with --model", adapter);
    else if (!folder)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", adapter);
    else
        status = merge(args, adapter, base, folder, err);
    free(base);
    free(folder);
    return status;
}

const dt_command dtp_command_export = {
    .name = "export",
    .summary = "Merge an adapter into its base model.",
    .table = table,
    .incumbent = true,
    .run = run,
};
