/* Words appended once and read at random: in memory while small, in an unlinked temporary file when large, so that the
 * tokens of any data set fit. Reads go through pread: the pages stay the system's cache and are not counted as our
 * memory. Appending is for one thread; reading is thread-safe once appending has ended. */
#ifndef DT_DATA_TOKEN_STORE_H
#define DT_DATA_TOKEN_STORE_H

#include <deltune/status.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dt_token_store dt_token_store;

/* `folder` holds the temporary file, should it be needed: NULL = $TMPDIR, else /var/tmp. Beyond `memory` bytes it is.
 */
dt_status dtp_token_store_create(dt_token_store **out, const char *folder, size_t memory, dt_err *err);
/* A store that reads words `first` .. of an existing file; takes over `fd`. */
dt_status dtp_token_store_attach(dt_token_store **out, int fd, uint64_t first_byte, uint64_t n_words, dt_err *err);
void dtp_token_store_close(dt_token_store *store); /* accepts NULL */

/* *place_out is what dtp_token_store_read takes. DT_E_IO names the folder when the disk is full. */
dt_status dtp_token_store_append(dt_token_store *store, const uint32_t *words, size_t n, uint64_t *place_out,
                                 dt_err *err);
dt_status dtp_token_store_read(const dt_token_store *store, uint64_t place, uint32_t *words, size_t n, dt_err *err);
uint64_t dtp_token_store_size(const dt_token_store *store); /* words */

#endif
