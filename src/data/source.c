#include "data/source.h"

#include "core/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FOLDER_DEPTH = 8 };

void dtp_source_close(dt_source *source)
{
    for (size_t i = 0; i < source->n_files; i++)
        free(source->files[i]);
    free(source->files);
    free(source->path);
    *source = (dt_source){0};
}

/* ---- Files of a folder ---- */

typedef struct listing {
    char **files;
    size_t count, capacity;
    bool others; /* there were files of kinds that are not read */
} listing;

static void listing_free(listing *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->files[i]);
    free(list->files);
}

/* By the ending of a name: of a folder's files those of the smallest rank are taken, so that README.txt and the like
 * lose to real data; 0 = a kind that is not read. */
static int ending_rank(const char *name)
{
    static const struct {
        const char *ending;
        int rank;
    } kinds[] = {{".jsonl", 1}, {".json", 1}, {".csv", 2}, {".txt", 3}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(dot, kinds[i].ending))
            return kinds[i].rank;
    return 0;
}

static int data_rank(const char *name)
{
    static const char *const no_data[] = {"dataset_infos.json", "dataset_info.json", "requirements.txt", "LICENSE.txt",
                                          "configuration.json"};
    for (size_t i = 0; i < sizeof no_data / sizeof *no_data; i++)
        if (!strcasecmp(name, no_data[i]))
            return 0;
    return ending_rank(name);
}

static dt_status list_folder(listing *list, const char *folder, int depth, dt_err *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return dt_fail(err, DT_E_IO, "%s: open folder: %s", folder, strerror(errno));
    dt_status status = DT_OK;
    for (const struct dirent *entry; status == DT_OK && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || !strncmp(entry->d_name, "__", 2))
            continue;
        char *path = dtp_path_join(folder, entry->d_name);
        struct stat info;
        if (!path || !dtp_grow((void **)&list->files, &list->capacity, list->count + 1, sizeof *list->files)) {
            free(path);
            status = dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
        } else if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            if (depth < MAX_FOLDER_DEPTH)
                status = list_folder(list, path, depth + 1, err);
            free(path);
        } else if (data_rank(entry->d_name)) {
            list->files[list->count++] = path;
        } else {
            list->others |=
                strstr(entry->d_name, ".parquet") || strstr(entry->d_name, ".arrow") || strstr(entry->d_name, ".gz");
            free(path);
        }
    }
    closedir(dir);
    return status;
}

/* Does one of the words stand in `path` (below the folder) between characters that are no letters or digits? */
static bool has_word(const char *path, const char *const *words)
{
    for (; *words; words++) {
        size_t n = strlen(*words);
        for (const char *p = path; *p; p++)
            if (!strncasecmp(p, *words, n) && (p == path || !isalnum((unsigned char)p[-1])) &&
                !isalnum((unsigned char)p[n]))
                return true;
    }
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Keeps the training split of one kind: files named "train" if there are any, else those not named after another split.
 */
static void select_files(listing *list, size_t prefix)
{
    static const char *const train[] = {"train", "training", NULL};
    static const char *const others[] = {"test",       "testing", "eval", "evaluation", "valid",
                                         "validation", "val",     "dev",  NULL};
    int best = 99;
    bool has_train = false;
    for (size_t i = 0; i < list->count; i++) {
        int rank = data_rank(dtp_path_base(list->files[i]));
        best = rank < best ? rank : best;
    }
    for (size_t i = 0; i < list->count; i++)
        has_train |= data_rank(dtp_path_base(list->files[i])) == best && has_word(list->files[i] + prefix, train);
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        char *file = list->files[i];
        bool keep = data_rank(dtp_path_base(file)) == best &&
                    (has_train ? has_word(file + prefix, train) : !has_word(file + prefix, others));
        if (keep)
            list->files[kept++] = file;
        else
            free(file);
    }
    list->count = kept;
    if (kept)
        qsort(list->files, kept, sizeof *list->files, by_name);
}

static dt_status open_folder(dt_source *source, dt_err *err)
{
    listing list = {0};
    dt_status status = list_folder(&list, source->path, 0, err);
    if (status == DT_OK) {
        bool others = list.others;
        select_files(&list, strlen(source->path));
        if (list.count == 0)
            status = dt_fail(err, DT_E_FORMAT,
                             "%s: no .jsonl, .json, .csv or .txt file of a training split in this folder%s",
                             source->path, others ? "; convert its parquet, arrow or gz files first" : "");
    }
    if (status != DT_OK) {
        listing_free(&list);
        return status;
    }
    source->files = list.files;
    source->n_files = list.count;
    return DT_OK;
}

static dt_status open_file(dt_source *source, dt_err *err)
{
    if (!ending_rank(dtp_path_base(source->path)))
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: only .jsonl, .json, .csv and .txt files are read; convert it first",
                       source->path);
    source->files = dtp_calloc(1, sizeof *source->files);
    char *file = dtp_strdup(source->path);
    if (!source->files || !file) {
        free(file);
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", source->path);
    }
    source->files[source->n_files++] = file;
    return DT_OK;
}

/* ---- The argument ---- */

static bool exists(const char *path)
{
    return dtp_file_exists(path) || dtp_is_folder(path);
}

/* A number after the last '#', which is cut off; -1 when there is none. */
static dt_status cut_sample(char *text, const char *argument, int64_t *sample, dt_err *err)
{
    char *mark = strrchr(text, '#'), *end;
    *sample = -1;
    if (!mark)
        return DT_OK;
    errno = 0;
    long long n = strtoll(mark + 1, &end, 10);
    if (end == mark + 1 || *end || errno || n < 0)
        return dt_fail(err, DT_E_ARG, "%s: \"%s\" is no number of rows", argument, mark);
    if (n >= UINT32_MAX)
        return dt_fail(err, DT_E_ARG, "%s: %lld rows are more than %u", argument, n, UINT32_MAX - 1);
    *mark = '\0';
    *sample = n;
    return DT_OK;
}

static dt_status unknown_path(const char *path, const char *hub, const char *argument, dt_err *err)
{
    if (access(path, F_OK) == 0)
        return dt_fail(err, DT_E_ARG,
                       "%s: is neither a file nor a folder; rows are read more than once, so save them to a file first",
                       path);
    bool is_id = path[0] != '/' && path[0] != '.' && strchr(path, '/') && !strchr(strchr(path, '/') + 1, '/') &&
                 !ending_rank(path);
    if (!is_id && !hub)
        return dt_fail(err, DT_E_IO, "%s: there is no file or folder \"%s\"", argument, path);
    const char *name = dtp_path_base(path);
    if (hub && !strcmp(hub, "hf"))
        return dt_fail(err, DT_E_UNSUPPORTED,
                       "%s: data sets are not downloaded; run `hf download --repo-type dataset %s "
                       "--local-dir %s` first and pass --dataset %s",
                       argument, path, name, name);
    return dt_fail(err, DT_E_UNSUPPORTED,
                   "%s: data sets are not downloaded; run `modelscope download --dataset %s "
                   "--local_dir %s` first and pass --dataset %s",
                   argument, path, name, name);
}

/* Splits "PATH:SUBSET" when PATH is a folder; a subset is a folder in it. */
static dt_status cut_subset(char **text, const char *argument, dt_err *err)
{
    char *mark = strrchr(*text, ':');
    if (!mark || exists(*text))
        return DT_OK;
    *mark = '\0';
    if (!dtp_is_folder(*text)) {
        bool is_file = dtp_file_exists(*text);
        *mark = ':';
        return is_file ? dt_fail(err, DT_E_ARG, "%s: a file has no subsets", argument) : DT_OK;
    }
    if (strchr(mark + 1, '/') || !mark[1])
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: name one subset; list several as data sets of their own", argument);
    char *folder = dtp_path_join(*text, mark + 1);
    if (!folder)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", argument);
    if (!dtp_is_folder(folder)) {
        free(folder);
        return dt_fail(err, DT_E_IO, "%s: there is no folder \"%s\" in %s", argument, mark + 1, *text);
    }
    free(*text);
    *text = folder;
    return DT_OK;
}

/* The last part of the path, or the repository's name inside a hub cache (".../datasets--OWNER--NAME/snapshots/...").
 */
static bool has_base_name(const char *path, const char *name)
{
    size_t n = strlen(name), length = strlen(path);
    while (length > 0 && path[length - 1] == '/')
        length--;
    if (length >= n && !strncmp(path + length - n, name, n) && (length == n || path[length - n - 1] == '/'))
        return true;
    const char *cache = strstr(path, "/datasets--"), *at = cache ? strstr(cache, name) : NULL;
    return at && !strncmp(at - 2, "--", 2) && !strncmp(at + n, "/snapshots/", 11);
}

static dt_status resolve(dt_source *source, const char *argument, dt_err *err)
{
    const char *hub = NULL, *rest = argument;
    if (!exists(argument) && (!strncasecmp(argument, "hf::", 4) || !strncasecmp(argument, "ms::", 4))) {
        hub = tolower((unsigned char)argument[0]) == 'h' ? "hf" : "ms";
        rest = argument + 4;
    }
    source->path = dtp_strdup(rest);
    if (!source->path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", argument);
    source->sample = -1;
    dt_status status = DT_OK;
    if (!exists(rest))
        status = cut_sample(source->path, argument, &source->sample, err);
    if (status == DT_OK)
        status = cut_subset(&source->path, argument, err);
    if (status != DT_OK)
        return status;
    source->is_alpaca_zh = has_base_name(source->path, "alpaca-gpt4-data-zh");
    if (dtp_is_folder(source->path))
        return open_folder(source, err);
    if (!dtp_file_exists(source->path))
        return unknown_path(source->path, hub, argument, err);
    return open_file(source, err);
}

dt_status dtp_source_open(dt_source *out, const char *argument, dt_err *err)
{
    dt_source source = {0};
    if (!*argument)
        return dt_fail(err, DT_E_ARG, "an empty file name; is a shell variable unset?");
    dt_status status = resolve(&source, argument, err);
    if (status != DT_OK) {
        dtp_source_close(&source);
        return status;
    }
    *out = source;
    return DT_OK;
}
