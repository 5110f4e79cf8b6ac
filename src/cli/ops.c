/* deltune ops: who serves each operator. */
#include "cli/cli.h"
#include "cli/device.h"

#include <jansson.h>
#include <stdlib.h>

static const dt_arg_spec specs[] = {
    {"json", DT_ARG_BOOL, "false", NULL, "Print one JSON object per line instead of columns."},
};
static const dt_arg_group group = DT_ARG_GROUP("Output", specs);
static const dt_arg_group *const table[] = {&dtp_device_arguments, &group, NULL};

static dt_status print_json(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    for (int op = 0; op < DT_OP_COUNT; op++) {
        dt_op_info info;
        dt_status st = dt_ctx_op_info(ctx, (dt_op)op, device, &info, err);
        if (st != DT_OK)
            return st;
        json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s}", "op", info.op, "provider", info.provider, "version",
                                 info.version, "file", info.file, "source", dt_op_source_name(info.source));
        char *text = line ? json_dumps(line, 0) : NULL;
        json_decref(line);
        if (!text)
            return dt_fail(err, DT_E_NOMEM, "ops: out of memory");
        puts(text);
        free(text);
    }
    return DT_OK;
}

static int run(const dt_args *args, dt_err *err)
{
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_status st = dtp_open_device(&ctx, &exec, args, err);
    if (st == DT_OK)
        st = dtp_args_bool(args, "json") ? print_json(ctx, exec->device, err)
                                         : dtp_print_operators(stdout, ctx, exec->device, err);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    return st;
}

const dt_command dtp_command_ops = {
    .name = "ops",
    .summary = "Show which implementation serves each operator.",
    .table = table,
    .run = run,
};
