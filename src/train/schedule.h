/* Learning-rate schedules in closed form: the rate of any step is a pure function of the step, so that a resumed run
 * needs nothing but the step number. Source: transformers optimization.py; trainer.md §7 of the specification.
 *
 * Optimiser step s (from 1) uses the rate at s - 1; the log line of step s shows the rate at s. */
#ifndef DT_TRAIN_SCHEDULE_H
#define DT_TRAIN_SCHEDULE_H

#include <deltune/status.h>
#include <jansson.h>
#include <stdint.h>

typedef enum dt_schedule_kind {
    DT_SCHEDULE_LINEAR,
    DT_SCHEDULE_COSINE,
    DT_SCHEDULE_COSINE_WITH_RESTARTS,
    DT_SCHEDULE_POLYNOMIAL,
    DT_SCHEDULE_CONSTANT,
    DT_SCHEDULE_CONSTANT_WITH_WARMUP,
    DT_SCHEDULE_INVERSE_SQRT,
    DT_SCHEDULE_COSINE_WITH_MIN_LR,
    DT_SCHEDULE_COUNT
} dt_schedule_kind;

typedef struct dt_schedule {
    dt_schedule_kind kind;
    double base;           /* learning_rate */
    int64_t total, warmup; /* steps */
    double cycles;         /* cosine: half waves / 2; restarts: number of cycles */
    double power, end;     /* polynomial: exponent and last rate */
    double minimum;        /* cosine_with_min_lr: floor as a fraction of base */
    double timescale;      /* inverse_sqrt */
} dt_schedule;

/* "linear|cosine|...": the names, for the argument table. */
#define DT_SCHEDULE_NAMES                                                                                              \
    "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|cosine_with_min_lr"

/* warmup_steps >= 1 counts; else ceil(total * warmup_ratio). `options` is lr_scheduler_kwargs (NULL or an object):
 * num_cycles, power, lr_end, min_lr, min_lr_rate, timescale. Errors: DT_E_ARG for an unknown name or option. */
dt_status dtp_schedule_init(dt_schedule *out, const char *name, double learning_rate, int64_t total,
                            int64_t warmup_steps, double warmup_ratio, const json_t *options, dt_err *err);
/* The learning rate at position t = 0, 1, ... total. */
double dtp_schedule_rate(const dt_schedule *schedule, int64_t t);

#endif
