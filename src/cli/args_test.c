#include "core/test.h"

#include "cli/args.h"
#include "cli/args_file.h"
#include "cli/incumbent.h"
#include "core/file.h"
#include "core/log.h"

#include <unistd.h>

static const dt_arg_spec specs[] = {
    {"model", DT_ARG_STRING, NULL, NULL, "Folder of the checkpoint."},
    {"max_length", DT_ARG_INT, NULL, NULL, "Longest sample in tokens."},
    {"learning_rate", DT_ARG_FLOAT, "1e-4", NULL, "Step size, and a long text so that the help has to break the line."},
    {"packing", DT_ARG_BOOL, "false", NULL, "Join samples."},
    {"dataset", DT_ARG_LIST, "", NULL, "Files."},
    {"report_to", DT_ARG_LIST, "tensorboard", "tensorboard|none", "Where curves go."},
    {"tuner_type", DT_ARG_STRING, "lora", "lora|full", "What is trained."},
    {"columns", DT_ARG_JSON, NULL, NULL, "Columns to rename."},
    {"ignore_args_error", DT_ARG_BOOL, "false", NULL, "Unknown names only warn."},
};
static const dt_arg_group group = DT_ARG_GROUP("All", specs);
static const dt_arg_group *const table[] = {&group, NULL};

enum { most_words = 16 };

/* Splits at blanks: none of the words here contain one. */
static dt_status parse(dt_args **out, const char *line, bool operands, dt_err *err)
{
    char text[512], *words[most_words];
    int n = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word && n < most_words; word = strtok(NULL, " "))
        words[n++] = word;
    *out = NULL;
    return dtp_args_parse(out, table, true, operands, n, words, err);
}

static dt_args *parsed(const char *line, bool operands)
{
    dt_args *args = NULL;
    dt_err err = {0};
    assert_ok(parse(&args, line, operands, &err), &err);
    return args;
}

static void defaults(void **state)
{
    (void)state;
    dt_args *args = parsed("", false);
    assert_null(dtp_args_string(args, "model"));
    assert_int_equal(dtp_args_int(args, "max_length", -7), -7);
    assert_true(dtp_args_float(args, "learning_rate", 0) == 1e-4);
    assert_false(dtp_args_bool(args, "packing"));
    assert_int_equal(dtp_args_list_count(args, "dataset"), 0);
    assert_string_equal(dtp_args_list_at(args, "report_to", 0), "tensorboard");
    assert_false(dtp_args_given(args, "tuner_type"));
    assert_true(json_is_null(json_object_get(dtp_args_values(args), "model")));
    dtp_args_free(args);
}

static void every_type(void **state)
{
    (void)state;
    dt_args *args = parsed("--model m --max_length=-1 --learning_rate 2.5e-5 --packing --dataset a.jsonl#10 b.json "
                           "--tuner_type lora --columns {\"q\":\"query\"}",
                           false);
    assert_string_equal(dtp_args_string(args, "model"), "m");
    assert_int_equal(dtp_args_int(args, "max_length", 0), -1);
    assert_true(dtp_args_float(args, "learning_rate", 0) == 2.5e-5);
    assert_true(dtp_args_bool(args, "packing"));
    assert_int_equal(dtp_args_list_count(args, "dataset"), 2);
    assert_string_equal(dtp_args_list_at(args, "dataset", 1), "b.json");
    assert_true(dtp_args_given(args, "tuner_type")); /* with its default value, but written */
    assert_string_equal(json_string_value(json_object_get(json_object_get(dtp_args_values(args), "columns"), "q")),
                        "query");
    dtp_args_free(args);
    static const char *const yes[] = {"true", "True", "TRUE", "yes", "y", "1"}, *const no[] = {"false", "No", "n", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0] + sizeof no / sizeof no[0]; i++) {
        const size_t trues = sizeof yes / sizeof yes[0];
        char line[40];
        snprintf(line, sizeof line, "--packing %s", i < trues ? yes[i] : no[i - trues]);
        args = parsed(line, false);
        assert_int_equal(dtp_args_bool(args, "packing"), i < trues);
        dtp_args_free(args);
    }
    args = parsed("--packing false --dataset --packing true", false);
    assert_true(dtp_args_bool(args, "packing"));
    assert_int_equal(dtp_args_list_count(args, "dataset"), 0);
    dtp_args_free(args);
}

static void bad_values(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--packing maybe", "--packing: \"maybe\" is not true or false"},
        {"--max_length 12x", "--max_length: \"12x\" is not a whole number"},
        {"--max_length 99999999999999999999", "does not fit"},
        {"--max_length", "--max_length: a value is missing"},
        {"--max_length --packing", "--max_length: a value is missing"},
        {"--learning_rate nan", "not a finite number"},
        {"--tuner_type lorra", "\"lorra\" is not one of lora|full"},
        {"--report_to tensorboard wandb", "\"wandb\" is not one of tensorboard|none"},
        {"--model a b", "takes one value, got \"a\" and \"b\""},
        {"--columns [1]", "expected a JSON object"},
        {"stray", "\"stray\": expected --name value"},
        {"--config", "--config: expected one file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_args *args;
        dt_err err = {0};
        assert_fails(parse(&args, cases[i][0], false, &err), &err, DT_E_ARG, cases[i][1]);
    }
}

static char last_line[512];
static void keep_line(void *user, dt_log_level level, const char *line)
{
    (void)user;
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void names_of_the_reference(void **state)
{
    (void)state;
    dt_args *args;
    dt_err err = {0};
    dtp_log_set_sink(keep_line, NULL);
    args = parsed("--train_type full", false);
    assert_string_equal(dtp_args_string(args, "tuner_type"), "full");
    assert_non_null(strstr(last_line, "--train_type is the old name of --tuner_type"));
    dtp_args_free(args);
    args = parsed("--optim adamw_torch_fused --attn_impl flash_attention_2 --dataloader_num_workers 4", false);
    assert_non_null(strstr(last_line, "--dataloader_num_workers: accepted"));
    dtp_args_free(args);
    assert_fails(parse(&args, "--optim lion", false, &err), &err, DT_E_ARG, "\"lion\" is not implemented here");
    assert_fails(parse(&args, "--galore_rank 8", false, &err), &err, DT_E_ARG, "--galore_rank: not implemented here");
    assert_fails(parse(&args, "--learning_rte 1", false, &err), &err, DT_E_ARG, "nearest: --learning_rate");
    args = parsed("--learning_rte 1 --ignore_args_error true --galore_rank 8 --model m", false);
    assert_string_equal(dtp_args_string(args, "model"), "m");
    dtp_args_free(args);
    dtp_log_set_sink(NULL, NULL);
    assert_int_equal(dtp_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(dtp_edit_distance("", "abc"), 3);
}

static void operands(void **state)
{
    (void)state;
    dt_args *args = parsed("a.safetensors --packing b.safetensors --max_length 3 c -- --d", true);
    assert_int_equal(dtp_args_operand_count(args), 4);
    assert_string_equal(dtp_args_operand(args, 1), "b.safetensors");
    assert_true(dtp_args_bool(args, "packing"));
    assert_int_equal(dtp_args_int(args, "max_length", 0), 3);
    dtp_args_free(args);
}

static void write_text(const char *path, const char *text)
{
    dt_err err = {0};
    assert_ok(dtp_write_file(path, text, strlen(text), &err), &err);
}

static void argument_files(void **state)
{
    (void)state;
    dt_args *args;
    dt_err err = {0};
    char folder[] = "/tmp/deltune-args-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    write_text("a.json", "{\"model\": \"m\", \"max_length\": 8, \"learning_rate\": 0.5, \"packing\": true,\n"
                         " \"dataset\": [\"x\", \"y\"], \"columns\": {\"a\": \"b\"}, \"tuner_type\": null}");
    args = parsed("a.json --max_length 9", false);
    assert_int_equal(dtp_args_int(args, "max_length", 0), 9);
    assert_true(dtp_args_float(args, "learning_rate", 0) == 0.5);
    assert_int_equal(dtp_args_list_count(args, "dataset"), 2);
    assert_string_equal(dtp_args_string(args, "tuner_type"), "lora");
    assert_false(dtp_args_given(args, "tuner_type"));
    dtp_args_free(args);
    /* the command line wins wherever --config stands */
    args = parsed("--max_length 9 --config a.json", false);
    assert_int_equal(dtp_args_int(args, "max_length", 0), 9);
    assert_string_equal(dtp_args_string(args, "model"), "m");
    dtp_args_free(args);
    write_text("e.json", "\xef\xbb\xbf{\"model\": \"m\"}"); /* a byte order mark */
    args = parsed("e.json", false);
    assert_string_equal(dtp_args_string(args, "model"), "m");
    dtp_args_free(args);
    write_text("b.json", "{\"max_length\": [1, 2]}");
    assert_fails(parse(&args, "b.json", false, &err), &err, DT_E_ARG, "b.json: max_length: takes one value");
    write_text("c.json", "{\"model\": \"m\",\n}");
    assert_fails(parse(&args, "c.json", false, &err), &err, DT_E_FORMAT, "c.json:2");
    assert_fails(parse(&args, "missing.json", false, &err), &err, DT_E_IO, "missing.json");
    write_text("d.yaml", "# a comment\nmodel: 'true'\nmax_length: 16\nlearning_rate: 3e-5\npacking: true\n"
                         "dataset:\n  - x\n  - y\ncolumns: {a: b}\n");
    dt_status st = parse(&args, "d.yaml", false, &err);
    if (st == DT_E_UNSUPPORTED) { /* a build without libyaml says so */
        assert_non_null(strstr(err.text, "libyaml"));
    } else {
        assert_ok(st, &err);
        assert_string_equal(dtp_args_string(args, "model"), "true");
        assert_int_equal(dtp_args_int(args, "max_length", 0), 16);
        assert_true(dtp_args_float(args, "learning_rate", 0) == 3e-5);
        assert_int_equal(dtp_args_list_count(args, "dataset"), 2);
        dtp_args_free(args);
        write_text("e.yaml", "model: m\nmodel: n\n");
        assert_fails(parse(&args, "e.yaml", false, &err), &err, DT_E_FORMAT, "e.yaml:2: model is given twice");
        write_text("f.yaml", "model: &a [*a]\n");
        assert_fails(parse(&args, "f.yaml", false, &err), &err, DT_E_FORMAT, "nested too deeply");
        write_text("g.yaml", "model: [\n");
        assert_fails(parse(&args, "g.yaml", false, &err), &err, DT_E_FORMAT, "g.yaml:");
    }
    assert_int_equal(chdir("/"), 0);
    assert_ok(dtp_remove_tree(folder, &err), &err);
}

static void help_is_narrow(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    dtp_args_print_help(file, table);
    rewind(file);
    char line[256];
    bool shows_default = false;
    while (fgets(line, sizeof line, file)) {
        assert_true(strlen(line) <= 61); /* and the newline */
        shows_default |= strstr(line, "[1e-4]") != NULL;
    }
    assert_true(shows_default);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),       cmocka_unit_test(every_type),     cmocka_unit_test(bad_values),
        cmocka_unit_test(operands),       cmocka_unit_test(argument_files), cmocka_unit_test(names_of_the_reference),
        cmocka_unit_test(help_is_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
