/* What must survive: kill -9 at any moment, a full disk, a folder that cannot be written, signals, numbers that are not
 * finite, too little memory. */
#include "program.h"

#include "model/safetensors.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>

static const char common[] = "sft --model " DT_TEST_DATA "/tiny_dense/model --dataset " DT_TEST_DATA
                             "/tiny_dense/tokens.jsonl --threads 1 --device cpu --report_to none --disable_tqdm true "
                             "--padding_free true --per_device_train_batch_size 2 --gradient_accumulation_steps 1 "
                             "--logging_steps 1";

static char *arguments_for(const char *output, const char *more)
{
    return dtp_format("%s --output_dir %s/%s %s", common, program_folder, output, more);
}

/* Starts the program in the background; returns its process id. */
static pid_t start(const char *arguments)
{
    char *all = on_device(arguments);
    char *command = dtp_format("exec %s %s >%s/output 2>&1", DT_PROGRAM, all, program_folder);
    free(all);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    free(command);
    assert_true(pid > 0);
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void pause_ms(int ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static int log_lines(const char *output)
{
    char *path = dtp_format("%s/%s/logging.jsonl", program_folder, output), *text = NULL;
    size_t length = 0;
    int lines = 0;
    if (dtp_read_file(path, 0, &text, &length, NULL) == DT_OK)
        for (size_t i = 0; i < length; i++)
            lines += text[i] == '\n';
    free(text);
    free(path);
    return lines;
}

/* Waits until logging.jsonl of OUTPUT has `lines` lines; false when the program ended before. */
static bool has_logged(const char *output, int lines, pid_t pid)
{
    for (int i = 0; i < 10000; i++) {
        if (log_lines(output) >= lines)
            return true;
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return false;
        pause_ms(10);
    }
    return false;
}

/* Every folder called checkpoint-N is complete: all files there, every tensor file readable. Returns the highest N. */
static int check_folders(const char *output)
{
    char *folder = dtp_format("%s/%s", program_folder, output);
    static const char *const files[] = {"adapter_config.json",       "args.json",
                                        "trainer_state.json",        "README.md",
                                        "adapter_model.safetensors", "training_state.safetensors"};
    int highest = -1;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0)
            continue;
        int step = atoi(entry->d_name + 11);
        highest = step > highest ? step : highest;
        char *checkpoint = dtp_path_join(folder, entry->d_name);
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
            char *path = dtp_path_join(checkpoint, files[i]);
            dt_err err = {0};
            if (i < 4) {
                assert_true(dtp_file_exists(path));
            } else {
                dt_st *file = NULL;
                assert_ok(dtp_st_open(&file, path, &err), &err);
                dtp_st_close(file);
            }
            free(path);
        }
        free(checkpoint);
    }
    if (dir)
        closedir(dir);
    free(folder);
    return highest;
}

/* P-90: twenty kills while every step is saved; the run that resumes after all of them ends as if nothing happened. */
static void kill_at_any_moment(void **state)
{
    (void)state;
    enum { last = 250 };
    char *whole = arguments_for("whole", "--max_steps 250 --save_steps 250 --lora_rank 4 --add_version false");
    program_succeeds(whole);
    free(whole);
    unsigned seed = 20240607;
    int reached = -1, kills = 0;
    for (int i = 0; i < 20; i++) {
        char *more =
            dtp_format("--max_steps 250 --save_steps 1 --save_total_limit 2 --lora_rank 4 --add_version false %s",
                       reached > 0 ? "--resume_from_checkpoint latest" : "");
        char *arguments = arguments_for("killed", more);
        int before = log_lines("killed");
        pid_t pid = start(arguments);
        /* the second line comes after the first checkpoint: then somewhere within steps that all save */
        assert_true(has_logged("killed", before + 2, pid));
        pause_ms(rand_r(&seed) % 100);
        kill(pid, SIGKILL);
        kills += wait_for(pid) == 128 + SIGKILL;
        int step = check_folders("killed");
        assert_true(step > reached);
        reached = step;
        free(arguments);
        free(more);
    }
    assert_true(kills > 0);
    print_message("%d kills, step %d reached\n", kills, reached);
    char *rest = arguments_for("killed", "--max_steps 250 --save_steps 250 --lora_rank 4 --add_version false "
                                         "--resume_from_checkpoint latest");
    assert_true(reached > 0 && reached < last);
    program_succeeds(rest);
    free(rest);
    char *a = dtp_format("%s/whole/checkpoint-%d", program_folder, last);
    char *b = dtp_format("%s/killed/checkpoint-%d", program_folder, last);
    same_file(a, b, "adapter_model.safetensors");
    free(a);
    free(b);
}

/* A file size limit stands for the full disk: the state does not fit, everything smaller does. */
static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    char *first = arguments_for("disk", "--max_steps 4 --save_steps 2 --add_version false");
    program_succeeds(first);
    free(first);
    char *second = arguments_for("disk", "--max_steps 8 --save_steps 2 --add_version false "
                                         "--resume_from_checkpoint latest");
    program_fails("ulimit -f 400;", second, 1, "checkpoint-6 is not saved");
    char *text = program_output();
    assert_non_null(strstr(text, "File too large"));
    free(text);
    assert_int_equal(check_folders("disk"), 4);
    char *folder = dtp_format("%s/disk", program_folder);
    assert_false(in_folder(folder, "tmp-checkpoint-6"));
    program_succeeds(second);
    assert_int_equal(check_folders("disk"), 8);
    free(folder);
    free(second);
}

static void a_folder_that_cannot_be_written(void **state)
{
    (void)state;
    char *arguments = dtp_format("%s --output_dir /proc/deltune --max_steps 1", common);
    program_fails("", arguments, 1, "/proc/deltune");
    free(arguments);
    char *file = dtp_format("%s/file", program_folder);
    dt_err err = {0};
    assert_ok(dtp_write_file(file, "x", 1, &err), &err);
    arguments = arguments_for("file", "--max_steps 1");
    program_fails("", arguments, 1, "file");
    free(arguments);
    free(file);
    if (geteuid() == 0)
        return; /* root may write anywhere */
    char *locked = dtp_format("%s/locked", program_folder);
    assert_int_equal(mkdir(locked, 0555), 0);
    arguments = arguments_for("locked", "--max_steps 1");
    program_fails("", arguments, 1, "Permission denied");
    free(arguments);
    free(locked);
}

/* Two runs in one folder would write one log and each other's checkpoints: the second does not begin. */
static void one_run_in_a_folder(void **state)
{
    (void)state;
    char *arguments = arguments_for("shared", "--add_version false --max_steps 1000000 --save_strategy no");
    pid_t first = start(arguments);
    assert_true(has_logged("shared", 1, first));
    program_fails("", arguments, 1, "another run is writing to this folder");
    kill(first, SIGKILL);
    wait_for(first);
    free(arguments);
    arguments = arguments_for("shared", "--add_version false --max_steps 1"); /* a killed run holds nothing */
    program_succeeds(arguments);
    free(arguments);
}

/* 2>&- and the like: what is meant for a stream that is closed must not land in the next file that is opened. */
static void closed_streams(void **state)
{
    (void)state;
    for (int fd = 0; fd <= 2; fd++) {
        char *command = dtp_format("exec %s %s --output_dir %s/closed%d --max_steps 2 %d>&-", DT_PROGRAM, common,
                                   program_folder, fd, fd);
        const int status = system(command);
        free(command);
        assert_int_equal(WEXITSTATUS(status), fd == 1); /* results that nobody can read are an error */
        char name[16];
        snprintf(name, sizeof name, "closed%d", fd);
        char *run = run_folder(name, 0);
        json_t *log = run_log(run); /* every line is an object */
        for (size_t i = 0; i < json_array_size(log); i++)
            assert_true(json_is_object(json_array_get(log, i)));
        json_decref(log);
        free(run);
    }
    static const char *const commands[] = {"--help", "sft --help", "ops --json true", "--version"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char *command = dtp_format("%s %s >/dev/full 2>%s/output", DT_PROGRAM, commands[i], program_folder);
        assert_int_equal(WEXITSTATUS(system(command)), 1);
        free(command);
    }
}

static void stops_on_a_signal(int signal_number, const char *output)
{
    char *more = dtp_format("--max_steps 100000 --save_steps 100000 --lora_rank 4 --add_version false");
    char *arguments = arguments_for(output, more);
    pid_t pid = start(arguments);
    assert_true(has_logged(output, 1, pid));
    kill(pid, signal_number);
    int code = wait_for(pid);
    char *text = program_output();
    if (code != 128 + signal_number || !strstr(text, "--resume_from_checkpoint"))
        fail_msg("exit code %d, expected %d\n%s", code, 128 + signal_number, text);
    free(text);
    int step = check_folders(output);
    assert_true(step > 0);
    free(arguments);
    free(more);
    /* and it goes on from there */
    more = dtp_format("--max_steps %d --lora_rank 4 --add_version false --resume_from_checkpoint latest", step + 2);
    arguments = arguments_for(output, more);
    program_succeeds(arguments);
    assert_int_equal(check_folders(output), step + 2);
    free(arguments);
    free(more);
}

static void signals(void **state)
{
    (void)state;
    stops_on_a_signal(SIGINT, "interrupted");
    stops_on_a_signal(SIGTERM, "terminated");
}

/* Entries of the test's folder whose names begin so. */
static int entries_like(const char *prefix)
{
    int n = 0;
    DIR *dir = opendir(program_folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

/* A model of some 500 MB, stopped while it is written: nothing of it is left. */
static void init_takes_back_what_it_wrote(void **state)
{
    (void)state;
    char *command =
        dtp_format("sed 's/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": 4/; s/\"vocab_size\": [0-9]*/"
                   "\"vocab_size\": 2000000/' %s/tiny_dense/model/config.json >%s/big.json",
                   DT_TEST_DATA, program_folder);
    assert_int_equal(system(command), 0);
    free(command);
    char *arguments = dtp_format("init --config %s/big.json --output_dir %s/big", program_folder, program_folder);
    pid_t pid = start(arguments);
    for (int i = 0; i < 5000 && !entries_like("big.part-"); i++)
        pause_ms(1);
    assert_int_equal(entries_like("big.part-"), 1);
    kill(pid, SIGINT);
    assert_int_equal(wait_for(pid), 128 + SIGINT);
    char *text = program_output();
    assert_non_null(strstr(text, "stopped; nothing of it is left"));
    assert_int_equal(entries_like("big."), 1); /* big.json */
    assert_int_equal(entries_like("big"), 1);
    free(text);
    free(arguments);
}

/* `sft | head -1`: the run ends well, and its log is whole. */
static void a_reader_that_leaves_ends_nothing(void **state)
{
    (void)state;
    char *arguments = arguments_for("piped", "--add_version false --max_steps 6 --save_strategy no"),
         *all = on_device(arguments);
    char *command = dtp_format("bash -c '%s %s 2>%s/output | head -1 >/dev/null; exit ${PIPESTATUS[0]}'", DT_PROGRAM,
                               all, program_folder);
    int status = system(command);
    char *text = program_output();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("status %d: %s", status, text);
    assert_non_null(strstr(text, "nobody reads standard output any more; the run goes on"));
    assert_int_equal(log_lines("piped"), 6 + 2);
    free(text);
    free(command);
    free(all);
    free(arguments);
}

static void the_second_signal_leaves_at_once(void **state)
{
    (void)state;
    char *arguments = dtp_format("%s --output_dir %s/twice --max_steps 100000 --lora_rank 4 --add_version false",
                                 common, program_folder);
    pid_t pid = start(arguments);
    assert_true(has_logged("twice", 1, pid));
    kill(pid, SIGINT);
    kill(pid, SIGTERM); /* another number, because two of one kind may arrive as one */
    int code = wait_for(pid);
    assert_true(code == 128 + SIGINT || code == 128 + SIGTERM); /* whichever the kernel delivers second */
    char *text = program_output();
    assert_null(strstr(text, "stopped by")); /* it did not finish its step */
    free(text);
    check_folders("twice"); /* whatever is called checkpoint-N is complete */
    free(arguments);
}

/* A copy of the tiny model with one weight made infinite. */
static char *broken_model(const char *tensor)
{
    char *folder = dtp_format("%s/broken", program_folder);
    char *command = dtp_format("cp -r %s/tiny_dense/model %s && chmod -R u+w %s", DT_TEST_DATA, folder, folder);
    assert_int_equal(system(command), 0);
    char *path = dtp_path_join(folder, "model.safetensors");
    dt_st *file = NULL;
    dt_err err = {0};
    assert_ok(dtp_st_open(&file, path, &err), &err);
    const dt_st_tensor *found = dtp_st_find(file, tensor), *first = dtp_st_at(file, 0);
    assert_non_null(found);
    uint64_t header = 0;
    FILE *raw = fopen(path, "r+b");
    assert_int_equal(fread(&header, 1, 8, raw), 8);
    long offset = (long)(8 + header) + (long)((const char *)found->data - (const char *)first->data);
    const uint32_t infinity_f32 = 0x7f800000;
    const uint16_t infinity_bf16 = 0x7f80;
    fseek(raw, offset, SEEK_SET);
    if (found->dtype == DT_BF16)
        fwrite(&infinity_bf16, 1, 2, raw);
    else
        fwrite(&infinity_f32, 1, 4, raw);
    fclose(raw);
    dtp_st_close(file);
    free(path);
    free(command);
    return folder;
}

/* P-31: named by step, tensor and device; nothing saved; --on_nonfinite skip counts and goes on. */
static void not_finite(void **state)
{
    (void)state;
    char *model = broken_model("model.layers.1.mlp.up_proj.weight");
    char *more = dtp_format("--model %s --max_steps 3 --save_steps 1 --add_version false --lora_rank 4", model);
    char *arguments = arguments_for("infinite", more);
    char *expected = dtp_format("step 1: the loss is not finite on %s; first in the output of layer 1", device_name());
    program_fails("", arguments, 1, expected);
    assert_int_equal(check_folders("infinite"), -1);
    /* a device is further ahead when nothing is logged: the step is named all the same, also in bfloat16 */
    char *quiet = dtp_format(
        "%s --torch_dtype bfloat16 --logging_steps 100 --logging_first_step false --save_steps 100", arguments);
    program_fails("", quiet, 1, expected);
    assert_int_equal(check_folders("infinite"), -1);
    free(quiet);
    free(expected);
    free(arguments);
    free(more);
    more = dtp_format("--model %s --max_steps 3 --save_steps 1 --add_version false --lora_rank 4 --on_nonfinite skip",
                      model);
    arguments = arguments_for("skipped", more);
    program_succeeds(arguments);
    char *text = program_output();
    assert_non_null(strstr(text, "no update (3 so far)"));
    assert_non_null(strstr(text, "'nonfinite_steps': 3"));
    free(text);
    char *one = dtp_format("%s/skipped/checkpoint-1", program_folder);
    char *three = dtp_format("%s/skipped/checkpoint-3", program_folder);
    same_file(one, three, "adapter_model.safetensors"); /* no step changed anything */
    free(one);
    free(three);
    free(arguments);
    free(more);
    free(model);
}

/* P-44: need and limit are named before step 1, and before anything is written. */
static void too_little_memory(void **state)
{
    (void)state;
    char *arguments = arguments_for("small", "--max_steps 1 --memory_limit 1MB --gradient_checkpointing auto");
    program_fails("", arguments, 1, "the largest batch has");
    char *folder = dtp_format("%s/small", program_folder);
    assert_false(dtp_is_folder(folder));
    free(folder);
    free(arguments);
}

/* P-26: the self-test runs on the device in use, before anything is written, and names what is broken. */
static void self_test(void **state)
{
    (void)state;
    char *arguments = arguments_for("tested", "--max_steps 1 --self_test true");
    program_succeeds(arguments);
    char *text = program_output();
    assert_non_null(strstr(text, "operators agree with the CPU"));
    free(text);
    free(arguments);
    if (!getenv("DT_TEST_DEVICE"))
        return;
    arguments = arguments_for("wrong", "--max_steps 1 --self_test true");
    program_fails("DT_QUEUED_BROKEN=swiglu", arguments, 1, "self-test: swiglu of provider queued is wrong on cuda:0");
    char *folder = dtp_format("%s/wrong", program_folder);
    assert_false(dtp_is_folder(folder));
    free(folder);
    free(arguments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_at_any_moment),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_folder_that_cannot_be_written),
        cmocka_unit_test(one_run_in_a_folder),
        cmocka_unit_test(closed_streams),
        cmocka_unit_test(signals),
        cmocka_unit_test(init_takes_back_what_it_wrote),
        cmocka_unit_test(a_reader_that_leaves_ends_nothing),
        cmocka_unit_test(the_second_signal_leaves_at_once),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(too_little_memory),
        cmocka_unit_test(self_test),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
