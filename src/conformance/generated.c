#include "conformance/generated.h"

#include "conformance/case_run.h"
#include "conformance/generate_case.h"
#include "conformance/tolerances.h"
#include "core/file.h"

#include <deltune/provider.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dtp_property_name(dt_property property)
{
    static const char *const names[DT_PROPERTIES] = {"backward", "reference",  "guards",   "separate",
                                                     "leak",     "boundaries", "capacity", "strides",
                                                     "recorded", "repeat",     "threads"};
    return (unsigned)property < DT_PROPERTIES ? names[property] : "unknown";
}

bool dtp_has_generated(dt_op op)
{
    return dtp_can_generate(op);
}

/* One call being judged. */
typedef struct dt_judge {
    dt_exec *exec;
    const dt_kit_options *options;
    dt_kit_report *report;
    dt_case c;               /* expected results filled in */
    dt_case_setup setup;     /* of the plain run */
    dt_case_outcome outcome; /* of the plain run */
    bool failed;             /* in this call */
} dt_judge;

static void fail(dt_judge *j, dt_property property, const char *format, ...) DT_PRINTF(3, 4);

/* Keeps the first fault of a property: calls grow, so it is that of the smallest. */
static void fail(dt_judge *j, dt_property property, const char *format, ...)
{
    j->failed = true;
    if (j->report->failed[property])
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(j->report->fault[property], sizeof j->report->fault[property], format, args);
    va_end(args);
    j->report->failed[property] = true;
}

/* The RMS of a few errors is no statistic yet, which only shows where the limit is not far above what is expected: in
 * bf16. Errors of n independent roundings scatter by about 1 / sqrt(n). Where an intermediate value was rounded the
 * error is shared by a whole vector, and a single vector may be small by cancellation (v . do of the only token) while
 * its error is not: the ratio of n such vectors has a tail like 1 / n. */
static double few_errors(const dt_case_tensor *t)
{
    if (t->count == 0)
        return 1;
    if (t->binding->roundings == 1 || t->rank == 1)
        return 1 + 2 / sqrt((double)t->count);
    return 1 + 32 / ((double)t->count / (double)t->shape[t->rank - 1]);
}

/* The tolerances of cases, with a floor for slices whose reference vanishes: a sample of one token has dq = dk = 0 in
 * attention, as the difference of two equal sums that rounding makes unequal. In bf16 a slice of one or two numbers
 * (dbeta of a short sample) is held against the whole tensor. */
static void tolerances(const dt_judge *j, const dt_case *c, int i, dt_comparison_rule *rule)
{
    dtp_case_tolerances(c, i, j->options->activation, rule);
    if (rule->slice_floor < 0.1)
        rule->slice_floor = 0.1;
    if (j->options->activation == DT_BF16) {
        rule->tolerance *= few_errors(&c->tensor[i]);
        rule->slice_tolerance = fmax(rule->slice_tolerance, rule->tolerance);
        rule->slice_floor = 1;
    }
}

static bool is_result(const dt_judge *j, int i)
{
    return !dtp_binding_is_given(j->c.tensor[i].binding);
}

/* Compares all results with `expected` (by tensor index) under the tolerances; the first that fails names the fault. */
static void compare_all(dt_judge *j, dt_property property, float *const got[], float *const expected[],
                        const char *what)
{
    for (int i = 0; i < j->c.n; i++) {
        if (!is_result(j, i) || !got[i])
            continue;
        dt_comparison_rule rule = {0};
        tolerances(j, &j->c, i, &rule);
        dt_comparison x = dtp_case_compare(&j->c, i, got[i], expected[i], &rule);
        if (!x.passed) {
            fail(j, property, "%s: %s is wrong: ratio %.2g (of %.0e), worst slice %.2g at sample %lld, head %lld", what,
                 j->c.tensor[i].binding->name, x.ratio, rule.tolerance, x.worst_ratio, (long long)x.worst_n,
                 (long long)x.worst_head);
            return;
        }
    }
}

static void same_bits(dt_judge *j, dt_property property, float *const got[], const char *what)
{
    for (int i = 0; i < j->c.n; i++)
        if (is_result(j, i) && got[i] &&
            memcmp(got[i], j->outcome.values[i], (size_t)j->c.tensor[i].count * sizeof(float)) != 0) {
            fail(j, property, "%s: %s differs from the first run", what, j->c.tensor[i].binding->name);
            return;
        }
}

/* Runs the call again in another setup; a fault there belongs to `property`. false: nothing to compare. */
static bool run_again(dt_judge *j, dt_property property, const dt_case *c, const dt_case_setup *setup,
                      dt_case_outcome *out, dt_status *status, dt_err *err)
{
    *status = dtp_case_run(j->exec, c, setup, out, err);
    if (*status != DT_OK)
        return false;
    if (out->fault[0] && out->status == DT_E_UNSUPPORTED) { /* refused openly: its right */
        dtp_case_outcome_free(out);
        return false;
    }
    if (out->fault[0]) {
        fail(j, property, "%s", out->fault);
        dtp_case_outcome_free(out);
        return false;
    }
    return true;
}

/* ---- properties ---- */

static dt_status check_other_layouts(dt_judge *j, dt_err *err)
{
    static const struct {
        dt_property property;
        int64_t extra_rows, row_pad;
        const char *what;
    } layouts[] = {{DT_PROPERTY_CAPACITY, 37, 0, "with rows beyond the last sample"},
                   {DT_PROPERTY_STRIDES, 0, 8, "in strided views"},
                   {DT_PROPERTY_RECORDED, 0, 0, "recorded"}};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        dt_case_setup setup = j->setup;
        setup.extra_rows = layouts[l].extra_rows;
        setup.row_pad = layouts[l].row_pad;
        setup.recorded = layouts[l].property == DT_PROPERTY_RECORDED;
        setup.extra_seqs = setup.recorded || setup.extra_rows ? 2 : 0;
        dt_case_outcome out;
        dt_status status;
        if (run_again(j, layouts[l].property, &j->c, &setup, &out, &status, err)) {
            compare_all(j, layouts[l].property, out.values, j->outcome.values, layouts[l].what);
            dtp_case_outcome_free(&out);
        }
        if (status != DT_OK)
            return status;
    }
    return DT_OK;
}

static dt_status check_repeat(dt_judge *j, dt_err *err)
{
    dt_case_outcome out;
    dt_status status;
    if (run_again(j, DT_PROPERTY_REPEAT, &j->c, &j->setup, &out, &status, err)) {
        same_bits(j, DT_PROPERTY_REPEAT, out.values, "the same call again");
        dtp_case_outcome_free(&out);
    }
    return status;
}

/* The rows (or the state) of sample n in tensor t. */
static void part_of(const dt_case *c, const dt_case_tensor *t, int64_t n, int64_t *begin, int64_t *count)
{
    int64_t width = t->shape[0] ? t->count / t->shape[0] : 0;
    bool state = t->binding->place == DT_PLACE_STATE;
    int64_t first = state ? n : c->cu_seqlens[n], last = state ? n + 1 : c->cu_seqlens[n + 1];
    *begin = first * width;
    *count = (last - first) * width;
}

/* The call of sample n alone. */
static dt_status alone(const dt_case *c, int64_t n, dt_case *out, dt_err *err)
{
    dt_status status = dtp_case_create(out, c->op->op, c->name, c->params, err);
    int32_t cu[2] = {0, c->cu_seqlens[n + 1] - c->cu_seqlens[n]};
    for (int i = 0; status == DT_OK && i < c->n; i++) {
        const dt_case_tensor *t = &c->tensor[i];
        int64_t shape[DT_MAX_RANK], begin = 0, count = t->count;
        memcpy(shape, t->shape, sizeof shape);
        if (t->binding->place != DT_PLACE_PARAM) {
            shape[0] = t->binding->place == DT_PLACE_STATE ? 1 : cu[1];
            part_of(c, t, n, &begin, &count);
        }
        dt_case_tensor *to = dtp_case_add(out, t->binding->name, t->rank, shape);
        if (!to)
            status = dt_fail(err, DT_E_NOMEM, "%s: out of memory", c->name);
        else
            memcpy(to->values, t->values + begin, (size_t)count * sizeof(float));
    }
    if (status == DT_OK)
        status = dtp_case_set_boundaries(out, cu, 1, err);
    if (status != DT_OK)
        dtp_case_free(out);
    return status;
}

static dt_status check_separate(dt_judge *j, dt_err *err)
{
    dt_status status = DT_OK;
    for (int64_t n = 0; n < j->c.n_seq && status == DT_OK; n++) {
        dt_case one;
        dt_case_outcome out;
        status = alone(&j->c, n, &one, err);
        if (status != DT_OK)
            return status;
        if (run_again(j, DT_PROPERTY_SEPARATE, &one, &j->setup, &out, &status, err)) {
            for (int i = 0; i < one.n; i++) {
                int64_t begin, count;
                if (!out.values[i] || one.tensor[i].binding->place == DT_PLACE_PARAM)
                    continue;
                part_of(&j->c, &j->c.tensor[i], n, &begin, &count);
                dt_comparison_rule rule = {0};
                tolerances(j, &one, i, &rule);
                dt_comparison x = dtp_case_compare(&one, i, j->outcome.values[i] + begin, out.values[i], &rule);
                if (!x.passed)
                    fail(j, DT_PROPERTY_SEPARATE,
                         "packed is not separate: %s of sample %lld differs from its own call by ratio %.2g",
                         one.tensor[i].binding->name, (long long)n, x.ratio);
            }
            dtp_case_outcome_free(&out);
        }
        dtp_case_free(&one);
    }
    return status;
}

/* Other contents in one sample, same layout: nothing of the others may change by a bit. */
static dt_status check_leak(dt_judge *j, dt_err *err)
{
    dt_status status = DT_OK;
    for (int64_t changed = 0; changed < j->c.n_seq && changed < 3 && status == DT_OK; changed++) {
        for (int i = 0; i < j->c.n; i++) {
            int64_t begin, count;
            dt_case_tensor *t = &j->c.tensor[i];
            if (is_result(j, i) || t->binding->place == DT_PLACE_PARAM)
                continue;
            part_of(&j->c, t, changed, &begin, &count);
            for (int64_t x = 0; x < count; x++)
                t->values[begin + x] *= 0.5f;
        }
        dt_case_outcome out;
        if (run_again(j, DT_PROPERTY_LEAK, &j->c, &j->setup, &out, &status, err)) {
            for (int i = 0; i < j->c.n; i++)
                for (int64_t n = 0; out.values[i] && n < j->c.n_seq && j->c.tensor[i].binding->place != DT_PLACE_PARAM;
                     n++) {
                    int64_t begin, count;
                    part_of(&j->c, &j->c.tensor[i], n, &begin, &count);
                    if (n != changed &&
                        memcmp(out.values[i] + begin, j->outcome.values[i] + begin, (size_t)count * sizeof(float)) != 0)
                        fail(j, DT_PROPERTY_LEAK,
                             "leaks across samples: other contents in sample %lld changed %s of sample %lld",
                             (long long)changed, j->c.tensor[i].binding->name, (long long)n);
                }
            dtp_case_outcome_free(&out);
        }
        for (int i = 0; i < j->c.n; i++) { /* halving is exact: doubling brings the values back */
            int64_t begin, count;
            dt_case_tensor *t = &j->c.tensor[i];
            if (is_result(j, i) || t->binding->place == DT_PLACE_PARAM)
                continue;
            part_of(&j->c, t, changed, &begin, &count);
            for (int64_t x = 0; x < count; x++)
                t->values[begin + x] *= 2;
        }
    }
    return status;
}

/* The same buffers, the same length of the list, other boundaries in it: who remembers the old ones is wrong now. */
static dt_status check_boundaries(dt_judge *j, dt_err *err)
{
    int32_t *cu = j->c.cu_seqlens, before[64];
    int64_t n = j->c.n_seq;
    if (n < 2 || n >= 64 || j->report->failed[DT_PROPERTY_REFERENCE]) /* wrong with the first boundaries already */
        return DT_OK;
    memcpy(before, cu, (size_t)(n + 1) * sizeof *cu);
    for (int64_t i = 1; i < n; i++) /* lengths in reverse order */
        cu[i] = before[n] - before[n - i];
    if (memcmp(before, cu, (size_t)(n + 1) * sizeof *cu) == 0 && cu[1] < cu[2])
        cu[1]++;
    dt_case_outcome mine = {0}, reference = {0};
    dt_case_setup oracle = {.provider = "reference", .activation = DT_F32};
    dt_status status;
    if (run_again(j, DT_PROPERTY_BOUNDARIES, &j->c, &j->setup, &mine, &status, err)) {
        status = dtp_case_run(j->exec, &j->c, &oracle, &reference, err);
        if (status == DT_OK && !reference.fault[0])
            compare_all(j, DT_PROPERTY_BOUNDARIES, mine.values, reference.values,
                        "uses stale boundaries: after the list was changed in place");
        dtp_case_outcome_free(&mine);
        dtp_case_outcome_free(&reference);
    }
    memcpy(cu, before, (size_t)(n + 1) * sizeof *cu);
    return status;
}

typedef struct dt_thread {
    const dt_judge *j;
    dt_exec *exec;
    dt_case_outcome out;
    dt_status status;
    dt_err err;
} dt_thread;

static void *run_in_thread(void *argument)
{
    dt_thread *t = argument;
    dt_case_setup setup = t->j->setup;
    setup.provider = NULL; /* chosen already: choosing is not part of a call */
    t->status = dtp_case_run(t->exec, &t->j->c, &setup, &t->out, &t->err);
    return NULL;
}

static dt_status check_threads(dt_judge *j, dt_err *err)
{
    dt_thread threads[2] = {{.j = j}, {.j = j}};
    pthread_t id[2];
    dt_status status =
        dtp_case_choose(j->exec, j->c.op->op, j->options->provider, err); /* the oracle may be chosen now */
    bool started[2] = {false, false};
    for (int i = 0; i < 2 && status == DT_OK; i++)
        status = dt_exec_create(&threads[i].exec, j->exec->ctx, j->exec->device, j->exec->device_index, 1, err);
    for (int i = 0; i < 2 && status == DT_OK; i++)
        started[i] = pthread_create(&id[i], NULL, run_in_thread, &threads[i]) == 0;
    for (int i = 0; i < 2; i++) {
        if (!started[i])
            continue;
        pthread_join(id[i], NULL);
        if (threads[i].status != DT_OK && status == DT_OK)
            status = dt_fail(err, threads[i].status, "%s", threads[i].err.text);
        else if (threads[i].out.fault[0])
            fail(j, DT_PROPERTY_THREADS, "%s", threads[i].out.fault);
        else
            same_bits(j, DT_PROPERTY_THREADS, threads[i].out.values, "two threads at once");
        dtp_case_outcome_free(&threads[i].out);
    }
    for (int i = 0; i < 2; i++)
        dt_exec_free(threads[i].exec);
    return status;
}

/* ---- one call ---- */

/* Expected results from the reference provider, on the host. */
static dt_status fill_expected(dt_exec *host, dt_case *c, dt_err *err)
{
    dt_case_setup setup = {.provider = "reference", .activation = DT_F32};
    dt_case_outcome out;
    dt_status status = dtp_case_run(host, c, &setup, &out, err);
    if (status == DT_OK && out.fault[0])
        status = dt_fail(err, DT_E_INTERNAL, "the reference provider cannot run %s: %s", c->name, out.fault);
    for (int i = 0; status == DT_OK && i < c->n; i++)
        if (out.values[i])
            memcpy(c->tensor[i].values, out.values[i], (size_t)c->tensor[i].count * sizeof(float));
    dtp_case_outcome_free(&out);
    return status;
}

static dt_status judge_call(dt_judge *j, dt_err *err)
{
    dt_status status = dtp_case_run(j->exec, &j->c, &j->setup, &j->outcome, err);
    if (status != DT_OK)
        return status;
    if (j->outcome.fault[0]) {
        if (j->outcome.status == DT_E_UNSUPPORTED) {
            if (j->report->refused++ == 0)
                snprintf(j->report->refusal, sizeof j->report->refusal, "%.250s", j->outcome.fault);
            return DT_OK;
        }
        fail(j, j->outcome.status == DT_OK ? DT_PROPERTY_GUARDS : DT_PROPERTY_REFERENCE, "%s", j->outcome.fault);
        j->report->ran++;
        return DT_OK;
    }
    j->report->ran++;
    float *expected[DT_CASE_MAX_TENSORS];
    for (int i = 0; i < j->c.n; i++)
        expected[i] = j->c.tensor[i].values;
    compare_all(j, DT_PROPERTY_REFERENCE, j->outcome.values, expected, "against the reference");
    status = check_repeat(j, err);
    if (status == DT_OK)
        status = check_other_layouts(j, err);
    if (status == DT_OK && j->c.cu_seqlens)
        status = check_separate(j, err);
    if (status == DT_OK && j->c.cu_seqlens)
        status = check_leak(j, err);
    if (status == DT_OK && j->c.cu_seqlens)
        status = check_boundaries(j, err);
    if (status == DT_OK)
        status = check_threads(j, err);
    return status;
}

/* The smallest failing call as a case file. */
static void write_down(dt_judge *j)
{
    if (!j->failed || !j->options->folder || j->report->written[0])
        return;
    char *name = dtp_format("%s.safetensors", j->c.name), *path = name ? dtp_path_join(j->options->folder, name) : NULL;
    if (path && dtp_case_save(&j->c, path, NULL) == DT_OK)
        snprintf(j->report->written, sizeof j->report->written, "%s", path);
    free(path);
    free(name);
}

static dt_status check_backward(dt_judge *j, dt_op op, dt_err *err)
{
    dt_op_info info = {0};
    const dt_op_binding *binding = dtp_op_binding(op);
    bool trained = false;
    for (size_t i = 0; i < binding->n; i++)
        trained |= binding->tensors[i].role == DT_ROLE_UPSTREAM;
    dt_status status = dtp_case_choose(j->exec, op, j->options->provider, err);
    if (!trained)
        return status;
    if (status == DT_OK)
        status = dt_ctx_op_info(j->exec->ctx, op, j->exec->device, &info, err);
    if (status == DT_OK && !(info.caps & DT_CAP_BACKWARD))
        fail(j, DT_PROPERTY_BACKWARD, "lacks backward: %s of provider %s can run inference only", dt_op_name(op),
             info.provider);
    return status;
}

dt_status dtp_check_generated(dt_exec *exec, dt_op op, const dt_kit_options *options, dt_kit_report *report,
                              dt_err *err)
{
    dt_exec *host = NULL;
    dt_judge j = {.exec = exec,
                  .options = options,
                  .report = report,
                  .setup = {.provider = options->provider, .activation = options->activation}};
    *report = (dt_kit_report){.op = op};
    if (!dtp_can_generate(op))
        return dt_fail(err, DT_E_UNSUPPORTED, "%s has no generated calls", dt_op_name(op));
    dt_status status = dt_exec_create(&host, exec->ctx, DT_DEVICE_CPU, 0, exec->threads, err);
    if (status == DT_OK)
        status = check_backward(&j, op, err);
    for (int i = 0; i < options->cases && status == DT_OK; i++) {
        j.failed = false;
        status = dtp_generate_case(&j.c, op, options->seed, i, options->cases, err);
        if (status != DT_OK)
            break;
        status = fill_expected(host, &j.c, err);
        if (status == DT_OK)
            status = judge_call(&j, err);
        write_down(&j);
        dtp_case_outcome_free(&j.outcome);
        dtp_case_free(&j.c);
    }
    if (status == DT_OK && report->ran == 0 && !report->failed[DT_PROPERTY_BACKWARD])
        fail(&j, DT_PROPERTY_REFERENCE, "took none of %d calls: %.200s", options->cases, report->refusal);
    report->passed = true;
    for (int p = 0; p < DT_PROPERTIES; p++)
        report->passed &= !report->failed[p];
    dt_exec_free(host);
    return status;
}
