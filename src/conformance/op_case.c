#include "conformance/op_case.h"

#include "conformance/case_run.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* fp32: what rounding of fp32 arithmetic allows. bf16: fla's own error against float64, a slice 2.5 times that. */
void dtp_case_tolerances(dt_op op, dt_dtype activation, const dt_binding *b, dt_comparison_rule *rule)
{
    rule->slicing = b->slicing;
    if (activation == DT_F32) {
        rule->tolerance = b->role == DT_ROLE_OUTPUT ? 1e-5 : b->loose ? 1e-3 : 1e-4;
        rule->slice_tolerance = rule->tolerance;
        return;
    }
    static const struct {
        const char *name;
        double ratio;
    } gdn[] = {{"o", 4.3e-3},  {"dq", 4.4e-3},    {"dk", 4.7e-3},          {"dv", 4.0e-3},
               {"dg", 4.6e-3}, {"dbeta", 4.0e-3}, {"final_state", 3.3e-3}, {"dinitial_state", 1.7e-3}};
    rule->tolerance = 4.0e-3; /* a few roundings to bf16 */
    for (size_t i = 0; op == DT_OP_GDN && i < sizeof gdn / sizeof *gdn; i++)
        if (strcmp(gdn[i].name, b->name) == 0)
            rule->tolerance = gdn[i].ratio;
    rule->slice_tolerance = 2.5 * rule->tolerance;
    rule->slice_floor = 0.25;
}

/* Marks the rows x heads whose input vector is all zero. NULL when the binding has no such rule. */
static bool *zero_rows(const dt_case *c, const dt_binding *b)
{
    const dt_case_tensor *in = NULL;
    for (int i = 0; b->apart_input && i < c->n; i++)
        if (strcmp(c->tensor[i].binding->name, b->apart_input) == 0)
            in = &c->tensor[i];
    if (!in || in->rank != 3)
        return NULL;
    int64_t vectors = in->shape[0] * in->shape[1], width = in->shape[2];
    bool *apart = dtp_calloc((size_t)vectors, sizeof *apart);
    for (int64_t v = 0; apart && v < vectors; v++) {
        apart[v] = true;
        for (int64_t i = 0; i < width; i++)
            apart[v] &= in->values[v * width + i] == 0;
    }
    return apart;
}

dt_comparison dtp_case_compare(const dt_case *c, int i, const float *got, const float *expected,
                               const dt_comparison_rule *given)
{
    const dt_case_tensor *t = &c->tensor[i];
    dt_comparison_rule rule = *given;
    bool *apart = zero_rows(c, t->binding);
    rule.apart = apart;
    int64_t heads = t->rank >= 2 ? t->shape[1] : 1, vectors = t->shape[0] * heads,
            width = vectors > 0 ? t->count / vectors : 1;
    dt_comparison out = dtp_compare(got, expected, t->shape[0], heads, width, c->cu_seqlens, c->n_seq, &rule);
    free(apart);
    return out;
}

dt_status dtp_op_of_case(const char *path, dt_op *op_out, dt_err *err)
{
    dt_case c;
    dt_status status = dtp_case_open(&c, path, err);
    if (status != DT_OK)
        return status;
    *op_out = c.op->op;
    dtp_case_free(&c);
    return DT_OK;
}

dt_status dtp_run_op_case(dt_exec *exec, const char *path, const dt_case_options *options, dt_case_report *report,
                          dt_err *err)
{
    dt_case c;
    dt_case_outcome outcome;
    *report = (dt_case_report){0};
    dt_status status = dtp_case_open(&c, path, err);
    if (status != DT_OK)
        return status;
    memcpy(report->name, c.name, sizeof report->name);
    report->op = c.op->op;
    const dt_case_setup setup = {options->provider, options->activation, 0, 0};
    status = dtp_case_run(exec, &c, &setup, &outcome, err);
    if (status == DT_OK) {
        report->provider = outcome.provider;
        memcpy(report->fault, outcome.fault, sizeof report->fault);
        report->passed = !outcome.fault[0];
        for (int i = 0; i < c.n; i++) {
            if (!outcome.values[i])
                continue;
            dt_comparison_rule rule = {0};
            dtp_case_tolerances(c.op->op, options->activation, c.tensor[i].binding, &rule);
            dt_case_result *r = &report->result[report->n_results++];
            *r = (dt_case_result){c.tensor[i].binding->name,
                                  dtp_case_compare(&c, i, outcome.values[i], c.tensor[i].values, &rule), rule.tolerance,
                                  rule.slice_tolerance};
            report->passed &= r->comparison.passed;
        }
        dtp_case_outcome_free(&outcome);
    }
    dtp_case_free(&c);
    return status;
}
