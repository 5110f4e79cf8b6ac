#include "train/tensorboard.h"

#include "core/file.h"
#include "core/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct dt_tensorboard {
    FILE *file;
    char *path;
};

uint32_t dtp_crc32c(const void *data, size_t length)
{
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    while (length--) { /* bit by bit: an event has some sixty bytes */
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static uint32_t masked_crc(const void *data, size_t length)
{
    uint32_t crc = dtp_crc32c(data, length);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ------------------------------------------------------------------ protobuf */

static void put_varint(dt_buf *to, uint64_t value)
{
    while (value >= 0x80) {
        dtp_buf_putc(to, (char)(value | 0x80));
        value >>= 7;
    }
    dtp_buf_putc(to, (char)value);
}

static void put_little_endian(dt_buf *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        dtp_buf_putc(to, (char)(value >> (8 * i)));
}

enum { wire_varint = 0, wire_64 = 1, wire_bytes = 2, wire_32 = 5 };

static void put_key(dt_buf *to, int field, int wire)
{
    put_varint(to, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_bytes(dt_buf *to, int field, const void *data, size_t length)
{
    put_key(to, field, wire_bytes);
    put_varint(to, length);
    dtp_buf_append(to, data, length);
}

static void put_wall_time(dt_buf *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    put_key(to, 1, wire_64);
    put_little_endian(to, bits, 8);
}

/* ------------------------------------------------------------------ records */

static dt_status write_record(dt_tensorboard *tb, dt_buf *event, dt_err *err)
{
    dt_status st = dtp_buf_status(event, tb->path, err);
    if (st == DT_OK) {
        dt_buf record = {0};
        put_little_endian(&record, event->length, 8);
        put_little_endian(&record, masked_crc(record.data, record.data ? 8 : 0), 4);
        dtp_buf_append(&record, event->data, event->length);
        put_little_endian(&record, masked_crc(event->data, event->length), 4);
        st = dtp_buf_status(&record, tb->path, err);
        if (st == DT_OK && fwrite(record.data, 1, record.length, tb->file) != record.length)
            st = dt_fail(err, DT_E_IO, "%s: write: %s", tb->path, strerror(errno));
        dtp_buf_free(&record);
    }
    dtp_buf_free(event);
    return st;
}

dt_status dtp_tensorboard_open(dt_tensorboard **out, const char *folder, dt_err *err)
{
    dt_status st = dtp_make_folders(folder, err);
    if (st != DT_OK)
        return st;
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    dt_tensorboard *tb = dtp_calloc(1, sizeof *tb);
    if (tb)
        tb->path =
            dtp_format("%s/events.out.tfevents.%lld.%s.%d.0", folder, (long long)time(NULL), host, (int)getpid());
    if (!tb || !tb->path) {
        free(tb);
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    }
    tb->file = fopen(tb->path, "wb");
    if (!tb->file)
        st = dt_fail(err, DT_E_IO, "%s: create: %s", tb->path, strerror(errno));
    else {
        static const char version[] = "brain.Event:2";
        dt_buf event = {0};
        put_wall_time(&event);
        put_bytes(&event, 3, version, sizeof version - 1);
        st = write_record(tb, &event, err);
    }
    if (st != DT_OK)
        dtp_tensorboard_close(tb);
    else
        *out = tb;
    return st;
}

dt_status dtp_tensorboard_scalar(dt_tensorboard *tb, const char *tag, int64_t step, double value, dt_err *err)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    dt_buf scalar = {0}, summary = {0}, event = {0};
    put_bytes(&scalar, 1, tag, strlen(tag));
    put_key(&scalar, 2, wire_32);
    put_little_endian(&scalar, bits, 4);
    put_bytes(&summary, 1, scalar.data, scalar.length);
    put_wall_time(&event);
    put_key(&event, 2, wire_varint);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.data, summary.length);
    event.failed |= scalar.failed || summary.failed;
    dtp_buf_free(&scalar);
    dtp_buf_free(&summary);
    return write_record(tb, &event, err);
}

dt_status dtp_tensorboard_flush(dt_tensorboard *tb, dt_err *err)
{
    return fflush(tb->file) == 0 ? DT_OK : dt_fail(err, DT_E_IO, "%s: write: %s", tb->path, strerror(errno));
}

const char *dtp_tensorboard_path(const dt_tensorboard *tb)
{
    return tb->path;
}

void dtp_tensorboard_close(dt_tensorboard *tb)
{
    if (!tb)
        return;
    if (tb->file)
        fclose(tb->file);
    free(tb->path);
    free(tb);
}
