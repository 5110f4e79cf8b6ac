/* Values written as text in a column: JSON, or a Python literal ("[['q', 'r']]", "[{'role': 'user', ...}]").
 * Not for: expressions; tuples are read as lists, sets and bytes are refused. */
#ifndef DT_DATA_LITERAL_H
#define DT_DATA_LITERAL_H

#include <jansson.h>
#include <stddef.h>

/* A new value, or NULL with the reason in `why`. JSON is tried first. */
json_t *dtp_literal_parse(const char *text, size_t n, char *why, size_t n_why);

#endif
