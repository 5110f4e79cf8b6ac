/* A provider plug-in for the dispatch tests, compiled many times with different macros: one real shared object per
 * role.
 *
 *   DT_TEST_NAME     provider name            DT_TEST_PRIORITY  priority (default 500)
 *   DT_TEST_DEVICE   device kind (cpu)        DT_TEST_ABI       ABI number it claims
 *   DT_TEST_MARK     a number added to every output value, so that a result tells who computed it
 *   DT_TEST_CAPS     capabilities of the delta rule
 *   DT_TEST_ONLY_K   the only head size verify lets through
 *   DT_TEST_STUB     entry answers "not implemented"     DT_TEST_NO_BACKWARD  backward missing although claimed
 *   DT_TEST_NEEDS    calls a function of a dependency    DT_TEST_PROBE_CODE   what the probe returns
 *   DT_TEST_CONV     serves the convolution too          DT_TEST_GDN_BROKEN   the delta rule's own probe fails
 *   DT_TEST_DRIVES   drives its device too (host memory)
 *   DT_TEST_FOREIGN  hands out the table of another library (a propagated replacement)
 *
 * The delta rule it computes is not one: o = v + mark, state passes through. Dispatch does not care. */
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <deltune/provider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DT_TEST_PRIORITY
#define DT_TEST_PRIORITY 500
#endif
#ifndef DT_TEST_DEVICE
#define DT_TEST_DEVICE DT_DEVICE_CPU
#endif
#ifndef DT_TEST_ABI
#define DT_TEST_ABI DT_PROVIDER_ABI
#endif
#ifndef DT_TEST_MARK
#define DT_TEST_MARK 0
#endif
#ifndef DT_TEST_CAPS
#define DT_TEST_CAPS (DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA)
#endif
#ifndef DT_TEST_PROBE_CODE
#define DT_TEST_PROBE_CODE 1
#endif

#define VISIBLE __attribute__((visibility("default")))

/* Counters that a test reads through dlsym. */
VISIBLE int dt_test_probes;

#ifdef DT_TEST_NEEDS
int dt_test_dependency(void);
#endif

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace;
#ifdef DT_TEST_STUB
    (void)args;
    if (err)
        snprintf(err->text, sizeof err->text, "not implemented");
    return DT_E_UNSUPPORTED;
#endif
    (void)err;
    const dt_gdn_args *a = args;
    const float *v = a->v.data;
    float *o = a->o.data;
    for (int64_t i = 0; i < a->v.shape[0] * a->v.shape[1] * a->v.shape[2]; i++)
        o[i] = v[i] + DT_TEST_MARK;
    if (a->final_state.data)
        memcpy(a->final_state.data, a->initial_state.data,
               (size_t)(a->seqs.n_seq * a->v.shape[1] * a->k.shape[2] * a->v.shape[2]) * sizeof(float));
    return DT_OK;
}

#ifndef DT_TEST_NO_BACKWARD
static dt_status run_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_gdn_args *a = args;
    const float *d = a->d_o.data;
    float *dv = a->dv.data;
    for (int64_t i = 0; i < a->v.shape[0] * a->v.shape[1] * a->v.shape[2]; i++)
        dv[i] = d[i] + DT_TEST_MARK;
    return DT_OK;
}
#else
#define run_backward NULL
#endif

#ifdef DT_TEST_ONLY_K
static int verify_size(const dt_exec *exec, const void *args, char *why, size_t n)
{
    (void)exec;
    const dt_gdn_args *a = args;
    /* the reason may change from call to call: a test sets it through the environment */
    const char *extra = getenv("DT_TEST_REASON");
    if (a->k.shape[2] == DT_TEST_ONLY_K && !extra)
        return 1;
    snprintf(why, n, "K is %d, only %d is implemented%s", (int)a->k.shape[2], DT_TEST_ONLY_K, extra ? extra : "");
    return 0;
}
#else
#define verify_size NULL
#endif

static int gdn_probe(int index, char *why, size_t n)
{
    (void)index, (void)why, (void)n;
#ifdef DT_TEST_GDN_BROKEN
    snprintf(why, n, "the delta rule's kernel did not load");
    return 0;
#endif
    return 1;
}

static const dt_op_set gdn = {.struct_size = sizeof(dt_op_set),
                              .op = DT_OP_GDN,
                              .caps = DT_TEST_CAPS,
                              .verify = verify_size,
                              .forward = forward,
                              .backward = run_backward,
                              .probe = gdn_probe};

#ifdef DT_TEST_CONV
static dt_status conv_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_causal_conv1d_args *a = args;
    for (int64_t i = 0; i < a->x.shape[0] * a->x.shape[1]; i++)
        ((float *)a->y.data)[i] = ((const float *)a->x.data)[i] + DT_TEST_MARK;
    return DT_OK;
}
static const dt_op_set conv = {
    .struct_size = sizeof(dt_op_set), .op = DT_OP_CAUSAL_CONV1D, .caps = DT_CAP_PACKED, .forward = conv_forward};
#endif

static const dt_op_set *const operators[] = {
    &gdn,
#ifdef DT_TEST_CONV
    &conv,
#endif
};

static int probe(int index, char *why, size_t n)
{
    (void)index;
    dt_test_probes++;
#ifdef DT_TEST_NEEDS
    if (dt_test_dependency() != 42)
        return 0;
#endif
    if (DT_TEST_PROBE_CODE <= 0)
        snprintf(why, n, "no device answered");
    return DT_TEST_PROBE_CODE;
}

#ifdef DT_TEST_DRIVES
static dt_status dev_open(dt_exec *exec, dt_err *err)
{
    (void)err;
    exec->stream = exec;
    return DT_OK;
}
static void dev_close(dt_exec *exec)
{
    (void)exec;
}
static dt_status dev_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    (void)exec, (void)err;
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return *out ? DT_OK : DT_E_NOMEM;
}
static void dev_release(dt_exec *exec, void *memory)
{
    (void)exec;
    free(memory);
}
static dt_status dev_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err)
{
    (void)exec, (void)err;
    memset(memory, 0, bytes);
    return DT_OK;
}
static dt_status dev_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    (void)exec, (void)err;
    memcpy(to, from, bytes);
    return DT_OK;
}
static dt_status dev_synchronize(dt_exec *exec, dt_err *err)
{
    (void)exec, (void)err;
    return DT_OK;
}
static const dt_device_ops device = {sizeof(dt_device_ops), dev_open, dev_close, dev_alloc,
                                     dev_release,           dev_zero, dev_copy,  dev_synchronize};
#endif

static const dt_provider table = {.abi = DT_TEST_ABI,
                                  .struct_size = sizeof(dt_provider),
                                  .name = DT_TEST_NAME,
                                  .version = "1.0",
                                  .build_id = "test",
                                  .device = DT_TEST_DEVICE,
                                  .priority = DT_TEST_PRIORITY,
                                  .probe = probe,
#ifdef DT_TEST_DRIVES
                                  .device_ops = &device,
#endif
                                  .ops = operators,
                                  .n_ops = sizeof operators / sizeof *operators};

#ifdef DT_TEST_FOREIGN
/* The other library's table: this one only passes it on, as a propagated replacement does. */
const dt_provider *dt_test_foreign_table(void);
VISIBLE const dt_provider *dt_provider_entry(void);
const dt_provider *dt_provider_entry(void)
{
    (void)&table;
    return dt_test_foreign_table();
}
#else
VISIBLE const dt_provider *dt_provider_entry(void);
VISIBLE const dt_provider *dt_test_foreign_table(void);
const dt_provider *dt_provider_entry(void)
{
    return &table;
}
const dt_provider *dt_test_foreign_table(void)
{
    return &table;
}
#endif
