#include "core/test.h"

#include "core/file.h"
#include "train/tensorboard.h"

static uint64_t little_endian(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static uint32_t unmask(uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
}

static void crc(void **state)
{
    (void)state;
    assert_int_equal(dtp_crc32c("123456789", 9), 0xE3069283u); /* the check value of the CRC catalogue */
    unsigned char zeros[32] = {0};
    assert_int_equal(dtp_crc32c(zeros, 32), 0x8A9136AAu); /* RFC 3720 B.4 */
}

/* Walks the records by hand, as a reader does. */
static void records(void **state)
{
    (void)state;
    dt_err err = {0};
    char folder[] = "/tmp/deltune-events-XXXXXX";
    assert_non_null(mkdtemp(folder));
    dt_tensorboard *tb = NULL;
    assert_ok(dtp_tensorboard_open(&tb, folder, &err), &err);
    assert_ok(dtp_tensorboard_scalar(tb, "train/loss", 300, 1.5, &err), &err);
    assert_ok(dtp_tensorboard_flush(tb, &err), &err);
    char *data = NULL;
    size_t length = 0;
    assert_ok(dtp_read_file(dtp_tensorboard_path(tb), 0, &data, &length, &err), &err);
    const unsigned char *at = (const unsigned char *)data, *end = at + length;
    int count = 0;
    while (at < end) {
        uint64_t size = little_endian(at, 8);
        assert_int_equal(unmask((uint32_t)little_endian(at + 8, 4)), dtp_crc32c(at, 8));
        assert_int_equal(unmask((uint32_t)little_endian(at + 12 + size, 4)), dtp_crc32c(at + 12, size));
        const unsigned char *event = at + 12;
        assert_int_equal(event[0], 1 << 3 | 1); /* wall time */
        if (count == 0) {
            assert_memory_equal(event + 9,
                                "\x1a\x0d"
                                "brain.Event:2",
                                15);
        } else {
            /* step 300 = 0xac 0x02; summary of 19 bytes, value of 17, tag of 10, float 1.5 */
            assert_memory_equal(event + 9, "\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\xc0\x3f", 24);
            assert_int_equal(size, 9 + 24);
        }
        at += 12 + size + 4;
        count++;
    }
    assert_int_equal(count, 2);
    free(data);
    dtp_tensorboard_close(tb);
    assert_ok(dtp_remove_tree(folder, &err), &err);
}

static void no_folder(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_tensorboard *tb = NULL;
    assert_fails(dtp_tensorboard_open(&tb, "/proc/no/such", &err), &err, DT_E_IO, "/proc/no");
    dtp_tensorboard_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(crc), cmocka_unit_test(records), cmocka_unit_test(no_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
