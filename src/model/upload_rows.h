/* Uploads of matrices into rows of a wider pitch, through two page-locked buffers: one is filled while the other is
 * copied. For loading weights. */
#ifndef DT_MODEL_UPLOAD_ROWS_H
#define DT_MODEL_UPLOAD_ROWS_H

#include <deltune/exec.h>

typedef struct dt_row_upload {
    dt_exec *exec;
    char *buffer[2];
    dt_mark *mark[2]; /* behind the last copy out of the buffer */
    unsigned turn;
} dt_row_upload; /* zero-initialised but for exec */

/* Sizes in bytes; the gaps between rows get zeros. `from` may be changed when this returns. Errors: DT_E_NOMEM. */
dt_status dtp_upload_rows(dt_row_upload *u, void *to, size_t pitch, const void *from, size_t row, int64_t rows,
                          dt_err *err);
/* Waits for the copies and frees the buffers; also after an error. */
dt_status dtp_upload_rows_end(dt_row_upload *u, dt_err *err);

#endif
