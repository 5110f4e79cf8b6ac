/* Every allocation fails once: what was asked for is refused with DT_E_NOMEM, and nothing crashes. */
#include "core/file.h"
#include "core/test.h"
#include "text/template.h"
#include <errno.h>
#include <jansson.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    puts("skipped: a sanitizer has its own malloc");
    return 77;
}
#else

void *__libc_malloc(size_t n);
void __libc_free(void *p);
void *__libc_realloc(void *old, size_t n);
void *__libc_calloc(size_t count, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static long until_failure = -1; /* allocations that still succeed; negative: all do */

static bool fails(void)
{
    if (until_failure < 0 || until_failure-- > 0)
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}
void *realloc(void *old, size_t n)
{
    return fails() ? NULL : __libc_realloc(old, n);
}
void *calloc(size_t count, size_t n)
{
    return fails() ? NULL : __libc_calloc(count, n);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    return fails() ? NULL : __libc_memalign(alignment, n);
}

/* Runs `job` with the first, second, ... allocation failing until it gets through; returns how many it takes. */
static long fail_each(dt_status (*job)(dt_err *err))
{
    for (long n = 0;; n++) {
        dt_err err = {0};
        until_failure = n;
        dt_status status = job(&err);
        bool all_succeeded = until_failure >= 0;
        until_failure = -1;
        if (all_succeeded) {
            assert_ok(status, &err);
            return n;
        }
        /* An allocation of the C library may be one it can do without. */
        bool expected = status == DT_OK || status == DT_E_NOMEM;
        if (!expected)
            fail_msg("allocation %ld: %s: %s", n, dt_status_name(status), err.text);
    }
}

static char *small_json;
static size_t small_length;
static dt_tokenizer *tokenizer;
static dt_encoder *encoder;

static int open_small(void **state)
{
    (void)state;
    /* Jansson cannot be tested so: it asserts, or loses characters. Its own allocations always succeed. */
    json_set_alloc_funcs(__libc_malloc, __libc_free);
    return dtp_read_file(DT_SOURCE_DIR "/tests/fuzz/corpus/tokenizer/small.json", 0, &small_json, &small_length,
                         NULL) ||
           dtp_tokenizer_open(&tokenizer, DT_SOURCE_DIR "/data/sample", NULL) ||
           dtp_encoder_create(&encoder, tokenizer, NULL);
}

static int close_small(void **state)
{
    (void)state;
    dtp_encoder_free(encoder);
    dtp_tokenizer_close(tokenizer);
    free(small_json);
    return 0;
}

static dt_status open_tokenizer(dt_err *err)
{
    dt_tokenizer *t = NULL;
    dt_status status = dtp_tokenizer_open_memory(&t, small_json, small_length, NULL, 0, "small", err);
    if (status == DT_OK)
        dtp_tokenizer_close(t);
    return status;
}

static void opening(void **state)
{
    (void)state;
    assert_true(fail_each(open_tokenizer) > 10);
}

/* A fresh encoder, as its buffers live from one text to the next. */
static dt_status encode_and_decode(dt_err *err)
{
    static const char text[] =
        "Hello e\xCC\x81\xCC\x96 \xFF<|im_end|> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    dt_encoder *fresh = NULL;
    dt_ids ids = {0};
    dt_buf back = {0};
    dt_status status = dtp_encoder_create(&fresh, tokenizer, err);
    if (status == DT_OK)
        status = dtp_encode(fresh, text, sizeof text - 1, &ids, err);
    if (status != DT_OK)
        assert_int_equal(ids.length, 0);
    if (status == DT_OK)
        status = dtp_decode(tokenizer, ids.data, ids.length, false, &back, err);
    dtp_buf_free(&back);
    dtp_ids_free(&ids);
    dtp_encoder_free(fresh);
    return status;
}

static void encoding(void **state)
{
    (void)state;
    assert_true(fail_each(encode_and_decode) > 10);
}

static dt_status render(dt_err *err)
{
    dt_template_options options = DT_TEMPLATE_OPTIONS_DEFAULT;
    options.system = "Be kind.";
    dt_template *chat = NULL;
    dt_conversation c = {0};
    dt_encoded out = {0};
    dt_status status = dtp_template_create(&chat, tokenizer, &options, err);
    if (status == DT_OK && (!dtp_conversation_add(&c, DT_ROLE_USER, "Hello \xFF", 7) ||
                            !dtp_conversation_add(&c, DT_ROLE_ASSISTANT, "<think>r</think>Yes.", 20)))
        status = dt_fail(err, DT_E_NOMEM, "conversation");
    if (status == DT_OK)
        status = dtp_template_encode(chat, encoder, &c, DT_TEMPLATE_TRAIN, &out, err);
    dtp_encoded_free(&out);
    dtp_conversation_free(&c);
    dtp_template_free(chat);
    return status;
}

static void rendering(void **state)
{
    (void)state;
    assert_true(fail_each(render) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(encoding),
        cmocka_unit_test(rendering),
    };
    return cmocka_run_group_tests_name("oom", tests, open_small, close_small);
}
#endif
