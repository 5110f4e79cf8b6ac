/* Runs a fuzz target over every file of the given folders: yesterday's finds stay fixed, without clang. */
#include "core/file.h"

#include <dirent.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static long replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return 0;
    long count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char *path = dtp_path_join(folder, entry->d_name), *data = NULL;
        size_t length = 0;
        if (path && !dtp_is_folder(path) && dtp_read_file(path, 0, &data, &length, NULL) == DT_OK) {
            LLVMFuzzerTestOneInput((const uint8_t *)data, length);
            count++;
        }
        free(data);
        free(path);
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    long count = 0;
    for (int i = 1; i < argc; i++)
        count += replay_folder(argv[i]);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("%ld inputs\n", count);
    return count > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
