/* Laying out one block of memory: the same code counts (base DT_ARENA_COUNTING) and assigns (the real base). */
#ifndef DT_MODEL_ARENA_H
#define DT_MODEL_ARENA_H

#include <stddef.h>
#include <stdint.h>

enum { DT_ARENA_ALIGNMENT = 256 };

/* Stands for an arena that does not exist yet: not NULL (which means "absent" to operators), never read. */
#define DT_ARENA_COUNTING ((char *)(uintptr_t)4096)

typedef struct dt_cursor {
    char *base;
    size_t used;
} dt_cursor;

static inline void *dtp_take(dt_cursor *c, size_t bytes)
{
    void *at = c->base + c->used;
    c->used += (bytes + DT_ARENA_ALIGNMENT - 1) / DT_ARENA_ALIGNMENT * DT_ARENA_ALIGNMENT;
    return at;
}

#endif
