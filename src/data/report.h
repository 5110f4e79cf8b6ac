/* Bad rows: "FILE:LINE: reason" on the log for the first ten, a count for all, an error under strict. */
#ifndef DT_DATA_REPORT_H
#define DT_DATA_REPORT_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dt_report {
    bool strict;
    int64_t count;
} dt_report;

/* Counts a bad row. DT_E_FORMAT with the text under strict, else DT_OK after a warning. */
dt_status dtp_report_row(dt_report *report, const char *file, int64_t line, const char *reason, dt_err *err);
/* Says how many bad rows there were, when more than were shown. */
void dtp_report_end(const dt_report *report);

#endif
