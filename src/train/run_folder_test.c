#include "core/test.h"

#include "core/file.h"
#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/deltune-folder-XXXXXX";

static char *in_root(const char *name)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", root, name);
    return out;
}

static bool exists(const char *name)
{
    return access(in_root(name), F_OK) == 0;
}

/* A complete checkpoint with a file that tells it apart, `age` seconds old. */
static void make_checkpoint(const char *run, int64_t step, const char *text, int age)
{
    dt_err err = {0};
    char *temporary = NULL, *path = NULL;
    assert_ok(dtp_make_folders(in_root(run), &err), &err);
    assert_ok(dtp_checkpoint_begin(&temporary, in_root(run), step, &err), &err);
    char *file = dtp_path_join(temporary, "trainer_state.json");
    assert_ok(dtp_write_file(file, text, strlen(text), &err), &err);
    assert_ok(dtp_checkpoint_publish(&path, in_root(run), temporary, step, &err), &err);
    struct timespec times[2] = {{.tv_sec = 1700000000 - age}, {.tv_sec = 1700000000 - age}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(file);
    free(temporary);
    free(path);
}

static void one_owner(void **state)
{
    (void)state;
    dt_err err = {0};
    int first = -1, second = -1;
    assert_int_equal(mkdir(in_root("owned"), 0777), 0);
    assert_ok(dtp_run_folder_lock(&first, in_root("owned"), &err), &err);
    assert_fails(dtp_run_folder_lock(&second, in_root("owned"), &err), &err, DT_E_IO, "another run");
    close(first);
    assert_ok(dtp_run_folder_lock(&second, in_root("owned"), &err), &err);
    close(second);
}

static void versions_count_up(void **state)
{
    (void)state;
    dt_err err = {0};
    char *path = NULL;
    for (int i = 0; i < 3; i++) {
        assert_ok(dtp_run_folder_create(&path, in_root("out/deep"), true, &err), &err);
        char want[8];
        snprintf(want, sizeof want, "v%d-", i);
        assert_int_equal(strncmp(dtp_path_base(path), want, 3), 0);
        assert_int_equal(strlen(dtp_path_base(path)), strlen("v0-20260101-000000"));
        free(path);
    }
    assert_int_equal(mkdir(in_root("out/deep/v41-x"), 0777), 0);
    assert_ok(dtp_run_folder_create(&path, in_root("out/deep"), true, &err), &err);
    assert_int_equal(strncmp(dtp_path_base(path), "v42-", 4), 0);
    free(path);
    assert_ok(dtp_run_folder_create(&path, in_root("flat"), false, &err), &err);
    assert_string_equal(path, in_root("flat"));
    free(path);
    assert_fails(dtp_run_folder_create(&path, "/proc/deltune", true, &err), &err, DT_E_IO, "/proc/deltune");
}

static void appears_whole(void **state)
{
    (void)state;
    dt_err err = {0};
    char *temporary = NULL, *path = NULL;
    assert_ok(dtp_make_folders(in_root("run"), &err), &err);
    assert_ok(dtp_checkpoint_begin(&temporary, in_root("run"), 5, &err), &err);
    assert_false(exists("run/checkpoint-5"));
    assert_ok(dtp_checkpoint_publish(&path, in_root("run"), temporary, 5, &err), &err);
    assert_true(exists("run/checkpoint-5"));
    assert_false(exists("run/tmp-checkpoint-5"));
    free(temporary);
    free(path);
    assert_ok(dtp_checkpoint_begin(&temporary, in_root("run"), 6, &err), &err);
    dtp_checkpoint_abandon(temporary);
    assert_false(exists("run/tmp-checkpoint-6"));
    free(temporary);
}

static void replaces_an_older_one(void **state)
{
    (void)state;
    dt_err err = {0};
    char *text = NULL;
    size_t length;
    make_checkpoint("again", 5, "old", 10);
    make_checkpoint("again", 5, "new", 0);
    assert_ok(dtp_read_file(in_root("again/checkpoint-5/trainer_state.json"), 0, &text, &length, &err), &err);
    assert_string_equal(text, "new");
    free(text);
    assert_false(exists("again/tmp-checkpoint-5"));
}

static void latest(void **state)
{
    (void)state;
    dt_err err = {0};
    char *path = NULL;
    assert_fails(dtp_find_checkpoint(&path, "latest", in_root("many"), "trainer_state.json", &err), &err, DT_E_IO,
                 "no checkpoint-N");
    make_checkpoint("many/v0-a", 100, "", 50);
    make_checkpoint("many/v1-b", 20, "", 40);
    make_checkpoint("many/v1-b", 30, "", 30);
    assert_int_equal(mkdir(in_root("many/v1-b/checkpoint-40"), 0777), 0); /* not ours: no state in it */
    assert_int_equal(mkdir(in_root("many/v1-b/tmp-checkpoint-50"), 0777), 0);
    assert_ok(dtp_find_checkpoint(&path, "latest", in_root("many"), "trainer_state.json", &err), &err);
    assert_string_equal(path, in_root("many/v1-b/checkpoint-30"));
    free(path);
    assert_ok(dtp_find_checkpoint(&path, in_root("many/v0-a/checkpoint-100"), "x", "trainer_state.json", &err), &err);
    free(path);
    assert_fails(dtp_find_checkpoint(&path, in_root("many/v0-a"), "x", "trainer_state.json", &err), &err, DT_E_IO,
                 "has no trainer_state.json");
}

static void keeps_newest_and_best(void **state)
{
    (void)state;
    dt_err err = {0};
    for (int i = 1; i <= 5; i++)
        make_checkpoint("limit", i, "", 100 - i);
    assert_ok(dtp_checkpoint_rotate(in_root("limit"), 2, in_root("limit/checkpoint-1"), &err), &err);
    assert_true(exists("limit/checkpoint-1") && exists("limit/checkpoint-4") && exists("limit/checkpoint-5"));
    assert_false(exists("limit/checkpoint-2") || exists("limit/checkpoint-3"));
    assert_ok(dtp_checkpoint_rotate(in_root("limit"), 1, NULL, &err), &err);
    assert_true(exists("limit/checkpoint-5"));
    assert_false(exists("limit/checkpoint-1") || exists("limit/checkpoint-4"));
    assert_false(exists("limit/tmp-delete-checkpoint-4"));
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return dtp_remove_tree(root, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_count_up),     cmocka_unit_test(one_owner), cmocka_unit_test(appears_whole),
        cmocka_unit_test(replaces_an_older_one), cmocka_unit_test(latest),    cmocka_unit_test(keeps_newest_and_best)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
