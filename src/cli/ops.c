/* deltune ops: who serves each operator, who else could, and why not. */
#include "cli/cli.h"
#include "cli/device.h"
#include "core/memory.h"

#include <deltune/dispatch.h>
#include <deltune/op/attention.h>
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const dt_arg_spec output_specs[] = {
    {"json", DT_ARG_BOOL, "false", NULL, "Print one JSON object instead of text."},
};
static const dt_arg_spec explain_specs[] = {
    {"explain", DT_ARG_STRING, NULL, NULL, "Operator: show every candidate's answer to one call of the shape below."},
    {"samples", DT_ARG_INT, "2", NULL, "Samples in the call."},
    {"tokens", DT_ARG_INT, "128", NULL, "Tokens in all."},
    {"key_heads", DT_ARG_INT, "16", NULL, "Key (key/value) heads."},
    {"heads", DT_ARG_INT, "32", NULL, "Value (query) heads."},
    {"head_dim", DT_ARG_INT, "128", NULL, "Head size; for causal_conv1d the number of channels."},
    {"dtype", DT_ARG_STRING, "float32", "float32|bfloat16", "Dtype of the activations."},
    {"backward", DT_ARG_BOOL, "true", NULL, "The call is trained through."},
};
static const dt_arg_group output_group = DT_ARG_GROUP("Output", output_specs),
                          explain_group = DT_ARG_GROUP("Explain", explain_specs);
static const dt_arg_group *const table[] = {&dtp_device_arguments, &output_group, &explain_group, NULL};

static const struct {
    uint32_t bit;
    const char *name;
} cap_names[] = {{DT_CAP_PACKED, "packed"},
                 {DT_CAP_BACKWARD, "backward"},
                 {DT_CAP_STATE, "state"},
                 {DT_CAP_GVA, "gva"},
                 {DT_CAP_DETERMINISTIC, "deterministic"}};

static json_t *caps_json(uint32_t caps)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof cap_names / sizeof *cap_names; i++)
        if (caps & cap_names[i].bit)
            json_array_append_new(list, json_string(cap_names[i].name));
    return list;
}

static void print_caps(uint32_t caps)
{
    for (size_t i = 0; i < sizeof cap_names / sizeof *cap_names; i++)
        if (caps & cap_names[i].bit)
            printf(" %s", cap_names[i].name);
}

static json_t *op_json(dt_ctx *ctx, dt_op op, dt_device_kind device)
{
    dt_op_info info;
    json_t *others = json_array();
    dt_candidate_info c;
    for (size_t i = 0; dt_ctx_candidate_info(ctx, op, device, i, &c); i++)
        json_array_append_new(others,
                              json_pack("{s:s, s:s, s:s, s:b, s:b, s:s, s:o}", "provider", c.provider, "version",
                                        c.version, "file", c.file, "override", c.is_override, "available", c.available,
                                        "why", c.why, "capabilities", caps_json(c.caps)));
    if (dt_ctx_op_info(ctx, op, device, &info, NULL) != DT_OK)
        return json_pack("{s:s, s:s, s:n, s:o}", "op", dt_op_name(op), "device", dt_device_name(device), "provider",
                         "candidates", others);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o}", "op", info.op, "device", dt_device_name(device),
                     "provider", info.provider, "version", info.version, "file", info.file, "source",
                     dt_op_source_name(info.source), "generation", (json_int_t)info.generation, "capabilities",
                     caps_json(info.caps), "candidates", others);
}

static json_t *attempts_json(dt_ctx *ctx)
{
    json_t *list = json_array();
    dt_attempt a;
    for (size_t i = 0; dt_ctx_attempt(ctx, i, &a); i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "subject", a.subject, "reason", a.reason));
    return list;
}

/* Devices that cannot be used here, each with the reason: `print` gets them one by one. */
static void for_unavailable_devices(dt_ctx *ctx, void (*print)(void *to, const char *device, const char *why), void *to)
{
    for (int kind = 0; kind < DT_DEVICE_KINDS; kind++) {
        dt_exec *exec = NULL;
        dt_err why = {0};
        if (dt_exec_create(&exec, ctx, (dt_device_kind)kind, 0, 1, &why) != DT_OK)
            print(to, dt_device_name((dt_device_kind)kind), why.text);
        dt_exec_free(exec);
    }
}

static void add_device(void *list, const char *device, const char *why)
{
    json_array_append_new(list, json_pack("{s:s, s:s}", "device", device, "why", why));
}

static void print_device(void *to, const char *device, const char *why)
{
    fprintf(to, "device %s is not available: %s\n", device, why);
}

static dt_status print_json(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    json_t *ops = json_array();
    for (int op = 0; op < DT_OP_COUNT; op++)
        json_array_append_new(ops, op_json(ctx, (dt_op)op, device));
    json_t *devices = json_array();
    for_unavailable_devices(ctx, add_device, devices);
    json_t *all = json_pack("{s:o, s:o, s:o}", "operators", ops, "unavailable_devices", devices, "failed_attempts",
                            attempts_json(ctx));
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    json_decref(all);
    if (!text)
        return dt_fail(err, DT_E_NOMEM, "ops: out of memory");
    puts(text);
    free(text);
    return DT_OK;
}

/* The line below an operator: what the current entry can do, then who else there is and why it is not asked first. */
static void print_others(dt_ctx *ctx, dt_op op, dt_device_kind device, const dt_op_info *current)
{
    printf("    can:");
    print_caps(current->caps);
    dt_candidate_info c;
    for (size_t i = 0; dt_ctx_candidate_info(ctx, op, device, i, &c); i++) {
        if (strcmp(c.provider, current->provider) == 0 && c.available)
            continue;
        printf("; %s %s %s", c.provider, c.version,
               !c.available                             ? "unavailable"
               : current->source == DT_SOURCE_AUTOMATIC ? "is next"
                                                        : "is not asked");
        if (c.why[0])
            printf(" (%s)", c.why);
    }
    putchar('\n');
}

/* `device` is the best there is (`best`), or the one that was asked for, where no other was looked for. */
static dt_status print_text(dt_ctx *ctx, dt_device_kind device, bool best)
{
    for (int op = 0; op < DT_OP_COUNT; op++) {
        dt_op_info info = {.provider = ""};
        bool served = dt_ctx_op_info(ctx, (dt_op)op, device, &info, NULL) == DT_OK;
        if (served)
            printf("%-18s %-10s %-8s %-9s %s\n", info.op, info.provider, info.version, dt_op_source_name(info.source),
                   info.file);
        else
            printf("%-18s no provider can run on %s\n", dt_op_name((dt_op)op), dt_device_name(device));
        print_others(ctx, (dt_op)op, device, &info);
    }
    if (best) {
        puts("\nA device's plug-in, libdeltune-DEVICE.so, is looked for beside\nthe program, in the installation's "
             "lib/deltune, and where\n"
             "DELTUNE_PLUGIN_PATH and --plugin say.");
        for_unavailable_devices(ctx, print_device, stdout);
    }
    dt_attempt a;
    for (size_t i = 0; dt_ctx_attempt(ctx, i, &a); i++)
        printf("%s%s: %s\n", i ? "" : "\nfailed attempts\n", a.subject, a.reason);
    return DT_OK;
}

/* ---- explain ---- */

typedef union dt_explained {
    dt_gdn_args gdn;
    dt_causal_conv1d_args conv;
    dt_attention_args attention;
} dt_explained;

/* A call's shape without data: sizes are all that a candidate's answer depends on. */
static dt_status shape_call(const dt_args *args, dt_op op, dt_explained *call, dt_err *err)
{
    int64_t T = dtp_args_int(args, "tokens", 0), N = dtp_args_int(args, "samples", 0),
            Hk = dtp_args_int(args, "key_heads", 0);
    int64_t H = dtp_args_int(args, "heads", 0), D = dtp_args_int(args, "head_dim", 0);
    dt_dtype dtype = strcmp(dtp_args_string(args, "dtype"), "bfloat16") == 0 ? DT_BF16 : DT_F32;
    if (T < 0 || N < 0 || Hk < 1 || H < 1 || D < 1)
        return dt_fail(err, DT_E_ARG, "--tokens, --samples, --heads, --key_heads and --head_dim must be positive");
    dt_seqs seqs = {NULL, NULL, N, N, T, T};
    dt_tensor q = dt_tensor_3d(NULL, dtype, T, Hk, D), v = dt_tensor_3d(NULL, dtype, T, H, D),
              gate = dt_tensor_2d(NULL, DT_F32, T, H);
    dt_tensor x = dt_tensor_2d(NULL, dtype, T, D);
    switch (op) {
    case DT_OP_GDN:
        call->gdn = (dt_gdn_args){DT_GDN_ARGS, .q = q, .k = q, .v = v, .g = gate, .beta = gate, .o = v, .seqs = seqs};
        return DT_OK;
    case DT_OP_ATTENTION:
        call->attention = (dt_attention_args){DT_ATTENTION_ARGS, .q = v, .k = q, .v = q, .o = v, .seqs = seqs};
        return DT_OK;
    case DT_OP_CAUSAL_CONV1D:
        call->conv = (dt_causal_conv1d_args){DT_CAUSAL_CONV1D_ARGS, .x = x, .weight = dt_tensor_2d(NULL, dtype, D, 4),
                                             .y = x, .seqs = seqs};
        return DT_OK;
    default: return dt_fail(err, DT_E_ARG, "--explain takes gdn, causal_conv1d or attention");
    }
}

static dt_status explain(dt_exec *exec, const dt_args *args, dt_err *err)
{
    dt_op op = dt_op_by_name(dtp_args_string(args, "explain"));
    dt_explained call = {0};
    dt_status status = shape_call(args, op, &call, err);
    if (status != DT_OK)
        return status;
    char text[4096];
    dt_op_explain(exec, op, &call, dtp_args_bool(args, "backward"), text, sizeof text);
    fputs(text, stdout);
    return DT_OK;
}

static int run(const dt_args *args, dt_err *err)
{
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_status status = dtp_open_device(&ctx, &exec, args, err);
    if (status == DT_OK && dtp_args_string(args, "explain"))
        status = explain(exec, args, err);
    else if (status == DT_OK)
        status = dtp_args_bool(args, "json")
                     ? print_json(ctx, exec->device, err)
                     : print_text(ctx, exec->device, strcmp(dtp_args_string(args, "device"), "auto") == 0);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    return status;
}

const dt_command dtp_command_ops = {
    .name = "ops",
    .summary = "Show which implementation serves each operator.",
    .about = "Per operator: provider, version, how it came to serve\n"
             "(automatic, chosen, override, restored), and its file;\n"
             "below it the other candidates. --explain OP asks every\n"
             "candidate about one call.",
    .table = table,
    .run = run,
};
