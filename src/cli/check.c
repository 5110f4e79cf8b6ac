/* deltune check: reference cases of single operators, or of a whole model, on any provider. */
#include "cli/check_model.h"
#include "cli/cli.h"
#include "conformance/op_case.h"
#include "core/memory.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dt_arg_spec check_args[] = {
    {"provider", DT_ARG_LIST, NULL, NULL,
     "Providers to run the cases on, one after the other (default: every one that serves the operator)."},
    {"device", DT_ARG_STRING, "cpu", "cpu|cuda|npu", "Device whose providers are checked."},
    {"dtype", DT_ARG_STRING, "float32", "float32|bfloat16", "Dtype of the activations; tolerances follow it."},
    {"threads", DT_ARG_INT, "0", NULL, "CPU threads; 0 = as many as the process may use."},
    {"model-case", DT_ARG_STRING, NULL, NULL, "Folder of a whole-model case (golden/<model>) to compare instead."},
    {"layout", DT_ARG_STRING, "pack", "pack|padding_free|padded|single",
     "How the samples of a model case are laid out."},
    {"json", DT_ARG_BOOL, "false", NULL, "Print one JSON object instead of the table."},
};
static const dt_arg_group check_group = DT_ARG_GROUP("Cases", check_args);
static const dt_arg_group *const check_table[] = {&check_group, NULL};

/* What is printed at the end. */
typedef struct dt_tally {
    int passed, failed;
    bool json;
    json_t *list;
} dt_tally;

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_string("nan");
}

static void add_json(dt_tally *tally, const dt_case_report *report)
{
    json_t *tensors = json_array();
    for (int i = 0; i < report->n_results; i++) {
        const dt_case_result *r = &report->result[i];
        json_t *tensor = json_pack("{s:s, s:o, s:f, s:o, s:f, s:I, s:I, s:b}", "tensor", r->tensor, "ratio",
                                   number(r->comparison.ratio), "tolerance", r->tolerance, "worst_slice_ratio",
                                   number(r->comparison.worst_ratio), "slice_tolerance", r->slice_tolerance,
                                   "worst_sample", (json_int_t)r->comparison.worst_n, "worst_head",
                                   (json_int_t)r->comparison.worst_head, "passed", r->comparison.passed);
        json_array_append_new(tensors, tensor);
    }
    json_array_append_new(tally->list, json_pack("{s:s, s:s, s:s?, s:b, s:s, s:o}", "case", report->name, "op",
                                                 dt_op_name(report->op), "provider", report->provider, "passed",
                                                 report->passed, "fault", report->fault, "tensors", tensors));
}

static void print_case(const dt_case_report *report)
{
    const dt_case_result *worst = NULL;
    for (int i = 0; i < report->n_results; i++) {
        const dt_case_result *r = &report->result[i];
        if (!worst || r->comparison.ratio / r->tolerance > worst->comparison.ratio / worst->tolerance)
            worst = r;
    }
    printf("%-6s %-28s %-10s", report->passed ? "ok" : "FAILED", report->name,
           report->provider ? report->provider : "-");
    if (worst)
        printf(" worst %s %.1e (of %.0e)", worst->tensor, worst->comparison.ratio, worst->tolerance);
    putchar('\n');
    if (report->fault[0])
        printf("       %s\n", report->fault);
    for (int i = 0; i < report->n_results; i++) {
        const dt_case_result *r = &report->result[i];
        if (!r->comparison.passed)
            printf("       %s: ratio %.2e (of %.0e), worst slice %.2e: sample %lld, head %lld\n", r->tensor,
                   r->comparison.ratio, r->tolerance, r->comparison.worst_ratio, (long long)r->comparison.worst_n,
                   (long long)r->comparison.worst_head);
    }
}

static dt_status run_case(dt_exec *exec, const char *path, const dt_case_options *options, dt_tally *tally, dt_err *err)
{
    dt_case_report report;
    dt_status status = dtp_run_op_case(exec, path, options, &report, err);
    if (status != DT_OK)
        return status;
    *(report.passed ? &tally->passed : &tally->failed) += 1;
    if (tally->json)
        add_json(tally, &report);
    else
        print_case(&report);
    return DT_OK;
}

/* The case on every provider asked for. */
static dt_status run_file(dt_exec *exec, const char *path, const dt_args *args, dt_case_options options,
                          dt_tally *tally, dt_err *err)
{
    size_t n = dtp_args_list_count(args, "provider");
    dt_op op;
    dt_status status = dtp_op_of_case(path, &op, err);
    for (size_t i = 0; i < n && status == DT_OK; i++) {
        options.provider = dtp_args_list_at(args, "provider", i);
        status = run_case(exec, path, &options, tally, err);
    }
    for (size_t i = 0; n == 0 && status == DT_OK; i++) {
        options.provider = dt_ctx_candidate(exec->ctx, op, exec->device, i);
        if (!options.provider)
            break;
        status = run_case(exec, path, &options, tally, err);
    }
    return status;
}

/* A whole model runs all operators on one choice of providers. */
static dt_status check_model(dt_ctx *ctx, dt_exec *exec, const dt_args *args, bool *passed_out, dt_err *err)
{
    dt_status status = DT_OK;
    for (size_t i = 0; status == DT_OK && i < dtp_args_list_count(args, "provider"); i++)
        status = dt_ctx_choose(ctx, dtp_args_list_at(args, "provider", i), err);
    return status == DT_OK ? dtp_check_model(exec, args, passed_out, err) : status;
}

static int run(const dt_args *args, dt_err *err)
{
    const bool whole_model = dtp_args_string(args, "model-case") != NULL;
    bool model_passed = true;
    if ((dtp_args_operand_count(args) > 0) == whole_model)
        return dt_fail(err, DT_E_ARG, "name one or more case files (.safetensors), or give --model-case FOLDER");
    static const char *const devices[] = {"cpu", "cuda", "npu"};
    dt_device_kind device = DT_DEVICE_CPU;
    for (int i = 0; i < DT_DEVICE_KINDS; i++)
        if (strcmp(dtp_args_string(args, "device"), devices[i]) == 0)
            device = (dt_device_kind)i;
    dt_case_options options = {.activation =
                                   strcmp(dtp_args_string(args, "dtype"), "bfloat16") == 0 ? DT_BF16 : DT_F32};
    dt_tally tally = {.json = dtp_args_bool(args, "json"), .list = json_array()};
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_status status = dt_ctx_create(&ctx, err);
    if (status == DT_OK)
        status = dt_exec_create(&exec, ctx, device, 0, (int)dtp_args_int(args, "threads", 0), err);
    if (status == DT_OK && whole_model)
        status = check_model(ctx, exec, args, &model_passed, err);
    for (size_t i = 0; i < dtp_args_operand_count(args) && status == DT_OK; i++)
        status = run_file(exec, dtp_args_operand(args, i), args, options, &tally, err);
    if (status != DT_OK || whole_model) {
        /* nothing to sum up */
    } else if (tally.json) {
        json_t *out = json_pack("{s:i, s:i, s:O}", "passed", tally.passed, "failed", tally.failed, "cases", tally.list);
        json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(out);
    } else {
        printf("%d passed, %d failed\n", tally.passed, tally.failed);
    }
    json_decref(tally.list);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    return status != DT_OK ? (int)status : tally.failed > 0 || !model_passed;
}

const dt_command dtp_command_check = {
    .name = "check",
    .summary = "Run reference cases on a provider and compare.",
    .operands = "FILE...",
    .about = "A case is a .safetensors file with the inputs, outputs and\n"
             "gradients of one operator call; with --model-case a folder\n"
             "with a model and its first batch. Exit code 1 when a result\n"
             "is beyond its tolerance.",
    .table = check_table,
    .run = run,
};
