#include "core/test.h"
#include "core/threads.h"

#include <sched.h>

static void at_least_one(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    assert_true(dtp_available_threads() >= 1);
}

static void environment_is_an_upper_limit(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    int free_choice = dtp_available_threads();
    setenv("OMP_NUM_THREADS", "1,4", 1);
    assert_int_equal(dtp_available_threads(), 1);
    setenv("OMP_NUM_THREADS", "1000000", 1);
    assert_int_equal(dtp_available_threads(), free_choice);
    setenv("OMP_NUM_THREADS", "many", 1);
    assert_int_equal(dtp_available_threads(), free_choice);
    unsetenv("OMP_NUM_THREADS");
}

static void affinity_is_an_upper_limit(void **state)
{
    (void)state;
    cpu_set_t before, one;
    if (sched_getaffinity(0, sizeof before, &before)) {
        print_message("skipped: no affinity mask of the standard width\n");
        skip();
    }
    int first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(dtp_available_threads(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_least_one),
        cmocka_unit_test(environment_is_an_upper_limit),
        cmocka_unit_test(affinity_is_an_upper_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
