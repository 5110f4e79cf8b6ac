/* CSV as spreadsheets and pandas write it: comma, double quotes around fields that need them ("" inside is one quote),
 * line ends inside quotes, the first record names the columns.
 * Not for: other delimiters; types (every cell is a string, an empty cell an empty string). */
#ifndef DT_DATA_CSV_H
#define DT_DATA_CSV_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Finds the end of a record; zero-initialise, call again with more bytes behind the same ones until it returns true.
 * Then `at` is the length of the record with its line end. */
typedef struct dt_csv_scan {
    size_t at;
    bool in_field, quoted, after_quote;
} dt_csv_scan;
bool dtp_csv_scan_record(dt_csv_scan *scan, const char *data, size_t n);

typedef struct dt_csv_header {
    char **names;
    size_t count;
} dt_csv_header;

/* False with the reason in `why`: a name that is empty, twice there, or not UTF-8. */
bool dtp_csv_header(dt_csv_header *out, const char *data, size_t n, char *why, size_t n_why);
void dtp_csv_header_free(dt_csv_header *header);

/* One record as an object of strings; fields missing at the end are null. NULL with the reason: too many fields, not
 * UTF-8. */
json_t *dtp_csv_parse(const dt_csv_header *header, const char *data, size_t n, char *why, size_t n_why);

#endif
