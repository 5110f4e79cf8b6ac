#include "train/compare_runs.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

enum { TENTH = 10 };
static const double smallest_loss = 1e-6; /* logs hold eight decimals */

static void note_missing(dt_run_missing *m, const dt_run_point *point)
{
    if (m->count++ == 0)
        m->first = point->step;
}

static bool is_finite(const dt_run_point *p)
{
    return isfinite(p->loss) && (!p->has_norm || isfinite(p->grad_norm));
}

static dt_run_pair make_pair(const dt_run_point *a, const dt_run_point *b)
{
    double difference = b->loss - a->loss;
    return (dt_run_pair){a, b, difference, difference / fmax(fabs(a->loss), smallest_loss),
                         is_finite(a) && is_finite(b)};
}

/* Both lists rise: one walk finds what is common and what is not. */
static void align(dt_run_comparison *c, const dt_run_log *a, const dt_run_log *b)
{
    size_t i = 0, j = 0;
    while (i < a->count || j < b->count) {
        const dt_run_point *x = i < a->count ? &a->points[i] : NULL, *y = j < b->count ? &b->points[j] : NULL;
        if (x && y && x->step == y->step) {
            c->pairs[c->count++] = make_pair(x, y);
            i++;
            j++;
        } else if (x && (!y || x->step < y->step)) {
            note_missing(&c->only_a, x);
            i++;
        } else {
            note_missing(&c->only_b, y);
            j++;
        }
    }
}

/* Mean of `relative` over the finite ones of pairs [begin, end). */
static double mean_of(const dt_run_comparison *c, size_t begin, size_t end)
{
    double sum = 0, n = 0;
    for (size_t i = begin; i < end; i++)
        if (c->pairs[i].finite) {
            sum += c->pairs[i].relative;
            n++;
        }
    return n > 0 ? sum / n : 0;
}

static void summarise(dt_run_comparison *c)
{
    double n = 0, sum = 0, step_mean = 0, largest = -1, mean = mean_of(c, 0, c->count);
    for (size_t i = 0; i < c->count; i++) {
        const dt_run_pair *p = &c->pairs[i];
        if (!p->finite) {
            if (c->not_finite++ == 0)
                c->first_not_finite = p->a->step;
            continue;
        }
        n++;
        sum += fabs(p->relative);
        step_mean += (double)p->a->step;
        if (fabs(p->relative) > largest) {
            largest = fabs(p->relative);
            c->largest = i;
        }
    }
    if (n == 0)
        return;
    c->mean = sum / n;
    step_mean /= n;
    double along = 0, across = 0; /* covariance and variance, for the slope */
    for (size_t i = 0; i < c->count; i++) {
        double x = (double)c->pairs[i].a->step - step_mean;
        if (c->pairs[i].finite) {
            along += x * (c->pairs[i].relative - mean);
            across += x * x;
        }
    }
    if (across > 0)
        c->drift = along / across * (double)(c->pairs[c->count - 1].a->step - c->pairs[0].a->step);
    size_t part = c->count / TENTH ? c->count / TENTH : 1;
    c->first_tenth = mean_of(c, 0, part);
    c->last_tenth = mean_of(c, c->count - part, c->count);
}

dt_status dtp_compare_runs(dt_run_comparison *out, const dt_run_log *a, const dt_run_log *b, dt_err *err)
{
    dt_run_comparison c = {.pairs = dtp_calloc(a->count < b->count ? a->count : b->count, sizeof *c.pairs)};
    if (!c.pairs)
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    align(&c, a, b);
    if (c.count == 0) {
        dtp_run_comparison_free(&c);
        return dt_fail(err, DT_E_FORMAT,
                       "no step is in both logs: one has steps %lld to %lld, the other %lld to %lld; use the same "
                       "--logging_steps",
                       (long long)a->points[0].step, (long long)a->points[a->count - 1].step,
                       (long long)b->points[0].step, (long long)b->points[b->count - 1].step);
    }
    summarise(&c);
    *out = c;
    return DT_OK;
}

bool dtp_runs_agree(const dt_run_comparison *c, double threshold)
{
    return c->only_a.count == 0 && c->only_b.count == 0 && c->not_finite == 0 && c->mean <= threshold &&
           fabs(c->drift) <= threshold;
}

void dtp_run_comparison_free(dt_run_comparison *c)
{
    free(c->pairs);
    *c = (dt_run_comparison){0};
}
