#include "train/available_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void lower(uint64_t *least, uint64_t bytes)
{
    if (bytes && (*least == 0 || bytes < *least))
        *least = bytes;
}

/* MemAvailable of /proc/meminfo: free memory and what the kernel can drop. */
static uint64_t machine_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (uint64_t)kib * 1024;
}

static uint64_t number_in(const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned long long value = 0;
    if (file) {
        if (fscanf(file, "%llu", &value) != 1) /* "max": no limit */
            value = 0;
        fclose(file);
    }
    return (uint64_t)value;
}

/* The limits of this cgroup and of those above it (version 2), or of the memory controller (version 1). */
static uint64_t cgroup_bytes(void)
{
    uint64_t least = 0;
    char group[1024] = "", line[1200], path[1400];
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "0::%1023s", group) == 1)
            break;
    if (file)
        fclose(file);
    for (char *slash = group; slash;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        lower(&least, number_in(path));
        slash = strrchr(group, '/');
        if (slash)
            *slash = '\0';
    }
    uint64_t version1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    lower(&least, version1 >> 60 ? 0 : version1); /* version 1 writes a huge number for "none" */
    return least;
}

uint64_t dtp_available_memory(void)
{
    uint64_t least = machine_bytes();
    lower(&least, cgroup_bytes());
    static const int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int i = 0; i < 2; i++) {
        struct rlimit limit;
        if (getrlimit(limits[i], &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
            lower(&least, (uint64_t)limit.rlim_cur);
    }
    return least;
}
