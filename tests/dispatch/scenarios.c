/* The scenarios of docs/dispatch.md, in its numbering. Each is a CTest of its own. */
#include "fixture.h"

#include "core/log.h"
#include "operators/rank_report.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ONE           LENGTHS(5)
#define TWO           LENGTHS(2, 3)
#define FILE_OF(name) plugin(name)

static dt_restore_policy owner_policy(void)
{
    static const char *files[1];
    static char path[512];
    snprintf(path, sizeof path, "%s", FILE_OF("owner"));
    files[0] = path;
    return (dt_restore_policy){DT_RESTORE_POLICY, .owner = "owner", .owner_file = path, .files = files, .n_files = 1};
}

static dt_status restore(fixture *f, dt_restore_report *report)
{
    dt_restore_policy policy = owner_policy();
    return dt_ctx_restore(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, &policy, report, &f->err);
}

/* The operator set inside a plug-in that is opened without being registered: what a third party overrides with. */
static const dt_op_set *set_of(const char *name, void **library)
{
    *library = dlopen(FILE_OF(name), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(*library);
    union {
        void *address;
        dt_provider_entry_fn function;
    } entry = {dlsym(*library, DT_PROVIDER_SYMBOL)};
    return entry.function()->ops[0];
}

static dt_override *override_with(fixture *f, const dt_op_set *set, const char *by, bool wrap)
{
    dt_override_request q = {DT_OVERRIDE_REQUEST, DT_OP_GDN, DT_DEVICE_CPU, set, by, "a test", wrap};
    dt_override *token;
    assert_ok(dt_ctx_override(f->ctx, &q, &token, &f->err), &f->err);
    return token;
}

static dt_op_info info_of(fixture *f, dt_op op, dt_device_kind device)
{
    dt_op_info info = {0};
    assert_ok(dt_ctx_op_info(f->ctx, op, device, &info, &f->err), &f->err);
    return info;
}

static bool attempted(fixture *f, const char *part)
{
    dt_attempt a;
    for (size_t i = 0; dt_ctx_attempt(f->ctx, i, &a); i++)
        if (strstr(a.reason, part))
            return true;
    return false;
}

static int supplement_calls, supplement_answer = 1;

static int supplement(int index, char *why, size_t n)
{
    (void)index;
    supplement_calls++;
    if (!supplement_answer)
        snprintf(why, n, "the driver library has no devices");
    return supplement_answer;
}

static int *probe_counter(const char *name, void **library)
{
    *library = dlopen(FILE_OF(name), RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(*library);
    int *counter = dlsym(*library, "dt_test_probes");
    assert_non_null(counter);
    return counter;
}

static bool mapped(const char *part)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool found = false;
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, part) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

/* ---- probing ---- */

static void scenario_01_cpu_process_is_untouched_by_a_supplement(void **state)
{
    fixture *f = *state;
    char before[8192], after[8192];
    assert_ok(dt_ctx_fingerprint(f->ctx, DT_DEVICE_CPU, before, sizeof before, &f->err), &f->err);
    supplement_calls = 0;
    assert_ok(dt_ctx_supplement_probe(f->ctx, "npu_owner", DT_DEVICE_NPU, "supplement", supplement, &f->err), &f->err);
    assert_ok(dt_ctx_probe_again(f->ctx, DT_DEVICE_CPU, &f->err), &f->err);
    assert_ok(dt_ctx_load_plugin_path(f->ctx, DT_PLUGINS "/nothing_of_that_name", 1u << DT_DEVICE_CPU, &f->err),
              &f->err);
    assert_ok(dt_ctx_fingerprint(f->ctx, DT_DEVICE_CPU, after, sizeof after, &f->err), &f->err);
    assert_string_equal(before, after);
    assert_int_equal(supplement_calls, 0);
    assert_false(mapped("npu_"));
    assert_false(mapped("libascendcl") || mapped("libcuda"));
}

static void scenario_02_a_missing_backward_offers_neither_half(void **state)
{
    fixture *f = *state;
    assert_fails(dt_ctx_load_plugin(f->ctx, FILE_OF("no_backward"), 0, NULL, &f->err), &f->err, DT_E_ARG,
                 "gdn of provider no_backward lacks its backward function: neither half is offered");
    assert_true(attempted(f, "lacks its backward function"));
    assert_fails(dt_ctx_choose(f->ctx, "gdn=no_backward", &f->err), &f->err, DT_E_ARG, "no provider named");
}

static void scenario_03_a_dependency_that_appears_is_found(void **state)
{
    fixture *f = *state;
    char later[512], appears[512];
    snprintf(later, sizeof later, "%s/libdt_test_dependency.so", DT_LATER);
    snprintf(appears, sizeof appears, "%s/libdt_test_dependency.so", DT_APPEARS);
    mkdir(DT_APPEARS, 0777);
    unlink(appears);
    assert_fails(dt_ctx_load_plugin(f->ctx, FILE_OF("needs"), 0, NULL, &f->err), &f->err, DT_E_UNAVAILABLE,
                 "libdt_test_dependency.so");
    assert_int_equal(symlink(later, appears), 0);
    assert_ok(dt_ctx_load_plugin(f->ctx, FILE_OF("needs"), 0, NULL, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), NEEDS);
    unlink(appears);
}

static void scenario_04_a_crashing_probe_leaves_the_word_to_the_supplement(void **state)
{
    fixture *f = *state;
    supplement_answer = 1;
    assert_ok(dt_ctx_supplement_probe(f->ctx, "npu_owner", DT_DEVICE_NPU, "second look", supplement, &f->err), &f->err);
    load(f, "npu_crashing");
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_NPU).provider, "npu_owner");
    assert_true(attempted(f, "failed with code -5: no device answered"));
    supplement_answer = 0;
    fixture other = {0};
    assert_ok(dt_ctx_create(&other.ctx, &f->err), &f->err);
    assert_ok(dt_ctx_supplement_probe(other.ctx, "npu_owner", DT_DEVICE_NPU, "second look", supplement, &f->err),
              &f->err);
    load(&other, "npu_crashing");
    dt_op_info info;
    assert_fails(dt_ctx_op_info(other.ctx, DT_OP_GDN, DT_DEVICE_NPU, &info, &f->err), &f->err, DT_E_UNAVAILABLE, "gdn");
    assert_true(attempted(&other, "failed with code -5"));
    assert_true(attempted(&other, "the driver library has no devices"));
    dt_ctx_free(other.ctx);
}

static void scenario_05_a_supplement_installed_twice_runs_once(void **state)
{
    fixture *f = *state;
    supplement_answer = 0;
    for (int i = 0; i < 2; i++)
        assert_ok(dt_ctx_supplement_probe(f->ctx, "npu_owner", DT_DEVICE_NPU, "second look", supplement, &f->err),
                  &f->err);
    supplement_calls = 0;
    load(f, "npu_silent");
    void *library;
    int *probes = probe_counter("npu_silent", &library);
    assert_int_equal(*probes, 1);
    assert_int_equal(supplement_calls, 1);
    assert_ok(dt_ctx_supplement_probe(f->ctx, "npu_owner", DT_DEVICE_NPU, "second look", supplement, &f->err), &f->err);
    assert_ok(dt_ctx_probe_again(f->ctx, DT_DEVICE_NPU, &f->err), &f->err);
    assert_int_equal(*probes, 2);
    assert_int_equal(supplement_calls, 2);
    dlclose(library);
}

static void scenario_06_half_of_linear_attention_is_not_packed(void **state)
{
    fixture *f = *state;
    load(f, "half");
    assert_ok(dt_ctx_choose(f->ctx, "causal_conv1d=half", &f->err), &f->err);
    float weight[MAX_HEAD * 4] = {0};
    for (int n = 1; n <= 2; n++) {
        f->cu[1] = n == 1 ? 5 : 2;
        f->cu[n] = 5;
        f->conv = (dt_causal_conv1d_args){DT_CAUSAL_CONV1D_ARGS, .x = dt_tensor_2d(f->x, DT_F32, 5, 8),
                                          .weight = dt_tensor_2d(weight, DT_F32, 8, 4),
                                          .y = dt_tensor_2d(f->y, DT_F32, 5, 8), .seqs = {f->cu, NULL, n, n, 5, 5}};
        if (n == 1)
            assert_ok(dt_op_forward(f->exec, DT_OP_CAUSAL_CONV1D, &f->conv, NULL, &f->err), &f->err);
        else
            assert_fails(dt_op_forward(f->exec, DT_OP_CAUSAL_CONV1D, &f->conv, NULL, &f->err), &f->err,
                         DT_E_UNSUPPORTED, "its gdn is unavailable (the delta rule's kernel did not load)");
    }
    assert_ok(dt_ctx_choose(f->ctx, "auto", &f->err),
              &f->err); /* automatic: the packed call goes to a whole provider */
    assert_ok(dt_op_forward(f->exec, DT_OP_CAUSAL_CONV1D, &f->conv, NULL, &f->err), &f->err);
    assert_true(f->y[0] == 0); /* a real convolution with zero weights, not half's x + 3 */
}

static void scenario_07_a_stub_is_unavailable(void **state)
{
    fixture *f = *state;
    load(f, "stub");
    assert_true(attempted(f, "not implemented"));
    assert_fails(dt_ctx_choose(f->ctx, "gdn=stub", &f->err), &f->err, DT_E_UNAVAILABLE, "not implemented");
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).provider, "cpu");
}

static void scenario_08_a_foreign_abi_is_refused_with_both_numbers(void **state)
{
    fixture *f = *state;
    char before[8192], after[8192];
    assert_ok(dt_ctx_fingerprint(f->ctx, DT_DEVICE_CPU, before, sizeof before, &f->err), &f->err);
    assert_fails(dt_ctx_load_plugin(f->ctx, FILE_OF("foreign_abi"), 0, NULL, &f->err), &f->err, DT_E_ARG,
                 "provider ABI 7, this deltune needs ABI 1");
    assert_ok(dt_ctx_fingerprint(f->ctx, DT_DEVICE_CPU, after, sizeof after, &f->err), &f->err);
    assert_string_equal(before, after);
}

static void scenario_09_a_name_is_taken_once_unless_replaced(void **state)
{
    fixture *f = *state;
    load(f, "owner");
    assert_fails(dt_ctx_load_plugin(f->ctx, FILE_OF("third_as_owner"), 0, NULL, &f->err), &f->err, DT_E_ARG,
                 "is already registered from");
    assert_non_null(strstr(f->err.text, "owner.so"));
    assert_int_equal(who(f, 64, TWO), OWNER);
    assert_ok(dt_ctx_load_plugin(f->ctx, FILE_OF("third_as_owner"), DT_REGISTER_REPLACE, NULL, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), THIRD);
    int history = 0;
    for (dt_registration *r = f->ctx->registrations; r; r = r->next)
        history += strcmp(r->provider->name, "owner") == 0;
    assert_int_equal(history, 2);
}

/* ---- overriding and restoring ---- */

static void scenario_10_an_override_is_named_and_the_original_kept(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "patch manager", false);
    dt_op_info info = info_of(f, DT_OP_GDN, DT_DEVICE_CPU);
    assert_int_equal(info.source, DT_SOURCE_OVERRIDE);
    assert_string_equal(info.provider, "patch manager");
    assert_non_null(strstr(info.file, "third.so"));
    assert_string_equal(dtp_slot(f->ctx, DT_OP_GDN, DT_DEVICE_CPU)->original->name, "owner");
    assert_int_equal(who(f, 64, TWO), THIRD);
    dlclose(library);
}

static dt_status count_notifications(void *user, dt_op op, dt_device_kind device, uint64_t generation, dt_err *err)
{
    (void)op, (void)device, (void)err;
    ((uint64_t *)user)[0]++;
    ((uint64_t *)user)[1] = generation;
    return DT_OK;
}

static void scenario_11_restore_brings_the_original_back_for_everybody(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "patch manager", false);
    uint64_t seen[2] = {0};
    assert_ok(dt_ctx_add_holder(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, "model", count_notifications, seen, &f->err),
              &f->err);
    dt_restore_report report;
    assert_ok(restore(f, &report), &f->err);
    assert_true(report.changed);
    assert_int_equal(who(f, 64, TWO), OWNER);
    assert_int_equal(seen[0], 2);
    assert_int_equal(seen[1], info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation);
    assert_int_equal(count_in_log("original of owner restored"), 1);
    assert_int_equal(count_in_log("owner.so"), 1);
    assert_int_equal(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).source, DT_SOURCE_RESTORED);
    dlclose(library);
}

static void scenario_12_a_saved_original_of_foreign_origin_is_rejected(void **state)
{
    fixture *f = *state;
    load(f, "third_as_owner"); /* came before us, under the owner's name */
    assert_int_equal(who(f, 64, TWO), THIRD);
    dt_restore_report report;
    assert_ok(restore(f, &report), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
    assert_non_null(strstr(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).file, "/owner.so"));
}

static void scenario_13_a_public_alias_that_was_replaced_too_is_rejected(void **state)
{
    fixture *f = *state;
    load(f, "third_as_owner");
    dt_restore_policy policy = owner_policy();
    char alias[512];
    snprintf(alias, sizeof alias, "%s", FILE_OF("alias"));
    const char *only_alias[] = {alias}, *both[] = {alias, policy.files[0]};
    policy.files = only_alias;
    dt_restore_report report;
    assert_fails(dt_ctx_restore(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, &policy, &report, &f->err), &f->err, DT_E_UNAVAILABLE,
                 "its function lies in");
    assert_int_equal(who(f, 64, TWO), THIRD);
    policy.files = both;
    policy.n_files = 2;
    assert_ok(dt_ctx_restore(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, &policy, &report, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
}

/* No owner anywhere; the third party's entry, which cannot pack, stays. */
static void restore_without_owner(fixture *f, dt_restore_report *report, void **library)
{
    override_with(f, set_of("third_no_pack", library), "patch manager", false);
    const char *missing[] = {"/nowhere/owner.so"};
    dt_restore_policy policy = {DT_RESTORE_POLICY, .owner = "owner", .files = missing, .n_files = 1};
    clear_log();
    assert_fails(dt_ctx_restore(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, &policy, report, &f->err), &f->err, DT_E_UNAVAILABLE,
                 "owner not loadable");
}

static void scenario_14_without_the_owner_nothing_is_overwritten(void **state)
{
    fixture *f = *state;
    dt_restore_report report;
    void *library;
    restore_without_owner(f, &report, &library);
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).provider, "patch manager");
    assert_int_equal(count_in_log("WARNING"), 1);
    assert_int_equal(count_in_log("owner not loadable: /nowhere/owner.so: no such plug-in file"), 1);
    assert_int_equal(count_in_log("packed calls may fail"), 1);
    assert_non_null(strstr(report.kept, "patch manager from"));
    dlclose(library);
}

static void scenario_15_what_stayed_fails_at_the_packed_call_only(void **state)
{
    fixture *f = *state;
    dt_restore_report report;
    void *library;
    restore_without_owner(f, &report, &library);
    assert_int_equal(who(f, 64, ONE), THIRD);
    assert_int_equal(who(f, 64, TWO), DT_E_UNSUPPORTED);
    assert_non_null(
        strstr(f->err.text,
               "gdn: the override by provider patch manager cannot run this call: does not support packed calls"));
    assert_non_null(strstr(f->err.text, "restore the original, or choose a provider"));
    for (int i = 0; i < 5 * 64; i++)
        assert_true(f->y[i] == -1);
    dlclose(library);
}

static void scenario_16_restore_runs_again_after_a_repatch(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    const dt_op_set *set = set_of("third", &library);
    override_with(f, set, "patch manager", false);
    assert_ok(restore(f, NULL), &f->err);
    dt_exec *before = f->exec, *after;
    override_with(f, set, "patch manager", false); /* remove all, apply all again */
    assert_int_equal(who(f, 64, TWO), THIRD);
    assert_ok(dt_ctx_after_repatch(f->ctx, DT_DEVICE_CPU, &f->err), &f->err);
    assert_ok(dt_exec_create(&after, f->ctx, DT_DEVICE_CPU, 0, 1, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
    f->exec = after;
    assert_int_equal(who(f, 64, TWO), OWNER);
    f->exec = before;
    dt_exec_free(after);
    dlclose(library);
}

static void scenario_17_no_caller_can_keep_a_stale_entry(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    uint64_t generation = info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation;
    assert_int_equal(who(f, 64, TWO), OWNER);
    override_with(f, set_of("third", &library), "patch manager", false);
    assert_true(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation > generation);
    assert_int_equal(who(f, 64, TWO), THIRD);
    /* The public headers give out no callable: dt_op_info holds names, numbers and a generation, and the handle is the
     * operator's number. That is a property of the types; here it is at least pinned for the record struct. */
    assert_int_equal(sizeof(dt_op_info), 4 * sizeof(char *) + 2 * sizeof(uint32_t) + sizeof(uint64_t));
    dlclose(library);
}

static void scenario_18_a_holder_that_comes_late_sees_the_restored_entry(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "patch manager", false);
    assert_ok(restore(f, NULL), &f->err);
    uint64_t seen[2] = {0};
    assert_ok(dt_ctx_add_holder(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, "late", count_notifications, seen, &f->err), &f->err);
    assert_int_equal(seen[1], info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation);
    assert_int_equal(who(f, 64, TWO), OWNER);
    dlclose(library);
}

static dt_status refuse_when_asked(void *user, dt_op op, dt_device_kind device, uint64_t generation, dt_err *err)
{
    (void)op, (void)device, (void)generation;
    return *(int *)user ? dt_fail(err, DT_E_INTERNAL, "my cache cannot follow") : DT_OK;
}

static void scenario_19_one_failing_holder_rolls_everything_back(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "patch manager", false);
    int refuse = 0;
    uint64_t seen[2] = {0};
    assert_ok(
        dt_ctx_add_holder(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, "megatron cache", refuse_when_asked, &refuse, &f->err),
        &f->err);
    assert_ok(dt_ctx_add_holder(f->ctx, DT_OP_GDN, DT_DEVICE_CPU, "model", count_notifications, seen, &f->err),
              &f->err);
    refuse = 1;
    clear_log();
    dt_restore_report report;
    assert_fails(restore(f, &report), &f->err, DT_E_UNAVAILABLE, "holder megatron cache: my cache cannot follow");
    assert_int_equal(who(f, 64, TWO), THIRD);
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).provider, "patch manager");
    assert_int_equal(seen[1], info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation); /* told about the way back, too */
    assert_int_equal(count_in_log("WARNING"), 1);
    assert_int_equal(count_in_log("megatron cache"), 1);
    refuse = 0;
    assert_ok(restore(f, &report), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
    dlclose(library);
}

static void scenario_20_backward_runs_where_forward_ran(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    dt_saved saved = {0};
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, gdn_call(f, 64, TWO), &saved, &f->err), &f->err);
    override_with(f, set_of("third", &library), "patch manager", false);
    assert_ok(dt_op_backward(f->exec, DT_OP_GDN, &f->gdn, &saved, &f->err), &f->err);
    assert_true(f->dx[2][0] == 20 + OWNER);
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, gdn_call(f, 64, TWO), &saved, &f->err), &f->err);
    assert_ok(dt_op_backward(f->exec, DT_OP_GDN, &f->gdn, &saved, &f->err), &f->err);
    assert_true(f->dx[2][0] == 20 + THIRD);
    dt_saved_release(&saved);
    dlclose(library);
}

static void scenario_21_unload_waits_for_saved_contexts(void **state)
{
    fixture *f = *state;
    load(f, "third");
    dt_registration *owner = load(f, "owner");
    dt_saved saved = {0};
    assert_ok(dt_op_forward(f->exec, DT_OP_GDN, gdn_call(f, 64, TWO), &saved, &f->err), &f->err);
    assert_fails(dt_ctx_unregister(f->ctx, owner, &f->err), &f->err, DT_E_BUSY, "provider owner is in use");
    assert_int_equal(who(f, 64, TWO), OWNER);
    dt_saved_release(&saved);
    assert_ok(dt_ctx_unregister(f->ctx, owner, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), THIRD);
    assert_false(mapped("/owner.so"));
}

/* ---- the founding policy ---- */

/* A packed call of three samples with states on the device that the NPU plug-in drives (host memory). */
static void call_with_states(fixture *f, dt_exec *exec, const int *lengths, dt_status expected)
{
    gdn_call(f, 4, lengths);
    int64_t n = f->gdn.seqs.n_seq;
    for (int i = 0; i < 3 * 16; i++) {
        f->state[0][i] = (float)i;
        f->state[1][i] = -1;
    }
    f->gdn.seqs.cu_seqlens_device = f->cu;
    f->gdn.initial_state = dt_tensor_4d(f->state[0], DT_F32, n, 1, 4, 4);
    f->gdn.final_state = dt_tensor_4d(f->state[1], DT_F32, n, 1, 4, 4);
    assert_int_equal(dt_op_forward(exec, DT_OP_GDN, &f->gdn, NULL, &f->err), expected);
}

static dt_settled settle(fixture *f, const char *soc)
{
    static const char *files[1];
    files[0] = FILE_OF("npu_owner");
    dt_restore_policy policy = {DT_RESTORE_POLICY, .owner = "npu_owner", .files = files, .n_files = 1};
    dt_settle_request q = {DT_SETTLE_REQUEST, DT_OP_GDN, DT_DEVICE_NPU, soc, &policy, "npu_third"};
    dt_settled settled;
    assert_ok(dt_ctx_settle(f->ctx, &q, &settled, &f->err), &f->err);
    return settled;
}

static void scenario_22_arch35_runs_the_third_party_one_sample_at_a_time(void **state)
{
    fixture *f = *state;
    load(f, "npu_owner");
    load(f, "npu_third");
    dt_exec *npu;
    assert_ok(dt_exec_create(&npu, f->ctx, DT_DEVICE_NPU, 0, 1, &f->err), &f->err);
    assert_int_equal(settle(f, "Ascend950"), DT_SETTLED_PER_SAMPLE);
    assert_int_equal(settle(f, "Ascend950"), DT_SETTLED_PER_SAMPLE);
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_NPU).provider, "safe varlen");
    assert_int_equal(dtp_slot(f->ctx, DT_OP_GDN, DT_DEVICE_NPU)->n_overrides, 2); /* settled once */
    call_with_states(f, npu, LENGTHS(3, 0, 5), DT_OK);
    for (int i = 0; i < 8 * 4; i++)
        assert_true(f->y[i] == 10 + THIRD);
    for (int i = 0; i < 3 * 16; i++)
        assert_true(f->state[1][i] == (float)i); /* in order; the empty sample's is its initial state */
    dt_exec_free(npu);
}

static void scenario_23_only_the_exact_chip_name_is_arch35(void **state)
{
    fixture *f = *state;
    assert_int_equal(dt_soc_family_of("Ascend950"), DT_SOC_ASCEND950);
    assert_int_equal(dt_soc_family_of("ascend910_95"), DT_SOC_ASCEND950);
    assert_int_equal(dt_soc_family_of("Ascend910B3"), DT_SOC_ASCEND910B);
    assert_int_equal(dt_soc_family_of("Ascend910"), DT_SOC_ASCEND910);
    assert_int_equal(dt_soc_family_of("Ascend950X-next"), DT_SOC_OTHER);
    assert_int_equal(dt_soc_family_of("NotAscend950"), DT_SOC_OTHER);
    load(f, "npu_owner");
    load(f, "npu_third");
    assert_int_equal(settle(f, "NotAscend950"), DT_SETTLED_OWNER);
    assert_string_equal(info_of(f, DT_OP_GDN, DT_DEVICE_NPU).provider, "npu_owner");
}

/* ---- choice ---- */

static void scenario_24_an_explicit_choice_fails_loudly_auto_falls_back(void **state)
{
    fixture *f = *state;
    load(f, "only_128");
    assert_ok(dt_ctx_choose(f->ctx, "gdn=a", &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), DT_E_UNSUPPORTED);
    assert_non_null(
        strstr(f->err.text, "the chosen provider a cannot run this call: K is 64, only 128 is implemented"));
    assert_ok(dt_ctx_choose(f->ctx, "auto", &f->err), &f->err);
    clear_log();
    for (int i = 0; i < 3; i++)
        assert_ok(dt_op_forward(f->exec, DT_OP_GDN, gdn_call(f, 64, TWO), NULL, &f->err), &f->err);
    assert_int_equal(count_in_log("gdn on cpu: cpu runs calls that a does not take (K is 64"), 1);
    load(f, "stub");
    assert_fails(dt_ctx_choose(f->ctx, "gdn=stub", &f->err), &f->err, DT_E_UNAVAILABLE, "not implemented");
}

static void scenario_25_providers_alternate_with_the_shape(void **state)
{
    fixture *f = *state;
    load(f, "only_128");
    load(f, "any_size");
    clear_log();
    char text[2048];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(who(f, 64, LENGTHS(1)), B);
        dt_op_explain(f->exec, DT_OP_GDN, &f->gdn, false, text, sizeof text);
        assert_non_null(strstr(text, "a 1.0"));
        assert_non_null(strstr(text, "K is 64, only 128 is implemented"));
        assert_int_equal(who(f, 128, LENGTHS(1)), A);
        dt_op_explain(f->exec, DT_OP_GDN, &f->gdn, false, text, sizeof text);
        assert_null(strstr(text, "only 128"));
    }
    assert_int_equal(count_in_log("b runs calls that a does not take"), 1);
}

static void scenario_26_explain_shows_the_latest_reason(void **state)
{
    fixture *f = *state;
    load(f, "only_128");
    char text[2048];
    setenv("DT_TEST_REASON", " (first reason)", 1);
    who(f, 64, LENGTHS(1));
    dt_op_explain(f->exec, DT_OP_GDN, &f->gdn, false, text, sizeof text);
    assert_non_null(strstr(text, "first reason"));
    setenv("DT_TEST_REASON", " (second reason)", 1);
    who(f, 64, LENGTHS(1));
    dt_op_explain(f->exec, DT_OP_GDN, &f->gdn, false, text, sizeof text);
    assert_null(strstr(text, "first reason"));
    assert_non_null(strstr(text, "second reason"));
    unsetenv("DT_TEST_REASON");
}

/* ---- threads ---- */

typedef struct caller {
    fixture f;
    dt_ctx *ctx;
    atomic_bool *stop;
    int bad;
    atomic_long calls;
} caller;

static void *call_until_stopped(void *argument)
{
    caller *c = argument;
    c->f.ctx = c->ctx;
    if (dt_exec_create(&c->f.exec, c->ctx, DT_DEVICE_CPU, 0, 1, &c->f.err) != DT_OK) {
        c->bad = 1;
        return NULL;
    }
    while (!atomic_load(c->stop)) {
        int mark = who(&c->f, 4, TWO);
        bool whole = mark == OWNER || mark == THIRD;
        for (int i = 1; i < 5 * 4; i++) /* never a mix of both */
            whole &= c->f.y[i] == c->f.y[0];
        c->bad += !whole;
        atomic_fetch_add(&c->calls, 1);
    }
    dt_exec_free(c->f.exec);
    return NULL;
}

static long calls_of(caller *callers, int n)
{
    long calls = 0;
    for (int i = 0; i < n; i++)
        calls += atomic_load(&callers[i].calls);
    return calls;
}

/* Returns when some thread has called again: changes and calls overlap however the threads are scheduled. */
static void let_them_call(caller *callers, int n)
{
    for (long before = calls_of(callers, n); calls_of(callers, n) == before;)
        sched_yield();
}

static void scenario_27_calls_never_see_a_mix_while_slots_change(void **state)
{
    fixture *f = *state;
    void *library;
    enum { THREADS = 8, CHANGES = 10000 };
    static caller callers[THREADS];
    pthread_t threads[THREADS];
    atomic_bool stop = false;
    load(f, "owner");
    const dt_op_set *set = set_of("third", &library);
    for (int i = 0; i < THREADS; i++) {
        callers[i].ctx = f->ctx;
        callers[i].stop = &stop;
        assert_int_equal(pthread_create(&threads[i], NULL, call_until_stopped, &callers[i]), 0);
    }
    dtp_log_set_level(DT_LOG_ERROR);
    for (int i = 0; i < CHANGES; i++) {
        dt_override *token = override_with(f, set, "patch manager", false);
        if (i % 100 == 0)
            let_them_call(callers, THREADS);
        if (i % 2)
            assert_ok(restore(f, NULL), &f->err);
        while (dt_ctx_remove_override(f->ctx, token, &f->err) == DT_E_BUSY) /* a call still runs in it */
            ;
    }
    dtp_log_set_level(DT_LOG_INFO);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].bad, 0);
    }
    assert_true(calls_of(callers, THREADS) >= CHANGES / 100);
    assert_null(f->ctx->overrides);
    dlclose(library);
}

/* ---- wrapping ---- */

static dt_status add_100(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    dt_status status = dt_next_forward(exec, args, saved, workspace, err);
    const dt_gdn_args *a = args;
    for (int64_t i = 0; status == DT_OK && i < dt_tensor_numel(&a->o); i++)
        ((float *)a->o.data)[i] += 100;
    return status;
}
static const dt_op_set adds_100 = {
    .struct_size = sizeof(dt_op_set), .op = DT_OP_GDN, .caps = DT_CAP_PACKED, .forward = add_100};

static void scenario_28_a_replacement_ends_a_wrap_and_restore_drops_both(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    dt_override *wrap = override_with(f, &adds_100, "tracer", true);
    assert_int_equal(who(f, 64, TWO), 100 + OWNER);
    dt_override *third = override_with(f, set_of("third", &library), "patch manager", false);
    assert_int_equal(who(f, 64, TWO), THIRD); /* the whole entry was replaced, the wrap lies below it */
    assert_ok(dt_ctx_remove_override(f->ctx, third, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), 100 + OWNER);
    third = override_with(f, set_of("third", &library), "patch manager", false);
    assert_ok(restore(f, NULL), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
    assert_ok(dt_ctx_remove_override(f->ctx, third, &f->err), &f->err);
    assert_ok(dt_ctx_remove_override(f->ctx, wrap, &f->err), &f->err);
    assert_int_equal(who(f, 64, TWO), OWNER);
    dlclose(library);
}

static void scenario_29_a_name_ending_in_wrapper_means_nothing(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "foo_wrapper", false);
    assert_int_equal(who(f, 64, TWO), THIRD);
    dlclose(library);
}

static void scenario_30_restoring_what_is_restored_does_nothing(void **state)
{
    fixture *f = *state;
    void *library;
    load(f, "owner");
    override_with(f, set_of("third", &library), "patch manager", false);
    assert_ok(restore(f, NULL), &f->err);
    uint64_t generation = info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation;
    clear_log();
    dt_restore_report report;
    assert_ok(restore(f, &report), &f->err);
    assert_ok(dt_ctx_after_repatch(f->ctx, DT_DEVICE_CPU, &f->err), &f->err);
    assert_false(report.changed);
    assert_int_equal(info_of(f, DT_OP_GDN, DT_DEVICE_CPU).generation, generation);
    assert_string_equal(log_text, "");
    dlclose(library);
}

/* ---- processes ---- */

static void scenario_31_a_forked_child_probes_again(void **state)
{
    fixture *f = *state;
    load(f, "npu_owner");
    dt_exec *parent;
    assert_ok(dt_exec_create(&parent, f->ctx, DT_DEVICE_NPU, 0, 1, &f->err), &f->err);
    void *library;
    int *probes = probe_counter("npu_owner", &library), before = *probes;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* exit codes tell: no cmocka in the child */
        dt_exec *own;
        gdn_call(f, 64, ONE);
        f->gdn.seqs.cu_seqlens_device = f->cu;
        if (dt_op_forward(parent, DT_OP_GDN, &f->gdn, NULL, &f->err) != DT_E_UNAVAILABLE)
            _exit(1); /* the parent's handle was used */
        if (dt_exec_create(&own, f->ctx, DT_DEVICE_NPU, 0, 1, &f->err) != DT_OK || *probes != before + 1)
            _exit(2); /* not probed again */
        if (dt_op_forward(own, DT_OP_GDN, &f->gdn, NULL, &f->err) != DT_OK || f->y[0] != 10 + OWNER)
            _exit(3);
        dt_exec_free(parent);
        dt_exec_free(own);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(*probes, before);
    dt_exec_free(parent);
    dlclose(library);
}

static void read_all(int fd, char *text, size_t size)
{
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(fd, text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(fd);
}

/* One rank: its fingerprint up, all fingerprints down, its log lines up. */
static void rank_process(int rank, int up, int down)
{
    fixture f = {0};
    char mine[8192] = "";
    static char all[4][8192];
    const char *fingerprints[4];
    if (dt_ctx_create(&f.ctx, &f.err) != DT_OK)
        _exit(1);
    if (rank == 2)
        (void)dt_ctx_load_plugin(f.ctx, FILE_OF("owner"), 0, NULL, &f.err);
    (void)dt_ctx_fingerprint(f.ctx, DT_DEVICE_CPU, mine, sizeof mine, &f.err);
    if (write(up, mine, sizeof mine) != (ssize_t)sizeof mine)
        _exit(1);
    for (size_t got = 0; got < sizeof all;) {
        ssize_t n = read(down, (char *)all + got, sizeof all - got);
        if (n <= 0)
            _exit(1);
        got += (size_t)n;
    }
    for (int r = 0; r < 4; r++)
        fingerprints[r] = all[r];
    clear_log();
    dtp_log_ranks(rank, 4, fingerprints);
    _exit(write(up, log_text, strlen(log_text)) < 0);
}

static void scenario_32_the_rank_that_differs_says_so(void **state)
{
    (void)state;
    int up[4][2], down[4][2];
    static char all[4][8192], said[4][16384];
    for (int r = 0; r < 4; r++) {
        assert_int_equal(pipe(up[r]) | pipe(down[r]), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            rank_process(r, up[r][1], down[r][0]);
        close(up[r][1]);
        close(down[r][0]);
    }
    for (int r = 0; r < 4; r++)
        for (size_t got = 0; got < sizeof all[r];) {
            ssize_t n = read(up[r][0], all[r] + got, sizeof all[r] - got);
            assert_true(n > 0);
            got += (size_t)n;
        }
    for (int r = 0; r < 4; r++) {
        assert_int_equal(write(down[r][1], all, sizeof all), sizeof all);
        close(down[r][1]);
        read_all(up[r][0], said[r], sizeof said[r]);
        wait(NULL);
    }
    assert_non_null(strstr(said[0], "gdn cpu"));
    assert_non_null(strstr(said[0], "(3 of 4 ranks)"));
    assert_string_equal(said[1], "");
    assert_string_equal(said[3], "");
    assert_non_null(strstr(said[2], "rank 2 differs: gdn owner 1.0"));
}

#define SCENARIO(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCENARIO(scenario_01_cpu_process_is_untouched_by_a_supplement),
        SCENARIO(scenario_02_a_missing_backward_offers_neither_half),
        SCENARIO(scenario_03_a_dependency_that_appears_is_found),
        SCENARIO(scenario_04_a_crashing_probe_leaves_the_word_to_the_supplement),
        SCENARIO(scenario_05_a_supplement_installed_twice_runs_once),
        SCENARIO(scenario_06_half_of_linear_attention_is_not_packed),
        SCENARIO(scenario_07_a_stub_is_unavailable),
        SCENARIO(scenario_08_a_foreign_abi_is_refused_with_both_numbers),
        SCENARIO(scenario_09_a_name_is_taken_once_unless_replaced),
        SCENARIO(scenario_10_an_override_is_named_and_the_original_kept),
        SCENARIO(scenario_11_restore_brings_the_original_back_for_everybody),
        SCENARIO(scenario_12_a_saved_original_of_foreign_origin_is_rejected),
        SCENARIO(scenario_13_a_public_alias_that_was_replaced_too_is_rejected),
        SCENARIO(scenario_14_without_the_owner_nothing_is_overwritten),
        SCENARIO(scenario_15_what_stayed_fails_at_the_packed_call_only),
        SCENARIO(scenario_16_restore_runs_again_after_a_repatch),
        SCENARIO(scenario_17_no_caller_can_keep_a_stale_entry),
        SCENARIO(scenario_18_a_holder_that_comes_late_sees_the_restored_entry),
        SCENARIO(scenario_19_one_failing_holder_rolls_everything_back),
        SCENARIO(scenario_20_backward_runs_where_forward_ran),
        SCENARIO(scenario_21_unload_waits_for_saved_contexts),
        SCENARIO(scenario_22_arch35_runs_the_third_party_one_sample_at_a_time),
        SCENARIO(scenario_23_only_the_exact_chip_name_is_arch35),
        SCENARIO(scenario_24_an_explicit_choice_fails_loudly_auto_falls_back),
        SCENARIO(scenario_25_providers_alternate_with_the_shape),
        SCENARIO(scenario_26_explain_shows_the_latest_reason),
        SCENARIO(scenario_27_calls_never_see_a_mix_while_slots_change),
        SCENARIO(scenario_28_a_replacement_ends_a_wrap_and_restore_drops_both),
        SCENARIO(scenario_29_a_name_ending_in_wrapper_means_nothing),
        SCENARIO(scenario_30_restoring_what_is_restored_does_nothing),
        SCENARIO(scenario_31_a_forked_child_probes_again),
        SCENARIO(scenario_32_the_rank_that_differs_says_so),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("dispatch", tests, NULL, NULL);
}
