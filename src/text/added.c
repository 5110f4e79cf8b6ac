#include "text/added.h"
#include <stdlib.h>
#include <string.h>

static uint32_t child_of(const dt_trie *trie, uint32_t node, unsigned char byte)
{
    uint32_t child = trie->nodes[node].first_child;
    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].next_sibling;
    return child;
}

bool dtp_trie_add(dt_trie *trie, const char *content, size_t length, int32_t id)
{
    if (!dtp_grow((void **)&trie->nodes, &trie->capacity, trie->count + length + 1, sizeof *trie->nodes))
        return false;
    if (trie->count == 0)
        trie->nodes[trie->count++] = (dt_trie_node){.id = -1};
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)content[i];
        uint32_t child = child_of(trie, node, byte);
        if (!child) {
            child = (uint32_t)trie->count++;
            trie->nodes[child] = (dt_trie_node){.id = -1, .byte = byte, .next_sibling = trie->nodes[node].first_child};
            trie->nodes[node].first_child = child;
        }
        node = child;
    }
    trie->nodes[node].id = id;

    trie->starts[(unsigned char)content[0]] = true;
    int n_starts = 0;
    for (int byte = 0; byte < 256; byte++)
        if (trie->starts[byte] && n_starts++ == 0)
            trie->only_start = byte;
    if (n_starts > 1)
        trie->only_start = -1;
    return true;
}

void dtp_trie_free(dt_trie *trie)
{
    free(trie->nodes);
    *trie = (dt_trie){0};
}

const unsigned char *dtp_trie_find(const dt_trie *trie, const unsigned char *p, const unsigned char *end,
                                   int32_t *id_out, size_t *length_out)
{
    if (trie->count == 0)
        return NULL;
    for (; p < end; p++) {
        if (trie->only_start >= 0) {
            p = memchr(p, trie->only_start, (size_t)(end - p));
            if (!p)
                return NULL;
        } else if (!trie->starts[*p]) {
            continue;
        }
        uint32_t node = 0;
        *length_out = 0;
        for (const unsigned char *q = p; q < end && (node = child_of(trie, node, *q)); q++)
            if (trie->nodes[node].id >= 0) {
                *id_out = trie->nodes[node].id;
                *length_out = (size_t)(q - p) + 1;
            }
        if (*length_out)
            return p;
    }
    return NULL;
}
