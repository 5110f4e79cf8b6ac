/* Reads tokenizer.json and tokenizer_config.json. Whatever a file asks for that we do not do is refused by name:
 * tokens that are almost right would train a model on the wrong text. */
#include "core/file.h"
#include "core/json.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAXIMUM_FILE = 512 << 20 };

/* Everything while loading; only `tokenizer` outlives it. */
typedef struct dt_loading {
    dt_tokenizer *tokenizer;
    const char *where;
    int16_t byte_of[324]; /* character of the byte alphabet -> byte, or -1 */
    int32_t *by_bytes;    /* pieces of the model's vocabulary by their bytes: open addressing, -1 = empty */
    size_t by_bytes_mask;
    dt_buf bytes; /* scratch */
    dt_err *err;
} dt_loading;

static dt_status unsupported(dt_loading *l, const char *field, const char *expected)
{
    return dt_fail(l->err, DT_E_UNSUPPORTED, "%s: %s is not supported here: expected %s", l->where, field, expected);
}

static dt_status broken(dt_loading *l, const char *field, const char *expected)
{
    return dt_fail(l->err, DT_E_FORMAT, "%s: %s is missing or malformed: expected %s", l->where, field, expected);
}

static dt_status no_memory(dt_loading *l)
{
    return dt_fail(l->err, DT_E_NOMEM, "%s: out of memory while loading the tokenizer", l->where);
}

static bool has_type(const json_t *object, const char *type)
{
    const char *name = json_string_value(json_object_get(object, "type"));
    return name && !strcmp(name, type);
}

static bool absent(const json_t *value)
{
    return !value || json_is_null(value);
}

/* Absent, null, false or an empty string. */
static bool unset(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return absent(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up. */
static void make_byte_alphabet(int16_t byte_of[324])
{
    memset(byte_of, 0xFF, 324 * sizeof *byte_of);
    int16_t other = 256;
    for (int16_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        byte_of[printable ? byte : other++] = byte;
    }
}

/* The bytes a token stands for, in l->bytes: the decoder's rule is that a token with a character outside the
 * alphabet stands for itself. Returns false for such a token. */
static bool token_bytes(dt_loading *l, const char *token, size_t length)
{
    dtp_buf_clear(&l->bytes);
    const unsigned char *p = (const unsigned char *)token, *end = p + length;
    while (p < end) {
        uint32_t c = dtp_utf8_next(&p);
        if (c >= 324 || l->byte_of[c] < 0) {
            dtp_buf_clear(&l->bytes);
            dtp_buf_append(&l->bytes, token, length);
            return false;
        }
        dtp_buf_putc(&l->bytes, (char)l->byte_of[c]);
    }
    return true;
}

static dt_status check_model(dt_loading *l, const json_t *model)
{
    if (!has_type(model, "BPE"))
        return unsupported(l, "model.type", "\"BPE\"");
    static const char *const must_be_unset[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                                "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof must_be_unset / sizeof *must_be_unset; i++)
        if (!unset(model, must_be_unset[i])) {
            char field[64];
            snprintf(field, sizeof field, "model.%s", must_be_unset[i]);
            return unsupported(l, field, "null, false or an empty string");
        }
    if (!json_is_object(json_object_get(model, "vocab")))
        return broken(l, "model.vocab", "an object of token: id");
    if (!json_is_array(json_object_get(model, "merges")))
        return broken(l, "model.merges", "an array");
    return DT_OK;
}

static dt_status check_pre_tokenizer(dt_loading *l, const json_t *pre)
{
    const char *shape = "a Sequence of Split (Isolated) and ByteLevel (without add_prefix_space and use_regex)";
    const json_t *steps = json_object_get(pre, "pretokenizers");
    if (!has_type(pre, "Sequence") || json_array_size(steps) != 2)
        return unsupported(l, "pre_tokenizer", shape);
    const json_t *split = json_array_get(steps, 0), *bytes = json_array_get(steps, 1);
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!has_type(split, "Split") || !behavior || strcmp(behavior, "Isolated") != 0 || !unset(split, "invert") ||
        !has_type(bytes, "ByteLevel") || !json_is_false(json_object_get(bytes, "add_prefix_space")) ||
        !json_is_false(json_object_get(bytes, "use_regex"))) /* absent means true */
        return unsupported(l, "pre_tokenizer", shape);
    const char *pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    if (!pattern || !dtp_split_kind(pattern, &l->tokenizer->split))
        return unsupported(l, "pre_tokenizer Split.pattern", "the split pattern of Qwen2/Qwen3 or of Qwen3.5");
    return DT_OK;
}

static dt_status check_pipeline(dt_loading *l, const json_t *root)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    l->tokenizer->nfc = !absent(normalizer);
    if (l->tokenizer->nfc && !has_type(normalizer, "NFC"))
        return unsupported(l, "normalizer", "NFC or null");
    /* What transformers writes for "adds nothing" is a template without special tokens. */
    const json_t *post = json_object_get(root, "post_processor");
    bool adds_nothing =
        absent(post) || has_type(post, "ByteLevel") ||
        (has_type(post, "TemplateProcessing") && !json_object_size(json_object_get(post, "special_tokens")));
    if (!adds_nothing)
        return unsupported(l, "post_processor", "one that adds no tokens");
    const json_t *decoder = json_object_get(root, "decoder");
    if (!absent(decoder) && !has_type(decoder, "ByteLevel"))
        return unsupported(l, "decoder", "ByteLevel");
    return check_pre_tokenizer(l, json_object_get(root, "pre_tokenizer"));
}

/* Makes `id` an index of pieces. */
static dt_status grow_pieces(dt_loading *l, size_t *capacity, int64_t id)
{
    dt_tokenizer *t = l->tokenizer;
    if (id < 0 || id >= DT_BPE_LIMIT)
        return dt_fail(l->err, DT_E_FORMAT, "%s: token id %lld is out of range: expected 0 to %u", l->where,
                       (long long)id, DT_BPE_LIMIT - 1);
    size_t need = (size_t)id + 1;
    if (!dtp_grow((void **)&t->pieces, capacity, need, sizeof *t->pieces))
        return no_memory(l);
    for (; t->size < need; t->size++)
        t->pieces[t->size] = (dt_piece){.start = DT_NO_PIECE};
    return DT_OK;
}

static dt_status set_piece(dt_loading *l, size_t *capacity, int64_t id, const char *token, size_t length)
{
    dt_status status = grow_pieces(l, capacity, id);
    if (status != DT_OK)
        return status;
    dt_tokenizer *t = l->tokenizer;
    token_bytes(l, token, length);
    t->pieces[id].start = (uint32_t)t->pool.length;
    t->pieces[id].length = (uint32_t)l->bytes.length & INT32_MAX;
    dtp_buf_append(&t->pool, l->bytes.data, l->bytes.length);
    return t->pool.failed || l->bytes.failed ? no_memory(l) : DT_OK;
}

static size_t first_slot(const dt_loading *l, const void *bytes, size_t length)
{
    return (size_t)XXH3_64bits(bytes, length) & l->by_bytes_mask;
}

static bool piece_is(const dt_tokenizer *t, int32_t id, const void *bytes, size_t length)
{
    return t->pieces[id].length == length && !memcmp(t->pool.data + t->pieces[id].start, bytes, length);
}

/* Id of the vocabulary entry with these bytes, or -1. */
static int32_t find_piece(const dt_loading *l, const void *bytes, size_t length)
{
    for (size_t i = first_slot(l, bytes, length);; i = (i + 1) & l->by_bytes_mask) {
        int32_t id = l->by_bytes[i];
        if (id < 0 || piece_is(l->tokenizer, id, bytes, length))
            return id;
    }
}

static dt_status load_vocabulary(dt_loading *l, json_t *vocab, size_t *capacity)
{
    dt_tokenizer *t = l->tokenizer;
    size_t slots = 16;
    while (slots < 2 * json_object_size(vocab))
        slots *= 2;
    l->by_bytes_mask = slots - 1;
    l->by_bytes = dtp_realloc_array(NULL, slots, sizeof *l->by_bytes);
    if (!l->by_bytes)
        return no_memory(l);
    memset(l->by_bytes, 0xFF, slots * sizeof *l->by_bytes);

    for (void *at = json_object_iter(vocab); at; at = json_object_iter_next(vocab, at)) {
        const char *token = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (!json_is_integer(value) || !*token)
            return broken(l, "model.vocab", "an object of token: id");
        int64_t id = json_integer_value(value);
        if (id >= 0 && (size_t)id < t->size && t->pieces[id].start != DT_NO_PIECE)
            return dt_fail(l->err, DT_E_FORMAT, "%s: model.vocab: two tokens have id %lld", l->where, (long long)id);
        dt_status status = set_piece(l, capacity, id, token, strlen(token));
        if (status != DT_OK)
            return status;
        if (!token_bytes(l, token, strlen(token)))
            continue; /* no text can become this token; it can only be decoded */
        size_t i = first_slot(l, l->bytes.data, l->bytes.length);
        while (l->by_bytes[i] >= 0)
            i = (i + 1) & l->by_bytes_mask;
        l->by_bytes[i] = (int32_t)id;
    }
    for (int byte = 0; byte < 256; byte++) {
        unsigned char c = (unsigned char)byte;
        t->bpe.byte_id[byte] = find_piece(l, &c, 1);
        if (t->bpe.byte_id[byte] < 0)
            return dt_fail(l->err, DT_E_FORMAT, "%s: model.vocab has no token for byte 0x%02X", l->where, byte);
    }
    return DT_OK;
}

/* A merge is "a b", or ["a", "b"]. */
static bool merge_parts(const json_t *merge, const char **a, size_t *a_length, const char **b, size_t *b_length)
{
    if (json_is_string(merge)) {
        *a = json_string_value(merge);
        const char *space = strchr(*a, ' ');
        if (!space)
            return false;
        *a_length = (size_t)(space - *a);
        *b = space + 1;
        *b_length = json_string_length(merge) - *a_length - 1;
        return true;
    }
    const json_t *first = json_array_get(merge, 0), *second = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(first) || !json_is_string(second))
        return false;
    *a = json_string_value(first);
    *b = json_string_value(second);
    *a_length = json_string_length(first);
    *b_length = json_string_length(second);
    return true;
}

static int32_t find_token(dt_loading *l, const char *token, size_t length)
{
    return token_bytes(l, token, length) ? find_piece(l, l->bytes.data, l->bytes.length) : -1;
}

static dt_status load_merges(dt_loading *l, const json_t *merges)
{
    dt_tokenizer *t = l->tokenizer;
    size_t n = json_array_size(merges);
    if (n >= DT_BPE_LIMIT)
        return unsupported(l, "model.merges", "fewer than 2 million merges");
    dt_status status = dtp_bpe_init(&t->bpe, n, l->err);
    if (status != DT_OK)
        return status;
    for (size_t rank = 0; rank < n; rank++) {
        const char *a, *b;
        size_t a_length, b_length;
        if (!merge_parts(json_array_get(merges, rank), &a, &a_length, &b, &b_length))
            return dt_fail(l->err, DT_E_FORMAT, "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", l->where,
                           rank);
        int32_t left = find_token(l, a, a_length), right = find_token(l, b, b_length), whole = -1;
        if (left >= 0 && right >= 0) {
            const dt_piece *p = t->pieces;
            dtp_buf_clear(&l->bytes);
            dtp_buf_append(&l->bytes, t->pool.data + p[left].start, p[left].length);
            dtp_buf_append(&l->bytes, t->pool.data + p[right].start, p[right].length);
            whole = find_piece(l, l->bytes.data, l->bytes.length);
        }
        if (l->bytes.failed)
            return no_memory(l);
        if (whole < 0)
            return dt_fail(l->err, DT_E_FORMAT,
                           "%s: model.merges[%zu]: %.*s + %.*s: one of them or the result is not in "
                           "model.vocab",
                           l->where, rank, (int)a_length, a, (int)b_length, b);
        dtp_bpe_add(&t->bpe, (uint32_t)rank, left, right, whole);
    }
    dtp_bpe_finish(&t->bpe);
    return DT_OK;
}

static dt_status add_token(dt_loading *l, size_t *capacity, int64_t id, const json_t *entry, const char *field)
{
    dt_tokenizer *t = l->tokenizer;
    const json_t *content = json_object_get(entry, "content");
    if (!json_is_string(content) || json_string_length(content) == 0)
        return broken(l, field, "entries with a content");
    const char *text = json_string_value(content);
    size_t length = json_string_length(content);
    if (strlen(text) != length)
        return unsupported(l, field, "tokens without NUL");
    if (!unset(entry, "lstrip") || !unset(entry, "rstrip") || !unset(entry, "single_word"))
        return unsupported(l, field, "lstrip, rstrip and single_word to be false");

    for (size_t i = 0; i < t->n_added; i++) {
        bool same_text = !strcmp(t->added[i].content, text);
        if (same_text && t->added[i].id == id)
            return DT_OK; /* both files name it */
        if (same_text || t->added[i].id == id)
            return dt_fail(l->err, DT_E_FORMAT, "%s: %s: \"%s\" = %lld contradicts \"%s\" = %d", l->where, field, text,
                           (long long)id, t->added[i].content, t->added[i].id);
    }
    /* A token of the model's vocabulary may be named again, with the same id. */
    int32_t known = find_token(l, text, length);
    bool taken = id >= 0 && (size_t)id < t->size && t->pieces[id].start != DT_NO_PIECE;
    if (known >= 0 ? known != id : taken)
        return dt_fail(l->err, DT_E_FORMAT, "%s: %s: \"%s\" = %lld contradicts model.vocab", l->where, field, text,
                       (long long)id);
    dt_status status = known >= 0 ? DT_OK : set_piece(l, capacity, id, text, length);
    if (status != DT_OK)
        return status;
    if (!dtp_grow((void **)&t->added, &t->added_capacity, t->n_added + 1, sizeof *t->added))
        return no_memory(l);
    dt_added_token *token = &t->added[t->n_added];
    *token = (dt_added_token){.content = dtp_strndup(text, length),
                              .length = length,
                              .id = (int32_t)id,
                              .special = json_is_true(json_object_get(entry, "special")),
                              .normalized = json_is_true(json_object_get(entry, "normalized"))};
    if (!token->content)
        return no_memory(l);
    t->n_added++;
    t->pieces[id].special = token->special;
    return DT_OK;
}

static dt_status load_added(dt_loading *l, json_t *root, json_t *config, size_t *capacity)
{
    const json_t *list = json_object_get(root, "added_tokens");
    if (!absent(list) && !json_is_array(list))
        return broken(l, "added_tokens", "an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        if (!json_is_integer(id))
            return broken(l, "added_tokens", "entries with an id");
        dt_status status = add_token(l, capacity, json_integer_value(id), entry, "added_tokens");
        if (status != DT_OK)
            return status;
    }
    json_t *more = json_object_get(config, "added_tokens_decoder");
    for (void *at = json_object_iter(more); at; at = json_object_iter_next(more, at)) {
        char *end;
        const char *key = json_object_iter_key(at);
        long long id = strtoll(key, &end, 10);
        if (end == key || *end)
            return broken(l, "added_tokens_decoder", "ids as keys");
        dt_status status = add_token(l, capacity, id, json_object_iter_value(at), "added_tokens_decoder");
        if (status != DT_OK)
            return status;
    }
    return DT_OK;
}

/* Text that is looked for after normalisation is normalised itself. */
static dt_status build_tries(dt_loading *l)
{
    dt_tokenizer *t = l->tokenizer;
    dt_nfc_scratch scratch = {0};
    dt_status status = DT_OK;
    for (size_t i = 0; i < t->n_added && status == DT_OK; i++) {
        const dt_added_token *token = &t->added[i];
        dtp_buf_clear(&l->bytes);
        if (token->normalized && t->nfc)
            status = dtp_nfc(token->content, token->length, &scratch, &l->bytes, l->err);
        else
            dtp_buf_append(&l->bytes, token->content, token->length);
        dt_trie *pass = token->normalized ? &t->normalized : &t->raw;
        if (status == DT_OK &&
            (l->bytes.failed || !dtp_trie_add(pass, l->bytes.data, l->bytes.length, token->id) ||
             (token->special && !dtp_trie_add(&t->special, token->content, token->length, token->id))))
            status = no_memory(l);
    }
    dtp_nfc_scratch_free(&scratch);
    return status;
}

/* eos_token and pad_token are a string or an object with the content. */
static int32_t named_token(const dt_tokenizer *t, const json_t *config, const char *field, const char *otherwise)
{
    const json_t *value = json_object_get(config, field);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    int32_t id = json_is_string(value) ? dtp_tokenizer_special(t, json_string_value(value)) : -1;
    return id >= 0 ? id : dtp_tokenizer_special(t, otherwise);
}

static dt_status load(dt_loading *l, json_t *root, json_t *config)
{
    json_t *model = json_object_get(root, "model");
    size_t capacity = 0;
    dt_status status = check_model(l, model);
    if (status == DT_OK)
        status = check_pipeline(l, root);
    if (status == DT_OK)
        status = load_vocabulary(l, json_object_get(model, "vocab"), &capacity);
    if (status == DT_OK)
        status = load_merges(l, json_object_get(model, "merges"));
    if (status == DT_OK)
        status = load_added(l, root, config, &capacity);
    if (status == DT_OK)
        status = build_tries(l);
    l->tokenizer->eos = named_token(l->tokenizer, config, "eos_token", "<|im_end|>");
    l->tokenizer->pad = named_token(l->tokenizer, config, "pad_token", "<|endoftext|>");
    return status;
}

/* transformers writes model_max_length as 10^30: numbers, of which we use none, are read as reals. */
static dt_status parse_config(json_t **out, const char *text, size_t length, dt_err *err)
{
    json_error_t fault;
    *out = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &fault);
    return *out ? DT_OK
                : dt_fail(err, DT_E_FORMAT, "tokenizer_config.json:%d: not valid JSON: %s (column %d)", fault.line,
                          fault.text, fault.column);
}

dt_status dtp_tokenizer_open_memory(dt_tokenizer **out, const char *json, size_t json_length, const char *config,
                                    size_t config_length, const char *where, dt_err *err)
{
    json_t *root = NULL, *settings = NULL;
    dt_loading l = {.tokenizer = dtp_calloc(1, sizeof *l.tokenizer), .where = where, .err = err};
    dt_status status = l.tokenizer ? DT_OK : no_memory(&l);
    if (status == DT_OK)
        status = dtp_json_parse(&root, json, json_length, where, err);
    if (status == DT_OK && config)
        status = parse_config(&settings, config, config_length, err);
    if (status == DT_OK) {
        make_byte_alphabet(l.byte_of);
        l.tokenizer->pool.maximum = MAXIMUM_FILE;
        status = load(&l, root, settings);
    }
    json_decref(root);
    json_decref(settings);
    free(l.by_bytes);
    dtp_buf_free(&l.bytes);
    if (status != DT_OK) {
        dtp_tokenizer_close(l.tokenizer);
        return status;
    }
    *out = l.tokenizer;
    return DT_OK;
}

dt_status dtp_tokenizer_open(dt_tokenizer **out, const char *path, dt_err *err)
{
    bool folder = dtp_is_folder(path);
    char *file = folder ? dtp_path_join(path, "tokenizer.json") : dtp_strdup(path);
    const char *slash = file ? strrchr(file, '/') : NULL;
    char *parent = file ? dtp_strndup(file, slash ? (size_t)(slash - file) + 1 : 0) : NULL;
    char *config_file = parent ? dtp_path_join(*parent ? parent : ".", "tokenizer_config.json") : NULL;
    char *json = NULL, *config = NULL;
    size_t json_length = 0, config_length = 0;
    dt_status status = config_file ? DT_OK : dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    if (status == DT_OK && folder && !dtp_file_exists(file))
        status = dt_fail(err, DT_E_IO, "%s has no tokenizer.json: name a folder or file with one", path);
    if (status == DT_OK)
        status = dtp_read_file(file, MAXIMUM_FILE, &json, &json_length, err);
    if (status == DT_OK && dtp_file_exists(config_file))
        status = dtp_read_file(config_file, MAXIMUM_FILE, &config, &config_length, err);
    if (status == DT_OK)
        status = dtp_tokenizer_open_memory(out, json, json_length, config, config_length, file, err);
    free(json);
    free(config);
    free(config_file);
    free(parent);
    free(file);
    return status;
}

void dtp_tokenizer_close(dt_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_added; i++)
        free(t->added[i].content);
    free(t->added);
    free(t->pieces);
    dtp_buf_free(&t->pool);
    dtp_trie_free(&t->raw);
    dtp_trie_free(&t->normalized);
    dtp_trie_free(&t->special);
    dtp_bpe_free(&t->bpe);
    free(t);
}
