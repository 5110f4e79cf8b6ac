#include "train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[DT_SCHEDULE_COUNT] = {
    [DT_SCHEDULE_LINEAR] = "linear",
    [DT_SCHEDULE_COSINE] = "cosine",
    [DT_SCHEDULE_COSINE_WITH_RESTARTS] = "cosine_with_restarts",
    [DT_SCHEDULE_POLYNOMIAL] = "polynomial",
    [DT_SCHEDULE_CONSTANT] = "constant",
    [DT_SCHEDULE_CONSTANT_WITH_WARMUP] = "constant_with_warmup",
    [DT_SCHEDULE_INVERSE_SQRT] = "inverse_sqrt",
    [DT_SCHEDULE_COSINE_WITH_MIN_LR] = "cosine_with_min_lr",
};

static dt_status apply_options(dt_schedule *s, const json_t *options, dt_err *err)
{
    static const struct {
        const char *name;
        unsigned kinds; /* bit per schedule that knows the option */
    } known[] = {
        {"num_cycles",
         1u << DT_SCHEDULE_COSINE | 1u << DT_SCHEDULE_COSINE_WITH_RESTARTS | 1u << DT_SCHEDULE_COSINE_WITH_MIN_LR},
        {"power", 1u << DT_SCHEDULE_POLYNOMIAL},
        {"lr_end", 1u << DT_SCHEDULE_POLYNOMIAL},
        {"min_lr", 1u << DT_SCHEDULE_COSINE_WITH_MIN_LR},
        {"min_lr_rate", 1u << DT_SCHEDULE_COSINE_WITH_MIN_LR},
        {"timescale", 1u << DT_SCHEDULE_INVERSE_SQRT},
    };
    double *const target[] = {&s->cycles, &s->power, &s->end, &s->minimum, &s->minimum, &s->timescale};
    json_t *object = (json_t *)(uintptr_t)options; /* iterating does not change it */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && (strcmp(known[i].name, name) != 0 || !(known[i].kinds & 1u << s->kind)))
            i++;
        if (i == n)
            return dt_fail(err, DT_E_ARG, "--lr_scheduler_kwargs: the %s schedule has no \"%s\"", names[s->kind], name);
        if (!json_is_number(json_object_iter_value(at)))
            return dt_fail(err, DT_E_ARG, "--lr_scheduler_kwargs: \"%s\" must be a number", name);
        *target[i] = json_number_value(json_object_iter_value(at));
        if (strcmp(name, "min_lr") == 0)
            s->minimum /= s->base;
    }
    return DT_OK;
}

dt_status dtp_schedule_init(dt_schedule *out, const char *name, double learning_rate, int64_t total,
                            int64_t warmup_steps, double warmup_ratio, const json_t *options, dt_err *err)
{
    dt_schedule s = {.base = learning_rate, .total = total, .power = 1, .end = 1e-7};
    while (s.kind < DT_SCHEDULE_COUNT && strcmp(names[s.kind], name) != 0)
        s.kind++;
    if (s.kind == DT_SCHEDULE_COUNT)
        return dt_fail(err, DT_E_ARG, "--lr_scheduler_type: \"%s\" is not one of %s", name, DT_SCHEDULE_NAMES);
    s.warmup = warmup_steps >= 1 ? warmup_steps : (int64_t)ceil((double)total * warmup_ratio);
    s.cycles = s.kind == DT_SCHEDULE_COSINE_WITH_RESTARTS ? 1 : 0.5;
    s.timescale = s.warmup > 0 ? (double)s.warmup : 10000;
    dt_status st = apply_options(&s, options, err);
    if (st == DT_OK)
        *out = s;
    return st;
}

static double after_warmup(const dt_schedule *s, int64_t t)
{
    const double pi = 3.14159265358979323846;
    double span = (double)(s->total - s->warmup > 1 ? s->total - s->warmup : 1);
    double progress = (double)(t - s->warmup) / span;
    switch (s->kind) {
    case DT_SCHEDULE_LINEAR: return fmax(0, (double)(s->total - t) / span);
    case DT_SCHEDULE_COSINE: return fmax(0, 0.5 * (1 + cos(pi * s->cycles * 2 * progress)));
    case DT_SCHEDULE_COSINE_WITH_RESTARTS:
        return progress >= 1 ? 0 : fmax(0, 0.5 * (1 + cos(pi * fmod(s->cycles * progress, 1.0))));
    case DT_SCHEDULE_POLYNOMIAL:
        if (t > s->total)
            return s->end / s->base;
        return ((s->base - s->end) * pow(1 - progress, s->power) + s->end) / s->base;
    case DT_SCHEDULE_INVERSE_SQRT: return 1 / sqrt(((double)t + s->timescale - (double)s->warmup) / s->timescale);
    case DT_SCHEDULE_COSINE_WITH_MIN_LR:
        return fmax(0, 0.5 * (1 + cos(pi * s->cycles * 2 * progress)) * (1 - s->minimum) + s->minimum);
    default: return 1;
    }
}

double dtp_schedule_rate(const dt_schedule *s, int64_t t)
{
    double factor = t < s->warmup ? (double)t / (double)s->warmup : after_warmup(s, t);
    return s->base * factor;
}
