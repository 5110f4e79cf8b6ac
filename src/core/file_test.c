#include "core/file.h"
#include "core/json.h"
#include "core/test.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/deltune-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    return dtp_remove_tree(folder, NULL) == DT_OK && !dtp_is_folder(folder) ? 0 : -1;
}

static void written_files_read_back(void **state)
{
    (void)state;
    dt_err err = {0};
    char *below = dtp_path_join(folder, "a/b//c"), *path = dtp_path_join(below, "\xE6\x96\x87.txt");
    assert_ok(dtp_make_folders(below, &err), &err);
    assert_ok(dtp_make_folders(below, &err), &err);
    assert_ok(dtp_write_file(path, "hello\0x", 7, &err), &err);
    char *data;
    size_t n;
    assert_ok(dtp_read_file(path, 7, &data, &n, &err), &err);
    assert_int_equal(n, 7);
    assert_memory_equal(data, "hello\0x", 8);
    free(data);
    assert_fails(dtp_read_file(path, 6, &data, &n, &err), &err, DT_E_FORMAT, "7 bytes");
    dt_map map;
    assert_ok(dtp_map_open(&map, path, &err), &err);
    assert_memory_equal(map.data, "hello", 6);
    dtp_map_close(&map);
    free(path);
    free(below);
}

static void a_writer_that_is_not_committed_leaves_nothing(void **state)
{
    (void)state;
    dt_err err = {0};
    char *path = dtp_path_join(folder, "half");
    dt_writer *writer;
    assert_ok(dtp_writer_open(&writer, path, &err), &err);
    assert_ok(dtp_writer_write(writer, "x", 1, &err), &err);
    dtp_writer_close(writer);
    assert_false(dtp_file_exists(path));
    assert_int_equal(rmdir(folder), -1); /* earlier tests' files are there, but no temporary one: */
    char *temporary = dtp_format("%s.tmp-%ld", path, (long)getpid());
    assert_false(dtp_file_exists(temporary));
    free(temporary);
    free(path);
}

static void faults_name_path_and_cause(void **state)
{
    (void)state;
    dt_err err = {0};
    char *data;
    assert_fails(dtp_read_file("/nowhere/at all", 0, &data, NULL, &err), &err, DT_E_IO,
                 "/nowhere/at all: cannot open: No such file");
    assert_fails(dtp_read_file(folder, 0, &data, NULL, &err), &err, DT_E_IO, "not a regular file");
    assert_fails(dtp_write_file("/nowhere/x", "x", 1, &err), &err, DT_E_IO, "/nowhere/x: cannot create");
    if (access("/dev/full", W_OK) == 0) {
        dt_writer *writer;
        char *path = dtp_path_join(folder, "full");
        char *temporary = dtp_format("%s.tmp-%ld", path, (long)getpid());
        assert_int_equal(symlink("/dev/full", temporary), 0);
        assert_ok(dtp_writer_open(&writer, path, &err), &err);
        (void)dtp_writer_write(writer, "x", 1, &err);
        assert_fails(dtp_writer_commit(writer, &err), &err, DT_E_IO, "No space left");
        assert_false(dtp_file_exists(path));
        free(temporary);
        free(path);
    }
}

static void path_base_is_the_last_part(void **state)
{
    (void)state;
    assert_string_equal(dtp_path_base("/a/b.txt"), "b.txt");
    assert_string_equal(dtp_path_base("b"), "b");
    assert_string_equal(dtp_path_base("/a/b/"), "b/");
}

static void buffers_grow_and_stop_at_their_maximum(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_buf buf = {.maximum = 10};
    dtp_buf_printf(&buf, "%d-%s", 12, "abc");
    assert_string_equal(buf.data, "12-abc");
    dtp_buf_puts(&buf, "too long");
    assert_string_equal(buf.data, "12-abc");
    assert_fails(dtp_buf_status(&buf, "row", &err), &err, DT_E_NOMEM, "row: over the limit");
    dtp_buf_free(&buf);
}

static void json_errors_name_line_and_field(void **state)
{
    (void)state;
    dt_err err = {0};
    json_t *value;
    assert_fails(dtp_json_parse(&value, "{\n \"a\": }", 9, "c.json", &err), &err, DT_E_FORMAT,
                 "c.json:2: not valid JSON");
    assert_fails(dtp_json_parse(&value, "{\"a\":1,\"a\":2}", 13, "c.json", &err), &err, DT_E_FORMAT, "duplicate");
    assert_ok(dtp_json_parse(&value, "{\"a\":1.5,\"b\":null}", 18, "c.json", &err), &err);
    int64_t number = 7;
    assert_fails(dtp_json_get_int(value, "a", "c.json", &number, &err), &err, DT_E_FORMAT,
                 "c.json: a is a real number, expected an integer");
    assert_ok(dtp_json_get_int(value, "b", "c.json", &number, &err), &err);
    assert_int_equal(number, 7);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(a_writer_that_is_not_committed_leaves_nothing),
        cmocka_unit_test(faults_name_path_and_cause),
        cmocka_unit_test(path_base_is_the_last_part),
        cmocka_unit_test(buffers_grow_and_stop_at_their_maximum),
        cmocka_unit_test(json_errors_name_line_and_field),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
