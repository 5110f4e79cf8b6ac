#include "data/report.h"

#include "core/log.h"

#include <stdio.h>

enum { SHOWN = 10 };

dt_status dtp_report_row(dt_report *report, const char *file, int64_t line, const char *reason, dt_err *err)
{
    char text[400];
    size_t n = 0;
    for (; reason[n] && n + 1 < sizeof text; n++) /* a reason may quote the row: keep it on one line */
        text[n] = (unsigned char)reason[n] < ' ' ? ' ' : reason[n];
    text[n] = '\0';
    if (report->strict)
        return dt_fail(err, DT_E_FORMAT, "%s:%lld: %s (--strict true stops at the first bad row)", file,
                       (long long)line, text);
    if (report->count++ < SHOWN)
        dt_warning("%s:%lld: row skipped: %s", file, (long long)line, text);
    return DT_OK;
}

void dtp_report_end(const dt_report *report)
{
    if (report->count > SHOWN)
        dt_warning("%lld rows skipped in all; the first %d are shown above", (long long)report->count, SHOWN);
}
