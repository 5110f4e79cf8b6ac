#include "train/run_log.h"

#include "core/file.h"
#include "core/json.h"
#include "train/run_folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Python writes NaN, Infinity and -Infinity, which are not JSON: they become the strings "NaN", "Inf" and "-In", of the
 * same length or shorter, outside of strings only. */
static void quote_nonfinite(char *line)
{
    static const char *const words[][2] = {{"-Infinity", "\"-In\"    "}, {"Infinity", "\"Inf\"   "}, {"NaN", "\"N\""}};
    bool inside = false;
    for (char *at = line; *at; at++) {
        if (inside && *at == '\\' && at[1])
            at++;
        else if (*at == '"')
            inside = !inside;
        for (size_t i = 0; !inside && i < sizeof words / sizeof *words; i++) {
            size_t n = strlen(words[i][0]);
            if (strncmp(at, words[i][0], n) == 0) {
                memcpy(at, words[i][1], n);
                at += n - 1;
                break;
            }
        }
    }
}

static dt_status get_value(double *out, bool *present, const json_t *line, const char *key, const char *where,
                           dt_err *err)
{
    const json_t *value = json_object_get(line, key);
    const char *text = json_string_value(value);
    *present = value != NULL;
    if (json_is_number(value))
        *out = json_number_value(value);
    else if (text && strcmp(text, "N") == 0)
        *out = NAN;
    else if (text && (strcmp(text, "Inf") == 0 || strcmp(text, "-In") == 0))
        *out = text[0] == '-' ? -INFINITY : INFINITY;
    else if (value)
        return dt_fail(err, DT_E_FORMAT, "%s: %s is not a number", where, key);
    return DT_OK;
}

/* A line of a training step; others (evaluation, end of training, summary) have no "loss". */
static dt_status read_line(dt_run_log *log, char *line, const char *where, dt_err *err)
{
    json_t *object = NULL;
    quote_nonfinite(line);
    dt_status st = dtp_json_parse(&object, line, strlen(line), where, err);
    if (st != DT_OK)
        return st;
    dt_run_point point = {0};
    bool has_loss = false;
    const char *step = NULL;
    char *end = NULL;
    if (!json_is_object(object))
        st = dt_fail(err, DT_E_FORMAT, "%s: not an object", where);
    if (st == DT_OK)
        st = get_value(&point.loss, &has_loss, object, "loss", where, err);
    if (st == DT_OK && has_loss)
        st = get_value(&point.grad_norm, &point.has_norm, object, "grad_norm", where, err);
    if (st == DT_OK && has_loss)
        st = dtp_json_get_string(object, "global_step/max_steps", where, &step, err);
    if (st == DT_OK && has_loss) {
        point.step = step ? strtoll(step, &end, 10) : 0;
        if (!step || end == step || *end != '/')
            st = dt_fail(err, DT_E_FORMAT, "%s: global_step/max_steps is missing or not like \"5/300\"", where);
    }
    if (st == DT_OK && has_loss) {
        while (log->count && log->points[log->count - 1].step >= point.step) /* resumed from an earlier step */
            log->count--;
        if (!dtp_grow((void **)&log->points, &log->capacity, log->count + 1, sizeof *log->points))
            st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", where);
        else
            log->points[log->count++] = point;
    }
    json_decref(object);
    return st;
}

static dt_status read_file(dt_run_log *log, const char *path, dt_err *err)
{
    char *text = NULL;
    size_t length;
    dt_status st = dtp_read_file(path, 0, &text, &length, err);
    int number = 1;
    char *end;
    /* without a newline the last line is still being written, or was when the program was killed */
    for (char *line = text; st == DT_OK && (end = strchr(line, '\n')); line = end + 1, number++) {
        *end = '\0';
        char *where = dtp_format("%s:%d", path, number);
        if (!where)
            st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
        else if (line[strspn(line, " \t\r")])
            st = read_line(log, line, where, err);
        free(where);
    }
    free(text);
    return st;
}

/* Version by version. A version that begins no later than the first one did not go on from it. */
static dt_status read_versions(dt_run_log *log, const char *folder, char *const *versions, size_t n, dt_err *err)
{
    dt_status st = DT_OK;
    int64_t first = 0;
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        dt_run_log part = {0};
        char *path = dtp_path_join(versions[i], "logging.jsonl");
        if (!path)
            st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
        else if (dtp_file_exists(path))
            st = read_file(&part, path, err);
        if (st == DT_OK && part.count && log->count && part.points[0].step <= first)
            st = dt_fail(err, DT_E_FORMAT, "%s has several runs (%s begins at step %lld): name one of its folders",
                         folder, dtp_path_base(versions[i]), (long long)part.points[0].step);
        if (st == DT_OK && part.count && !log->count)
            first = part.points[0].step;
        while (st == DT_OK && part.count && log->count && log->points[log->count - 1].step >= part.points[0].step)
            log->count--;
        if (st == DT_OK && part.count) {
            if (!dtp_grow((void **)&log->points, &log->capacity, log->count + part.count, sizeof *log->points))
                st = dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
            else
                memcpy(log->points + log->count, part.points, part.count * sizeof *part.points);
            log->count += st == DT_OK ? part.count : 0;
        }
        dtp_run_log_free(&part);
        free(path);
    }
    return st;
}

static dt_status read_folder(dt_run_log *log, const char *folder, dt_err *err)
{
    char **versions = NULL, *path = dtp_path_join(folder, "logging.jsonl");
    size_t n = 0;
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    dt_status st = DT_OK;
    if (dtp_file_exists(path))
        st = read_file(log, path, err);
    else
        st = dtp_run_folder_versions(&versions, &n, folder, err);
    if (st == DT_OK && versions)
        st = read_versions(log, folder, versions, n, err);
    else if (st == DT_OK && !dtp_file_exists(path))
        st = dt_fail(err, DT_E_IO, "%s: neither a logging.jsonl nor run folders (v0-...) in it", folder);
    for (size_t i = 0; i < n; i++)
        free(versions[i]);
    free(versions);
    free(path);
    return st;
}

dt_status dtp_run_log_read(dt_run_log *out, const char *path, dt_err *err)
{
    dt_run_log log = {0};
    dt_status st;
    if (dtp_is_folder(path))
        st = read_folder(&log, path, err);
    else if (dtp_file_exists(path))
        st = read_file(&log, path, err);
    else
        st = dt_fail(err, DT_E_IO, "%s: there is no such run folder", path);
    if (st == DT_OK && log.count == 0)
        st = dt_fail(err, DT_E_FORMAT, "%s: no training step has been logged", path);
    if (st != DT_OK) {
        dtp_run_log_free(&log);
        return st;
    }
    *out = log;
    return DT_OK;
}

void dtp_run_log_free(dt_run_log *log)
{
    free(log->points);
    *log = (dt_run_log){0};
}
