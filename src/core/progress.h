/* A progress bar as tqdm draws it:
 *     Train:   2%|▏         | 5/300 [00:16<15:44,  3.20s/it, 160 tok/s]
 * or, when the total is unknown (0):
 *     Infer: 12it [00:03,  3.90it/s]
 * On a terminal it moves in place; elsewhere a plain line appears at most every ten seconds. Not for: diagnostics
 * (core/log.h); print those between dtp_progress_clear and the next update. */
#ifndef DT_CORE_PROGRESS_H
#define DT_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct dt_progress {
    FILE *to;
    const char *label;
    int64_t total, first, done;
    double start, last_drawn; /* seconds, dtp_monotonic_seconds */
    bool terminal, visible;   /* visible: the cursor stands behind a drawn bar */
} dt_progress;

/* `done` of `total` are already finished (a resumed run). `label` is borrowed. */
void dtp_progress_start(dt_progress *p, FILE *to, bool terminal, const char *label, int64_t done, int64_t total);
/* Draws if something is due; `extra` (may be NULL) goes behind the rate. */
void dtp_progress_update(dt_progress *p, int64_t done, const char *extra);
/* Removes the bar from the terminal line, so that other text can be printed. */
void dtp_progress_clear(dt_progress *p);
/* The last state, and a new line. */
void dtp_progress_finish(dt_progress *p, const char *extra);

/* The text alone: at most n bytes, `columns` wide (0: a bar of ten cells). `elapsed` seconds were spent on
 * done - first items. */
void dtp_progress_format(char *out, size_t n, const char *label, int64_t first, int64_t done, int64_t total,
                         double elapsed, const char *extra, int columns);

double dtp_monotonic_seconds(void);

#endif
