#include "core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

static const double redraw_seconds = 0.1, line_seconds = 10;

double dtp_monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* "16:40" or "1:02:03". */
static void format_clock(char out[48], double seconds)
{
    long long s = seconds > 0 ? (long long)seconds : 0, hours = s / 3600;
    if (hours)
        snprintf(out, 48, "%lld:%02d:%02d", hours, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, 48, "%02d:%02d", (int)(s / 60), (int)(s % 60));
}

/* Cells of a bar filled to `part`, the last one in eighths. */
static void format_bar(char *out, size_t n, double part, int cells)
{
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled = (int)(part * cells * 8);
    size_t at = 0;
    for (int i = 0; i < cells && at + 4 < n; i++) {
        int rest = filled - 8 * i;
        const char *cell = rest >= 8 ? "█" : eighths[rest > 0 ? rest : 0];
        at += (size_t)snprintf(out + at, n - at, "%s", cell);
    }
}

void dtp_progress_format(char *out, size_t n, const char *label, int64_t first, int64_t done, int64_t total,
                         double elapsed, const char *extra, int columns)
{
    char left[96], right[256], used[48], rest[48] = "?", rate[32] = "?it/s", bar[1024];
    double part = (double)done / (double)(total > 0 ? total : 1);
    if (part > 1)
        part = 1;
    double per_item = done > first ? elapsed / (double)(done - first) : 0;
    format_clock(used, elapsed);
    if (per_item > 0) {
        format_clock(rest, per_item * (double)(total > done ? total - done : 0));
        if (per_item > 1)
            snprintf(rate, sizeof rate, "%5.2fs/it", per_item);
        else
            snprintf(rate, sizeof rate, "%5.2fit/s", 1 / per_item);
    }
    if (total <= 0) { /* nobody knows how much is to come */
        snprintf(out, n, "%s: %lldit [%s, %s%s%s]", label, (long long)done, used, rate, extra ? ", " : "",
                 extra ? extra : "");
        return;
    }
    snprintf(left, sizeof left, "%s: %3d%%|", label, (int)(part * 100 + 0.5));
    snprintf(right, sizeof right, "| %lld/%lld [%s<%s, %s%s%s]", (long long)done, (long long)total, used, rest, rate,
             extra ? ", " : "", extra ? extra : "");
    int cells = columns ? columns - (int)strlen(left) - (int)strlen(right) : 10;
    format_bar(bar, sizeof bar, part, cells < 1 ? 1 : cells > 250 ? 250 : cells);
    snprintf(out, n, "%s%s%s", left, bar, right);
}

static int terminal_columns(FILE *to)
{
    struct winsize size;
    return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col - 1 : 79;
}

static void draw(dt_progress *p, const char *extra, double now)
{
    char text[1400];
    dtp_progress_format(text, sizeof text, p->label, p->first, p->done, p->total, now - p->start, extra,
                        p->terminal ? terminal_columns(p->to) : 0);
    if (p->terminal)
        fprintf(p->to, "\r%s\033[K", text);
    else
        fprintf(p->to, "%s\n", text);
    fflush(p->to);
    p->visible = p->terminal;
    p->last_drawn = now;
}

void dtp_progress_start(dt_progress *p, FILE *to, bool terminal, const char *label, int64_t done, int64_t total)
{
    *p = (dt_progress){.to = to, .terminal = terminal, .label = label, .first = done, .done = done, .total = total};
    p->start = dtp_monotonic_seconds();
    p->last_drawn = p->start;
    if (terminal)
        draw(p, NULL, p->start);
}

void dtp_progress_update(dt_progress *p, int64_t done, const char *extra)
{
    double now = dtp_monotonic_seconds();
    p->done = done;
    if (now - p->last_drawn >= (p->terminal ? redraw_seconds : line_seconds) || (p->terminal && !p->visible))
        draw(p, extra, now);
}

void dtp_progress_clear(dt_progress *p)
{
    if (p->visible) {
        fputs("\r\033[K", p->to);
        fflush(p->to);
    }
    p->visible = false;
}

void dtp_progress_finish(dt_progress *p, const char *extra)
{
    draw(p, extra, dtp_monotonic_seconds());
    if (p->terminal)
        fputc('\n', p->to);
    fflush(p->to);
    p->visible = false;
}
