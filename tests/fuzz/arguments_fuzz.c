/* An argument file. The first byte chooses the format, so that one corpus covers both. */
#include "cli/args_file.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length < 1)
        return 0;
    json_t *values = NULL;
    dt_err err = {0};
    bool yaml = bytes[0] == 'y';
    if (dtp_args_file_parse(&values, (const char *)bytes + 1, length - 1, yaml, "input", &err) == DT_OK) {
        if (!json_is_object(values))
            __builtin_trap();
        json_decref(values);
    }
    return 0;
}
