/* Byte-level BPE tokenizer read from a Hugging Face tokenizer.json (+ tokenizer_config.json).
 *
 * The token ids are those of the `tokenizers` package for the two published Qwen patterns (with and without \p{M});
 * a file that needs anything else (another pattern, normaliser, model) is refused with the field's name.
 *
 * Threads: a dt_tokenizer is immutable after open and may be shared. Encoding goes through a dt_encoder, which holds
 * the scratch memory and the word cache of ONE thread.
 *
 * Text is bytes + length and may contain NUL. Invalid UTF-8 is never an error: each maximal invalid part reads as
 * U+FFFD, as Python's bytes.decode(errors="replace") would hand it to the reference.
 * Not for: chat turns and labels (text/template.h). */
#ifndef DT_TEXT_TOKENIZER_H
#define DT_TEXT_TOKENIZER_H

#include "core/memory.h"

/* Token ids that grow. Zero-initialise; free with dtp_ids_free. Also used for labels. */
typedef struct dt_ids {
    int32_t *data;
    size_t length, capacity;
} dt_ids;

/* Makes room for `more` further ids; false when out of memory (the ids so far stay valid). */
bool dtp_ids_reserve(dt_ids *ids, size_t more);
void dtp_ids_free(dt_ids *ids); /* leaves a zeroed struct */

typedef struct dt_tokenizer dt_tokenizer;
typedef struct dt_encoder dt_encoder;

/* `path`: a folder with tokenizer.json, or a tokenizer.json itself. tokenizer_config.json beside it is optional; its
 * added_tokens_decoder joins the added tokens, its eos_token / pad_token name those ids.
 * DT_E_IO, DT_E_FORMAT (broken or contradicting file), DT_E_UNSUPPORTED (well formed, not implemented), DT_E_NOMEM. */
dt_status dtp_tokenizer_open(dt_tokenizer **out, const char *path, dt_err *err);
/* The same from memory; `config` may be NULL. `where` names the source in errors. */
dt_status dtp_tokenizer_open_memory(dt_tokenizer **out, const char *json, size_t json_length, const char *config,
                                    size_t config_length, const char *where, dt_err *err);
void dtp_tokenizer_close(dt_tokenizer *tokenizer); /* accepts NULL; no encoder may still use it */

/* Highest id + 1, added tokens included. The model's vocab_size may be larger (padding rows), never smaller. */
size_t dtp_tokenizer_size(const dt_tokenizer *tokenizer);
/* Id of an added token by its exact content ("<|im_start|>"), or -1. */
int32_t dtp_tokenizer_special(const dt_tokenizer *tokenizer, const char *content);
/* -1 when the files name none: eos from tokenizer_config.json, else <|im_end|>; pad likewise, else <|endoftext|>. */
int32_t dtp_tokenizer_eos(const dt_tokenizer *tokenizer);
int32_t dtp_tokenizer_pad(const dt_tokenizer *tokenizer);
/* True for added tokens marked special (<|im_end|> is, <think> is not). */
bool dtp_tokenizer_is_special(const dt_tokenizer *tokenizer, int32_t id);
/* The bytes one id stands for (maybe part of a character), borrowed from the tokenizer; NULL for an id it lacks. */
const char *dtp_tokenizer_piece(const dt_tokenizer *tokenizer, int32_t id, size_t *length_out);
/* How many special tokens stand as text in `text` (P-66: control text inside user content). */
size_t dtp_tokenizer_count_special(const dt_tokenizer *tokenizer, const char *text, size_t length);

/* One per thread. The tokenizer must outlive it. */
dt_status dtp_encoder_create(dt_encoder **out, const dt_tokenizer *tokenizer, dt_err *err);
void dtp_encoder_free(dt_encoder *encoder); /* accepts NULL */
const dt_tokenizer *dtp_encoder_tokenizer(const dt_encoder *encoder);
/* Appends the ids of `text`; nothing is added around it. On DT_E_NOMEM `ids` is as it was. */
dt_status dtp_encode(dt_encoder *encoder, const char *text, size_t length, dt_ids *ids, dt_err *err);

/* Appends the text of `ids` to `out`: always valid UTF-8, bytes that form no character become U+FFFD. `skip_special`
 * leaves out tokens marked special. An id the tokenizer lacks (padding rows) is DT_E_ARG. */
dt_status dtp_decode(const dt_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special, dt_buf *out,
                     dt_err *err);

/* Decoding as ids arrive: emits whole characters only. Zero-initialise; feeding ids one by one and then finishing
 * appends exactly what dtp_decode appends for all of them. */
typedef struct dt_stream_decoder {
    unsigned char pending[4];
    size_t n_pending;
} dt_stream_decoder;
dt_status dtp_stream_decode(dt_stream_decoder *stream, const dt_tokenizer *tokenizer, int32_t id, bool skip_special,
                            dt_buf *out, dt_err *err);
/* Emits U+FFFD for an unfinished character, and is ready for the next text. */
dt_status dtp_stream_finish(dt_stream_decoder *stream, dt_buf *out, dt_err *err);

#endif
