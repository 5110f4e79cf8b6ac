/* deltune infer: opens a model with or without an adapter, and answers. */
#include "cli/infer.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const dt_arg_spec model_args[] = {
    {"model", DT_ARG_STRING, NULL, NULL, "Model folder (default: the base model of the adapter's run)."},
    {"adapters", DT_ARG_LIST, NULL, NULL, "Adapter folder: a checkpoint of a LoRA run."},
    {"merge_lora", DT_ARG_BOOL, "false", NULL,
     "Changes nothing: the adapter is applied as it is, and writes no files."},
    {"max_length", DT_ARG_INT, "8192", NULL, "Context: tokens of conversation and answer together."},
};
static const dt_arg_spec generation_args[] = {
    {"temperature", DT_ARG_FLOAT, NULL, NULL, "0 = greedy (default: generation_config.json)."},
    {"top_k", DT_ARG_INT, NULL, NULL, "Sample from the k best tokens; 0 = all (default: generation_config.json)."},
    {"top_p", DT_ARG_FLOAT, NULL, NULL, "Sample from the fewest best tokens with this share (default as above)."},
    {"repetition_penalty", DT_ARG_FLOAT, NULL, NULL, "Above 1: tokens already there become less likely."},
    {"max_new_tokens", DT_ARG_INT, NULL, NULL, "Longest answer (default: what the context holds)."},
    {"seed", DT_ARG_INT, "42", NULL, "Of sampling; the same seed and prompt give the same answer."},
    {"stream", DT_ARG_BOOL, "true", NULL, "Print the answer as it comes; not with val_dataset."},
};
static const dt_arg_spec input_args[] = {
    {"prompt", DT_ARG_STRING, NULL, NULL, "One question; without it and on a terminal: a conversation, else stdin."},
    {"val_dataset", DT_ARG_LIST, NULL, NULL, "Answer the rows of these files."},
    {"load_data_args", DT_ARG_BOOL, "false", NULL, "Answer the validation rows of the adapter's run."},
    {"result_path", DT_ARG_STRING, NULL, NULL,
     "Where the answers go (default: infer_result/<time>.jsonl in the adapter or model's result folder)."},
    {"columns", DT_ARG_JSON, NULL, NULL, "Renames columns of rows: {\"old\": \"new\"}."},
    {"strict", DT_ARG_BOOL, "false", NULL, "A bad row is an error."},
    {"system", DT_ARG_STRING, NULL, NULL, "System text (default: that of the adapter's run)."},
    {"enable_thinking", DT_ARG_BOOL, "false", NULL, "Let the model think before it answers."},
};
static const dt_arg_group model_group = DT_ARG_GROUP("Model", model_args);
static const dt_arg_group generation_group = DT_ARG_GROUP("Generation", generation_args);
static const dt_arg_group input_group = DT_ARG_GROUP("Input", input_args);
static const dt_arg_group *const infer_table[] = {&model_group, &dtp_device_arguments, &generation_group, &input_group,
                                                  NULL};

/* ---- SIGINT ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

bool dtp_infer_interrupted(void)
{
    bool was = interrupted;
    interrupted = 0;
    return was;
}

/* ---- settings ---- */

/* args.json lies in the checkpoint and in its run folder; an adapter from elsewhere may have none. */
static dt_status load_trained_args(dt_infer *infer, dt_err *err)
{
    static const char *const places[] = {"args.json", "../args.json"};
    for (size_t i = 0; infer->adapter_folder && i < sizeof places / sizeof *places; i++) {
        char *path = dtp_path_join(infer->adapter_folder, places[i]);
        if (!path)
            return dt_fail(err, DT_E_NOMEM, "out of memory");
        dt_status status = DT_OK;
        bool there = dtp_file_exists(path);
        if (there)
            status = dtp_json_load(&infer->trained, path, 16 << 20, err);
        free(path);
        if (there && status == DT_OK && !json_is_object(infer->trained))
            return dt_fail(err, DT_E_FORMAT, "%s/%s: expected an object", infer->adapter_folder, places[i]);
        if (there)
            return status;
    }
    infer->trained = json_object();
    return infer->trained ? DT_OK : dt_fail(err, DT_E_NOMEM, "out of memory");
}

const char *dtp_infer_setting(const dt_infer *infer, const char *name)
{
    const char *value = dtp_args_string(infer->args, name);
    return value ? value : json_string_value(json_object_get(infer->trained, name));
}

/* --model, else "model" in the run's args.json, else what adapter_config.json calls its base. */
static dt_status find_model(dt_infer *infer, dt_err *err)
{
    infer->model_folder = dtp_infer_setting(infer, "model");
    if (infer->model_folder)
        return DT_OK;
    if (!infer->adapter_folder)
        return dt_fail(err, DT_E_ARG, "name a model (--model FOLDER) or an adapter (--adapters FOLDER)");
    char *path = dtp_path_join(infer->adapter_folder, "adapter_config.json");
    json_t *config = NULL;
    const char *base = NULL;
    dt_status status = path ? dtp_json_load(&config, path, 16 << 20, err) : dt_fail(err, DT_E_NOMEM, "out of memory");
    if (status == DT_OK)
        status = dtp_json_get_string(config, "base_model_name_or_path", path, &base, err);
    if (status == DT_OK && !base)
        status = dt_fail(err, DT_E_ARG, "%s names no base model: give one with --model FOLDER", path);
    if (status == DT_OK && !(infer->model_owned = dtp_strdup(base)))
        status = dt_fail(err, DT_E_NOMEM, "out of memory");
    infer->model_folder = infer->model_owned;
    json_decref(config);
    free(path);
    return status;
}

/* As the reference: without do_sample in generation_config.json and without --temperature, greedy. */
static dt_sampling choose_sampling(const dt_args *args, const dt_generation_config *config)
{
    bool sample = config->do_sample || dtp_args_given(args, "temperature");
    return (dt_sampling){
        .temperature = sample ? dtp_args_float(args, "temperature", config->temperature) : 0.0,
        .top_k = dtp_args_int(args, "top_k", config->top_k),
        .top_p = dtp_args_float(args, "top_p", config->top_p),
        .repetition_penalty = dtp_args_float(args, "repetition_penalty", config->repetition_penalty),
        .seed = (uint64_t)dtp_args_int(args, "seed", 42),
    };
}

static void add_stop(dt_infer *infer, int32_t id)
{
    for (size_t i = 0; i < infer->n_stop; i++)
        if (infer->stop[i] == id)
            return;
    if (id >= 0 && infer->n_stop < sizeof infer->stop / sizeof *infer->stop)
        infer->stop[infer->n_stop++] = id;
}

/* ---- opening ---- */

static dt_status open_model(dt_infer *infer, dt_err *err)
{
    dt_status status = dtp_open_device(&infer->ctx, &infer->exec, infer->args, err);
    if (status != DT_OK)
        return status;
    bool cpu = infer->exec->device == DT_DEVICE_CPU;
    dt_model_options options = {.folder = infer->model_folder,
                                .adapter = infer->adapter_folder,
                                .tune = DT_TUNE_NONE,
                                .activation = cpu ? DT_F32 : DT_BF16};
    return dtp_model_open(&infer->model, infer->exec, &options, err);
}

static dt_status open_text(dt_infer *infer, dt_err *err)
{
    dt_status status = dtp_tokenizer_open(&infer->tokenizer, infer->model_folder, err);
    if (status != DT_OK)
        return dt_err_prefix(err, "infer needs the model's tokenizer: ");
    dt_template_options options = DT_TEMPLATE_OPTIONS_DEFAULT;
    options.enable_thinking = dtp_args_bool(infer->args, "enable_thinking");
    options.system = dtp_infer_setting(infer, "system");
    if ((status = dtp_encoder_create(&infer->encoder, infer->tokenizer, err)) != DT_OK)
        return status;
    return dtp_template_create(&infer->chat, infer->tokenizer, &options, err);
}

static dt_status open_generator(dt_infer *infer, dt_err *err)
{
    const dt_model_config *model = dtp_model_config(infer->model);
    dt_generation_config config;
    dt_status status = dtp_generation_config_load(&config, infer->model_folder, err);
    if (status != DT_OK)
        return status;
    add_stop(infer, dtp_tokenizer_special(infer->tokenizer, "<|im_end|>"));
    add_stop(infer, dtp_tokenizer_special(infer->tokenizer, "<|endoftext|>"));
    for (size_t i = 0; i < config.n_stop; i++)
        add_stop(infer, config.stop[i]);

    int64_t context = dtp_args_int(infer->args, "max_length", 8192);
    if (context < 2)
        return dt_fail(err, DT_E_ARG, "max_length is %lld, must be at least 2", (long long)context);
    if (context > model->max_positions)
        context = model->max_positions;
    infer->max_new_tokens = dtp_args_int(infer->args, "max_new_tokens", config.max_new_tokens);
    if (infer->max_new_tokens < 0 || (infer->max_new_tokens == 0 && dtp_args_given(infer->args, "max_new_tokens")))
        return dt_fail(err, DT_E_ARG, "max_new_tokens is %lld, must be positive", (long long)infer->max_new_tokens);
    int64_t usable = (int64_t)dtp_tokenizer_size(infer->tokenizer);
    if (usable > model->vocab)
        return dt_fail(err, DT_E_FORMAT, "%s: the tokenizer has %lld tokens, the model's vocabulary %lld",
                       infer->model_folder, (long long)usable, (long long)model->vocab);
    dt_generator_options options = {.context = context,
                                    .usable = usable,
                                    .sampling = choose_sampling(infer->args, &config),
                                    .stop = infer->stop,
                                    .n_stop = infer->n_stop};
    return dtp_generator_open(&infer->generator, infer->model, &options, err);
}

static void close_all(dt_infer *infer)
{
    dtp_generator_close(infer->generator);
    dtp_template_free(infer->chat);
    dtp_encoder_free(infer->encoder);
    dtp_tokenizer_close(infer->tokenizer);
    dtp_model_close(infer->model);
    dt_exec_free(infer->exec);
    dt_ctx_free(infer->ctx);
    dtp_encoded_free(&infer->prompt);
    dtp_buf_free(&infer->response);
    json_decref(infer->trained);
    free(infer->model_owned);
}

/* ---- answering ---- */

static dt_status take_token(void *user, int32_t token, bool *stop, dt_err *err)
{
    dt_infer *infer = user;
    dt_status status = dtp_stream_decode(&infer->stream, infer->tokenizer, token, true, &infer->response, err);
    if (infer->echo && infer->response.length > infer->echoed) {
        fwrite(infer->response.data + infer->echoed, 1, infer->response.length - infer->echoed, infer->echo);
        fflush(infer->echo);
        infer->echoed = infer->response.length;
    }
    *stop = interrupted;
    return status;
}

/* The turns of the prompt: what stands in front of the header of the answer to come. An answer's own turn looks
 * different in the next prompt, where it has no think block. */
static int64_t turns_length(const dt_infer *infer)
{
    int32_t start = dtp_tokenizer_special(infer->tokenizer, "<|im_start|>");
    size_t i = infer->prompt.ids.length;
    while (i > 0 && infer->prompt.ids.data[i - 1] != start)
        i--;
    return i > 0 ? (int64_t)i - 1 : 0;
}

dt_status dtp_infer_answer(dt_infer *infer, const dt_conversation *conversation, FILE *echo, dt_finish *finish_out,
                           dt_err *err)
{
    dtp_buf_clear(&infer->response);
    infer->echo = echo;
    infer->echoed = 0;
    dt_status status =
        dtp_template_encode(infer->chat, infer->encoder, conversation, DT_TEMPLATE_GENERATE, &infer->prompt, err);
    if (status == DT_OK)
        status = dtp_generator_run(infer->generator, infer->prompt.ids.data, (int64_t)infer->prompt.ids.length,
                                   infer->conversation ? turns_length(infer) : 0, infer->max_new_tokens, take_token,
                                   infer, finish_out, err);
    dt_status finished = dtp_stream_finish(&infer->stream, &infer->response, status == DT_OK ? err : NULL);
    if (status == DT_OK)
        status = finished;
    if (status != DT_OK)
        return status;
    dtp_buf_append(&infer->response, "", 0); /* an empty answer is "", not NULL */
    if (echo && infer->response.length > infer->echoed)
        fwrite(infer->response.data + infer->echoed, 1, infer->response.length - infer->echoed, echo);
    return dtp_buf_status(&infer->response, "answer", err);
}

/* ---- one question ---- */

static dt_status read_stdin(dt_buf *out, dt_err *err)
{
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        dtp_buf_append(out, block, n);
    if (ferror(stdin))
        return dt_fail(err, DT_E_IO, "standard input: %s", strerror(errno));
    if (out->length == 0)
        return dt_fail(err, DT_E_ARG,
                       "standard input is empty: give a question there, with --prompt, or use a terminal");
    return dtp_buf_status(out, "standard input", err);
}

static int answer_once(dt_infer *infer, dt_err *err)
{
    const char *prompt = dtp_args_string(infer->args, "prompt");
    dt_buf piped = {0};
    dt_conversation conversation = {0};
    dt_finish finish = DT_FINISH_STOP;
    bool stream = dtp_args_bool(infer->args, "stream");
    dt_status status = prompt ? DT_OK : read_stdin(&piped, err);
    if (status == DT_OK && !dtp_conversation_add(&conversation, DT_ROLE_USER, prompt ? prompt : piped.data,
                                                 prompt ? strlen(prompt) : piped.length))
        status = dt_fail(err, DT_E_NOMEM, "out of memory");
    if (status == DT_OK)
        status = dtp_infer_answer(infer, &conversation, stream ? stdout : NULL, &finish, err);
    if (status == DT_OK && !stream)
        fwrite(infer->response.data, 1, infer->response.length, stdout);
    if (status == DT_OK)
        putchar('\n');
    dtp_conversation_free(&conversation);
    dtp_buf_free(&piped);
    if (status != DT_OK)
        return status;
    return finish == DT_FINISH_CANCELLED ? 130 : 0;
}

/* ---- the command ---- */

static int run(const dt_args *args, dt_err *err)
{
    dt_infer infer = {.args = args};
    if (dtp_args_list_count(args, "adapters") > 1)
        return dt_fail(err, DT_E_ARG, "adapters: one folder, not %zu", dtp_args_list_count(args, "adapters"));
    if (dtp_args_list_count(args, "adapters") == 1)
        infer.adapter_folder = dtp_args_list_at(args, "adapters", 0);
    bool dataset = dtp_args_list_count(args, "val_dataset") > 0 || dtp_args_bool(args, "load_data_args");
    if (dataset && dtp_args_given(args, "prompt"))
        return dt_fail(err, DT_E_ARG, "give either --prompt or --val_dataset, not both");

    dt_status status = load_trained_args(&infer, err);
    if (status == DT_OK)
        status = find_model(&infer, err);
    if (status == DT_OK)
        status = open_text(&infer, err); /* before the weights: it is quick and often what is missing */
    if (status == DT_OK)
        status = open_model(&infer, err);
    if (status == DT_OK)
        status = open_generator(&infer, err);
    int result = status;
    if (status == DT_OK) {
        /* no SA_RESTART: a read at the chat prompt must return */
        sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt}, NULL);
        if (dataset)
            result = dtp_infer_dataset(&infer, err);
        else if (!dtp_args_given(args, "prompt") && isatty(STDIN_FILENO))
            result = dtp_infer_chat(&infer, err);
        else
            result = answer_once(&infer, err);
    }
    close_all(&infer);
    return result;
}

const dt_command dtp_command_infer = {
    .name = "infer",
    .summary = "Generate: a conversation, one answer, or a file of rows.",
    .about = "On a terminal without --prompt it is a conversation: Ctrl-C\n"
             "stops an answer, Ctrl-D leaves, /clear starts again.",
    .table = infer_table,
    .incumbent = true,
    .run = run,
};
