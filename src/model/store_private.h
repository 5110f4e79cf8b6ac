/* What store.c (weights) and store_trainable.c (the flat buffer) share. */
#ifndef DT_MODEL_STORE_PRIVATE_H
#define DT_MODEL_STORE_PRIVATE_H

#include "model/store.h"

/* LoRA when options->lora, else all weights; sets values and gradients of what it covers. */
dt_status dtp_store_add_trainable(dt_store *store, const dt_store_options *options, dt_err *err);
void dtp_store_free_trainable(dt_store *store);

#endif
