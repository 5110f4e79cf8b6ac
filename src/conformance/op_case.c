#include "conformance/op_case.h"

#include "conformance/case_run.h"
#include "conformance/tolerances.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Judges the results of one run; keeps those of the plain one in the report. */
static bool judge_run(dt_case_report *report, const dt_case *c, const dt_case_outcome *outcome, dt_dtype activation,
                      bool keep)
{
    bool passed = true;
    for (int i = 0; i < c->n; i++) {
        if (!outcome->values[i])
            continue;
        dt_comparison_rule rule;
        dtp_case_tolerances(c, i, activation, &rule);
        const dt_comparison x = dtp_case_compare(c, i, outcome->values[i], c->tensor[i].values, &rule);
        passed &= x.passed;
        if (keep)
            report->result[report->n_results++] =
                (dt_case_result){c->tensor[i].binding->name, x, rule.tolerance, rule.slice_tolerance};
        else if (!x.passed && !report->fault[0])
            snprintf(report->fault, sizeof report->fault,
                     "with capacity beyond the samples: %s has ratio %.2e (of %.1e), worst slice %.2e",
                     c->tensor[i].binding->name, x.ratio, rule.tolerance, x.worst_ratio);
    }
    return passed;
}

/* Once more with rows and boundaries beyond the samples, twice: the results must pass too, and be the same bits. */
static dt_status run_with_capacity(dt_exec *exec, const dt_case *c, dt_case_setup setup, dt_case_report *report,
                                   dt_err *err)
{
    dt_case_outcome first, again = {0};
    setup.extra_rows = 71; /* no multiple of any tile */
    setup.extra_seqs = 3;
    dt_status status = dtp_case_run(exec, c, &setup, &first, err);
    if (status != DT_OK)
        return status;
    status = dtp_case_run(exec, c, &setup, &again, err);
    if (status == DT_OK && (first.fault[0] || again.fault[0]))
        snprintf(report->fault, sizeof report->fault, "with capacity beyond the samples: %.900s",
                 first.fault[0] ? first.fault : again.fault);
    else if (status == DT_OK)
        judge_run(report, c, &first, setup.activation, false);
    for (int i = 0; i < c->n && status == DT_OK && !report->fault[0]; i++)
        if (first.values[i] &&
            memcmp(first.values[i], again.values[i], (size_t)c->tensor[i].count * sizeof(float)) != 0)
            snprintf(report->fault, sizeof report->fault, "the same call again gives other bits of %s",
                     c->tensor[i].binding->name);
    dtp_case_outcome_free(&first);
    dtp_case_outcome_free(&again);
    return status;
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
    const dt_case_setup setup = {.provider = options->provider, .activation = options->activation};
    status = dtp_case_run(exec, &c, &setup, &outcome, err);
    if (status == DT_OK) {
        report->provider = outcome.provider;
        memcpy(report->fault, outcome.fault, sizeof report->fault);
        report->passed = judge_run(report, &c, &outcome, options->activation, true);
        dtp_case_outcome_free(&outcome);
        if (!report->fault[0])
            status = run_with_capacity(exec, &c, setup, report, err);
        report->passed &= !report->fault[0];
    }
    dtp_case_free(&c);
    return status;
}
