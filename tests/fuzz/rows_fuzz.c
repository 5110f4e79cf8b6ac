/* Data rows: the first byte chooses the kind of file and the options, the rest is the file. */
#include "data/literal.h"
#include "data/reader.h"
#include "data/row_format.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(dt_reader *reader, const dt_row_format *format)
{
    dt_record record;
    dt_row row = {0};
    bool more = true;
    char why[400];
    while (dtp_reader_next(reader, &record, &more, NULL) == DT_OK && more) {
        json_t *json = dtp_reader_parse(reader, &record, why, sizeof why);
        if (json && dtp_row_read(&row, format, json, why, sizeof why) && row.ids.length != row.labels.length)
            __builtin_trap();
        json_decref(json);
    }
    dtp_row_free(&row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const endings[] = {"jsonl", "json", "csv", "txt"};
    if (n == 0)
        return 0;
    const char *bytes = (const char *)data + 1;
    dt_row_options options = {.plain_text = data[0] & 4,
                              .prompts = data[0] & 8,
                              .columns = data[0] & 16 ? "{\"a\": \"query\", \"b\": \"response\"}" : NULL};
    dt_row_format format;
    dt_reader *reader;
    if (dtp_row_format_open(&format, &options, NULL) != DT_OK)
        return 0;
    format.is_alpaca_zh = data[0] & 32;
    if (dtp_reader_open_memory(&reader, bytes, n - 1, endings[data[0] & 3], NULL) == DT_OK) {
        read_all(reader, &format);
        dtp_reader_close(reader);
    }
    dtp_row_format_close(&format);
    char why[200];
    json_decref(dtp_literal_parse(bytes, n - 1, why, sizeof why));
    return 0;
}
