#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

bool dtp_ids_reserve(dt_ids *ids, size_t more)
{
    size_t need;
    return !__builtin_add_overflow(ids->length, more, &need) &&
           dtp_grow((void **)&ids->data, &ids->capacity, need, sizeof *ids->data);
}

void dtp_ids_free(dt_ids *ids)
{
    free(ids->data);
    *ids = (dt_ids){0};
}

/* A known word and its ids in one cache line. A new word simply takes the place of an old one. */
typedef struct dt_cached_word {
    uint8_t length; /* of the word; 0 = empty */
    uint8_t n_ids;
    char word[30];
    int32_t ids[8];
} dt_cached_word;
_Static_assert(sizeof(dt_cached_word) == 64, "a cached word fills one cache line");
enum { CACHE_BITS = 14 };

struct dt_encoder {
    const dt_tokenizer *tokenizer;
    dt_cached_word *cache; /* [1 << CACHE_BITS] */
    dt_bpe_scratch bpe;
    dt_nfc_scratch nfc;
    dt_buf repaired, normalized;
};

dt_status dtp_encoder_create(dt_encoder **out, const dt_tokenizer *tokenizer, dt_err *err)
{
    dt_encoder *encoder = dtp_calloc(1, sizeof *encoder);
    size_t bytes = sizeof(dt_cached_word) << CACHE_BITS;
    if (!encoder || !(encoder->cache = dtp_alloc_aligned(bytes))) {
        dtp_encoder_free(encoder);
        return dt_fail(err, DT_E_NOMEM, "out of memory for an encoder");
    }
    memset(encoder->cache, 0, bytes);
    encoder->tokenizer = tokenizer;
    *out = encoder;
    return DT_OK;
}

void dtp_encoder_free(dt_encoder *encoder)
{
    if (!encoder)
        return;
    free(encoder->cache);
    dtp_bpe_scratch_free(&encoder->bpe);
    dtp_nfc_scratch_free(&encoder->nfc);
    dtp_buf_free(&encoder->repaired);
    dtp_buf_free(&encoder->normalized);
    free(encoder);
}

const dt_tokenizer *dtp_encoder_tokenizer(const dt_encoder *encoder)
{
    return encoder->tokenizer;
}

/* Appends the ids of one piece of the split; `ids` has room for n. */
static dt_status encode_piece(dt_encoder *encoder, const unsigned char *piece, size_t n, dt_ids *ids, dt_err *err)
{
    const dt_bpe *bpe = &encoder->tokenizer->bpe;
    int32_t *out = ids->data + ids->length;
    if (n == 1) {
        *out = bpe->byte_id[*piece];
        ids->length++;
        return DT_OK;
    }
    dt_cached_word *known = NULL;
    if (n <= sizeof known->word) {
        known = &encoder->cache[XXH3_64bits(piece, n) >> (64 - CACHE_BITS)];
        if (known->length == n && !memcmp(known->word, piece, n)) {
            memcpy(out, known->ids, known->n_ids * sizeof *out);
            ids->length += known->n_ids;
            return DT_OK;
        }
    }
    size_t n_ids;
    dt_status status = dtp_bpe_encode(bpe, &encoder->bpe, piece, n, out, &n_ids, err);
    if (status != DT_OK)
        return status;
    ids->length += n_ids;
    if (known && n_ids <= sizeof known->ids / sizeof *known->ids) {
        known->length = (uint8_t)n;
        known->n_ids = (uint8_t)n_ids;
        memcpy(known->word, piece, n);
        memcpy(known->ids, out, n_ids * sizeof *out);
    }
    return DT_OK;
}

/* Normalised text without added tokens. */
static dt_status encode_words(dt_encoder *encoder, const unsigned char *p, const unsigned char *end, dt_ids *ids,
                              dt_err *err)
{
    if (!dtp_ids_reserve(ids, (size_t)(end - p)))
        return dt_fail(err, DT_E_NOMEM, "out of memory for the ids of %zu bytes of text", (size_t)(end - p));
    dt_split_kind split = encoder->tokenizer->split;
    dt_status status = DT_OK;
    while (p < end && status == DT_OK) {
        const unsigned char *next = dtp_split_next(split, p, end);
        status = encode_piece(encoder, p, (size_t)(next - p), ids, err);
        p = next;
    }
    return status;
}

typedef dt_status (*dt_gap_encoder)(dt_encoder *encoder, const unsigned char *p, const unsigned char *end, dt_ids *ids,
                                    dt_err *err);

/* Added tokens of one trie become their ids; what stands between them goes to `encode_gap`. */
static dt_status encode_added(dt_encoder *encoder, const dt_trie *added, dt_gap_encoder encode_gap,
                              const unsigned char *p, const unsigned char *end, dt_ids *ids, dt_err *err)
{
    while (p < end) {
        int32_t id = -1;
        size_t length = 0;
        const unsigned char *token = dtp_trie_find(added, p, end, &id, &length);
        const unsigned char *stop = token ? token : end;
        if (stop > p) {
            dt_status status = encode_gap(encoder, p, stop, ids, err);
            if (status != DT_OK)
                return status;
        }
        if (!token)
            break;
        if (!dtp_ids_reserve(ids, 1))
            return dt_fail(err, DT_E_NOMEM, "out of memory for token ids");
        ids->data[ids->length++] = id;
        p = token + length;
    }
    return DT_OK;
}

/* Raw text without raw added tokens. */
static dt_status encode_raw_gap(dt_encoder *encoder, const unsigned char *p, const unsigned char *end, dt_ids *ids,
                                dt_err *err)
{
    bool needs_nfc;
    dtp_utf8_scan((const char *)p, (size_t)(end - p), &needs_nfc);
    if (needs_nfc && encoder->tokenizer->nfc) {
        dt_buf *text = &encoder->normalized;
        dtp_buf_clear(text);
        dt_status status = dtp_nfc((const char *)p, (size_t)(end - p), &encoder->nfc, text, err);
        if (status != DT_OK)
            return status;
        p = (const unsigned char *)text->data;
        end = p + text->length;
    }
    return encode_added(encoder, &encoder->tokenizer->normalized, encode_words, p, end, ids, err);
}

dt_status dtp_encode(dt_encoder *encoder, const char *text, size_t length, dt_ids *ids, dt_err *err)
{
    /* Positions inside one piece are 32 bits. */
    if (length > INT32_MAX)
        return dt_fail(err, DT_E_ARG, "a text of %zu bytes is too long to tokenise at once: at most 2 GiB", length);
    bool needs_nfc;
    if (!dtp_utf8_scan(text, length, &needs_nfc)) {
        dtp_buf_clear(&encoder->repaired);
        dtp_utf8_repair(text, length, &encoder->repaired);
        dt_status status = dtp_buf_status(&encoder->repaired, "text with invalid UTF-8", err);
        if (status != DT_OK)
            return status;
        text = encoder->repaired.data;
        length = encoder->repaired.length;
    }
    size_t before = ids->length;
    const unsigned char *p = (const unsigned char *)text;
    dt_status status = encode_added(encoder, &encoder->tokenizer->raw, encode_raw_gap, p, p + length, ids, err);
    if (status != DT_OK)
        ids->length = before;
    return status;
}
