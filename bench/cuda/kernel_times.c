/* Where one training step on a GPU spends its time: a table of kernels, written when the program ends.
 *
 *     CUDA_INJECTION64_PATH=build/bench/libkernel_times.so KERNEL_TIMES=table.txt deltune sft ... --device cuda
 *
 * The driver loads this library into the program; CUPTI reports every kernel with its start and end, those of replayed
 * graphs too. A step ends with the last of its kernels that have "adamw" in their names; the table is the mean of the
 * steps after the rehearsals that come first. Tracing makes a step slower by some percent: times of kernels are good,
 * the time of the step is not. */
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name; /* demangled by nobody: as the driver gives it */
    uint64_t start, end;
} record;

typedef struct {
    const char *name;
    double microseconds;
    uint64_t calls;
} row;

enum { BUFFER_BYTES = 8 << 20, SKIPPED_STEPS = 4 };

static record *records;
static size_t n_records, capacity;

static void give_buffer(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *size = BUFFER_BYTES;
    *most_records = 0;
    *buffer = aligned_alloc(64, BUFFER_BYTES);
}

/* The names come and go with the modules; a copy stays. */
static const char *kept(const char *name)
{
    static char **names;
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return names[i];
    char **grown = realloc(names, (n + 1) * sizeof *names);
    if (!grown)
        return "?";
    names = grown;
    names[n] = strdup(name);
    return names[n] ? names[n++] : "?";
}

static void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *activity = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS) {
        if (activity->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            continue;
        const CUpti_ActivityKernel9 *kernel = (const CUpti_ActivityKernel9 *)activity;
        if (n_records == capacity) {
            size_t more = capacity ? 2 * capacity : 65536;
            record *grown = realloc(records, more * sizeof *records);
            if (!grown)
                break;
            records = grown;
            capacity = more;
        }
        records[n_records++] = (record){kept(kernel->name), kernel->start, kernel->end};
    }
    free(buffer);
}

static int by_start(const void *a, const void *b)
{
    const record *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}
static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return x->microseconds > y->microseconds ? -1 : x->microseconds < y->microseconds;
}

static int ends_a_step(size_t i)
{
    return strstr(records[i].name, "adamw") && (i + 1 == n_records || !strstr(records[i + 1].name, "adamw"));
}

/* Kernels of [from, to) into rows by name; returns the number of rows. */
static size_t gather(row *rows, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        size_t k = 0;
        while (k < n && rows[k].name != records[i].name)
            k++;
        if (k == n)
            rows[n++] = (row){records[i].name, 0, 0};
        rows[k].microseconds += (double)(records[i].end - records[i].start) / 1e3;
        rows[k].calls++;
    }
    return n;
}

static void write_table(FILE *out)
{
    size_t first = 0, last = 0, steps = 0;
    qsort(records, n_records, sizeof *records, by_start);
    for (size_t i = 0, seen = 0; i < n_records; i++)
        if (ends_a_step(i)) {
            seen++;
            if (seen == SKIPPED_STEPS)
                first = i + 1;
            if (seen > SKIPPED_STEPS)
                last = i + 1, steps++;
        }
    if (!steps) {
        fprintf(out, "%zu kernels, no whole step after the first %d\n", n_records, SKIPPED_STEPS);
        return;
    }
    row *rows = calloc(last - first, sizeof *rows);
    if (!rows)
        return;
    size_t n = gather(rows, first, last);
    qsort(rows, n, sizeof *rows, by_time);
    double sum = 0, span = (double)(records[last - 1].end - records[first].start) / 1e3;
    for (size_t i = 0; i < n; i++)
        sum += rows[i].microseconds;
    fprintf(out, "%zu steps: %.3f ms each, kernels %.3f ms, %.0f of them\n", steps, span / (double)steps / 1e3,
            sum / (double)steps / 1e3, (double)(last - first) / (double)steps);
    fprintf(out, "%10s %6s %8s %9s  kernel\n", "us a step", "share", "calls", "us a call");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%10.1f %5.1f%% %8.1f %9.2f  %s\n", rows[i].microseconds / (double)steps,
                100 * rows[i].microseconds / sum, (double)rows[i].calls / (double)steps,
                rows[i].microseconds / (double)rows[i].calls, rows[i].name);
    free(rows);
}

static void finish(void)
{
    cuptiActivityFlushAll(1);
    const char *path = getenv("KERNEL_TIMES");
    FILE *out = path ? fopen(path, "w") : stderr;
    if (!out)
        return;
    write_table(out);
    if (path)
        fclose(out);
}

/* Called by the driver. */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    atexit(finish);
    return 1;
}
