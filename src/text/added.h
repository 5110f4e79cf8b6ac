/* Added tokens (<|im_start|>, <think> ...): found in text as they stand, leftmost first, longest on ties, before
 * anything else looks at the text. */
#ifndef DT_TEXT_ADDED_H
#define DT_TEXT_ADDED_H

#include "core/memory.h"

/* A trie over bytes; children of a node are a list of siblings. */
typedef struct dt_trie_node {
    uint32_t first_child, next_sibling; /* 0 = none: the root is nobody's child */
    int32_t id;                         /* -1: no token ends here */
    unsigned char byte;
} dt_trie_node;

typedef struct dt_trie {
    dt_trie_node *nodes;
    size_t count, capacity;
    bool starts[256]; /* bytes that some token begins with */
    int only_start;   /* that byte when there is one, -1 when there are more */
} dt_trie;

/* Zero-initialise. False when out of memory. A second token of the same content replaces the first. */
bool dtp_trie_add(dt_trie *trie, const char *content, size_t length, int32_t id);
void dtp_trie_free(dt_trie *trie);

/* The first token in [p, end): returns where it starts, its id and length; NULL when there is none. */
const unsigned char *dtp_trie_find(const dt_trie *trie, const unsigned char *p, const unsigned char *end,
                                   int32_t *id_out, size_t *length_out);

#endif
