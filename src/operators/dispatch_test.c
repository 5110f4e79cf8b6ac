/* Dispatch with fake providers: who is chosen, who is refused and why, and who runs the backward. */
#include "core/test.h"
#include "operators/registry.h"

#include <deltune/op/activation.h>
#include <deltune/op/gdn.h>

static char last_called[32];

static dt_status called(const char *who)
{
    snprintf(last_called, sizeof last_called, "%s", who);
    return DT_OK;
}

#define FAKE(name)                                                                                                     \
    static dt_status name##_forward(dt_exec *x, const void *a, void *s, void *w, dt_err *e)                            \
    {                                                                                                                  \
        (void)x, (void)a, (void)s, (void)w, (void)e;                                                                   \
        return called(#name "_forward");                                                                               \
    }                                                                                                                  \
    static dt_status name##_backward(dt_exec *x, const void *a, const void *s, void *w, dt_err *e)                     \
    {                                                                                                                  \
        (void)x, (void)a, (void)s, (void)w, (void)e;                                                                   \
        return called(#name "_backward");                                                                              \
    }
FAKE(fast)
FAKE(plain)

static int only_128(const dt_exec *exec, const void *args, char *why, size_t n)
{
    (void)exec;
    const dt_gdn_args *a = args;
    if (a->k.shape[2] == 128)
        return 1;
    snprintf(why, n, "K is %lld, only 128 is implemented", (long long)a->k.shape[2]);
    return 0;
}

static size_t saved_100(const dt_exec *exec, const void *args)
{
    (void)exec, (void)args;
    return 100;
}

static const dt_op_set fast_gdn = {.struct_size = sizeof(dt_op_set),
                                   .op = DT_OP_GDN,
                                   .caps = DT_CAP_BACKWARD | DT_CAP_GVA,
                                   .verify = only_128,
                                   .saved_bytes = saved_100,
                                   .forward = fast_forward,
                                   .backward = fast_backward};
static const dt_op_set plain_gdn = {.struct_size = sizeof(dt_op_set),
                                    .op = DT_OP_GDN,
                                    .caps = DT_CAP_BACKWARD | DT_CAP_GVA | DT_CAP_PACKED | DT_CAP_STATE,
                                    .forward = plain_forward,
                                    .backward = plain_backward};
static const dt_op_set *const fast_ops[] = {&fast_gdn}, *const plain_ops[] = {&plain_gdn};

static int probe_fails(int index, char *why, size_t n)
{
    (void)index;
    snprintf(why, n, "the card is on fire");
    return 0;
}

#define PROVIDER(id, priority_, ops_)                                                                                  \
    {                                                                                                                  \
        .abi = DT_PROVIDER_ABI, .struct_size = sizeof(dt_provider), .name = id, .version = "1",                        \
        .device = DT_DEVICE_CPU, .priority = priority_, .ops = ops_, .n_ops = 1                                        \
    }
static const dt_provider fast = PROVIDER("fast", 500, fast_ops), plain = PROVIDER("plain", 400, plain_ops);

/* A context with both fakes, and a call of n samples with head size K. */
typedef struct fixture {
    dt_ctx *ctx;
    dt_exec *exec;
    float q[4 * 128], g[4];
    int32_t cu[3];
    dt_gdn_args args;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    dt_err err = {0};
    if (dt_ctx_create(&f->ctx, &err) || dt_exec_create(&f->exec, f->ctx, DT_DEVICE_CPU, 0, 1, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return dt_ctx_register(f->ctx, &plain, "plain.so", 0, NULL, NULL) ||
           dt_ctx_register(f->ctx, &fast, "fast.so", 0, NULL, NULL);
}

static int tear_down(void **state)
{
    fixture *f = *state;
    dt_exec_free(f->exec);
    dt_ctx_free(f->ctx);
    free(f);
    return 0;
}

static const dt_gdn_args *call(fixture *f, int64_t n, int64_t K)
{
    f->cu[1] = 2;
    f->cu[n] = 4;
    dt_tensor qkv = dt_tensor_3d(f->q, DT_F32, 4, 1, K), gates = dt_tensor_2d(f->g, DT_F32, 4, 1);
    f->args = (dt_gdn_args){DT_GDN_ARGS, .q = qkv,      .k = qkv,      .v = qkv,
                            .o = qkv,    .g = gates,    .beta = gates, .seqs = {f->cu, NULL, n, n, 4, 4},
                            .d_o = qkv,  .dq = qkv,     .dk = qkv,     .dv = qkv,
                            .dg = gates, .dbeta = gates};
    return &f->args;
}

static void capability_and_verify_decide_per_call(void **state)
{
    fixture *f = *state;
    dt_err err = {0};
    for (int i = 0; i < 2; i++) {
        assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 128), NULL, &err), &err);
        assert_string_equal(last_called, "fast_forward");
        assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 64), NULL, &err), &err);
        assert_string_equal(last_called, "plain_forward");
        assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 2, 128), NULL, &err), &err);
        assert_string_equal(last_called, "plain_forward");
    }
}

static void an_explicit_choice_never_falls_back(void **state)
{
    fixture *f = *state;
    dt_err err = {0};
    assert_ok(dt_ctx_choose(f->ctx, "gdn=fast", &err), &err);
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, call(f, 2, 128), NULL, &err), &err, DT_E_UNSUPPORTED,
                 "gdn: the chosen provider fast cannot run this call: does not support packed calls");
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 64), NULL, &err), &err, DT_E_UNSUPPORTED,
                 "K is 64, only 128 is implemented");
    assert_ok(dt_ctx_choose(f->ctx, "auto", &err), &err);
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 2, 128), NULL, &err), &err);
    assert_fails(dt_ctx_choose(f->ctx, "gdn=quick", &err), &err, DT_E_ARG, "there are: fast, plain, cpu, reference");
    assert_fails(dt_ctx_choose(f->ctx, "quick", &err), &err, DT_E_ARG, "no provider named \"quick\"");
    assert_fails(dt_ctx_choose(f->ctx, "delta=fast", &err), &err, DT_E_ARG, "no operator named \"delta\"");
}

static void backward_runs_on_the_provider_of_its_forward(void **state)
{
    fixture *f = *state;
    dt_err err = {0};
    char memory[100];
    dt_saved saved = {.data = memory, .bytes = sizeof memory};
    assert_fails(dt_op_backward(f->exec, DT_OP_GDN, call(f, 1, 128), &saved, &err), &err, DT_E_ARG,
                 "without a forward");
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 128), &saved, &err), &err);
    assert_ok(dt_ctx_choose(f->ctx, "plain", &err), &err);
    assert_ok(dt_op_backward(f->exec, DT_OP_GDN, call(f, 1, 128), &saved, &err), &err);
    assert_string_equal(last_called, "fast_backward");
    dt_saved_release(&saved);
    dt_saved_release(&saved);
    saved.bytes = 99;
    assert_ok(dt_ctx_choose(f->ctx, "fast", &err), &err);
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 128), &saved, &err), &err, DT_E_ARG, "99 bytes");
}

static void a_foreign_abi_a_duplicate_and_a_failed_probe_are_told(void **state)
{
    fixture *f = *state;
    dt_err err = {0};
    dt_provider other = fast;
    other.abi = 7;
    other.name = "other";
    assert_fails(dt_ctx_register(f->ctx, &other, "other.so", 0, NULL, &err), &err, DT_E_ARG,
                 "other.so: provider ABI 7, this deltune needs ABI 1");
    assert_fails(dt_ctx_register(f->ctx, &fast, "copy.so", 0, NULL, &err), &err, DT_E_ARG,
                 "copy.so: provider fast for cpu is already registered from fast.so");
    other = fast;
    other.name = "broken";
    other.priority = 900;
    other.probe = probe_fails;
    assert_ok(dt_ctx_register(f->ctx, &other, "broken.so", 0, NULL, &err), &err);
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, call(f, 1, 128), NULL, &err), &err);
    assert_string_equal(last_called, "fast_forward");
    assert_fails(dt_ctx_choose(f->ctx, "gdn=broken", &err), &err, DT_E_UNAVAILABLE, "the card is on fire");
    dt_op_info info;
    assert_ok(dt_ctx_op_info(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, &info, &err), &err);
    assert_string_equal(info.provider, "fast");
    assert_non_null(strstr(info.file, "dispatch_test")); /* where its code really lies, whatever it was registered as */
}

static void bad_arguments_are_refused_before_the_provider(void **state)
{
    fixture *f = *state;
    dt_err err = {0};
    last_called[0] = '\0';
    call(f, 2, 64);
    f->cu[2] = 3;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_ARG,
                 "gdn: seqs.cu_seqlens ends at 3, but T is 4");
    call(f, 2, 64);
    f->cu[1] = 9;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_ARG,
                 "decreases from 9 to 4 at sample 1");
    call(f, 2, 64);
    f->cu[0] = 1;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_ARG, "cu_seqlens[0] is 1");
    f->cu[0] = 0;
    call(f, 2, 64);
    f->args.beta.shape[0] = 5;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_SHAPE,
                 "gdn: beta is [5,1], expected [4,1]");
    call(f, 2, 64);
    f->args.v.dtype = DT_BF16;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_DTYPE,
                 "gdn: v is BF16, expected F32");
    call(f, 2, 64);
    f->args.o.data = NULL;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_ARG, "gdn: o is missing");
    call(f, 2, 64);
    f->args.struct_size = 8;
    assert_fails(dt_op_forward(f->exec, DT_OP_GDN, &f->args, NULL, &err), &err, DT_E_ARG, "argument struct of 8 bytes");
    dt_gate_args gate = {DT_GATE_ARGS};
    assert_int_equal(dt_op_forward(f->exec, DT_OP_SWIGLU, &gate, NULL, &err), DT_E_ARG);
    assert_string_equal(last_called, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(capability_and_verify_decide_per_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_explicit_choice_never_falls_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(backward_runs_on_the_provider_of_its_forward, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_foreign_abi_a_duplicate_and_a_failed_probe_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_arguments_are_refused_before_the_provider, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
