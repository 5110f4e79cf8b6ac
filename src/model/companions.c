#include "model/companions.h"
#include "core/file.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);
    return n > e && !strcmp(name + n - e, end);
}

static bool is_companion(const char *name)
{
    static const char *const kinds[] = {".json", ".jinja", ".txt", ".model"};
    static const char *const not_ours[] = {"args.json", "trainer_state.json", "adapter_config.json",
                                           "additional_config.json"};
    if (name[0] == '.' || ends_with(name, ".index.json"))
        return false;
    for (size_t i = 0; i < sizeof not_ours / sizeof *not_ours; i++)
        if (!strcmp(name, not_ours[i]))
            return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (ends_with(name, kinds[i]))
            return true;
    return false;
}

static dt_status copy_one(const char *from, const char *to, const char *name, dt_err *err)
{
    char *source = dtp_path_join(from, name), *target = dtp_path_join(to, name);
    struct stat info;
    dt_status status = DT_OK;
    if (!source || !target)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory to copy %s", from, name);
    else if (stat(source, &info) == 0 && S_ISREG(info.st_mode))
        status = dtp_copy_file(source, target, err);
    free(source);
    free(target);
    return status;
}

dt_status dtp_copy_companions(const char *from, const char *to, dt_err *err)
{
    DIR *folder = opendir(from);
    if (!folder)
        return dt_fail(err, DT_E_IO, "%s: cannot list the folder: %s", from, strerror(errno));
    dt_status status = DT_OK;
    for (const struct dirent *entry; status == DT_OK && (entry = readdir(folder));)
        if (is_companion(entry->d_name))
            status = copy_one(from, to, entry->d_name, err);
    closedir(folder);
    return status;
}

bool dtp_same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
