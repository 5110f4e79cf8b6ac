#include "core/file.h"
#include "data/dataset_impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Rows are met in the order of their files and written in the order of the data set: their lines wait in a store of
 * their own. */
typedef struct lines {
    dt_token_store *store; /* the bytes of each line, padded to words */
    uint64_t *place;       /* [rows of the table] */
    uint32_t *length;      /* [rows of the table] bytes; 0 = not met */
    size_t first_row;      /* of the source being read */
} lines;

static json_t *message_json(const dt_message *message)
{
    json_t *content = json_stringn_nocheck(message->content, message->length);
    json_t *item = json_pack("{s:s, s:o}", "role", dtp_role_name(message->role), "content", content);
    if (item && message->has_loss && json_object_set_new(item, "loss", json_boolean(message->loss)) != 0)
        goto fail;
    if (item && message->has_loss_scale && json_object_set_new(item, "loss_scale", json_real(message->loss_scale)) != 0)
        goto fail;
    return item;
fail:
    json_decref(item);
    return NULL;
}

static json_t *ids_json(const dt_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < ids->length; i++)
        if (json_array_append_new(list, json_integer(ids->data[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* {"messages": [...]} or {"input_ids": [...], "labels": [...]}; NULL when out of memory. */
static json_t *row_json(const dt_row *row)
{
    if (row->kind == DT_ROW_TOKENS)
        return json_pack("{s:o, s:o}", "input_ids", ids_json(&row->ids), "labels", ids_json(&row->labels));
    json_t *messages = json_array();
    for (size_t i = 0; messages && i < row->conversation.count; i++)
        if (json_array_append_new(messages, message_json(&row->conversation.messages[i])) != 0) {
            json_decref(messages);
            return NULL;
        }
    return json_pack("{s:o}", "messages", messages);
}

static dt_status keep_line(void *user, size_t row_number, const dt_row *row, dt_err *err)
{
    lines *all = user;
    json_t *json = row_json(row);
    char *text = json ? json_dumps(json, 0) : NULL;
    dt_buf line = {0};
    json_decref(json);
    if (text)
        dtp_buf_puts(&line, text);
    dtp_buf_putc(&line, '\n');
    size_t at = all->first_row + row_number, length = line.length;
    while (line.length % sizeof(uint32_t) && !line.failed)
        dtp_buf_putc(&line, ' ');
    dt_status status = DT_OK;
    if (!text || line.failed || length > UINT32_MAX)
        status =
            dt_fail(err, DT_E_NOMEM, "%s:%lld: out of memory while writing the row", row->file, (long long)row->line);
    else
        status = dtp_token_store_append(all->store, (const uint32_t *)(const void *)line.data,
                                        line.length / sizeof(uint32_t), &all->place[at], err);
    all->length[at] = (uint32_t)length;
    free(text);
    dtp_buf_free(&line);
    return status;
}

/* The text of one row's line, in words. */
static dt_status write_line(const lines *all, size_t row, dt_writer *writer, dt_buf *scratch, dt_err *err)
{
    size_t length = all->length[row], n = (length + sizeof(uint32_t) - 1) / sizeof(uint32_t);
    if (length == 0)
        return dt_fail(err, DT_E_IO, "the data files changed while they were in use: a row is gone");
    dtp_buf_clear(scratch);
    if (!dtp_grow((void **)&scratch->data, &scratch->capacity, n * sizeof(uint32_t) + 1, 1))
        return dt_fail(err, DT_E_NOMEM, "out of memory while writing rows");
    dt_status status = dtp_token_store_read(all->store, all->place[row], (uint32_t *)(void *)scratch->data, n, err);
    return status == DT_OK ? dtp_writer_write(writer, scratch->data, length, err) : status;
}

static dt_status collect(lines *all, const dt_dataset *d, dt_err *err)
{
    const dt_shared *shared = d->shared;
    dt_dataset_options options = {.rows.columns = shared->columns};
    uint8_t *wanted = dtp_calloc(shared->table.n_rows, 1);
    dt_status status = wanted ? DT_OK : dt_fail(err, DT_E_NOMEM, "out of memory while writing rows");
    for (size_t i = 0; wanted && i < d->n_rows; i++)
        wanted[d->row[i]] = 1;
    for (size_t i = 0; status == DT_OK && i < shared->n_sets; i++) {
        all->first_row = shared->sets[i].first_row;
        status = dtp_scan_visit(&shared->sets[i], &options, wanted + all->first_row, keep_line, all, err);
    }
    free(wanted);
    return status;
}

dt_status dtp_dataset_write_rows(const dt_dataset *d, const char *path, dt_err *err)
{
    size_t n = d->shared->table.n_rows;
    lines all = {.place = dtp_calloc(n, sizeof *all.place), .length = dtp_calloc(n, sizeof *all.length)};
    dt_writer *writer = NULL;
    dt_buf scratch = {0};
    dt_status status = all.place && all.length ? DT_OK : dt_fail(err, DT_E_NOMEM, "%s: out of memory", path);
    if (status == DT_OK)
        status = dtp_token_store_create(&all.store, NULL, (size_t)16 << 20, err);
    if (status == DT_OK)
        status = collect(&all, d, err);
    if (status == DT_OK)
        status = dtp_writer_open(&writer, path, err);
    for (size_t i = 0; status == DT_OK && i < d->n_rows; i++)
        status = write_line(&all, d->row[i], writer, &scratch, err);
    if (status == DT_OK) {
        status = dtp_writer_commit(writer, err);
        writer = NULL;
    }
    dtp_writer_close(writer);
    dtp_buf_free(&scratch);
    dtp_token_store_close(all.store);
    free(all.place);
    free(all.length);
    return status;
}
