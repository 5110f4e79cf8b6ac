#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

size_t dtp_tokenizer_size(const dt_tokenizer *tokenizer)
{
    return tokenizer->size;
}
int32_t dtp_tokenizer_eos(const dt_tokenizer *tokenizer)
{
    return tokenizer->eos;
}
int32_t dtp_tokenizer_pad(const dt_tokenizer *tokenizer)
{
    return tokenizer->pad;
}

int32_t dtp_tokenizer_special(const dt_tokenizer *tokenizer, const char *content)
{
    for (size_t i = 0; i < tokenizer->n_added; i++)
        if (tokenizer->added[i].length == strlen(content) && !strcmp(tokenizer->added[i].content, content))
            return tokenizer->added[i].id;
    return -1;
}

bool dtp_tokenizer_is_special(const dt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (size_t)id < tokenizer->size && tokenizer->pieces[id].special;
}

const char *dtp_tokenizer_piece(const dt_tokenizer *tokenizer, int32_t id, size_t *length_out)
{
    if (id < 0 || (size_t)id >= tokenizer->size || tokenizer->pieces[id].start == DT_NO_PIECE)
        return NULL;
    *length_out = tokenizer->pieces[id].length;
    return tokenizer->pool.data + tokenizer->pieces[id].start;
}

size_t dtp_tokenizer_count_special(const dt_tokenizer *tokenizer, const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    size_t count = 0, token_length = 0;
    int32_t id;
    while ((p = dtp_trie_find(&tokenizer->special, p, end, &id, &token_length))) {
        count++;
        p += token_length;
    }
    return count;
}

/* Emits the whole characters of pending + bytes, and keeps an unfinished one. */
static void emit(dt_stream_decoder *stream, const unsigned char *bytes, size_t n, dt_buf *out)
{
    /* Complete the pending character byte by byte: it takes at most three more. */
    while (stream->n_pending && n) {
        stream->pending[stream->n_pending] = *bytes;
        size_t bad;
        bool incomplete;
        size_t whole = dtp_utf8_check(stream->pending, stream->n_pending + 1, &bad, &incomplete);
        if (whole) {
            dtp_buf_append(out, stream->pending, whole);
            stream->n_pending = 0;
        } else if (incomplete) {
            stream->n_pending++;
        } else {
            /* The new byte does not belong to it and is looked at again, as the start of something else. */
            dtp_buf_append(out, REPLACEMENT, 3);
            stream->n_pending = 0;
            continue;
        }
        bytes++;
        n--;
    }
    size_t good = 0;
    while (good < n) {
        size_t bad;
        bool incomplete;
        size_t whole = dtp_utf8_check(bytes + good, n - good, &bad, &incomplete);
        if (whole) {
            good += whole;
            continue;
        }
        dtp_buf_append(out, bytes, good);
        if (incomplete) {
            memcpy(stream->pending, bytes + good, n - good);
            stream->n_pending = n - good;
            return;
        }
        dtp_buf_append(out, REPLACEMENT, 3);
        bytes += good + bad;
        n -= good + bad;
        good = 0;
    }
    dtp_buf_append(out, bytes, good);
}

dt_status dtp_stream_decode(dt_stream_decoder *stream, const dt_tokenizer *tokenizer, int32_t id, bool skip_special,
                            dt_buf *out, dt_err *err)
{
    size_t length;
    const char *piece = dtp_tokenizer_piece(tokenizer, id, &length);
    if (!piece)
        return dt_fail(err, DT_E_ARG, "token id %d has no text: the tokenizer's ids end at %zu", id,
                       tokenizer->size - 1);
    if (!(skip_special && dtp_tokenizer_is_special(tokenizer, id)))
        emit(stream, (const unsigned char *)piece, length, out);
    return dtp_buf_status(out, "decoded text", err);
}

dt_status dtp_stream_finish(dt_stream_decoder *stream, dt_buf *out, dt_err *err)
{
    if (stream->n_pending)
        dtp_buf_append(out, REPLACEMENT, 3);
    stream->n_pending = 0;
    return dtp_buf_status(out, "decoded text", err);
}

dt_status dtp_decode(const dt_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special, dt_buf *out,
                     dt_err *err)
{
    dt_stream_decoder stream = {0};
    for (size_t i = 0; i < count; i++) {
        dt_status status = dtp_stream_decode(&stream, tokenizer, ids[i], skip_special, out, err);
        if (status != DT_OK)
            return status;
    }
    return dtp_stream_finish(&stream, out, err);
}
