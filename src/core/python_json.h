/* Text as Python writes it: floats with the shortest digits that read back the same, json.dumps, and repr of a
 * dictionary. Files that tools of the reference trainer read (logging.jsonl, trainer_state.json, args.json) and the
 * console line use it, so that they compare equal character by character. */
#ifndef DT_CORE_PYTHON_JSON_H
#define DT_CORE_PYTHON_JSON_H

#include "core/memory.h"
#include <jansson.h>

/* repr(x): "0.1", "1e-05", "300.0", "1e+16"; "nan", "inf", "-inf". */
void dtp_float_repr(char out[40], double x);
/* round(x, digits) of Python: correctly rounded decimal, ties to even as the binary value decides. */
double dtp_python_round(double x, int digits);

typedef enum dt_python_style {
    DT_PYTHON_JSON,        /* json.dumps(v, ensure_ascii=False) */
    DT_PYTHON_JSON_INDENT, /* json.dumps(v, ensure_ascii=False, indent=2) */
    DT_PYTHON_REPR         /* str(v): single quotes, True, None */
} dt_python_style;
void dtp_python_write(dt_buf *to, const json_t *value, dt_python_style style);

/* PATH := json.dumps(value, indent=2) and a newline, atomically; keys sorted on request. */
dt_status dtp_python_save(const json_t *value, const char *path, bool sort_keys, dt_err *err);

#endif
