/* Plug-in files: opened one by one because somebody named them, checked before anything in them is trusted. */
#include "core/file.h"
#include "core/log.h"
#include "operators/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A data pointer to code: what dladdr takes. POSIX guarantees the conversion, ISO C does not. */
static const void *code_address(dt_status (*function)(dt_exec *, const void *, void *, void *, dt_err *))
{
    union {
        dt_status (*function)(dt_exec *, const void *, void *, void *, dt_err *);
        const void *address;
    } cast = {function};
    return cast.address;
}

const char *dtp_file_of(const dt_op_set *set)
{
    Dl_info origin;
    return dladdr(code_address(set->forward), &origin) && origin.dli_fname ? origin.dli_fname : "";
}

bool dtp_same_file(const char *a, const char *b)
{
    struct stat left, right;
    if (strcmp(a, b) == 0)
        return true;
    return stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

/* Records the failure as an attempt and makes it the error. */
static dt_status refuse(dt_ctx *ctx, const char *file, dt_status status, const char *reason, dt_err *err)
{
    char text[DT_ERR_TEXT];
    snprintf(text, sizeof text, "%s", reason); /* dlerror's text is overwritten by the next dl call */
    dtp_note_attempt(ctx, file, text);
    return dt_fail(err, status, "%s: %s", file, text);
}

dt_status dtp_plugin_open(dt_ctx *ctx, const char *file, const dt_provider **provider_out, void **library_out,
                          char **path_out, dt_err *err)
{
    char *path = realpath(file, NULL); /* absolute: dlopen must not search for a bare name */
    if (!path)
        return refuse(ctx, file, DT_E_UNAVAILABLE, "no such plug-in file", err);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        dt_status status = refuse(ctx, file, DT_E_UNAVAILABLE, dlerror(), err);
        free(path);
        return status;
    }
    union {
        void *address;
        dt_provider_entry_fn function;
    } entry = {dlsym(library, DT_PROVIDER_SYMBOL)};
    Dl_info origin;
    const char *fault = NULL;
    /* dlsym also searches the library's dependencies: what it found may be somebody else's entry */
    if (!entry.address)
        fault = "does not export the symbol " DT_PROVIDER_SYMBOL ": not a deltune plug-in";
    else if (dladdr(entry.address, &origin) && origin.dli_fname && !dtp_same_file(origin.dli_fname, path))
        fault = "its " DT_PROVIDER_SYMBOL " belongs to another library that it links";
    else if (!(*provider_out = entry.function()))
        fault = DT_PROVIDER_SYMBOL " returned nothing";
    if (fault) {
        dlclose(library);
        free(path);
        return refuse(ctx, file, DT_E_UNAVAILABLE, fault, err);
    }
    *library_out = library;
    *path_out = path;
    return DT_OK;
}

dt_status dt_ctx_load_plugin(dt_ctx *ctx, const char *file, uint32_t flags, dt_registration **registration_out,
                             dt_err *err)
{
    dtp_ctx_lock(ctx);
    const dt_provider *provider;
    void *library;
    char *path;
    dt_status status = dtp_plugin_open(ctx, file, &provider, &library, &path, err);
    if (status == DT_OK) {
        dt_err fault = {0};
        dt_registration *r = NULL;
        status = dtp_register(ctx, provider, path, library, flags, &r, &fault);
        if (!r) {
            refuse(ctx, file, status, fault.text, NULL);
            dlclose(library);
            status = dt_fail(err, status, "%s", fault.text);
        } else if (!r->available && !(flags & DT_REGISTER_FOUND)) {
            dt_warning("plug-in %s is loaded, but provider %s cannot run: %s", path, provider->name, r->why);
        }
        if (status == DT_OK && registration_out)
            *registration_out = r;
        free(path);
    }
    dtp_ctx_unlock(ctx);
    return status;
}

/* "libdeltune-NAME.so" for a device the run uses: a name that starts with another device's is left alone. */
static bool wanted(const char *name, uint32_t devices)
{
    static const char prefix[] = "libdeltune-";
    size_t n = strlen(name);
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || n < 4 || strcmp(name + n - 3, ".so") != 0)
        return false;
    for (int other = 0; other < DT_DEVICE_KINDS; other++) {
        const char *device_name = dt_device_name((dt_device_kind)other);
        if (strncmp(name + sizeof prefix - 1, device_name, strlen(device_name)) == 0)
            return devices >> other & 1;
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void load_or_warn(dt_ctx *ctx, const char *file)
{
    dt_err fault = {0};
    if (dt_ctx_load_plugin(ctx, file, 0, NULL, &fault) != DT_OK)
        dt_warning("plug-in not loaded: %s", fault.text);
}

/* In the order of their names, so that it does not depend on the file system. */
static dt_status load_folder(dt_ctx *ctx, const char *folder, uint32_t devices, dt_err *err)
{
    DIR *list = opendir(folder);
    char **names = NULL;
    size_t n = 0, capacity = 0;
    bool full = false;
    for (struct dirent *entry; list && !full && (entry = readdir(list)) != NULL;) {
        if (!wanted(entry->d_name, devices))
            continue;
        full = !dtp_grow((void **)&names, &capacity, n + 1, sizeof *names) ||
               !(names[n] = dtp_path_join(folder, entry->d_name));
        n += !full;
    }
    if (list)
        closedir(list);
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        if (!full)
            load_or_warn(ctx, names[i]);
        free(names[i]);
    }
    free(names);
    return full ? dt_fail(err, DT_E_NOMEM, "%s: out of memory while listing plug-ins", folder) : DT_OK;
}

dt_status dt_ctx_load_plugin_path(dt_ctx *ctx, const char *path, uint32_t devices, dt_err *err)
{
    char *copy = dtp_strdup(path), *rest = copy;
    if (!copy)
        return dt_fail(err, DT_E_NOMEM, "cannot load plug-ins: out of memory");
    dt_status status = DT_OK;
    for (char *item; status == DT_OK && (item = strsep(&rest, ":")) != NULL;) {
        if (!item[0])
            continue;
        if (dtp_is_folder(item))
            status = load_folder(ctx, item, devices, err);
        else
            load_or_warn(ctx, item);
    }
    free(copy);
    return status;
}
