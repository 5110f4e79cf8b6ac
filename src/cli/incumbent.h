/* Names that a command line written for the reference trainer may carry and that deltune does not implement.
 * The names live in incumbent_args.def; see there for the three answers. */
#ifndef DT_CLI_INCUMBENT_H
#define DT_CLI_INCUMBENT_H

#include <stddef.h>

typedef enum dt_incumbent_kind {
    DT_INCUMBENT_NOTE,   /* accepted, has nothing to switch here */
    DT_INCUMBENT_ALIAS,  /* an older name of an argument of ours */
    DT_INCUMBENT_MISSING /* a name of the reference that is not implemented here */
} dt_incumbent_kind;

typedef struct dt_incumbent {
    const char *name;
    dt_incumbent_kind kind;
    const char *values; /* of a NOTE: "a|b", or "" for anything */
    const char *text;   /* the note, the new name, or what to do instead (may be "") */
} dt_incumbent;

/* NULL: not a name of the reference either. */
const dt_incumbent *dtp_incumbent_find(const char *name);

/* Levenshtein distance of two short names (at most 63 characters are compared). */
size_t dtp_edit_distance(const char *a, const char *b);

#endif
