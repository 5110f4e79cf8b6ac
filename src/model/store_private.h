/* What store.c (weights) and store_trainable.c (the flat buffer) share. */
#ifndef DT_MODEL_STORE_PRIVATE_H
#define DT_MODEL_STORE_PRIVATE_H

#include "model/store.h"

/* LoRA when options->lora, else all weights. First the list of tensors, then memory and start values: sets values and
 * gradients of what it covers. A store that only counts gets addresses that nobody may read. */
dt_status dtp_store_list_trainable(dt_store *store, dt_err *err);
dt_status dtp_store_load_trainable(dt_store *store, dt_err *err);
void dtp_store_free_trainable(dt_store *store);

#endif
