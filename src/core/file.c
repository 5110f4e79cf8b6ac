#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static dt_status fail_errno(dt_err *err, const char *path, const char *what)
{
    int cause = errno;
    return dt_fail(err, cause == ENOMEM ? DT_E_NOMEM : DT_E_IO, "%s: %s: %s", path, what, strerror(cause));
}

bool dtp_file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool dtp_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

char *dtp_path_join(const char *folder, const char *name)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    return n == 1 && folder[0] == '/' ? dtp_format("/%s", name) : dtp_format("%.*s/%s", (int)n, folder, name);
}

const char *dtp_path_base(const char *path)
{
    const char *base = path;
    for (const char *p = path; *p; p++)
        if (p[0] == '/' && p[1] != '\0' && p[1] != '/')
            base = p + 1;
    return *base ? base : ".";
}

dt_status dtp_make_folders(const char *path, dt_err *err)
{
    char *copy = dtp_strdup(path);
    if (!copy)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    dt_status status = DT_OK;
    for (char *p = copy + 1; status == DT_OK; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char separator = *p;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && !(errno == EEXIST && dtp_is_folder(copy)))
            status = fail_errno(err, copy, "cannot create the folder");
        if (separator == '\0')
            break;
        *p = separator;
    }
    free(copy);
    return status;
}

static dt_status remove_at(int parent, const char *name, const char *shown, dt_err *err)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return DT_OK;
    if (errno != EISDIR && errno != EPERM)
        return fail_errno(err, shown, "cannot remove");
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        dt_status status = fail_errno(err, shown, "cannot open to remove");
        if (fd >= 0)
            close(fd);
        return status;
    }
    dt_status status = DT_OK;
    for (struct dirent *entry; status == DT_OK && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *below = dtp_path_join(shown, entry->d_name);
        status = below ? remove_at(dirfd(folder), entry->d_name, below, err)
                       : dt_fail(err, DT_E_NOMEM, "%s: out of memory", shown);
        free(below);
    }
    closedir(folder);
    if (status == DT_OK && unlinkat(parent, name, AT_REMOVEDIR) != 0)
        status = fail_errno(err, shown, "cannot remove the folder");
    return status;
}

dt_status dtp_remove_tree(const char *path, dt_err *err)
{
    return remove_at(AT_FDCWD, path, path, err);
}

/* Opens a regular file and reports its size. */
static dt_status open_regular(const char *path, int *fd_out, size_t *length_out, dt_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, path, "cannot open");
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        dt_status status = dt_fail(err, DT_E_IO, "%s: not a regular file", path);
        close(fd);
        return status;
    }
    *fd_out = fd;
    *length_out = (size_t)info.st_size;
    return DT_OK;
}

dt_status dtp_read_file(const char *path, size_t maximum, char **data_out, size_t *length_out, dt_err *err)
{
    int fd;
    size_t length;
    dt_status status = open_regular(path, &fd, &length, err);
    if (status != DT_OK)
        return status;
    char *data = NULL;
    if (maximum && length > maximum) {
        status =
            dt_fail(err, DT_E_FORMAT, "%s: %zu bytes, more than the %zu such a file may have", path, length, maximum);
        goto done;
    }
    data = malloc(length + 1);
    if (!data) {
        status = dt_fail(err, DT_E_NOMEM, "%s: cannot hold its %zu bytes in memory", path, length);
        goto done;
    }
    size_t got = 0;
    while (got < length) {
        ssize_t n = read(fd, data + got, length - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = fail_errno(err, path, "cannot read");
            goto done;
        }
        if (n == 0) /* shortened while we read: what is there is what we have */
            break;
        got += (size_t)n;
    }
    data[got] = '\0';
    *data_out = data;
    if (length_out)
        *length_out = got;
    data = NULL;
done:
    free(data);
    close(fd);
    return status;
}

dt_status dtp_map_open(dt_map *map_out, const char *path, dt_err *err)
{
    int fd;
    size_t length;
    dt_status status = open_regular(path, &fd, &length, err);
    if (status != DT_OK)
        return status;
    void *data = NULL;
    if (length) {
        data = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = fail_errno(err, path, "cannot map");
    }
    close(fd);
    if (status == DT_OK)
        *map_out = (dt_map){data, length};
    return status;
}

void dtp_map_close(dt_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->length);
    *map = (dt_map){0};
}

dt_status dtp_sync_folder(const char *path, dt_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, path, "cannot open the folder");
    /* some file systems cannot sync a folder (EINVAL): their renames are as safe as they get */
    dt_status status = fsync(fd) == 0 || errno == EINVAL ? DT_OK : fail_errno(err, path, "cannot sync the folder");
    close(fd);
    return status;
}

struct dt_writer {
    FILE *file;
    char *path, *temporary;
    int error; /* errno of the first failed write, 0 = none */
};

static dt_status writer_error(dt_writer *writer, const char *what, dt_err *err)
{
    if (!writer->error)
        writer->error = errno;
    return dt_fail(err, DT_E_IO, "%s: %s: %s%s", writer->path, what, strerror(writer->error),
                   writer->error == ENOSPC || writer->error == EDQUOT ? " (free some space and save again)" : "");
}

dt_status dtp_writer_open(dt_writer **out, const char *path, dt_err *err)
{
    dt_writer *writer = dtp_calloc(1, sizeof *writer);
    if (writer) {
        writer->path = dtp_strdup(path);
        writer->temporary = dtp_format("%s.tmp-%ld", path, (long)getpid());
    }
    if (!writer || !writer->path || !writer->temporary) {
        dtp_writer_close(writer);
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    }
    writer->file = fopen(writer->temporary, "wbe");
    if (!writer->file) {
        dt_status status = fail_errno(err, path, "cannot create");
        dtp_writer_close(writer);
        return status;
    }
    *out = writer;
    return DT_OK;
}

dt_status dtp_writer_write(dt_writer *writer, const void *data, size_t length, dt_err *err)
{
    if (writer->error || (length && fwrite(data, 1, length, writer->file) != length))
        return writer_error(writer, "cannot write", err);
    return DT_OK;
}

dt_status dtp_writer_commit(dt_writer *writer, dt_err *err)
{
    dt_status status = DT_OK;
    if (writer->error || fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0)
        status = writer_error(writer, "cannot write", err);
    int closed = fclose(writer->file);
    writer->file = NULL;
    if (status == DT_OK && closed != 0)
        status = writer_error(writer, "cannot close", err);
    if (status == DT_OK && rename(writer->temporary, writer->path) != 0)
        status = writer_error(writer, "cannot rename into place", err);
    if (status == DT_OK) {
        free(writer->temporary); /* it has become `path`: nothing to remove */
        writer->temporary = NULL;
        const char *base = dtp_path_base(writer->path);
        size_t n = (size_t)(base - writer->path);
        char *folder =
            base == writer->path || n > strlen(writer->path) ? dtp_strdup(".") : dtp_strndup(writer->path, n);
        status = folder ? dtp_sync_folder(folder, err) : dt_fail(err, DT_E_NOMEM, "%s: out of memory", writer->path);
        free(folder);
    }
    dtp_writer_close(writer);
    return status;
}

void dtp_writer_close(dt_writer *writer)
{
    if (!writer)
        return;
    if (writer->file)
        fclose(writer->file);
    if (writer->temporary) {
        unlink(writer->temporary);
        free(writer->temporary);
    }
    free(writer->path);
    free(writer);
}

dt_status dtp_write_file(const char *path, const void *data, size_t length, dt_err *err)
{
    dt_writer *writer;
    dt_status status = dtp_writer_open(&writer, path, err);
    if (status != DT_OK)
        return status;
    status = dtp_writer_write(writer, data, length, err);
    if (status != DT_OK) {
        dtp_writer_close(writer);
        return status;
    }
    return dtp_writer_commit(writer, err);
}

dt_status dtp_copy_file(const char *from, const char *to, dt_err *err)
{
    dt_map map;
    dt_status status = dtp_map_open(&map, from, err);
    if (status != DT_OK)
        return status;
    status = dtp_write_file(to, map.data, map.length, err);
    dtp_map_close(&map);
    return status;
}
