/* An adapter written here gives the same logits in peft and transformers. Runs where those packages can be imported by
 * $DELTUNE_PYTHON (default python3), else it is skipped. */
#include "model/model_testing.h"

#include "core/memory.h"
#include "model/safetensors.h"

enum { TOKENS = 70, MAX_VOCAB = 4096 };

typedef struct {
    dt_model *model;
    float *logits;
    dt_status status;
} capture;

static void tap(void *user, int64_t index, const dt_tensor *hidden)
{
    capture *c = user;
    const dt_model_config *config = dtp_model_config(c->model);
    dt_err err = {0};
    if (index == config->layers)
        c->status = dtp_model_logits(c->model, *hidden, dt_tensor_2d(c->logits, DT_F32, TOKENS, config->vocab), &err);
}

/* A tuned-looking adapter of every linear map, its logits, and the tokens they belong to. */
static void write_case(const char *model, const char *folder)
{
    fixture f = open_fixture();
    dt_err err = {0};
    dt_lora_options lora;
    dtp_lora_options_default(&lora);
    dt_model *m = open_model(&f, (dt_model_options){.folder = model, .tune = DT_TUNE_LORA, .lora = &lora, .seed = 11});
    const dt_trainable *t = dtp_model_trainable(m);
    for (int64_t i = 0; i < t->count; i++)
        t->param[i] += 0.02f * (float)(i % 13 - 6) / 6;
    const int vocab = (int)dtp_model_config(m)->vocab, lengths[] = {TOKENS};
    static sample_pack p;
    static float logits[TOKENS * MAX_VOCAB];
    assert_true(vocab <= MAX_VOCAB);
    capture c = {m, logits, DT_E_INTERNAL};
    dt_cross_entropy_result result;
    make_pack(&p, 5, lengths, 0, 1, vocab);
    plan(m, TOKENS, 1, false, DT_RECOMPUTE_NONE);
    dtp_model_set_tap(m, tap, &c);
    assert_ok(dtp_model_evaluate(m, &p.pack, &result, NULL, &err), &err);
    assert_int_equal(c.status, DT_OK);
    assert_ok(dtp_model_save_adapter(m, folder, &err), &err);
    char *path = dtp_path_join(folder, "logits.safetensors");
    const dt_st_spec specs[] = {{"tokens", "I32", 1, {TOKENS}, p.tokens},
                                {"logits", "F32", 2, {TOKENS, vocab}, logits}};
    assert_ok(dtp_st_write(path, specs, 2, NULL, 0, NULL, NULL, &err), &err);
    free(path);
    dtp_model_close(m);
    close_fixture(&f);
}

static const char script[] =
    "import sys, warnings\n"
    "warnings.filterwarnings('ignore')\n"
    "try:\n"
    "    import torch, peft\n"
    "    from safetensors.torch import load_file\n"
    "    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoConfig\n"
    "    from transformers.models.qwen3_5 import modeling_qwen3_5\n"
    "except ImportError as e:\n"
    "    print('not importable:', e); sys.exit(77)\n"
    "torch.set_num_threads(1)\n"
    "base, folder = sys.argv[1:]\n"
    "text_only = AutoConfig.from_pretrained(base).model_type == 'qwen3_5_text'\n"
    "loader = AutoModelForCausalLM if text_only else AutoModelForImageTextToText\n"
    "with warnings.catch_warnings(record=True) as caught:\n"
    "    warnings.simplefilter('always')\n"
    "    model = peft.PeftModel.from_pretrained(loader.from_pretrained(base, dtype=torch.float32, "
    "attn_implementation='eager'), folder).eval()\n"
    "complaints = [str(w.message) for w in caught if 'missing' in str(w.message).lower() or 'unexpected' in "
    "str(w.message).lower()]\n"
    "assert not complaints, complaints\n"
    "adapted = sum('lora_A' in n for n, _ in model.named_parameters())\n"
    "stored = sum('lora_A' in n for n in load_file(folder + '/adapter_model.safetensors'))\n"
    "assert adapted == stored, (adapted, stored)\n"
    "case = load_file(folder + '/logits.safetensors')\n"
    "with torch.no_grad():\n"
    "    logits = model(input_ids=case['tokens'][None].long(), use_cache=False).logits[0]\n"
    "error = ((logits - case['logits']).norm() / logits.norm()).item()\n"
    "print('modules %d, relative L2 of the logits %.1e' % (adapted, error))\n"
    "sys.exit(0 if error < 3e-5 else 1)\n";

static int run_python(const char *model, const char *folder)
{
    dt_err err = {0};
    const char *python = getenv("DELTUNE_PYTHON");
    char *path = dtp_path_join(folder, "compare.py");
    assert_ok(dtp_write_file(path, script, strlen(script), &err), &err);
    char *command =
        dtp_format("OMP_NUM_THREADS=1 '%s' '%s' '%s' '%s'", python ? python : "python3", path, model, folder);
    const int status = system(command);
    free(command);
    free(path);
    return status == -1 ? -1 : status >> 8;
}

static void check_model(const char *model)
{
    if (!dtp_is_folder(model)) {
        print_message("%s is not there: skipped\n", model);
        skip();
    }
    char *folder = temporary_folder();
    write_case(model, folder);
    const int status = run_python(model, folder);
    remove_folder(folder);
    if (status == 77 || status == 127)
        skip();
    assert_int_equal(status, 0);
}

static void test_text_only(void **state)
{
    (void)state;
    check_model(TINY);
}

static void test_image_and_text(void **state)
{
    (void)state;
    check_model(DT_SHARED_DIR "/golden/tiny_dense_multimodal/model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_only),
        cmocka_unit_test(test_image_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
