#include "train/run_folder.h"

#include "core/file.h"
#include "core/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static dt_status io_fail(const char *path, const char *what, dt_err *err)
{
    return dt_fail(err, DT_E_IO, "%s: %s: %s", path, what, strerror(errno));
}

static dt_status no_memory(const char *path, dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
}

/* "v12-..." -> 12, "checkpoint-40" -> 40; -1 for other names. */
static int64_t number_after(const char *name, const char *prefix, char end_of_number)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9')
        return -1;
    char *end;
    errno = 0;
    long long value = strtoll(name + n, &end, 10);
    return errno || *end != end_of_number ? -1 : value;
}

/* ------------------------------------------------------------------ run folders */

static dt_status next_version(int64_t *out, const char *output_dir, dt_err *err)
{
    DIR *folder = opendir(output_dir);
    if (!folder)
        return io_fail(output_dir, "open", err);
    *out = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int64_t version = number_after(entry->d_name, "v", '-');
        if (version >= *out)
            *out = version + 1;
    }
    closedir(folder);
    return DT_OK;
}

dt_status dtp_run_folder_create(char **path_out, const char *output_dir, bool add_version, dt_err *err)
{
    dt_status st = dtp_make_folders(output_dir, err);
    if (st != DT_OK)
        return st;
    if (!add_version) {
        if (access(output_dir, W_OK | X_OK) != 0)
            return io_fail(output_dir, "write", err);
        *path_out = dtp_strdup(output_dir);
        return *path_out ? DT_OK : no_memory(output_dir, err);
    }
    char stamp[32];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    int64_t version = 0;
    st = next_version(&version, output_dir, err);
    while (st == DT_OK) {
        char *path = dtp_format("%s/v%lld-%s", output_dir, (long long)version, stamp);
        if (!path)
            return no_memory(output_dir, err);
        if (mkdir(path, 0777) == 0) {
            *path_out = path;
            return DT_OK;
        }
        if (errno != EEXIST)
            st = io_fail(path, "create", err);
        free(path);
        version++; /* another run took the name between listing and creating */
    }
    return st;
}

static int by_version(const void *a, const void *b)
{
    int64_t x = number_after(dtp_path_base(*(char *const *)a), "v", '-'),
            y = number_after(dtp_path_base(*(char *const *)b), "v", '-');
    return x < y ? -1 : x > y;
}

dt_status dtp_run_folder_versions(char ***out, size_t *count_out, const char *output_dir, dt_err *err)
{
    DIR *folder = opendir(output_dir);
    if (!folder)
        return io_fail(output_dir, "open", err);
    char **list = NULL;
    size_t n = 0, capacity = 0;
    bool full = false;
    for (struct dirent *entry; !full && (entry = readdir(folder));) {
        if (number_after(entry->d_name, "v", '-') < 0)
            continue;
        full = !dtp_grow((void **)&list, &capacity, n + 1, sizeof *list) ||
               !(list[n] = dtp_path_join(output_dir, entry->d_name));
        n += !full;
    }
    closedir(folder);
    if (full) {
        while (n)
            free(list[--n]);
        free(list);
        return no_memory(output_dir, err);
    }
    if (n)
        qsort(list, n, sizeof *list, by_version);
    *out = list;
    *count_out = n;
    return DT_OK;
}

dt_status dtp_run_folder_lock(int *fd_out, const char *folder, dt_err *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return io_fail(folder, "open", err);
    /* file systems without locks answer with other errors; there the folder is simply not guarded */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return dt_fail(err, DT_E_IO, "%s: another run is writing to this folder; wait for it, or name another", folder);
    }
    *fd_out = fd;
    return DT_OK;
}

/* ------------------------------------------------------------------ listing */

typedef struct dt_found {
    char *path;
    int64_t step;
    struct timespec modified;
} dt_found;

typedef struct dt_found_list {
    dt_found *at;
    size_t count, capacity;
} dt_found_list;

static void free_list(dt_found_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->at[i].path);
    free(list->at);
}

static int older_first(const void *a, const void *b)
{
    const dt_found *x = a, *y = b;
    if (x->modified.tv_sec != y->modified.tv_sec)
        return x->modified.tv_sec < y->modified.tv_sec ? -1 : 1;
    if (x->modified.tv_nsec != y->modified.tv_nsec)
        return x->modified.tv_nsec < y->modified.tv_nsec ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

static dt_status add_checkpoint(dt_found_list *list, const char *folder, const char *name, int64_t step, dt_err *err)
{
    char *path = dtp_path_join(folder, name);
    struct stat info;
    if (!path || !dtp_grow((void **)&list->at, &list->capacity, list->count + 1, sizeof *list->at)) {
        free(path);
        return no_memory(folder, err);
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        free(path);
        return DT_OK;
    }
    list->at[list->count++] = (dt_found){path, step, info.st_mtim};
    return DT_OK;
}

/* checkpoint-N folders of `folder`; with `versions` also those of its vN-... folders. A missing folder has none. */
static dt_status list_checkpoints(dt_found_list *list, const char *folder, bool versions, dt_err *err)
{
    DIR *dir = opendir(folder);
    dt_status st = DT_OK;
    if (!dir)
        return errno == ENOENT ? DT_OK : io_fail(folder, "open", err);
    for (struct dirent *entry; st == DT_OK && (entry = readdir(dir));) {
        int64_t step = number_after(entry->d_name, "checkpoint-", '\0');
        if (step >= 0)
            st = add_checkpoint(list, folder, entry->d_name, step, err);
        else if (versions && number_after(entry->d_name, "v", '-') >= 0) {
            char *path = dtp_path_join(folder, entry->d_name);
            st = path ? list_checkpoints(list, path, false, err) : no_memory(folder, err);
            free(path);
        }
    }
    closedir(dir);
    return st;
}

static bool has_file(const char *folder, const char *name)
{
    char *path = dtp_path_join(folder, name);
    bool there = path && dtp_file_exists(path);
    free(path);
    return there;
}

dt_status dtp_find_checkpoint(char **path_out, const char *from, const char *output_dir, const char *needed_file,
                              dt_err *err)
{
    if (strcmp(from, "latest") != 0) {
        if (!dtp_is_folder(from))
            return dt_fail(err, DT_E_IO, "--resume_from_checkpoint: \"%s\" is not a folder", from);
        if (!has_file(from, needed_file))
            return dt_fail(err, DT_E_IO, "--resume_from_checkpoint: %s has no %s; give a checkpoint-N folder", from,
                           needed_file);
        *path_out = dtp_strdup(from);
        return *path_out ? DT_OK : no_memory(from, err);
    }
    dt_found_list list = {0};
    dt_status st = list_checkpoints(&list, output_dir, true, err);
    if (st == DT_OK && list.count)
        qsort(list.at, list.count, sizeof *list.at, older_first);
    while (st == DT_OK && list.count && !has_file(list.at[list.count - 1].path, needed_file))
        free(list.at[--list.count].path);
    if (st == DT_OK && !list.count)
        st = dt_fail(err, DT_E_IO, "--resume_from_checkpoint latest: no checkpoint-N with %s below %s", needed_file,
                     output_dir);
    if (st == DT_OK) {
        *path_out = list.at[list.count - 1].path;
        list.count--;
    }
    free_list(&list);
    return st;
}

/* ------------------------------------------------------------------ appearing */

dt_status dtp_checkpoint_begin(char **temporary_out, const char *run_folder, int64_t step, dt_err *err)
{
    char *path = dtp_format("%s/tmp-checkpoint-%lld", run_folder, (long long)step);
    if (!path)
        return no_memory(run_folder, err);
    dt_status st = dtp_remove_tree(path, err); /* left by a run that was killed here */
    if (st == DT_OK && mkdir(path, 0777) != 0)
        st = io_fail(path, "create", err);
    if (st == DT_OK)
        *temporary_out = path;
    else
        free(path);
    return st;
}

/* An older checkpoint of the same name must stay visible until the new one takes its place. */
static dt_status replace_folder(const char *from, const char *to, dt_err *err)
{
    if (rename(from, to) == 0)
        return DT_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return io_fail(to, "rename", err);
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return dtp_remove_tree(from, err);
#endif
    char *old = dtp_format("%s.old", from);
    if (!old)
        return no_memory(to, err);
    dt_status st = dtp_remove_tree(old, err);
    if (st == DT_OK && rename(to, old) != 0)
        st = io_fail(to, "rename", err);
    if (st == DT_OK && rename(from, to) != 0) {
        st = io_fail(to, "rename", err);
        if (rename(old, to) != 0)
            dt_warning("%s: the former checkpoint is now %s", to, old);
    } else if (st == DT_OK)
        st = dtp_remove_tree(old, err);
    free(old);
    return st;
}

dt_status dtp_checkpoint_publish(char **path_out, const char *run_folder, const char *temporary, int64_t step,
                                 dt_err *err)
{
    char *path = dtp_format("%s/checkpoint-%lld", run_folder, (long long)step);
    if (!path)
        return no_memory(run_folder, err);
    dt_status st = dtp_sync_folder(temporary, err);
    if (st == DT_OK)
        st = replace_folder(temporary, path, err);
    if (st == DT_OK)
        st = dtp_sync_folder(run_folder, err);
    if (st == DT_OK)
        *path_out = path;
    else
        free(path);
    return st;
}

void dtp_checkpoint_abandon(const char *temporary)
{
    if (temporary)
        dtp_remove_tree(temporary, NULL);
}

/* ------------------------------------------------------------------ disappearing */

static dt_status remove_checkpoint(const char *run_folder, const dt_found *found, dt_err *err)
{
    char *hidden = dtp_format("%s/tmp-delete-checkpoint-%lld", run_folder, (long long)found->step);
    if (!hidden)
        return no_memory(run_folder, err);
    dt_status st = dtp_remove_tree(hidden, err);
    if (st == DT_OK && rename(found->path, hidden) != 0)
        st = io_fail(found->path, "rename", err);
    if (st == DT_OK)
        st = dtp_remove_tree(hidden, err);
    free(hidden);
    return st;
}

dt_status dtp_checkpoint_rotate(const char *run_folder, int64_t limit, const char *best, dt_err *err)
{
    dt_found_list list = {0};
    dt_status st = list_checkpoints(&list, run_folder, false, err);
    if (st == DT_OK && list.count)
        qsort(list.at, list.count, sizeof *list.at, older_first);
    for (size_t i = 0; st == DT_OK && i + (size_t)limit < list.count; i++)
        if (!best || strcmp(dtp_path_base(list.at[i].path), dtp_path_base(best)) != 0)
            st = remove_checkpoint(run_folder, &list.at[i], err);
    free_list(&list);
    return st;
}
