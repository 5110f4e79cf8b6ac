/* deltune check: the conformance kit. Reference cases from files, generated calls, on any provider. */
#include "cli/check_model.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "conformance/generated.h"
#include "conformance/op_case.h"
#include "core/file.h"
#include "core/memory.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dt_arg_spec check_args[] = {
    {"dtype", DT_ARG_STRING, "float32", "float32|bfloat16", "Dtype of the activations; tolerances follow it."},
    {"model-case", DT_ARG_STRING, NULL, NULL, "Folder of a whole-model case (golden/<model>) to compare instead."},
    {"layout", DT_ARG_STRING, "pack", "pack|padding_free|padded|single",
     "How the samples of a model case are laid out."},
    {"json", DT_ARG_BOOL, "false", NULL, "Print one JSON object instead of the table."},
};
static const dt_arg_spec kit_args[] = {
    {"generated", DT_ARG_BOOL, "false", NULL,
     "Run generated calls too: random shapes and packs, and the properties every provider must have."},
    {"operators", DT_ARG_LIST, "", NULL, "Operators to generate calls for (default: all that the provider serves)."},
    {"cases", DT_ARG_INT, "20", NULL, "Generated calls an operator, growing in size."},
    {"seed", DT_ARG_INT, "1", NULL, "Seed of the generated calls."},
    {"output_dir", DT_ARG_STRING, NULL, NULL, "Folder for the smallest failing call, as a case file."},
};
static const dt_arg_group check_group = DT_ARG_GROUP("Cases", check_args),
                          kit_group = DT_ARG_GROUP("Generated calls", kit_args);
static const dt_arg_group *const check_table[] = {&dtp_device_arguments, &check_group, &kit_group, NULL};

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
        if (r->comparison.negligible && !(r->comparison.ratio <= r->tolerance)) /* a ratio of numbers next to nothing */
            continue;
        if (!worst || !(r->comparison.ratio / r->tolerance <= worst->comparison.ratio / worst->tolerance))
            worst = r;
    }
    printf("%-6s %-28s %-10s", report->passed ? "ok" : "FAILED", report->name,
           report->provider ? report->provider : "-");
    if (worst)
        printf(" worst %s %.1e (of %.1e)", worst->tensor, worst->comparison.ratio, worst->tolerance);
    putchar('\n');
    if (report->fault[0])
        printf("       %s\n", report->fault);
    for (int i = 0; i < report->n_results; i++) {
        const dt_case_result *r = &report->result[i];
        if (!r->comparison.passed)
            printf("       %s: ratio %.2e (of %.1e), worst slice %.2e: sample %lld, head %lld\n", r->tensor,
                   r->comparison.ratio, r->tolerance, r->comparison.worst_ratio, (long long)r->comparison.worst_n,
                   (long long)r->comparison.worst_head);
    }
}

/* The provider asked for with --provider NAME or OP=NAME, for this operator; NULL when none was. */
static const char *asked_provider(const dt_args *args, dt_op op)
{
    const char *name = NULL;
    size_t n = strlen(dt_op_name(op));
    for (size_t i = 0; i < dtp_args_list_count(args, "provider"); i++) {
        const char *item = dtp_args_list_at(args, "provider", i);
        if (!strchr(item, '='))
            name = item;
        else if (strncmp(item, dt_op_name(op), n) == 0 && item[n] == '=')
            name = item + n + 1;
    }
    return name && strcmp(name, "auto") != 0 ? name : NULL;
}

static bool serves(dt_ctx *ctx, dt_op op, dt_device_kind device, const char *provider)
{
    const char *name;
    for (size_t i = 0; (name = dt_ctx_candidate(ctx, op, device, i)) != NULL; i++)
        if (strcmp(name, provider) == 0)
            return true;
    return false;
}

/* Calls `each` for the provider asked for, or for every one that serves the operator. */
typedef dt_status (*dt_each_provider)(dt_exec *exec, dt_op op, const char *provider, void *user, dt_err *err);

static dt_status for_providers(dt_exec *exec, dt_op op, const dt_args *args, dt_each_provider each, void *user,
                               dt_err *err)
{
    const char *asked = asked_provider(args, op);
    if (asked)
        return each(exec, op, asked, user, err);
    const char *names[16];
    size_t n = 0;
    while (n < 16 && (names[n] = dt_ctx_candidate(exec->ctx, op, exec->device, n)) != NULL)
        n++;
    dt_status status = DT_OK;
    for (size_t i = 0; i < n && status == DT_OK; i++)
        status = each(exec, op, names[i], user, err);
    return status;
}

/* ---- files ---- */

typedef struct dt_file_run {
    const char *path;
    dt_dtype activation;
    dt_tally *tally;
} dt_file_run;

static dt_status run_case(dt_exec *exec, dt_op op, const char *provider, void *user, dt_err *err)
{
    (void)op;
    dt_file_run *f = user;
    dt_case_report report;
    const dt_case_options options = {provider, f->activation};
    dt_status status = dtp_run_op_case(exec, f->path, &options, &report, err);
    if (status != DT_OK)
        return status;
    *(report.passed ? &f->tally->passed : &f->tally->failed) += 1;
    if (f->tally->json)
        add_json(f->tally, &report);
    else
        print_case(&report);
    return DT_OK;
}

/* ---- generated calls ---- */

typedef struct dt_kit_run {
    dt_kit_options options;
    dt_tally *tally;
} dt_kit_run;

static void add_kit_json(dt_tally *tally, const dt_kit_report *r, const char *provider, uint64_t seed)
{
    json_t *faults = json_object();
    for (int p = 0; p < DT_PROPERTIES; p++)
        json_object_set_new(faults, dtp_property_name((dt_property)p),
                            r->failed[p] ? json_string(r->fault[p]) : json_null());
    json_array_append_new(tally->list,
                          json_pack("{s:s, s:s, s:I, s:i, s:i, s:b, s:o, s:s}", "op", dt_op_name(r->op), "provider",
                                    provider, "seed", (json_int_t)seed, "calls", r->ran, "refused", r->refused,
                                    "passed", r->passed, "faults", faults, "case", r->written));
}

static void print_kit(const dt_kit_report *r, const char *provider)
{
    printf("%-6s %-28s %-10s %d calls", r->passed ? "ok" : "FAILED", dt_op_name(r->op), provider, r->ran);
    if (r->refused)
        printf(", %d refused (%s)", r->refused, r->refusal);
    putchar('\n');
    for (int p = 0; p < DT_PROPERTIES; p++)
        if (r->failed[p])
            printf("       %-10s %s\n", dtp_property_name((dt_property)p), r->fault[p]);
    if (r->written[0])
        printf("       smallest failing call: %s\n", r->written);
}

static dt_status run_kit(dt_exec *exec, dt_op op, const char *provider, void *user, dt_err *err)
{
    dt_kit_run *k = user;
    dt_kit_report report;
    if (!serves(exec->ctx, op, exec->device, provider))
        return DT_OK;
    k->options.provider = provider;
    dt_status status = dtp_check_generated(exec, op, &k->options, &report, err);
    if (status != DT_OK)
        return status;
    *(report.passed ? &k->tally->passed : &k->tally->failed) += 1;
    if (k->tally->json)
        add_kit_json(k->tally, &report, provider, k->options.seed);
    else
        print_kit(&report, provider);
    return DT_OK;
}

static dt_status run_generated(dt_exec *exec, const dt_args *args, dt_kit_run *kit, dt_err *err)
{
    dt_status status = DT_OK;
    size_t n = dtp_args_list_count(args, "operators");
    for (size_t i = 0; i < n && status == DT_OK; i++) {
        dt_op op = dt_op_by_name(dtp_args_list_at(args, "operators", i));
        if (op == DT_OP_COUNT || !dtp_has_generated(op))
            return dt_fail(err, DT_E_ARG, "--operators: no generated calls for \"%s\"",
                           dtp_args_list_at(args, "operators", i));
        status = for_providers(exec, op, args, run_kit, kit, err);
    }
    for (int op = 0; n == 0 && op < DT_OP_COUNT && status == DT_OK; op++)
        if (dtp_has_generated((dt_op)op))
            status = for_providers(exec, (dt_op)op, args, run_kit, kit, err);
    return status;
}

static void print_end(const dt_tally *tally, const dt_args *args)
{
    if (tally->json) {
        json_t *out =
            json_pack("{s:i, s:i, s:O}", "passed", tally->passed, "failed", tally->failed, "results", tally->list);
        json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(out);
        return;
    }
    printf("%d passed, %d failed", tally->passed, tally->failed);
    if (dtp_args_bool(args, "generated"))
        printf(" (seed %lld, %lld calls an operator)", (long long)dtp_args_int(args, "seed", 1),
               (long long)dtp_args_int(args, "cases", 20));
    putchar('\n');
}

static int run(const dt_args *args, dt_err *err)
{
    bool generated = dtp_args_bool(args, "generated"), whole_model = dtp_args_string(args, "model-case") != NULL;
    bool model_passed = true;
    if (whole_model == (dtp_args_operand_count(args) > 0 || generated))
        return dt_fail(err, DT_E_ARG,
                       "name case files (.safetensors), ask for --generated calls, or give --model-case FOLDER");
    dt_dtype activation = strcmp(dtp_args_string(args, "dtype"), "bfloat16") == 0 ? DT_BF16 : DT_F32;
    dt_tally tally = {.json = dtp_args_bool(args, "json"), .list = json_array()};
    dt_ctx *ctx = NULL;
    dt_exec *exec = NULL;
    dt_status status = dtp_open_device(&ctx, &exec, args, err);
    if (status == DT_OK && whole_model)
        status = dtp_check_model(exec, args, &model_passed, err);
    if (status == DT_OK && dtp_args_string(args, "output_dir"))
        status = dtp_make_folders(dtp_args_string(args, "output_dir"), err);
    for (size_t i = 0; i < dtp_args_operand_count(args) && status == DT_OK; i++) {
        dt_file_run file = {dtp_args_operand(args, i), activation, &tally};
        dt_op op;
        status = dtp_op_of_case(file.path, &op, err);
        if (status == DT_OK)
            status = for_providers(exec, op, args, run_case, &file, err);
    }
    if (status == DT_OK && generated) {
        dt_kit_run kit = {{NULL, activation, (uint64_t)dtp_args_int(args, "seed", 1),
                           (int)dtp_args_int(args, "cases", 20), dtp_args_string(args, "output_dir")},
                          &tally};
        status = run_generated(exec, args, &kit, err);
    }
    if (status == DT_OK && !whole_model)
        print_end(&tally, args);
    if (status == DT_OK && !whole_model && tally.passed + tally.failed == 0)
        status = dt_fail(err, DT_E_UNAVAILABLE,
                         "nothing was checked: the provider asked for serves none of these operators on %s",
                         dt_device_name(exec->device));
    json_decref(tally.list);
    dt_exec_free(exec);
    dt_ctx_free(ctx);
    return status != DT_OK ? (int)status : tally.failed > 0 || !model_passed;
}

const dt_command dtp_command_check = {
    .name = "check",
    .summary = "Run reference cases and generated calls on a provider.",
    .operands = "[FILE...]",
    .about = "A case is a .safetensors file with the inputs, outputs and\n"
             "gradients of one operator call; --model-case names a folder\n"
             "with a model and its first batch. --generated makes calls and\n"
             "checks what every provider must do: equal the reference,\n"
             "keep samples apart, stay inside its buffers, repeat its\n"
             "bits. Exit code 1 when something fails. Without --provider\n"
             "every provider that serves the operator is checked.",
    .table = check_table,
    .run = run,
};
