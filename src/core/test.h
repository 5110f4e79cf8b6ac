/* What every test file includes: cmocka in the order it wants, and the helpers all tests share. */
#ifndef DT_CORE_TEST_H
#define DT_CORE_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <deltune/status.h>

/* A call that must succeed; prints the error text when it does not. */
#define assert_ok(call, err)                                                                                           \
    do {                                                                                                               \
        dt_status assert_ok_status = (call);                                                                           \
        if (assert_ok_status != DT_OK)                                                                                 \
            fail_msg("%s: %s: %s", #call, dt_status_name(assert_ok_status), (err)->text);                              \
    } while (0)

/* A call that must fail with `status` and an error text that contains `part`. */
#define assert_fails(call, err, expected, part)                                                                        \
    do {                                                                                                               \
        dt_status assert_fails_status = (call);                                                                        \
        if (assert_fails_status != (expected))                                                                         \
            fail_msg("%s: got %s (%s), expected %s", #call, dt_status_name(assert_fails_status), (err)->text,          \
                     dt_status_name(expected));                                                                        \
        if (!strstr((err)->text, (part)))                                                                              \
            fail_msg("%s: the text \"%s\" does not contain \"%s\"", #call, (err)->text, (part));                       \
    } while (0)

#endif
