#include "operators/rank_report.h"

#include "core/log.h"

#include <string.h>

/* The next line of `text` (without its newline) and where the rest begins. */
static const char *next_line(const char *text, size_t *length)
{
    *length = strcspn(text, "\n");
    return text[*length] ? text + *length + 1 : text + *length;
}

void dtp_log_ranks(int rank, int world, const char *const *fingerprints)
{
    const char *mine = fingerprints[rank], *first = fingerprints[0];
    int same = 0;
    for (int r = 0; r < world; r++)
        same += strcmp(fingerprints[r], first) == 0;
    while (*mine && *first) {
        size_t n, m;
        const char *mine_rest = next_line(mine, &n), *first_rest = next_line(first, &m);
        if (rank == 0)
            dt_info("%.*s (%d of %d ranks)", (int)n, mine, same, world);
        else if (n != m || memcmp(mine, first, n) != 0)
            dt_info("rank %d differs: %.*s (rank 0: %.*s)", rank, (int)n, mine, (int)m, first);
        mine = mine_rest;
        first = first_rest;
    }
}
