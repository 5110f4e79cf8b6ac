/* The loop of generation, and the rule of cache reuse: a recurrent state cannot be taken back token by token, so the
 * caches serve prompts that begin with every token they hold, or with every token up to the session's mark. */
#include "model/generate.h"
#include "core/file.h"
#include "core/json.h"

#include <string.h>

struct dt_generator {
    dt_session *session;
    dt_sampler *sampler;
    float *logits; /* [vocab] */
    int64_t context, read;
    int32_t *held; /* [context] the tokens in the session, in order */
    const int32_t *stop;
    size_t n_stop;
};

/* ---- generation_config.json ---- */

static dt_status read_stop(dt_generation_config *out, const json_t *eos, const char *where, dt_err *err)
{
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (!eos || json_is_null(eos))
        return DT_OK;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return dt_fail(err, DT_E_FORMAT, "%s: eos_token_id must be a token id or a list of them", where);
        if (out->n_stop == sizeof out->stop / sizeof *out->stop)
            return dt_fail(err, DT_E_FORMAT, "%s: eos_token_id lists more than %zu tokens", where, out->n_stop);
        out->stop[out->n_stop++] = (int32_t)json_integer_value(id);
    }
    return DT_OK;
}

static dt_status read_config(dt_generation_config *out, const json_t *object, const char *where, dt_err *err)
{
    dt_status status = DT_OK;
    if (!json_is_object(object))
        return dt_fail(err, DT_E_FORMAT, "%s: expected an object", where);
    if ((status = dtp_json_get_bool(object, "do_sample", where, &out->do_sample, err)) != DT_OK ||
        (status = dtp_json_get_double(object, "temperature", where, &out->temperature, err)) != DT_OK ||
        (status = dtp_json_get_double(object, "top_p", where, &out->top_p, err)) != DT_OK ||
        (status = dtp_json_get_double(object, "repetition_penalty", where, &out->repetition_penalty, err)) != DT_OK ||
        (status = dtp_json_get_int(object, "top_k", where, &out->top_k, err)) != DT_OK ||
        (status = dtp_json_get_int(object, "max_new_tokens", where, &out->max_new_tokens, err)) != DT_OK)
        return status;
    return read_stop(out, json_object_get(object, "eos_token_id"), where, err);
}

dt_status dtp_generation_config_load(dt_generation_config *out, const char *folder, dt_err *err)
{
    *out = (dt_generation_config){.temperature = 1.0, .top_p = 1.0, .top_k = 50, .repetition_penalty = 1.0};
    char *path = dtp_path_join(folder, "generation_config.json");
    if (!path)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    dt_status status = DT_OK;
    json_t *object = NULL;
    if (dtp_file_exists(path) && (status = dtp_json_load(&object, path, 1 << 20, err)) == DT_OK)
        status = read_config(out, object, path, err);
    json_decref(object);
    free(path);
    return status;
}

/* ---- the generator ---- */

dt_status dtp_generator_open(dt_generator **out, dt_model *model, const dt_generator_options *options, dt_err *err)
{
    int64_t vocab = dtp_model_config(model)->vocab;
    dt_generator *g = dtp_calloc(1, sizeof *g);
    if (!g)
        return dt_fail(err, DT_E_NOMEM, "generator: out of memory");
    g->context = options->context;
    g->stop = options->stop;
    g->n_stop = options->n_stop;
    g->logits = dtp_calloc((size_t)vocab, sizeof *g->logits);
    g->held = dtp_calloc((size_t)options->context, sizeof *g->held);
    dt_status status = DT_OK;
    if (!g->logits || !g->held)
        status = dt_fail(err, DT_E_NOMEM, "generator: out of memory for %lld tokens of context",
                         (long long)options->context);
    if (status == DT_OK)
        status = dtp_sampler_create(&g->sampler, vocab, options->usable, &options->sampling, err);
    if (status == DT_OK)
        status = dtp_session_open(&g->session, model, options->context, err);
    if (status != DT_OK) {
        dtp_generator_close(g);
        return status;
    }
    *out = g;
    return DT_OK;
}

void dtp_generator_close(dt_generator *g)
{
    if (!g)
        return;
    dtp_session_close(g->session);
    dtp_sampler_free(g->sampler);
    free(g->logits);
    free(g->held);
    free(g);
}

int64_t dtp_generator_read(const dt_generator *g)
{
    return g->read;
}

static dt_status append(dt_generator *g, const int32_t *tokens, int64_t n, bool logits, dt_err *err)
{
    /* first, so that it is right for whatever part of them the session has taken when it fails */
    memcpy(g->held + dtp_session_length(g->session), tokens, (size_t)n * sizeof *tokens);
    return dtp_session_append(g->session, tokens, n, logits ? g->logits : NULL, err);
}

static bool begins_with_held(const dt_generator *g, int64_t held, const int32_t *prompt, int64_t n)
{
    return held < n && memcmp(g->held, prompt, (size_t)held * sizeof *prompt) == 0;
}

/* Brings the caches to the end of the prompt; at least its last token is read, for its logits. */
static dt_status read_prompt(dt_generator *g, const int32_t *prompt, int64_t n, int64_t keep, dt_err *err)
{
    dt_status status = DT_OK;
    if (!begins_with_held(g, dtp_session_length(g->session), prompt, n)) {
        bool from_mark =
            dtp_session_marked(g->session) > 0 && begins_with_held(g, dtp_session_marked(g->session), prompt, n);
        status = from_mark ? dtp_session_rewind(g->session, err) : dtp_session_reset(g->session, err);
    }
    int64_t length = dtp_session_length(g->session);
    g->read = n - length;
    if (status == DT_OK && keep > length && keep < n) {
        status = append(g, prompt + length, keep - length, false, err);
        if (status == DT_OK)
            status = dtp_session_mark(g->session, err);
        length = keep;
    }
    return status == DT_OK ? append(g, prompt + length, n - length, true, err) : status;
}

static bool is_stop(const dt_generator *g, int32_t token)
{
    for (size_t i = 0; i < g->n_stop; i++)
        if (g->stop[i] == token)
            return true;
    return false;
}

dt_status dtp_generator_run(dt_generator *g, const int32_t *prompt, int64_t n, int64_t keep, int64_t max_new_tokens,
                            dt_token_sink sink, void *user, dt_finish *finish_out, dt_err *err)
{
    if (n < 1 || n >= g->context)
        return dt_fail(err, DT_E_ARG, "the prompt has %lld tokens, it must have 1 to %lld (context %lld)", (long long)n,
                       (long long)g->context - 1, (long long)g->context);
    dt_status status = read_prompt(g, prompt, n, keep, err);
    if (status != DT_OK)
        return status;
    dtp_sampler_reset(g->sampler);
    dtp_sampler_observe(g->sampler, prompt, n);

    int64_t room = g->context - n;
    if (max_new_tokens > 0 && max_new_tokens < room)
        room = max_new_tokens;
    for (int64_t made = 1;; made++) {
        int32_t token = 0;
        bool cancelled = false;
        if ((status = dtp_sampler_next(g->sampler, g->logits, &token, err)) != DT_OK)
            return status;
        if (is_stop(g, token)) {
            *finish_out = DT_FINISH_STOP;
            return DT_OK;
        }
        if ((status = sink(user, token, &cancelled, err)) != DT_OK)
            return status;
        if (cancelled || made == room) {
            *finish_out = cancelled ? DT_FINISH_CANCELLED : DT_FINISH_LENGTH;
            return DT_OK;
        }
        if ((status = append(g, &token, 1, true, err)) != DT_OK)
            return status;
    }
}
