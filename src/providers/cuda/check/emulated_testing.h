/* Operators of the emulated CUDA plug-in (libdeltune-cuda-emulated.so beside the test program) in the operator tests.
 * For tests only, included by one file each, after which every test skips where the plug-in was not built. */
#ifndef DT_CUDA_CHECK_EMULATED_TESTING_H
#define DT_CUDA_CHECK_EMULATED_TESTING_H
#include "providers/op_testing.h"

#include <dlfcn.h>
#include <unistd.h>

static const dt_provider *emulated_provider;

/* A group's set-up. */
static MAYBE_UNUSED int emulated_load(void **state)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    (void)state;
    if (n <= 0)
        return -1;
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, "libdeltune-cuda-emulated.so");
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    dt_provider_entry_fn entry = NULL;
    if (file)
        *(void **)&entry = dlsym(file, DT_PROVIDER_SYMBOL);
    if (entry)
        emulated_provider = entry();
    return 0;
}
static MAYBE_UNUSED const dt_op_set *emulated_set(dt_op op)
{
    if (!emulated_provider) /* sanitizers cannot follow it */
        skip();
    for (size_t i = 0; i < emulated_provider->n_ops; i++)
        if (emulated_provider->ops[i]->op == op)
            return emulated_provider->ops[i];
    fail_msg("the plug-in has no %s", dt_op_name(op));
    return NULL;
}
static MAYBE_UNUSED ot_call emulated_begin(void)
{
    dt_err err = {0};
    ot_call c = ot_begin(1);
    c.exec.device = DT_DEVICE_CUDA;
    assert_ok(emulated_provider->device_ops->open(&c.exec, &err), &err);
    return c;
}
static MAYBE_UNUSED void emulated_wait(ot_call *c)
{
    dt_err err = {0};
    assert_ok(emulated_provider->device_ops->synchronize(&c->exec, &err), &err);
}
/* Runs what is queued, frees, and fails when anything outside a tensor was written. */
static MAYBE_UNUSED void emulated_finish(ot_call *c)
{
    emulated_provider->device_ops->close(&c->exec);
    ot_finish(&c->pool);
}
#endif
