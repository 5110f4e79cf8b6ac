#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

static void print_to_stderr(void *user, dt_log_level level, const char *line)
{
    (void)user;
    static const char *const prefix[] = {"debug: ", "", "warning: ", "error: "};
    fprintf(stderr, "deltune: %s%s\n", prefix[level], line);
}

/* Process-wide on purpose: a log line has no owner. Written once at start, read afterwards. */
static dt_log_sink log_sink = print_to_stderr;
static void *log_user;
static dt_log_level log_level = DT_LOG_INFO;

void dtp_log_set_sink(dt_log_sink sink, void *user)
{
    log_sink = sink ? sink : print_to_stderr;
    log_user = user;
}

void dtp_log_set_level(dt_log_level level)
{
    log_level = level;
}

void dtp_log(dt_log_level level, const char *format, ...)
{
    if (level < log_level)
        return;
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log_sink(log_user, level, line);
}
