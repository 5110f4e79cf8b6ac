#include "core/test.h"

#include "core/json.h"
#include "core/memory.h"
#include "model/config.h"

static const char flat[] =
    "{\"model_type\":\"qwen3_5_text\",\"dtype\":\"bfloat16\",\"hidden_size\":64,\"intermediate_size\":96,"
    "\"num_hidden_layers\":6,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"linear_num_value_heads\":6,\"linear_num_key_heads\":3,\"vocab_size\":100,\"tie_word_embeddings\":true,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000}}";

/* `flat` with the fields of `change` (a JSON object; null removes) put over it, in the given layout. */
static char *changed(const char *change, bool multimodal)
{
    json_t *root = json_loads(flat, 0, NULL), *over = json_loads(change, 0, NULL);
    assert_non_null(over);
    const char *key;
    json_t *value;
    json_object_foreach(over, key, value)
    {
        if (json_is_null(value))
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    if (multimodal)
        root = json_pack("{s:s, s:b, s:o}", "model_type", "qwen3_5", "tie_word_embeddings", 1, "text_config", root);
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(over);
    return text;
}

static dt_model_config *parse(const char *change, bool multimodal)
{
    dt_err err = {0};
    dt_model_config *c = NULL;
    char *text = changed(change, multimodal);
    assert_ok(dtp_config_parse(&c, text, strlen(text), "config.json", &err), &err);
    free(text);
    return c;
}

static void test_layouts(void **state)
{
    (void)state;
    for (int multimodal = 0; multimodal < 2; multimodal++) {
        dt_model_config *c = parse("{\"mlp_only_layers\":[], \"anything\":{\"else\":1}}", multimodal);
        assert_int_equal(c->multimodal, multimodal);
        assert_string_equal(dtp_config_prefix(c), multimodal ? "model.language_model." : "model.");
        assert_true(c->tied);
        assert_int_equal(c->hidden, 64);
        assert_int_equal(c->layers, 6);
        assert_int_equal(c->rotary_dim, 8);
        assert_int_equal(c->conv_width, 4);
        assert_int_equal(dtp_config_conv_channels(c), 2 * 3 * 128 + 6 * 128);
        assert_true(c->rope_theta == 1e7 && c->rms_eps == 1e-6);
        assert_int_equal(c->dtype, DT_BF16);
        for (int i = 0; i < 6; i++)
            assert_int_equal(c->kind[i], i == 3 ? DT_LAYER_FULL : DT_LAYER_LINEAR);
        dtp_config_free(c);
    }
}

/* In the image+text layout the top-level key decides about the head; absent means untied. */
static void test_tied_head(void **state)
{
    (void)state;
    dt_err err = {0};
    json_t *text = json_loads(flat, 0, NULL);
    json_t *root = json_pack("{s:s, s:o}", "model_type", "qwen3_5", "text_config", text);
    char *bytes = json_dumps(root, 0);
    dt_model_config *c;
    assert_ok(dtp_config_parse(&c, bytes, strlen(bytes), "x", &err), &err);
    assert_false(c->tied);
    dtp_config_free(c);
    free(bytes);
    json_decref(root);
}

static void test_layer_types_and_older_spellings(void **state)
{
    (void)state;
    dt_model_config *c = parse("{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_"
                               "attention\",\"linear_attention\",\"linear_attention\"],\"full_attention_interval\":2}",
                               true);
    static const dt_layer_kind kinds[] = {DT_LAYER_FULL, DT_LAYER_LINEAR, DT_LAYER_FULL,
                                          DT_LAYER_FULL, DT_LAYER_LINEAR, DT_LAYER_LINEAR};
    assert_memory_equal(c->kind, kinds, sizeof kinds);
    dtp_config_free(c);

    c = parse("{\"rope_parameters\":null,\"rope_scaling\":{\"type\":\"default\"},\"rope_theta\":5000.0,"
              "\"partial_rotary_factor\":0.5,\"dtype\":null,\"torch_dtype\":\"float32\",\"full_attention_interval\":2}",
              false);
    assert_true(c->rope_theta == 5000.0);
    assert_int_equal(c->rotary_dim, 16);
    assert_int_equal(c->dtype, DT_F32);
    assert_int_equal(c->kind[1], DT_LAYER_FULL);
    assert_int_equal(c->kind[3], DT_LAYER_FULL);
    dtp_config_free(c);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *change;
        dt_status status;
        const char *part;
    } cases[] = {
        {"{\"model_type\":\"qwen3_next\"}", DT_E_UNSUPPORTED,
         "model_type: expected \"qwen3_5\" or \"qwen3_5_text\", found \"qwen3_next\""},
        {"{\"model_type\":\"qwen4_exp\"}", DT_E_UNSUPPORTED, "model_type"},
        {"{\"model_type\":null}", DT_E_UNSUPPORTED, "found nothing"},
        {"{\"model_type\":\"qwen3_5_moe_text\"}", DT_E_UNSUPPORTED, "mixture of experts"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", DT_E_UNSUPPORTED, "quantization_config"},
        {"{\"num_hidden_layers\":null}", DT_E_FORMAT,
         "num_hidden_layers: expected an integer from 1 to 16777216, found nothing"},
        {"{\"hidden_size\":null}", DT_E_FORMAT, "hidden_size"},
        {"{\"intermediate_size\":null}", DT_E_FORMAT, "intermediate_size"},
        {"{\"num_attention_heads\":null}", DT_E_FORMAT, "num_attention_heads"},
        {"{\"num_key_value_heads\":null}", DT_E_FORMAT, "num_key_value_heads"},
        {"{\"linear_num_value_heads\":null}", DT_E_FORMAT, "linear_num_value_heads"},
        {"{\"hidden_size\":\"64\"}", DT_E_FORMAT, "found \"64\""},
        {"{\"hidden_size\":0}", DT_E_FORMAT, "hidden_size"},
        {"{\"hidden_size\":64.5}", DT_E_FORMAT, "found 64.5"},
        {"{\"vocab_size\":99999999}", DT_E_FORMAT, "vocab_size"},
        {"{\"num_hidden_layers\":5000}", DT_E_FORMAT, "at most 4096"},
        {"{\"num_attention_heads\":5}", DT_E_FORMAT, "a multiple of num_key_value_heads"},
        {"{\"linear_num_value_heads\":7}", DT_E_FORMAT, "a multiple of linear_num_key_heads"},
        {"{\"hidden_act\":\"gelu\"}", DT_E_UNSUPPORTED, "hidden_act: expected \"silu\""},
        {"{\"attention_bias\":true}", DT_E_UNSUPPORTED, "attention_bias: expected false"},
        {"{\"attn_output_gate\":false}", DT_E_UNSUPPORTED, "attn_output_gate: expected true"},
        {"{\"output_gate_type\":\"sigmoid\"}", DT_E_UNSUPPORTED, "\"swish\" or \"silu\""},
        {"{\"attention_dropout\":0.1}", DT_E_UNSUPPORTED, "attention_dropout"},
        {"{\"num_experts\":8}", DT_E_UNSUPPORTED, "num_experts"},
        {"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e7}}", DT_E_UNSUPPORTED,
         "rope_parameters.rope_type: expected \"default\", found \"yarn\""},
        {"{\"rope_parameters\":{\"rope_type\":\"default\"}}", DT_E_FORMAT, "rope_theta"},
        {"{\"rope_parameters\":7}", DT_E_FORMAT, "rope_parameters"},
        {"{\"rope_parameters\":{\"rope_theta\":-1}}", DT_E_FORMAT,
         "rope_parameters.rope_theta: expected a positive number"},
        {"{\"partial_rotary_factor\":0.1}", DT_E_FORMAT, "partial_rotary_factor"},
        {"{\"partial_rotary_factor\":1e300}", DT_E_FORMAT, "partial_rotary_factor"},
        {"{\"rms_norm_eps\":0}", DT_E_FORMAT, "rms_norm_eps"},
        {"{\"layer_types\":[\"full_attention\"]}", DT_E_FORMAT, "num_hidden_layers = 6 names"},
        {"{\"layer_types\":\"full_attention\"}", DT_E_FORMAT, "layer_types"},
        {"{\"layer_types\":[1,2,3,4,5,6]}", DT_E_UNSUPPORTED, "layer_types"},
        {"{\"full_attention_interval\":0}", DT_E_FORMAT, "full_attention_interval"},
        {"{\"dtype\":\"int8\"}", DT_E_UNSUPPORTED, "dtype: expected \"bfloat16\""},
        {"{\"tie_word_embeddings\":1}", DT_E_FORMAT, "tie_word_embeddings"},
        {"{\"linear_conv_kernel_dim\":9}", DT_E_UNSUPPORTED, "linear_conv_kernel_dim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_err err = {0};
        dt_model_config *c = NULL;
        char *text = changed(cases[i].change, false);
        assert_fails(dtp_config_parse(&c, text, strlen(text), "a/config.json", &err), &err, cases[i].status,
                     cases[i].part);
        assert_non_null(strstr(err.text, "a/config.json: "));
        assert_null(c);
        free(text);
    }
    dt_err err = {0};
    dt_model_config *c = NULL;
    char *text = changed("{\"hidden_size\":0}", true);
    assert_fails(dtp_config_parse(&c, text, strlen(text), "f", &err), &err, DT_E_FORMAT, "text_config.hidden_size");
    free(text);
    assert_fails(dtp_config_parse(&c, "[]", 2, "f", &err), &err, DT_E_FORMAT, "JSON object");
    assert_fails(dtp_config_parse(&c, "{\"model_type\":\"qwen3_5\"}", 24, "f", &err), &err, DT_E_FORMAT, "text_config");
    assert_fails(dtp_config_load(&c, "/nonexistent/config.json", &err), &err, DT_E_IO, "/nonexistent/config.json");
}

static void test_golden_configs(void **state)
{
    (void)state;
    dt_err err = {0};
    dt_model_config *c;
    dt_status status = dtp_config_load(&c, DT_SHARED_DIR "/golden/tiny_dense_multimodal/model/config.json", &err);
    if (status == DT_E_IO) {
        print_message("%s: skipped\n", err.text);
        skip();
    }
    assert_ok(status, &err);
    assert_true(c->multimodal && c->tied && c->layers == 4 && c->rotary_dim == 16 && c->kind[3] == DT_LAYER_FULL);
    dtp_config_free(c);
    assert_fails(dtp_config_load(&c, DT_SHARED_DIR "/golden/tiny_moe/model/config.json", &err), &err, DT_E_UNSUPPORTED,
                 "mixture of experts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_layer_types_and_older_spellings),
        cmocka_unit_test(test_golden_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
