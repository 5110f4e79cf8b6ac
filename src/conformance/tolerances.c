#include "conformance/tolerances.h"

#include <math.h>
#include <string.h>

static const double bf16_rounding = 2.0e-3, bf16_slice = 2.5, bf16_slice_floor = 0.25;

typedef struct dt_limit {
    const char *name, *tensor; /* name: how the case's begins; "" = all others */
    double ratio;
} dt_limit;

static const dt_limit gdn_bf16[] = {
    /* no decay and full write strength: errors live as long as the sample */
    {"gdn_no_decay_full_write", "o", 4.9e-3},
    {"gdn_no_decay_full_write", "final_state", 4.6e-3},
    {"gdn_no_decay_full_write", "dq", 4.8e-3},
    {"gdn_no_decay_full_write", "dk", 5.9e-3},
    {"gdn_no_decay_full_write", "dv", 4.8e-3},
    {"gdn_no_decay_full_write", "dg", 7.5e-3},
    {"gdn_no_decay_full_write", "dbeta", 5.8e-3},
    {"gdn_strong_decay", "dg", 6.3e-3},
    /* generated calls: in short samples with little decay the gradient of the first state is as hard as the last state
     */
    {"gdn_seed", "dinitial_state", 3.3e-3},
    {"", "o", 4.3e-3},
    {"", "final_state", 3.3e-3},
    {"", "dq", 4.4e-3},
    {"", "dk", 4.7e-3},
    {"", "dv", 4.0e-3},
    {"", "dg", 4.6e-3},
    {"", "dbeta", 4.0e-3},
    {"", "dinitial_state", 1.7e-3},
};

static double gdn_limit(const char *name, const char *tensor)
{
    for (size_t i = 0; i < sizeof gdn_bf16 / sizeof *gdn_bf16; i++)
        if (strncmp(name, gdn_bf16[i].name, strlen(gdn_bf16[i].name)) == 0 && strcmp(gdn_bf16[i].tensor, tensor) == 0)
            return gdn_bf16[i].ratio;
    return 0;
}

void dtp_case_tolerances(const dt_case *c, int i, dt_dtype activation, dt_comparison_rule *rule)
{
    const dt_binding *b = c->tensor[i].binding;
    bool bf16 = activation == DT_BF16;
    *rule = (dt_comparison_rule){.slicing = b->slicing};
    if (bf16 && c->op->op == DT_OP_GDN)
        rule->tolerance = gdn_limit(c->name, b->name);
    else if (bf16 && b->roundings)
        rule->tolerance = bf16_rounding * sqrt(b->roundings);
    else /* fp32; nothing is rounded in a bf16 run, which leaves fp32 sums of exact products */
        rule->tolerance = b->role == DT_ROLE_OUTPUT || bf16 ? 1e-5 : b->loose ? 1e-3 : 1e-4;
    rule->slice_tolerance = (bf16 ? bf16_slice : 1) * rule->tolerance;
    rule->slice_floor = bf16 ? bf16_slice_floor : 0;
}
