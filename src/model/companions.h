/* The files of a model folder that are no weights: configuration, tokenizer, chat template, processor settings. */
#ifndef DT_MODEL_COMPANIONS_H
#define DT_MODEL_COMPANIONS_H

#include <deltune/status.h>
#include <stdbool.h>

/* Copies them from one folder to another, which must exist. Files a training run writes (args.json, trainer_state.json)
 * and adapters are left out. */
dt_status dtp_copy_companions(const char *from, const char *to, dt_err *err);

/* Do both names lead to the same existing folder? */
bool dtp_same_folder(const char *a, const char *b);

#endif
