/* The inside of a tokenizer, shared by the files that load it, encode with it and decode with it. */
#ifndef DT_TEXT_TOKENIZER_IMPL_H
#define DT_TEXT_TOKENIZER_IMPL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"

typedef struct dt_added_token {
    char *content;
    size_t length;
    int32_t id;
    bool special;
    bool normalized; /* looked for after NFC instead of before */
} dt_added_token;

/* Where the bytes of an id are in the pool. */
typedef struct dt_piece {
    uint32_t start; /* DT_NO_PIECE: no token has this id */
    uint32_t length : 31;
    uint32_t special : 1; /* an added token marked so */
} dt_piece;
#define DT_NO_PIECE UINT32_MAX

struct dt_tokenizer {
    dt_piece *pieces; /* [size] */
    size_t size;
    dt_buf pool;
    dt_added_token *added;
    size_t n_added, added_capacity;
    dt_trie raw, normalized, special; /* added tokens: those of the two passes, and those marked special */
    dt_bpe bpe;
    bool nfc;
    dt_split_kind split;
    int32_t eos, pad;
};

#endif
