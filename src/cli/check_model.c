#include "cli/check_model.h"
#include "model/model_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* One line per kind of result: the row that uses most of its tolerance. */
static void print_kind(const dt_model_case_report *report, const char *title, const char *start)
{
    const dt_model_case_row *worst = NULL;
    size_t n = 0;
    for (size_t i = 0; i < report->n_rows; i++) {
        const dt_model_case_row *r = &report->row[i];
        if (!starts_with(r->name, start) || (!strcmp(start, "grad.") && starts_with(r->name, "grad.base_model.")))
            continue;
        n++;
        if (!worst || !(r->error / r->tolerance <= worst->error / worst->tolerance))
            worst = r;
    }
    if (worst)
        printf("%-6s %-18s %4zu  worst %.1e (of %.0e)  %s\n", worst->passed ? "ok" : "FAILED", title, n, worst->error,
               worst->tolerance, worst->name);
}

static void print_table(const dt_model_case_report *report)
{
    print_kind(report, "hidden states", "hidden_states");
    print_kind(report, "logits", "logits");
    print_kind(report, "loss", "loss");
    print_kind(report, "weight gradients", "grad.");
    print_kind(report, "LoRA gradients", "grad.base_model.");
    print_kind(report, "half of these", "median.");
    for (size_t i = 0; i < report->n_rows; i++)
        if (!report->row[i].passed)
            printf("       %s: %.2e (of %.0e)\n", report->row[i].name, report->row[i].error, report->row[i].tolerance);
}

static void print_json(const dt_model_case_report *report, const char *folder, const char *layout)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < report->n_rows; i++) {
        const dt_model_case_row *r = &report->row[i];
        json_array_append_new(rows, json_pack("{s:s, s:o, s:f, s:b}", "name", r->name, "error",
                                              isfinite(r->error) ? json_real(r->error) : json_string("nan"),
                                              "tolerance", r->tolerance, "passed", r->passed));
    }
    json_t *out =
        json_pack("{s:s, s:s, s:b, s:o}", "case", folder, "layout", layout, "passed", report->passed, "results", rows);
    json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(out);
}

dt_status dtp_check_model(dt_exec *exec, const dt_args *args, bool *passed_out, dt_err *err)
{
    const char *folder = dtp_args_string(args, "model-case"), *layout_name = dtp_args_string(args, "layout");
    const bool bf16 = strcmp(dtp_args_string(args, "dtype"), "bfloat16") == 0;
    dt_case_layout layout;
    if (!dtp_case_layout_by_name(layout_name, &layout))
        return dt_fail(err, DT_E_ARG, "--layout: \"%s\" is not known", layout_name);
    dt_model_case_report report;
    dt_status status = dtp_model_case_run(&report, exec, folder, layout, bf16 ? DT_BF16 : DT_F32, err);
    if (status != DT_OK)
        return status;
    if (dtp_args_bool(args, "json"))
        print_json(&report, folder, layout_name);
    else
        print_table(&report);
    *passed_out = report.passed;
    dtp_model_case_free(&report);
    return DT_OK;
}
