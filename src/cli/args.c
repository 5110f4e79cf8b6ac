#include "cli/args.h"

#include "cli/args_file.h"
#include "cli/incumbent.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct dt_args {
    dt_arg_table table;
    json_t *values;   /* name -> value or null, in table order */
    json_t *given;    /* name -> true */
    json_t *operands; /* array of strings */
    bool incumbent;
    bool operands_allowed;
    bool ignore_unknown; /* --ignore_args_error true */
};

static const dt_arg_spec *find_spec(dt_arg_table table, const char *name)
{
    for (; *table; table++)
        for (size_t i = 0; i < (*table)->count; i++)
            if (strcmp((*table)->specs[i].name, name) == 0)
                return &(*table)->specs[i];
    return NULL;
}

/* ------------------------------------------------------------------ values */

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *at = choices; at;) {
        const char *end = strchr(at, '|');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        if (length == n && memcmp(at, value, n) == 0)
            return true;
        at = end ? end + 1 : NULL;
    }
    return false;
}

static dt_status check_choice(const dt_arg_spec *spec, const char *value, dt_err *err)
{
    if (spec->choices && !is_choice(spec->choices, value))
        return dt_fail(err, DT_E_ARG, "--%s: \"%s\" is not one of %s", spec->name, value, spec->choices);
    return DT_OK;
}

static dt_status parse_int(json_t **out, const dt_arg_spec *spec, const char *text, dt_err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0')
        return dt_fail(err, DT_E_ARG, "--%s: \"%s\" is not a whole number", spec->name, text);
    if (errno == ERANGE)
        return dt_fail(err, DT_E_ARG, "--%s: %s does not fit 64 bits", spec->name, text);
    *out = json_integer(value);
    return DT_OK;
}

static dt_status parse_float(json_t **out, const dt_arg_spec *spec, const char *text, dt_err *err)
{
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !isfinite(value))
        return dt_fail(err, DT_E_ARG, "--%s: \"%s\" is not a finite number", spec->name, text);
    *out = json_real(value);
    return DT_OK;
}

/* The spellings that the incumbent takes, in any case; -1 when the word is no boolean. */
static int boolean_word(const char *word)
{
    static const char *const words[2][5] = {{"false", "no", "f", "n", "0"}, {"true", "yes", "t", "y", "1"}};
    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 5; i++)
            if (strcasecmp(word, words[value][i]) == 0)
                return value;
    return -1;
}

static dt_status parse_bool(json_t **out, const dt_arg_spec *spec, const char *text, dt_err *err)
{
    int value = boolean_word(text);
    if (value < 0 && spec->choices && is_choice(spec->choices, text)) {
        *out = json_string(text); /* "auto" */
        return DT_OK;
    }
    if (value < 0 && spec->choices)
        return check_choice(spec, text, err);
    if (value < 0)
        return dt_fail(err, DT_E_ARG, "--%s: \"%s\" is not true or false", spec->name, text);
    *out = json_boolean(value);
    return DT_OK;
}

static dt_status parse_object(json_t **out, const dt_arg_spec *spec, const char *text, dt_err *err)
{
    char where[96];
    snprintf(where, sizeof where, "--%s", spec->name);
    json_t *value = NULL;
    dt_status st = dtp_json_parse(&value, text, strlen(text), where, err);
    if (st != DT_OK)
        return DT_E_ARG;
    if (!json_is_object(value)) {
        json_decref(value);
        return dt_fail(err, DT_E_ARG, "--%s: expected a JSON object such as '{\"old\": \"new\"}'", spec->name);
    }
    *out = value;
    return DT_OK;
}

static dt_status parse_list(json_t **out, const dt_arg_spec *spec, char **words, size_t n, dt_err *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        dt_status st = check_choice(spec, words[i], err);
        if (st == DT_OK && json_array_append_new(list, json_string(words[i])) != 0)
            st = dt_fail(err, DT_E_ARG, "--%s: value %zu is not valid UTF-8", spec->name, i + 1);
        if (st != DT_OK) {
            json_decref(list);
            return st;
        }
    }
    *out = list;
    return DT_OK;
}

/* The value of `spec` from the n words that followed its name. */
static dt_status parse_words(json_t **out, const dt_arg_spec *spec, char **words, size_t n, dt_err *err)
{
    if (spec->type == DT_ARG_LIST)
        return parse_list(out, spec, words, n, err);
    if (n == 0 && spec->type == DT_ARG_BOOL) {
        *out = json_true();
        return DT_OK;
    }
    if (n == 0)
        return dt_fail(err, DT_E_ARG, "--%s: a value is missing", spec->name);
    if (n > 1)
        return dt_fail(err, DT_E_ARG, "--%s: takes one value, got \"%s\" and \"%s\"; quote text with spaces",
                       spec->name, words[0], words[1]);
    switch (spec->type) {
    case DT_ARG_BOOL: return parse_bool(out, spec, words[0], err);
    case DT_ARG_INT: return parse_int(out, spec, words[0], err);
    case DT_ARG_FLOAT: return parse_float(out, spec, words[0], err);
    case DT_ARG_JSON: return parse_object(out, spec, words[0], err);
    default: break;
    }
    dt_status st = check_choice(spec, words[0], err);
    if (st == DT_OK && !(*out = json_string(words[0])))
        st = dt_fail(err, DT_E_ARG, "--%s: the value is not valid UTF-8", spec->name);
    return st;
}

/* The value of `spec` from an argument file: native JSON types, or text as on the command line. */
static dt_status parse_json_value(json_t **out, const dt_arg_spec *spec, const json_t *value, dt_err *err)
{
    if (json_is_null(value)) {
        *out = json_null();
        return DT_OK;
    }
    if (json_is_boolean(value) && spec->type == DT_ARG_BOOL) {
        *out = json_boolean(json_is_true(value));
        return DT_OK;
    }
    if (json_is_object(value) && spec->type == DT_ARG_JSON) {
        *out = json_deep_copy(value);
        return DT_OK;
    }
    const json_t *one[1] = {value};
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    char **words = dtp_calloc(n ? n : 1, sizeof *words);
    char(*numbers)[32] = dtp_calloc(n ? n : 1, sizeof *numbers);
    dt_status st = words && numbers ? DT_OK : dt_fail(err, DT_E_NOMEM, "--%s: out of memory", spec->name);
    if (st == DT_OK && json_is_array(value) && spec->type != DT_ARG_LIST)
        st = dt_fail(err, DT_E_ARG, "%s: takes one value, not a list", spec->name);
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : one[0];
        words[i] = numbers[i];
        if (json_is_string(item))
            words[i] = (char *)(uintptr_t)json_string_value(item);
        else if (json_is_integer(item))
            snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)json_integer_value(item));
        else if (json_is_real(item))
            snprintf(numbers[i], sizeof numbers[i], "%.17g", json_real_value(item));
        else if (json_is_boolean(item))
            snprintf(numbers[i], sizeof numbers[i], "%s", json_is_true(item) ? "true" : "false");
        else
            st = dt_fail(err, DT_E_ARG, "%s: expected text or a number", spec->name);
    }
    if (st == DT_OK)
        st = parse_words(out, spec, words, n, err);
    free(words);
    free(numbers);
    return st;
}

/* ------------------------------------------------------------------ names */

static dt_status unknown_name(const dt_args *args, const char *name, dt_err *err)
{
    const char *best[3] = {NULL, NULL, NULL};
    size_t distance[3] = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    for (dt_arg_table group = args->table; *group; group++)
        for (size_t i = 0; i < (*group)->count; i++) {
            const char *candidate = (*group)->specs[i].name;
            size_t d = dtp_edit_distance(name, candidate);
            for (int at = 0; at < 3; at++) {
                if (d >= distance[at])
                    continue;
                for (int move = 2; move > at; move--) {
                    best[move] = best[move - 1];
                    distance[move] = distance[move - 1];
                }
                best[at] = candidate;
                distance[at] = d;
                break;
            }
        }
    dt_buf nearest = {0};
    for (int i = 0; i < 3 && best[i] && distance[i] <= distance[0] + 2; i++)
        dtp_buf_printf(&nearest, "%s--%s", i ? ", " : "", best[i]);
    dt_status st = dt_fail(err, DT_E_ARG, "--%s: unknown argument; nearest: %s; --help lists all", name,
                           nearest.data ? nearest.data : "none");
    dtp_buf_free(&nearest);
    return st;
}

static dt_status incumbent_name(const dt_incumbent *found, const char *value, dt_err *err)
{
    if (found->kind == DT_INCUMBENT_MISSING)
        return dt_fail(err, DT_E_ARG, "--%s: not implemented here; %s", found->name,
                       *found->text ? found->text : "remove it");
    if (*found->values && !(value && is_choice(found->values, value)))
        return dt_fail(err, DT_E_ARG, "--%s: \"%s\" is not implemented here; accepted: %s", found->name,
                       value ? value : "", found->values);
    dt_info("--%s: accepted; %s", found->name, found->text);
    return DT_OK;
}

/* Resolves a written name; `value` is the first word of its value or NULL.
 * *spec_out stays NULL when the name is accepted but has nothing to set. */
static dt_status resolve_name(const dt_args *args, const char *name, const char *value, const dt_arg_spec **spec_out,
                              dt_err *err)
{
    *spec_out = find_spec(args->table, name);
    if (*spec_out)
        return DT_OK;
    const dt_incumbent *found = args->incumbent ? dtp_incumbent_find(name) : NULL;
    if (found && found->kind == DT_INCUMBENT_ALIAS && (*spec_out = find_spec(args->table, found->text))) {
        dt_warning("--%s is the old name of --%s; please write the new one", name, found->text);
        return DT_OK;
    }
    dt_err local = {0};
    dt_status st = found && found->kind != DT_INCUMBENT_ALIAS ? incumbent_name(found, value, &local)
                                                              : unknown_name(args, name, &local);
    if (st != DT_OK && args->ignore_unknown) {
        dt_warning("ignored (ignore_args_error): %s", local.text);
        return DT_OK;
    }
    return st == DT_OK ? DT_OK : dt_fail(err, st, "%s", local.text);
}

static dt_status store(dt_args *args, const dt_arg_spec *spec, json_t *value, dt_err *err)
{
    if (!value || json_object_set_new(args->values, spec->name, value) != 0 ||
        json_object_set_new(args->given, spec->name, json_true()) != 0)
        return dt_fail(err, DT_E_NOMEM, "--%s: out of memory", spec->name);
    return DT_OK;
}

/* ------------------------------------------------------------------ sources */

static dt_status set_defaults(dt_args *args, dt_err *err)
{
    for (dt_arg_table group = args->table; *group; group++)
        for (size_t i = 0; i < (*group)->count; i++) {
            const dt_arg_spec *spec = &(*group)->specs[i];
            json_t *value = NULL;
            if (!spec->value)
                value = json_null();
            else {
                char *word = (char *)(uintptr_t)spec->value;
                dt_status st = parse_words(&value, spec, &word, *word ? 1 : 0, err);
                if (st != DT_OK)
                    return st;
            }
            if (!value || json_object_set_new(args->values, spec->name, value) != 0)
                return dt_fail(err, DT_E_NOMEM, "--%s: out of memory", spec->name);
        }
    return DT_OK;
}

static dt_status apply_file(dt_args *args, const char *path, dt_err *err)
{
    json_t *object = NULL;
    dt_status st = dtp_args_file_load(&object, path, err);
    if (st != DT_OK)
        return st;
    const char *name;
    json_t *item;
    json_object_foreach(object, name, item)
    {
        const dt_arg_spec *spec = NULL;
        json_t *value = NULL;
        st = resolve_name(args, name, json_string_value(item), &spec, err);
        if (st == DT_OK && spec)
            st = parse_json_value(&value, spec, item, err);
        if (st == DT_OK && spec && !json_is_null(value))
            st = store(args, spec, value, err);
        else
            json_decref(value);
        if (st != DT_OK) {
            dt_err_prefix(err, "%s: ", path);
            break;
        }
    }
    json_decref(object);
    return st;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2] != '\0';
}

static bool names_argument_file(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot && (strcmp(dot, ".json") == 0 || strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

/* How many of the n words after a name belong to it. Where bare words are operands, only lists take several. */
static int words_of(const dt_args *args, const dt_arg_spec *spec, int n, char **words)
{
    if (!args->operands_allowed || !spec || spec->type == DT_ARG_LIST || n == 0)
        return n;
    bool fits = boolean_word(words[0]) >= 0 || (spec->choices && is_choice(spec->choices, words[0]));
    return spec->type == DT_ARG_BOOL && !fits ? 0 : 1;
}

/* One "--name ..." at argv[0]; *used_out words are consumed. */
static dt_status apply_option(dt_args *args, int argc, char **argv, int *used_out, dt_err *err)
{
    char name[80];
    const char *written = argv[0] + 2, *equals = strchr(written, '=');
    size_t length = equals ? (size_t)(equals - written) : strlen(written);
    if (length >= sizeof name)
        return dt_fail(err, DT_E_ARG, "--%.60s...: unknown argument; --help lists all", written);
    memcpy(name, written, length);
    name[length] = '\0';

    int n = 0;
    char *attached = equals ? (char *)(uintptr_t)(equals + 1) : NULL;
    if (!attached)
        while (1 + n < argc && !is_option(argv[1 + n]) && strcmp(argv[1 + n], "--") != 0)
            n++;
    if (strcmp(name, "config") == 0 && !find_spec(args->table, name)) {
        if (attached ? *attached == '\0' : n < 1 || (n > 1 && !args->operands_allowed))
            return dt_fail(err, DT_E_ARG, "--config: expected one file, .json or .yaml");
        *used_out = attached ? 1 : 2;
        return DT_OK; /* read before, so that the command line wins wherever it stands */
    }
    const dt_arg_spec *spec = NULL;
    dt_status st = resolve_name(args, name, attached ? attached : n ? argv[1] : NULL, &spec, err);
    n = words_of(args, spec, n, argv + 1);
    *used_out = 1 + n;
    if (st != DT_OK || !spec)
        return st;
    json_t *value = NULL;
    st = parse_words(&value, spec, attached ? &attached : argv + 1, attached ? 1 : (size_t)n, err);
    return st == DT_OK ? store(args, spec, value, err) : st;
}

/* Things that change how the rest is read: argument files, and whether unknown names are errors. */
static dt_status scan_ahead(dt_args *args, int argc, char **argv, dt_err *err)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--ignore_args_error=true") == 0 ||
            (strcmp(argv[i], "--ignore_args_error") == 0 && (!next || is_option(next) || strcmp(next, "true") == 0)))
            args->ignore_unknown = true;
    }
    if (find_spec(args->table, "config")) /* this command means something else by it */
        return DT_OK;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *file = NULL;
        if (strncmp(argv[i], "--config=", 9) == 0)
            file = argv[i] + 9;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc && !is_option(argv[i + 1]))
            file = argv[i + 1];
        dt_status st = file && *file ? apply_file(args, file, err) : DT_OK;
        if (st != DT_OK)
            return st;
    }
    return DT_OK;
}

static dt_status apply_command_line(dt_args *args, int argc, char **argv, dt_err *err)
{
    int i = 0;
    if (argc > 0 && !args->operands_allowed && !is_option(argv[0]) && names_argument_file(argv[0])) {
        dt_status st = apply_file(args, argv[0], err);
        if (st != DT_OK)
            return st;
        i = 1;
    }
    dt_status st = scan_ahead(args, argc, argv, err);
    bool only_operands = false; /* after a bare "--" */
    while (st == DT_OK && i < argc) {
        int used = 1;
        if (is_option(argv[i]) && !only_operands)
            st = apply_option(args, argc - i, argv + i, &used, err);
        else if (strcmp(argv[i], "--") == 0 && !only_operands)
            only_operands = true;
        else if (!args->operands_allowed)
            st = dt_fail(err, DT_E_ARG, "\"%s\": expected --name value; --help lists the arguments", argv[i]);
        else if (json_array_append_new(args->operands, json_string(argv[i])) != 0)
            st = dt_fail(err, DT_E_ARG, "operand %d is not valid UTF-8", i + 1);
        i += used;
    }
    return st;
}

dt_status dtp_args_parse(dt_args **out, dt_arg_table table, bool incumbent, bool operands_allowed, int argc,
                         char **argv, dt_err *err)
{
    dt_args *args = dtp_calloc(1, sizeof *args);
    if (!args)
        return dt_fail(err, DT_E_NOMEM, "arguments: out of memory");
    args->table = table;
    args->incumbent = incumbent;
    args->operands_allowed = operands_allowed;
    args->values = json_object();
    args->given = json_object();
    args->operands = json_array();
    dt_status st = set_defaults(args, err);
    if (st == DT_OK)
        st = apply_command_line(args, argc, argv, err);
    if (st != DT_OK) {
        dtp_args_free(args);
        return st;
    }
    *out = args;
    return DT_OK;
}

void dtp_args_free(dt_args *args)
{
    if (!args)
        return;
    json_decref(args->values);
    json_decref(args->given);
    json_decref(args->operands);
    free(args);
}

/* ------------------------------------------------------------------ access */

static const json_t *value_of(const dt_args *args, const char *name, dt_arg_type type)
{
    const dt_arg_spec *spec = find_spec(args->table, name);
    assert(spec && spec->type == type);
    (void)spec;
    (void)type;
    return json_object_get(args->values, name);
}

bool dtp_args_bool(const dt_args *args, const char *name)
{
    return json_is_true(value_of(args, name, DT_ARG_BOOL));
}

int64_t dtp_args_int(const dt_args *args, const char *name, int64_t when_absent)
{
    const json_t *value = value_of(args, name, DT_ARG_INT);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : when_absent;
}

double dtp_args_float(const dt_args *args, const char *name, double when_absent)
{
    const json_t *value = value_of(args, name, DT_ARG_FLOAT);
    return json_is_number(value) ? json_number_value(value) : when_absent;
}

const char *dtp_args_string(const dt_args *args, const char *name)
{
    return json_string_value(value_of(args, name, DT_ARG_STRING));
}

size_t dtp_args_list_count(const dt_args *args, const char *name)
{
    return json_array_size(value_of(args, name, DT_ARG_LIST));
}

const char *dtp_args_list_at(const dt_args *args, const char *name, size_t i)
{
    return json_string_value(json_array_get(value_of(args, name, DT_ARG_LIST), i));
}

bool dtp_args_given(const dt_args *args, const char *name)
{
    return json_object_get(args->given, name) != NULL;
}
size_t dtp_args_operand_count(const dt_args *args)
{
    return json_array_size(args->operands);
}
const char *dtp_args_operand(const dt_args *args, size_t i)
{
    return json_string_value(json_array_get(args->operands, i));
}
const json_t *dtp_args_values(const dt_args *args)
{
    return args->values;
}
const json_t *dtp_args_given_names(const dt_args *args)
{
    return args->given;
}
