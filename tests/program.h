/* Runs the finished program from a test: `deltune ARGUMENTS...`, its output in a file, in a folder that is removed. */
#ifndef DT_TESTS_PROGRAM_H
#define DT_TESTS_PROGRAM_H

#include "core/file.h"
#include "core/json.h"
#include "core/test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char program_folder[] = "/tmp/deltune-test-XXXXXX";

static int program_setup(void **state)
{
    (void)state;
    return mkdtemp(program_folder) ? 0 : -1;
}

static int program_teardown(void **state)
{
    (void)state;
    return dtp_remove_tree(program_folder, NULL);
}

/* DT_TEST_ONLY: a pattern of the tests to run. */
static inline void program_filter(void)
{
    const char *only = getenv("DT_TEST_ONLY");
    if (only)
        cmocka_set_test_filter(only);
}

/* What the last run printed, stdout and stderr together. */
static inline char *program_output(void)
{
    char path[128], *text = NULL;
    size_t length;
    dt_err err = {0};
    snprintf(path, sizeof path, "%s/output", program_folder);
    assert_ok(dtp_read_file(path, 0, &text, &length, &err), &err);
    return text;
}

/* The same tests run on devices: DT_TEST_DEVICE holds the arguments that name one; without it they run on the CPU,
 * whatever card and plug-in this machine has. Caller frees. */
static inline char *on_device(const char *arguments)
{
    const char *given = strstr(arguments, "--device cuda") ? NULL : getenv("DT_TEST_DEVICE");
    const char *device = given ? given : strstr(arguments, "--device ") ? "" : "--device cpu";
    bool trains = strncmp(arguments, "sft ", 4) == 0, answers = strncmp(arguments, "infer ", 6) == 0;
    char *all = dtp_format("%s %s %s %s", arguments, trains || answers ? device : "",
                           given && trains && !strstr(arguments, "--torch_dtype") ? "--torch_dtype float32" : "",
                           given && trains && !strstr(arguments, "--self_test") ? "--self_test false" : "");
    assert_non_null(all);
    return all;
}
static inline const char *device_name(void)
{
    return getenv("DT_TEST_DEVICE") ? "cuda" : "cpu";
}

/* Exit code of `PREFIX deltune ARGUMENTS`; `prefix` is shell text in front ("" or "ulimit -f 100;"). */
static inline int program_run(const char *prefix, const char *arguments)
{
    char *all = on_device(arguments);
    char *command = dtp_format("%s %s %s >%s/output 2>&1", prefix, DT_PROGRAM, all, program_folder);
    assert_non_null(command);
    free(all);
    int status = system(command);
    free(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Must exit 0; prints what the program said when it does not. */
static inline void program_succeeds(const char *arguments)
{
    int code = program_run("", arguments);
    if (code != 0) {
        char *text = program_output();
        fail_msg("exit code %d of: deltune %s\n%s", code, arguments, text);
    }
}

/* Must exit with `code` and print `part`. */
static inline void program_fails(const char *prefix, const char *arguments, int code, const char *part)
{
    int found = program_run(prefix, arguments);
    char *text = program_output();
    if (found != code || !strstr(text, part))
        fail_msg("exit code %d (expected %d), expected \"%s\" from: %s deltune %s\n%s", found, code, part, prefix,
                 arguments, text);
    free(text);
}

/* The only vN-TIME folder below FOLDER/NAME whose number is `version`; the caller frees. */
static inline char *run_folder(const char *name, int version)
{
    char *folder = dtp_format("%s/%s", program_folder, name), prefix[16], *found = NULL;
    snprintf(prefix, sizeof prefix, "v%d-", version);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            found = dtp_path_join(folder, entry->d_name);
    closedir(dir);
    free(folder);
    assert_non_null(found);
    return found;
}

/* The lines of RUN/logging.jsonl as an array; the caller releases. */
static inline json_t *run_log(const char *run)
{
    char *path = dtp_path_join(run, "logging.jsonl"), *text = NULL;
    size_t length;
    dt_err err = {0};
    assert_ok(dtp_read_file(path, 0, &text, &length, &err), &err);
    json_t *lines = json_array();
    for (char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        json_t *line = NULL;
        assert_ok(dtp_json_parse(&line, at, n, path, &err), &err);
        json_array_append_new(lines, line);
        at += n + (at[n] == '\n');
    }
    free(text);
    free(path);
    return lines;
}

/* Same bytes in FOLDER_A/NAME and FOLDER_B/NAME. */
static inline void same_file(const char *folder_a, const char *folder_b, const char *name)
{
    char *path[2] = {dtp_path_join(folder_a, name), dtp_path_join(folder_b, name)}, *data[2];
    size_t length[2];
    dt_err err = {0};
    for (int i = 0; i < 2; i++)
        assert_ok(dtp_read_file(path[i], 0, &data[i], &length[i], &err), &err);
    if (length[0] != length[1] || memcmp(data[0], data[1], length[0]) != 0)
        fail_msg("%s and %s differ", path[0], path[1]);
    for (int i = 0; i < 2; i++) {
        free(path[i]);
        free(data[i]);
    }
}

static inline bool in_folder(const char *folder, const char *name)
{
    char *path = dtp_path_join(folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

#endif
