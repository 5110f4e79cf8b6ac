#include "core/threads.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Processors in the affinity mask. The mask may be wider than cpu_set_t on large machines: grow until it fits. */
static int affinity_count(void)
{
    for (int width = CPU_SETSIZE; width <= (1 << 20); width *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)width);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)width);
        int failed = sched_getaffinity(0, bytes, set);
        int too_small = failed && errno == EINVAL;
        int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0)
            return count;
        if (!too_small)
            break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 1;
}

/* Processors of "quota period" (cgroup v2 cpu.max: "max 100000" or "150000 100000"), rounded up; 0 = no limit. */
static int quota_processors(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    long long n = (quota + period - 1) / period;
    return n < INT_MAX ? (int)n : 0;
}

static bool read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, size, file) != NULL;
    fclose(file);
    return ok;
}

static int folder_quota(const char *mount, const char *group, bool v2)
{
    char path[PATH_MAX], line[128];
    long long quota = 0, period = 0;
    if (v2) {
        if (snprintf(path, sizeof path, "%s%s/cpu.max", mount, group) >= (int)sizeof path ||
            !read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2)
            return 0; /* absent, or "max" */
        return quota_processors(quota, period);
    }
    if (snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", mount, group) >= (int)sizeof path ||
        !read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
        return 0;
    if (snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", mount, group) >= (int)sizeof path ||
        !read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
        return 0;
    return quota_processors(quota, period);
}

/* The tightest quota from a group up to the root: a parent's limit binds its children. */
static int group_quota(const char *mount, char *group, bool v2)
{
    int best = 0;
    for (;;) {
        size_t length = strlen(group);
        while (length && group[length - 1] == '/')
            group[--length] = 0;
        int n = folder_quota(mount, group, v2);
        if (n && (!best || n < best))
            best = n;
        char *slash = strrchr(group, '/');
        if (!slash)
            return best;
        *slash = 0;
    }
}

/* One line of /proc/self/cgroup: "0::/a/b" (v2) or "4:cpu,cpuacct:/a/b" (v1). */
static int line_quota(char *line)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return 0;
    *group++ = 0;
    controllers++;
    group[strcspn(group, "\n")] = 0;
    if (!*controllers)
        return group_quota("/sys/fs/cgroup", group, true);
    bool cpu = false;
    for (char *save = NULL, *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save))
        cpu |= !strcmp(name, "cpu");
    return cpu ? group_quota("/sys/fs/cgroup/cpu", group, false) : 0;
}

static int cgroup_processors(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return 0;
    int best = 0;
    char line[PATH_MAX + 128];
    while (fgets(line, sizeof line, file)) {
        int n = line_quota(line);
        if (n && (!best || n < best))
            best = n;
    }
    fclose(file);
    return best;
}

/* OMP_NUM_THREADS may be a list for nested levels ("4,2"): the first number counts. 0 = unset or not a number. */
static int environment_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    if (!text)
        return 0;
    char *end;
    long n = strtol(text, &end, 10);
    return end != text && n > 0 && n < INT_MAX ? (int)n : 0;
}

int dtp_available_threads(void)
{
    int limits[] = {cgroup_processors(), environment_threads()}, threads = affinity_count();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i] && limits[i] < threads)
            threads = limits[i];
    return threads;
}
