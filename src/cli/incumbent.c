#include "cli/incumbent.h"

#include <string.h>

static const dt_incumbent names[] = {
#define NOTE(name, values, text)    {#name, DT_INCUMBENT_NOTE, values, text},
#define ALIAS(name, new_name, text) {#name, DT_INCUMBENT_ALIAS, "", #new_name},
#define MISSING(name, values, text) {#name, DT_INCUMBENT_MISSING, "", text},
#include "cli/incumbent_args.def"
#undef NOTE
#undef ALIAS
#undef MISSING
};

const dt_incumbent *dtp_incumbent_find(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

size_t dtp_edit_distance(const char *a, const char *b)
{
    enum { longest = 63 };
    size_t n = strnlen(a, longest), m = strnlen(b, longest), row[longest + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < other ? change : other;
        }
    }
    return row[m];
}
