#include "train/logger.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/progress.h"
#include "core/python_json.h"
#include "train/plot.h"
#include "train/tensorboard.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* One scalar tag as it will be drawn. */
typedef struct dt_curve {
    char *tag;
    double *step, *value;
    size_t count, step_capacity, value_capacity;
} dt_curve;

struct dt_logger {
    dt_logger_options options;
    char *path, *images;
    FILE *file;
    dt_tensorboard *tensorboard;
    dt_progress bar, eval_bar;
    char rate[48]; /* behind the bar */
    bool evaluating;
    double start;
    uint64_t device_memory;
    json_t *history;
    dt_curve *curves;
    size_t n_curves, curve_capacity;
};

void dtp_format_duration(char out[48], double seconds)
{
    long long total = (long long)rint(seconds > 0 ? seconds : 0);
    long long days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60, rest = total % 60;
    if (days)
        snprintf(out, 48, "%lldd %lldh %lldm %llds", days, hours, minutes, rest);
    else if (hours)
        snprintf(out, 48, "%lldh %lldm %llds", hours, minutes, rest);
    else if (minutes)
        snprintf(out, 48, "%lldm %llds", minutes, rest);
    else
        snprintf(out, 48, "%llds", rest);
}

/* ------------------------------------------------------------------ open and close */

/* Diagnostics go above the bar. */
static void log_above_bar(void *user, dt_log_level level, const char *line)
{
    dt_logger *logger = user;
    static const char *const prefix[] = {"debug: ", "", "warning: ", "error: "};
    dtp_progress_clear(logger->evaluating ? &logger->eval_bar : &logger->bar);
    fprintf(stderr, "deltune: %s%s\n", prefix[level], line);
}

static dt_status open_files(dt_logger *logger, dt_err *err)
{
    const char *folder = logger->options.folder;
    logger->path = dtp_path_join(folder, "logging.jsonl");
    logger->images = dtp_path_join(folder, "images");
    logger->history = json_array();
    if (!logger->path || !logger->images || !logger->history)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    logger->file = fopen(logger->path, "a");
    if (!logger->file)
        return dt_fail(err, DT_E_IO, "%s: open: %s", logger->path, strerror(errno));
    if (!logger->options.tensorboard)
        return DT_OK;
    char *runs = dtp_path_join(folder, "runs");
    dt_status st = runs ? dtp_tensorboard_open(&logger->tensorboard, runs, err)
                        : dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    free(runs);
    return st;
}

dt_status dtp_logger_open(dt_logger **out, const dt_logger_options *options, dt_err *err)
{
    dt_logger *logger = dtp_calloc(1, sizeof *logger);
    if (!logger)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", options->folder);
    logger->options = *options;
    dt_status st = open_files(logger, err);
    if (st != DT_OK) {
        dtp_logger_close(logger);
        return st;
    }
    logger->start = dtp_monotonic_seconds();
    bool terminal = isatty(STDERR_FILENO);
    logger->bar.to = stderr;
    logger->eval_bar.to = stderr;
    if (options->progress)
        dtp_progress_start(&logger->bar, stderr, terminal, "Train", options->first_step, options->max_steps);
    dtp_log_set_sink(log_above_bar, logger);
    *out = logger;
    return DT_OK;
}

void dtp_logger_close(dt_logger *logger)
{
    if (!logger)
        return;
    dtp_log_set_sink(NULL, NULL);
    dtp_progress_clear(&logger->bar);
    dtp_tensorboard_close(logger->tensorboard);
    if (logger->file)
        fclose(logger->file);
    for (size_t i = 0; i < logger->n_curves; i++) {
        free(logger->curves[i].tag);
        free(logger->curves[i].step);
        free(logger->curves[i].value);
    }
    free(logger->curves);
    json_decref(logger->history);
    free(logger->path);
    free(logger->images);
    free(logger);
}

/* ------------------------------------------------------------------ bars */

void dtp_logger_tick(dt_logger *logger, int64_t step, int64_t tokens)
{
    if (!logger->options.progress)
        return;
    double seconds = dtp_logger_seconds(logger);
    snprintf(logger->rate, sizeof logger->rate, "%.0f tok/s", seconds > 0 ? (double)tokens / seconds : 0);
    dtp_progress_update(&logger->bar, step, logger->rate);
}

void dtp_logger_eval_begin(dt_logger *logger, int64_t batches)
{
    if (!logger->options.progress)
        return;
    dtp_progress_clear(&logger->bar);
    dtp_progress_start(&logger->eval_bar, stderr, isatty(STDERR_FILENO), "Val", 0, batches);
    logger->evaluating = true;
}

void dtp_logger_eval_tick(dt_logger *logger, int64_t batch)
{
    if (logger->evaluating)
        dtp_progress_update(&logger->eval_bar, batch, NULL);
}

void dtp_logger_eval_end(dt_logger *logger)
{
    if (logger->evaluating)
        dtp_progress_finish(&logger->eval_bar, NULL);
    logger->evaluating = false;
}

/* ------------------------------------------------------------------ memory and time */

double dtp_logger_seconds(const dt_logger *logger)
{
    return dtp_monotonic_seconds() - logger->start;
}

void dtp_logger_note_memory(dt_logger *logger, uint64_t bytes)
{
    if (bytes > logger->device_memory)
        logger->device_memory = bytes;
}

double dtp_logger_memory(dt_logger *logger)
{
    struct rusage usage;
    double bytes = (double)logger->device_memory;
    if (bytes == 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        bytes = 1024.0 * (double)usage.ru_maxrss; /* Linux counts KiB; never falls */
    return dtp_python_round(bytes / 1073741824.0, 2);
}

/* ------------------------------------------------------------------ lines */

static dt_status no_memory(const dt_logger *logger, dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "%s: out of memory", logger->path);
}

static void round_reals(json_t *values)
{
    const char *key;
    json_t *value;
    json_object_foreach(values, key, value)
    {
        if (json_is_real(value))
            json_real_set(value, dtp_python_round(json_real_value(value), 8));
    }
}

static void add_tail(dt_logger *logger, json_t *values, int64_t step)
{
    char text[64];
    double elapsed = dtp_logger_seconds(logger);
    int64_t done = step - logger->options.first_step;
    double speed = done > 0 ? elapsed / (double)done : 0;
    snprintf(text, sizeof text, "%lld/%lld", (long long)step, (long long)logger->options.max_steps);
    json_object_set_new(values, "global_step/max_steps", json_string(text));
    dtp_format_duration(text, elapsed);
    json_object_set_new(values, "elapsed_time", json_string(text));
    dtp_format_duration(text, (double)(logger->options.max_steps - step) * speed);
    json_object_set_new(values, "remaining_time", json_string(text));
    json_object_set_new(values, "memory(GiB)", json_real(dtp_logger_memory(logger)));
    json_object_set_new(values, "train_speed(s/it)", json_real(dtp_python_round(speed, 6)));
}

static dt_status append_line(dt_logger *logger, const json_t *values, dt_err *err)
{
    dt_buf line = {0};
    dtp_python_write(&line, values, DT_PYTHON_JSON);
    dtp_buf_putc(&line, '\n');
    dt_status st = dtp_buf_status(&line, logger->path, err);
    if (st == DT_OK && (fwrite(line.data, 1, line.length, logger->file) != line.length || fflush(logger->file) != 0))
        st = dt_fail(err, DT_E_IO, "%s: write: %s", logger->path, strerror(errno));
    dtp_buf_free(&line);
    return st;
}

static void print_line(dt_logger *logger, const json_t *values)
{
    dt_buf line = {0};
    dtp_python_write(&line, values, DT_PYTHON_REPR);
    dtp_progress_clear(&logger->bar);
    printf("%s\n", line.data ? line.data : "");
    if (fflush(stdout) != 0 && errno == EPIPE) { /* `| head`: what it wanted it has, and the run is worth more */
        dt_warning("nobody reads standard output any more; the run goes on, %s has its lines", logger->path);
        if (!freopen("/dev/null", "w", stdout))
            dt_warning("/dev/null: %s", strerror(errno));
    }
    dtp_buf_free(&line);
}

/* ------------------------------------------------------------------ curves */

static dt_curve *find_curve(dt_logger *logger, const char *tag)
{
    for (size_t i = 0; i < logger->n_curves; i++)
        if (strcmp(logger->curves[i].tag, tag) == 0)
            return &logger->curves[i];
    if (!dtp_grow((void **)&logger->curves, &logger->curve_capacity, logger->n_curves + 1, sizeof(dt_curve)))
        return NULL;
    dt_curve *curve = &logger->curves[logger->n_curves];
    *curve = (dt_curve){.tag = dtp_strdup(tag)};
    if (!curve->tag)
        return NULL;
    logger->n_curves++;
    return curve;
}

static dt_status add_scalar(dt_logger *logger, const char *tag, int64_t step, double value, dt_err *err)
{
    dt_curve *curve = find_curve(logger, tag);
    if (!curve || !dtp_grow((void **)&curve->step, &curve->step_capacity, curve->count + 1, sizeof *curve->step) ||
        !dtp_grow((void **)&curve->value, &curve->value_capacity, curve->count + 1, sizeof *curve->value))
        return no_memory(logger, err);
    curve->step[curve->count] = (double)step;
    curve->value[curve->count++] = value;
    return dtp_tensorboard_scalar(logger->tensorboard, tag, step, value, err);
}

/* Numeric values become train/KEY, those of an evaluation eval/KEY without its prefix. */
static dt_status add_scalars(dt_logger *logger, dt_log_line kind, json_t *values, int64_t step, dt_err *err)
{
    const char *key;
    json_t *value;
    dt_status st = DT_OK;
    json_object_foreach(values, key, value)
    {
        char tag[96];
        bool eval = strncmp(key, "eval_", 5) == 0;
        if (st != DT_OK || !json_is_number(value) || (kind == DT_LINE_EVAL && !eval))
            continue;
        snprintf(tag, sizeof tag, "%s/%s", eval ? "eval" : "train", eval ? key + 5 : key);
        st = add_scalar(logger, tag, step, json_number_value(value), err);
    }
    return st == DT_OK ? dtp_tensorboard_flush(logger->tensorboard, err) : st;
}

dt_status dtp_logger_write(dt_logger *logger, dt_log_line kind, json_t *values, int64_t step, dt_err *err)
{
    json_t *entry = NULL;
    dt_status st = values ? DT_OK : no_memory(logger, err);
    if (st == DT_OK) {
        round_reals(values);
        entry = json_deep_copy(values);
        json_object_set_new(entry, "step", json_integer(step));
        add_tail(logger, values, step);
        if (!entry || json_array_append_new(logger->history, entry) != 0)
            st = no_memory(logger, err);
    }
    if (st == DT_OK)
        st = append_line(logger, values, err);
    if (st == DT_OK && kind == DT_LINE_END && logger->options.progress)
        dtp_progress_finish(&logger->bar, logger->rate);
    if (st == DT_OK)
        print_line(logger, values);
    if (st == DT_OK && logger->tensorboard)
        st = add_scalars(logger, kind, values, step, err);
    json_decref(values);
    return st;
}

dt_status dtp_logger_summary(dt_logger *logger, json_t *values, dt_err *err)
{
    dt_status st = values ? append_line(logger, values, err) : no_memory(logger, err);
    json_decref(values);
    return st;
}

const json_t *dtp_logger_history(const dt_logger *logger)
{
    return logger->history;
}

dt_status dtp_logger_set_history(dt_logger *logger, const json_t *history, dt_err *err)
{
    json_t *copy = json_deep_copy(history);
    if (!json_is_array(copy)) {
        json_decref(copy);
        return dt_fail(err, DT_E_FORMAT, "trainer_state.json: log_history is not a list");
    }
    json_decref(logger->history);
    logger->history = copy;
    return DT_OK;
}

/* ------------------------------------------------------------------ pictures */

static dt_status plot_curve(dt_logger *logger, const dt_curve *curve, dt_err *err)
{
    char *name = dtp_strdup(curve->tag);
    for (char *at = name; at && *at; at++)
        if (*at == '/' || *at == '.')
            *at = '_';
    char *path = name ? dtp_format("%s/%s.png", logger->images, name) : NULL;
    bool smooth = strcmp(curve->tag, "train/loss") == 0;
    double *smoothed = smooth ? dtp_calloc(curve->count, sizeof *smoothed) : NULL;
    dt_status st;
    if (!path || (smooth && !smoothed))
        st = no_memory(logger, err);
    else {
        if (smooth)
            dtp_plot_smooth(smoothed, curve->value, curve->count);
        st = dtp_plot_png(&(dt_plot){.struct_size = sizeof(dt_plot),
                                     .path = path,
                                     .title = curve->tag,
                                     .x = curve->step,
                                     .y = curve->value,
                                     .n = curve->count,
                                     .smoothed = smoothed},
                          err);
    }
    free(smoothed);
    free(path);
    free(name);
    return st;
}

dt_status dtp_logger_plot(dt_logger *logger, dt_err *err)
{
    dt_status st = logger->n_curves ? dtp_make_folders(logger->images, err) : DT_OK;
    for (size_t i = 0; i < logger->n_curves && st == DT_OK; i++) {
        dt_err why = {0};
        st = plot_curve(logger, &logger->curves[i], &why);
        if (st == DT_E_UNAVAILABLE) {
            dt_info("%s; logging.jsonl and runs/ have the numbers", why.text);
            rmdir(logger->images); /* leave no empty folder behind */
            return DT_OK;
        }
        if (st != DT_OK)
            dt_fail(err, st, "%s", why.text);
    }
    return st;
}
