/* --help and the Markdown reference, both from the argument table. */
#include "cli/args.h"

#include <string.h>

enum { columns = 60 };

static const char *type_word(const dt_arg_spec *spec)
{
    static const char *const words[] = {
        [DT_ARG_BOOL] = "true|false", [DT_ARG_INT] = "INT",      [DT_ARG_FLOAT] = "NUM",
        [DT_ARG_STRING] = "TEXT",     [DT_ARG_LIST] = "TEXT...", [DT_ARG_JSON] = "JSON"};
    return words[spec->type];
}

/* Prints text wrapped at `columns`, each line indented. Widths count bytes, so keep help texts in ASCII. */
void dtp_args_print_text(FILE *to, const char *text, size_t indent)
{
    size_t at = 0;
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (at == 0 || at + 1 + word > columns) {
            fprintf(to, "%s%*s", at ? "\n" : "", (int)indent, "");
            at = indent;
        } else {
            fputc(' ', to);
            at++;
        }
        fwrite(text, 1, word, to);
        at += word;
        text += word + strspn(text + word, " \n");
    }
    fputc('\n', to);
}

/* "a|b|c" may be longer than a line: break after a bar. */
static void print_choices(FILE *to, const char *choices, size_t at, size_t indent)
{
    while (*choices) {
        size_t n = strcspn(choices, "|");
        n += choices[n] == '|';
        if (at + n > columns) {
            fprintf(to, "\n%*s", (int)indent, "");
            at = indent;
        }
        fwrite(choices, 1, n, to);
        at += n;
        choices += n;
    }
}

static void print_argument(FILE *to, const dt_arg_spec *spec)
{
    size_t at = (size_t)fprintf(to, "  --%s ", spec->name);
    if (spec->choices)
        print_choices(to, spec->choices, at, 8);
    else
        fputs(type_word(spec), to);
    fputc('\n', to);
    char text[1024];
    if (spec->value && *spec->value)
        snprintf(text, sizeof text, "%s [%s]", spec->help, spec->value);
    else
        snprintf(text, sizeof text, "%s", spec->help);
    dtp_args_print_text(to, text, 6);
}

void dtp_args_print_help(FILE *to, dt_arg_table table)
{
    for (; *table; table++) {
        fprintf(to, "\n%s\n", (*table)->title);
        for (size_t i = 0; i < (*table)->count; i++)
            print_argument(to, &(*table)->specs[i]);
    }
}

/* A cell may not contain a bare bar. */
static void print_cell(FILE *to, const char *text)
{
    for (; *text; text++)
        fprintf(to, *text == '|' ? "\\|" : "%c", *text);
}

void dtp_args_print_markdown(FILE *to, dt_arg_table table)
{
    for (; *table; table++) {
        fprintf(to, "\n### %s\n\n| argument | type | default | meaning |\n|---|---|---|---|\n", (*table)->title);
        for (size_t i = 0; i < (*table)->count; i++) {
            const dt_arg_spec *spec = &(*table)->specs[i];
            fprintf(to, "| `%s` | ", spec->name);
            print_cell(to, spec->choices ? spec->choices : type_word(spec));
            fputs(" | ", to);
            print_cell(to, !spec->value ? "-" : *spec->value ? spec->value : "empty");
            fputs(" | ", to);
            print_cell(to, spec->help);
            fputs(" |\n", to);
        }
    }
}
