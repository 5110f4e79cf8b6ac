/* The one place that prints diagnostics. Lines go to stderr as "deltune: warning: text"; a quiet level drops them.
 * Not for: results of a command (stdout), the progress bar (core/progress.h). */
#ifndef DT_CORE_LOG_H
#define DT_CORE_LOG_H

#include <deltune/status.h>

typedef enum dt_log_level { DT_LOG_DEBUG, DT_LOG_INFO, DT_LOG_WARNING, DT_LOG_ERROR } dt_log_level;

/* Where log lines go; default prints to stderr. `user` is passed back. Set once, before threads start. */
typedef void (*dt_log_sink)(void *user, dt_log_level level, const char *line);
void dtp_log_set_sink(dt_log_sink sink, void *user);
void dtp_log_set_level(dt_log_level level);

void dtp_log(dt_log_level level, const char *format, ...) DT_PRINTF(2, 3);
#define dt_debug(...)   dtp_log(DT_LOG_DEBUG, __VA_ARGS__)
#define dt_info(...)    dtp_log(DT_LOG_INFO, __VA_ARGS__)
#define dt_warning(...) dtp_log(DT_LOG_WARNING, __VA_ARGS__)

#endif
