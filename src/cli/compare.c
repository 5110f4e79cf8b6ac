/* deltune compare: two runs of one recipe, step by step. */
#include "cli/cli.h"
#include "core/log.h"
#include "core/memory.h"
#include "text/unicode.h"
#include "train/compare_runs.h"
#include "train/plot.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dt_arg_spec specs[] = {
    {"threshold", DT_ARG_FLOAT, "0.01", NULL, "Largest mean difference, and largest drift, relative to the loss of A."},
    {"output", DT_ARG_STRING, "compare.png", NULL, "Picture of both losses and their difference."},
    {"rows", DT_ARG_INT, "30", NULL,
     "Rows of the table: evenly spaced steps, the last one, and where the runs differ most; 0 prints every step."},
    {"json", DT_ARG_BOOL, "false", NULL, "Print one JSON object instead of text."},
};
static const dt_arg_group group = DT_ARG_GROUP("Comparison", specs);
static const dt_arg_group *const table[] = {&group, NULL};

enum { exit_within = 0, exit_outside = 1 };

/* ---- text ---- */

static void print_row(const dt_run_pair *p)
{
    printf("%6lld %9.5f %9.5f %+9.5f %+8.3f%%", (long long)p->a->step, p->a->loss, p->b->loss, p->difference,
           100 * p->relative);
    const dt_run_point *both[] = {p->a, p->b};
    for (int i = 0; i < 2; i++)
        both[i]->has_norm ? printf(" %6.3g", both[i]->grad_norm) : printf("      -");
    putchar('\n');
}

static void print_table(const dt_run_comparison *c, int64_t rows)
{
    size_t every = rows > 0 ? (c->count + (size_t)rows - 1) / (size_t)rows : 1;
    puts("  step    loss A    loss B      diff relative norm A norm B");
    for (size_t i = 0; i < c->count; i++)
        if (i % every == 0 || i == c->largest || i == c->count - 1 || !c->pairs[i].finite)
            print_row(&c->pairs[i]);
}

static void print_missing(const char *one, const char *other, const dt_run_missing *m)
{
    if (m->count)
        printf("missing       %s lacks %zu steps of %s, first %lld\n", other, m->count, one, (long long)m->first);
}

static void print_verdict(const dt_run_comparison *c, double threshold)
{
    if (c->not_finite)
        puts("DIFFERENT: values that are not finite");
    else if (c->only_a.count || c->only_b.count)
        puts("DIFFERENT: not the same steps");
    else
        printf("%s the threshold of %g%%\n", dtp_runs_agree(c, threshold) ? "within" : "OUTSIDE", 100 * threshold);
}

static void print_summary(const dt_run_comparison *c, double threshold)
{
    const dt_run_pair *largest = &c->pairs[c->largest];
    printf("\ncompared      %zu steps, %lld to %lld\n", c->count, (long long)c->pairs[0].a->step,
           (long long)c->pairs[c->count - 1].a->step);
    print_missing("A", "B", &c->only_a);
    print_missing("B", "A", &c->only_b);
    if (c->not_finite)
        printf("not finite    %zu steps, first %lld\n", c->not_finite, (long long)c->first_not_finite);
    else
        puts("finite        every loss and gradient norm");
    if (c->not_finite < c->count)
        printf("mean          %.3g%% of the loss (|difference|)\n"
               "largest       %+.3g%% at step %lld\n"
               "drift         %+.3g%% from first to last step\n"
               "first tenth   %+.3g%% on average\n"
               "last tenth    %+.3g%%\n",
               100 * c->mean, 100 * largest->relative, (long long)largest->a->step, 100 * c->drift,
               100 * c->first_tenth, 100 * c->last_tenth);
    print_verdict(c, threshold);
}

/* ---- JSON ---- */

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *missing_json(const dt_run_missing *m)
{
    return json_pack("{s:I, s:o}", "count", (json_int_t)m->count, "first",
                     m->count ? json_integer(m->first) : json_null());
}

static dt_status print_json(const dt_run_comparison *c, const char *const names[2], double threshold, dt_err *err)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < c->count; i++) {
        const dt_run_pair *p = &c->pairs[i];
        json_array_append_new(steps, json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)p->a->step,
                                               "loss_a", number(p->a->loss), "loss_b", number(p->b->loss), "difference",
                                               number(p->difference), "relative", number(p->relative), "grad_norm_a",
                                               p->a->has_norm ? number(p->a->grad_norm) : json_null(), "grad_norm_b",
                                               p->b->has_norm ? number(p->b->grad_norm) : json_null()));
    }
    json_t *all = json_pack(
        "{s:s, s:s, s:f, s:b, s:f, s:o, s:I, s:f, s:f, s:f, s:I, s:o, s:o, s:o}", "a", names[0], "b", names[1],
        "threshold", threshold, "within", dtp_runs_agree(c, threshold), "mean_relative", c->mean, "largest_relative",
        number(c->pairs[c->largest].relative), "largest_step", (json_int_t)c->pairs[c->largest].a->step, "drift",
        c->drift, "first_tenth", c->first_tenth, "last_tenth", c->last_tenth, "not_finite", (json_int_t)c->not_finite,
        "only_in_a", missing_json(&c->only_a), "only_in_b", missing_json(&c->only_b), "steps", steps);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    json_decref(all);
    if (!text)
        return dt_fail(err, DT_E_FORMAT, "--json: the names of the runs are not UTF-8, or memory is out");
    puts(text);
    free(text);
    return DT_OK;
}

/* ---- picture ---- */

/* What the legend calls a run: the last two parts of its path, since vN-TIME alone says little, and of those at most
 * LEGEND bytes; what is no UTF-8 becomes U+FFFD. NULL when out of memory. */
static char *legend_name(const char *which, const char *path)
{
    enum { LEGEND = 60 };
    size_t n = strlen(path), begin;
    int slashes = 0;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (begin = n; begin > 0 && (path[begin - 1] != '/' || ++slashes < 2);)
        begin--;
    bool cut = n - begin > LEGEND;
    if (cut)
        begin = n - LEGEND;
    while (cut && ((unsigned char)path[begin] & 0xC0) == 0x80) /* not within a character */
        begin++;
    dt_buf text = {0};
    dtp_buf_printf(&text, "%s: %s", which, cut ? "..." : "");
    dtp_utf8_repair(path + begin, n - begin, &text);
    if (text.failed)
        dtp_buf_free(&text);
    return text.data;
}

static dt_status draw(const dt_run_comparison *c, const char *const names[2], const char *path, dt_err *err)
{
    double *values = dtp_calloc(c->count, 4 * sizeof *values);
    char *legend[2] = {legend_name("A", names[0]), legend_name("B", names[1])};
    dt_status st = DT_OK;
    if (!values || !legend[0] || !legend[1])
        st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    else {
        double *step = values, *a = step + c->count, *b = a + c->count, *percent = b + c->count;
        for (size_t i = 0; i < c->count; i++) {
            step[i] = (double)c->pairs[i].a->step;
            a[i] = c->pairs[i].a->loss;
            b[i] = c->pairs[i].b->loss;
            percent[i] = 100 * c->pairs[i].relative;
        }
        st = dtp_plot_png(&(dt_plot){.struct_size = sizeof(dt_plot),
                                     .path = path,
                                     .title = "loss",
                                     .x = step,
                                     .y = a,
                                     .n = c->count,
                                     .other = b,
                                     .y_name = legend[0],
                                     .other_name = legend[1],
                                     .below = percent,
                                     .below_title = "(B - A) / A, percent"},
                          err);
    }
    free(legend[0]);
    free(legend[1]);
    free(values);
    return st;
}

/* A picture that was asked for must come; the one by default may be missing, and that is said. */
static dt_status picture(const dt_run_comparison *c, const char *const names[2], const dt_args *args, dt_err *err)
{
    const char *path = dtp_args_string(args, "output");
    dt_err why = {0};
    dt_status st = draw(c, names, path, &why);
    if (st == DT_OK && !dtp_args_bool(args, "json"))
        printf("picture: %s\n", path);
    if (st != DT_OK && dtp_args_given(args, "output"))
        return dt_fail(err, st, "%s", why.text);
    if (st != DT_OK)
        dt_warning("%s", why.text);
    return DT_OK;
}

/* ---- command ---- */

static dt_status compare(const dt_run_comparison *c, const char *const names[2], const dt_args *args, dt_err *err)
{
    double threshold = dtp_args_float(args, "threshold", 0);
    if (dtp_args_bool(args, "json"))
        return print_json(c, names, threshold, err);
    printf("A: %s\nB: %s\n\n", names[0], names[1]);
    print_table(c, dtp_args_int(args, "rows", 0));
    print_summary(c, threshold);
    return DT_OK;
}

static int run(const dt_args *args, dt_err *err)
{
    if (dtp_args_operand_count(args) != 2)
        return dt_fail(err, DT_E_ARG, "name two runs: deltune compare RUN_A RUN_B");
    if (!(dtp_args_float(args, "threshold", 0) >= 0) || dtp_args_int(args, "rows", 0) < 0)
        return dt_fail(err, DT_E_ARG, "--threshold and --rows must not be negative");
    const char *const names[] = {dtp_args_operand(args, 0), dtp_args_operand(args, 1)};
    dt_run_log log[2] = {0};
    dt_run_comparison c = {0};
    dt_status st = dtp_run_log_read(&log[0], names[0], err);
    if (st == DT_OK)
        st = dtp_run_log_read(&log[1], names[1], err);
    if (st == DT_OK)
        st = dtp_compare_runs(&c, &log[0], &log[1], err);
    if (st == DT_OK)
        st = compare(&c, names, args, err);
    if (st == DT_OK)
        st = picture(&c, names, args, err);
    bool within = st == DT_OK && dtp_runs_agree(&c, dtp_args_float(args, "threshold", 0));
    dtp_run_comparison_free(&c);
    dtp_run_log_free(&log[0]);
    dtp_run_log_free(&log[1]);
    if (st != DT_OK)
        return DT_E_ARG; /* 1 is a verdict here, so whatever prevents one is 2, as with diff and cmp */
    return within ? exit_within : exit_outside;
}

const dt_command dtp_command_compare = {
    .name = "compare",
    .summary = "Compare the losses of two runs, step by step.",
    .operands = "RUN_A RUN_B",
    .about = "A run is its folder (with logging.jsonl), or an output\n"
             "folder whose v0-, v1-, ... are one resumed run.\n"
             "Exit code 0: the same steps, all values finite, mean\n"
             "difference and drift within the threshold. 1: not so.\n"
             "2: wrong arguments, or a run cannot be read.",
    .table = table,
    .run = run,
};
