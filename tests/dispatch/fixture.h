/* What the dispatch scenarios share: a context, plug-ins by name, calls whose result tells who computed it, and the
 * log. */
#ifndef DT_TESTS_DISPATCH_FIXTURE_H
#define DT_TESTS_DISPATCH_FIXTURE_H

#include "core/test.h"
#include "operators/registry.h"

#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/policy.h>

enum { OWNER = 1, THIRD = 2, HALF = 3, A = 4, B = 5, NEEDS = 6 }; /* marks of the plug-ins */
enum { MAX_TOKENS = 8, MAX_HEAD = 128 };

typedef struct fixture {
    dt_ctx *ctx;
    dt_exec *exec;
    dt_err err;
    float x[MAX_TOKENS * MAX_HEAD], y[MAX_TOKENS * MAX_HEAD], dy[MAX_TOKENS * MAX_HEAD], dx[4][MAX_TOKENS * MAX_HEAD];
    float gates[4][MAX_TOKENS], state[2][3 * 4 * 4];
    int32_t cu[4];
    dt_gdn_args gdn;
    dt_causal_conv1d_args conv;
} fixture;

int set_up(void **state);
int tear_down(void **state);

/* DT_PLUGINS/NAME.so, valid until the next call but three. */
const char *plugin(const char *name);
dt_registration *load(fixture *f, const char *name);
/* Arguments of a delta-rule call on CPU memory: one head of size K, samples of the given lengths (ended by -1). */
const dt_gdn_args *gdn_call(fixture *f, int64_t K, const int *lengths);
#define LENGTHS(...) ((const int[]){__VA_ARGS__, -1})
/* Runs the forward; returns the mark of who computed it (v is 10 everywhere), or the negative status. */
int who(fixture *f, int64_t K, const int *lengths);

/* Log lines since clear_log, newline separated. */
extern char log_text[16384];
void clear_log(void);
int count_in_log(const char *part);

#endif
