#include "model/upload_rows.h"
#include <string.h>

enum { BUFFER_BYTES = 16 << 20, MOST_THREADS = 6 };

static dt_status next_buffer(dt_row_upload *u, char **out, dt_err *err)
{
    unsigned i = ++u->turn % 2;
    void *memory = u->buffer[i];
    dt_status status = DT_OK;
    if (!memory)
        status = dt_exec_host_alloc(u->exec, &memory, BUFFER_BYTES, err);
    else if (u->mark[i])
        status = dt_exec_wait(u->exec, u->mark[i], err);
    if (status == DT_OK)
        *out = u->buffer[i] = memory;
    return status;
}

/* From mapped files this also reads them: several threads keep several pages on their way. */
static void spread(const dt_exec *exec, char *to, size_t pitch, const char *from, size_t row, int64_t rows)
{
    const int threads = exec->threads < MOST_THREADS ? exec->threads : MOST_THREADS;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + (size_t)i * pitch, from + (size_t)i * row, row);
        memset(to + (size_t)i * pitch + row, 0, pitch - row);
    }
}

dt_status dtp_upload_rows(dt_row_upload *u, void *to, size_t pitch, const void *from, size_t row, int64_t rows,
                          dt_err *err)
{
    const int64_t at_once = (int64_t)(BUFFER_BYTES / pitch);
    dt_status status =
        at_once ? DT_OK : dt_fail(err, DT_E_UNSUPPORTED, "rows of %zu bytes are too long to load", pitch);
    for (int64_t first = 0; status == DT_OK && first < rows; first += at_once) {
        const int64_t n = rows - first < at_once ? rows - first : at_once;
        char *buffer = NULL;
        status = next_buffer(u, &buffer, err);
        if (status == DT_OK)
            spread(u->exec, buffer, pitch, (const char *)from + (size_t)first * row, row, n);
        if (status == DT_OK)
            status = dt_exec_upload(u->exec, (char *)to + (size_t)first * pitch, buffer, (size_t)n * pitch, err);
        if (status == DT_OK)
            status = dt_exec_mark(u->exec, &u->mark[u->turn % 2], err);
    }
    return status;
}

dt_status dtp_upload_rows_end(dt_row_upload *u, dt_err *err)
{
    dt_status status = u->turn ? dt_exec_synchronize(u->exec, err) : DT_OK;
    for (int i = 0; i < 2; i++) {
        dt_exec_mark_release(u->exec, u->mark[i]);
        dt_exec_host_release(u->exec, u->buffer[i]);
    }
    *u = (dt_row_upload){.exec = u->exec};
    return status;
}
