/* How a conversation becomes text with weights, and that tokens with labels.
 *
 * Order of work: strip and normalise every message (rules 1 and 2), merge neighbours of one role into turns (rule 3),
 * render turns with the empty think block where it belongs (rule 4). The rendered text is a sequence of parts of equal
 * weight; each part is tokenised on its own, since a token must not cross the border between loss and no loss. */
#include "text/template.h"
#include "core/file.h"
#include "text/unicode.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char THINK[] = "<think>", END_THINK[] = "</think>", EMPTY_THINK[] = "<think>\n\n</think>\n\n";
static const char TURN_END[] = "<|im_end|>\n";
#define LENGTH(literal) (sizeof(literal) - 1)

struct dt_template {
    const dt_tokenizer *tokenizer;
    dt_template_options options;
    dt_buf system; /* of --system, valid UTF-8; empty = none */
    dt_ids turn_end;
};

/* ---- pieces of text ---- */

static const char *find(const char *text, size_t length, const char *needle)
{
    return memmem(text, length, needle, strlen(needle));
}

static const char *find_last(const char *text, size_t length, const char *needle)
{
    const char *last = NULL, *end = text + length;
    for (const char *p = text; (p = find(p, (size_t)(end - p), needle)); p++)
        last = p;
    return last;
}

static bool starts_with(const char *text, size_t length, const char *head)
{
    size_t n = strlen(head);
    return length >= n && !memcmp(text, head, n);
}

static bool ends_with(const char *text, size_t length, const char *tail)
{
    size_t n = strlen(tail);
    return length >= n && !memcmp(text + length - n, tail, n);
}

/* ---- conversations ---- */

const char *dtp_role_name(dt_role role)
{
    switch (role) {
    case DT_ROLE_SYSTEM: return "system";
    case DT_ROLE_USER: return "user";
    case DT_ROLE_ASSISTANT: return "assistant";
    case DT_ROLE_TOOL_CALL: return "tool_call";
    case DT_ROLE_TOOL_RESPONSE: return "tool_response";
    }
    return "unknown";
}

dt_message *dtp_conversation_add(dt_conversation *conversation, dt_role role, const char *content, size_t length)
{
    if (!dtp_grow((void **)&conversation->messages, &conversation->capacity, conversation->count + 1,
                  sizeof *conversation->messages))
        return NULL;
    char *copy = dtp_strndup(content, length);
    if (!copy)
        return NULL;
    dt_message *message = &conversation->messages[conversation->count++];
    *message = (dt_message){.role = role, .content = copy, .length = length};
    return message;
}

void dtp_conversation_clear(dt_conversation *conversation)
{
    for (size_t i = 0; i < conversation->count; i++)
        free(conversation->messages[i].content);
    conversation->count = 0;
    conversation->has_tools = false;
}

void dtp_conversation_free(dt_conversation *conversation)
{
    dtp_conversation_clear(conversation);
    free(conversation->messages);
    *conversation = (dt_conversation){0};
}

/* ---- options ---- */

dt_status dtp_parse_loss_strategy(const char *text, dt_template_options *options, dt_err *err)
{
    static const struct {
        const char *name;
        dt_loss_strategy strategy;
    } names[] = {
        {"default", DT_LOSS_DEFAULT},
        {"default+ignore_empty_think", DT_LOSS_DEFAULT},
        {"ignore_empty_think", DT_LOSS_DEFAULT},
        {"last_round", DT_LOSS_LAST_ROUND},
        {"last_round+ignore_empty_think", DT_LOSS_LAST_ROUND},
        {"all", DT_LOSS_ALL},
        {"all+ignore_empty_think", DT_LOSS_ALL},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) {
            options->loss = names[i].strategy;
            options->all_but_empty_think = names[i].strategy == DT_LOSS_ALL && strchr(text, '+');
            return DT_OK;
        }
    return dt_fail(err, DT_E_ARG, "loss_scale \"%s\" is not implemented here: use default, last_round or all", text);
}

/* --system as the incumbent reads it: the content of a .txt file, or a text with \n spelled out. */
static dt_status read_system(dt_buf *out, const char *argument, dt_err *err)
{
    size_t length = strlen(argument);
    char *text = NULL;
    if (ends_with(argument, length, ".txt")) {
        dt_status status = dtp_read_file(argument, 0, &text, &length, err);
        if (status != DT_OK)
            return dt_err_prefix(err, "system text ");
    }
    dt_buf spelled = {0};
    for (const char *p = text ? text : argument, *end = p + length; p < end; p++) {
        bool newline = !text && p[0] == '\\' && p + 1 < end && p[1] == 'n';
        dtp_buf_putc(&spelled, newline ? '\n' : *p);
        p += newline;
    }
    if (!spelled.failed && spelled.length)
        dtp_utf8_repair(spelled.data, spelled.length, out);
    out->failed |= spelled.failed;
    dtp_buf_free(&spelled);
    free(text);
    return dtp_buf_status(out, "system text", err);
}

dt_status dtp_template_create(dt_template **out, const dt_tokenizer *tokenizer, const dt_template_options *options,
                              dt_err *err)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};
    for (size_t i = 0; i < 2; i++)
        if (dtp_tokenizer_special(tokenizer, needed[i]) < 0)
            return dt_fail(err, DT_E_UNSUPPORTED,
                           "the tokenizer has no added token %s: the qwen3_5 chat template needs a Qwen tokenizer",
                           needed[i]);
    dt_template *chat = dtp_calloc(1, sizeof *chat);
    if (!chat)
        return dt_fail(err, DT_E_NOMEM, "out of memory for the chat template");
    chat->tokenizer = tokenizer;
    chat->options = *options;
    chat->options.system = NULL;
    dt_encoder *encoder = NULL;
    dt_status status = dtp_encoder_create(&encoder, tokenizer, err);
    if (status == DT_OK)
        status = dtp_encode(encoder, TURN_END, LENGTH(TURN_END), &chat->turn_end, err);
    if (status == DT_OK && options->system)
        status = read_system(&chat->system, options->system, err);
    dtp_encoder_free(encoder);
    if (status != DT_OK) {
        dtp_template_free(chat);
        return status;
    }
    *out = chat;
    return DT_OK;
}

void dtp_template_free(dt_template *chat)
{
    if (!chat)
        return;
    dtp_buf_free(&chat->system);
    dtp_ids_free(&chat->turn_end);
    free(chat);
}

/* ---- turns ---- */

/* One assistant message inside a turn: its text ends at `end`. */
typedef struct dt_segment {
    size_t end; /* in dt_renderer.content */
    const dt_message *message;
} dt_segment;

/* Neighbouring messages of one role. */
typedef struct dt_turn {
    dt_role role;
    size_t start, end; /* in dt_renderer.content */
    size_t first_segment, n_segments;
} dt_turn;

/* A stretch of the rendered text with one loss weight. */
typedef struct dt_part {
    size_t end;
    double weight;
} dt_part;

typedef struct dt_renderer {
    const dt_template *chat;
    dt_template_mode mode;
    dt_encoded *out;
    dt_buf content; /* normalised texts of all messages, one behind the other */
    dt_buf valid;   /* scratch: a text made valid UTF-8 */
    dt_turn *turns;
    size_t n_turns, turns_capacity;
    dt_segment *segments;
    size_t n_segments, segments_capacity;
    dt_part *parts;
    size_t n_parts, parts_capacity;
    char nothing[1];
    dt_message no_user; /* the empty turn in front of a conversation that starts with the assistant */
    bool failed;        /* out of memory */
} dt_renderer;

/* Rule 2: reasoning goes into one think block in front of the answer. `text` is stripped. */
static void append_assistant(dt_buf *out, const char *text, size_t length)
{
    const char *end = find(text, length, END_THINK);
    if (!end || !find(text, length, THINK)) {
        dtp_buf_append(out, text, length);
        return;
    }
    const char *begin = find_last(text, (size_t)(end - text), THINK);
    const char *reasoning = begin ? begin + LENGTH(THINK) : text;
    size_t reasoning_length = (size_t)(end - reasoning);
    dtp_python_strip(&reasoning, &reasoning_length);
    const char *rest = end + LENGTH(END_THINK);
    while (rest < text + length && *rest == '\n')
        rest++;
    dtp_buf_puts(out, "<think>\n");
    dtp_buf_append(out, reasoning, reasoning_length);
    dtp_buf_puts(out, "\n</think>\n\n");
    dtp_buf_append(out, rest, (size_t)(text + length - rest));
}

/* Rules 1 and 2: appends one message to r->content. */
static void append_message(dt_renderer *r, const dt_message *message)
{
    bool needs_nfc;
    const char *text = message->content;
    size_t length = message->length;
    if (!dtp_utf8_scan(text, length, &needs_nfc)) {
        dtp_buf_clear(&r->valid);
        dtp_utf8_repair(text, length, &r->valid);
        if (r->valid.failed) {
            r->failed = true;
            return;
        }
        text = r->valid.data;
        length = r->valid.length;
    }
    dtp_python_strip(&text, &length);
    if (message->role == DT_ROLE_ASSISTANT) {
        append_assistant(&r->content, text, length);
    } else {
        r->out->n_control += dtp_tokenizer_count_special(r->chat->tokenizer, text, length);
        dtp_buf_append(&r->content, text, length);
    }
}

/* A message joins the turn before it when the role is the same (rule 3). */
static void add_to_turns(dt_renderer *r, const dt_message *message)
{
    bool joins = r->n_turns && r->turns[r->n_turns - 1].role == message->role;
    if (!dtp_grow((void **)&r->turns, &r->turns_capacity, r->n_turns + 1, sizeof *r->turns) ||
        !dtp_grow((void **)&r->segments, &r->segments_capacity, r->n_segments + 1, sizeof *r->segments)) {
        r->failed = true;
        return;
    }
    if (!joins)
        r->turns[r->n_turns++] =
            (dt_turn){.role = message->role, .start = r->content.length, .first_segment = r->n_segments};
    append_message(r, message);
    dt_turn *turn = &r->turns[r->n_turns - 1];
    turn->end = r->content.length;
    turn->n_segments++;
    r->segments[r->n_segments++] = (dt_segment){.end = r->content.length, .message = message};
}

static dt_status check_message(const dt_message *message, size_t index, dt_err *err)
{
    if (message->role == DT_ROLE_TOOL_CALL || message->role == DT_ROLE_TOOL_RESPONSE)
        return dt_fail(err, DT_E_UNSUPPORTED, "message %zu has role %s: conversations with tools are not supported yet",
                       index + 1, dtp_role_name(message->role));
    if (message->role == DT_ROLE_SYSTEM && index > 0)
        return dt_fail(err, DT_E_FORMAT, "message %zu has role system: only the first message may", index + 1);
    if (message->has_loss_scale && !(message->loss_scale >= 0 && isfinite(message->loss_scale)))
        return dt_fail(err, DT_E_FORMAT, "message %zu has loss_scale %g: expected a number >= 0", index + 1,
                       message->loss_scale);
    return DT_OK;
}

/* Rules 1 to 3: fills r->turns, alternating user and assistant behind an optional system turn. */
static dt_status make_turns(dt_renderer *r, const dt_conversation *conversation, dt_err *err)
{
    if (conversation->has_tools)
        return dt_fail(err, DT_E_UNSUPPORTED, "the row defines tools: conversations with tools are not supported yet");
    size_t n = conversation->count;
    for (size_t i = 0; i < n; i++) {
        const dt_message *message = &conversation->messages[i];
        dt_status status = check_message(message, i, err);
        if (status != DT_OK)
            return status;
        bool first = r->n_turns == 0 || (r->n_turns == 1 && r->turns[0].role == DT_ROLE_SYSTEM);
        if (message->role == DT_ROLE_ASSISTANT && first) {
            r->out->added_user = true;
            add_to_turns(r, &r->no_user);
        }
        add_to_turns(r, message);
        if (r->failed || r->content.failed)
            return dt_fail(err, DT_E_NOMEM, "out of memory for a conversation of %zu messages", n);
    }
    dt_role last = r->n_turns ? r->turns[r->n_turns - 1].role : DT_ROLE_SYSTEM;
    if (last == DT_ROLE_SYSTEM)
        return dt_fail(err, DT_E_FORMAT, "the conversation has no user or assistant message");
    if (r->mode == DT_TEMPLATE_GENERATE && last != DT_ROLE_USER)
        return dt_fail(err, DT_E_FORMAT, "the last message is the assistant's: there is nothing to answer");
    return DT_OK;
}

/* ---- rendering ---- */

static void put(dt_renderer *r, const char *text, size_t length, double weight)
{
    if (length == 0)
        return;
    dtp_buf_append(&r->out->text, text, length);
    bool joins = r->n_parts && r->parts[r->n_parts - 1].weight == weight;
    if (!joins) {
        if (!dtp_grow((void **)&r->parts, &r->parts_capacity, r->n_parts + 1, sizeof *r->parts)) {
            r->failed = true;
            return;
        }
        r->parts[r->n_parts++].weight = weight;
    }
    r->parts[r->n_parts - 1].end = r->out->text.length;
}

static void put_literal(dt_renderer *r, const char *text, double weight)
{
    put(r, text, strlen(text), weight);
}

/* Weight of everything that is not an assistant's text. */
static double prompt_weight(const dt_renderer *r)
{
    return r->chat->options.loss == DT_LOSS_ALL;
}

static double segment_weight(const dt_renderer *r, const dt_message *message, bool last_turn)
{
    bool trained = message->has_loss ? message->loss : r->chat->options.loss != DT_LOSS_LAST_ROUND || last_turn;
    return !trained ? 0 : message->has_loss_scale ? message->loss_scale : 1;
}

static bool masks_empty_think(const dt_template_options *o)
{
    return !o->train_empty_think && (o->loss != DT_LOSS_ALL || o->all_but_empty_think);
}

static size_t space_length(const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    while (p < end) {
        const unsigned char *next = p;
        if (!dtp_is_python_space(dtp_utf8_next(&next)))
            break;
        p = next;
    }
    return (size_t)((const char *)p - text);
}

/* Length of ^<think>\s*</think>\s* or ^</think>\s* at the start of the text; 0 when it starts otherwise. */
static size_t empty_think_length(const char *text, size_t length)
{
    size_t n = 0;
    if (starts_with(text, length, THINK)) {
        n = LENGTH(THINK);
        n += space_length(text + n, length - n);
    }
    if (!starts_with(text + n, length - n, END_THINK))
        return 0;
    n += LENGTH(END_THINK);
    return n + space_length(text + n, length - n);
}

/* One assistant message of a turn. A quirk of the incumbent is kept: when what follows an empty think block starts
 * like one again, all of it is left out. */
static void put_segment(dt_renderer *r, const dt_message *message, const char *text, size_t length, bool prefix,
                        bool last_turn)
{
    double weight = segment_weight(r, message, last_turn);
    bool mask = masks_empty_think(&r->chat->options) && !message->has_loss_scale;
    if (prefix)
        put(r, EMPTY_THINK, LENGTH(EMPTY_THINK), mask ? 0 : weight);
    size_t block = mask && !prefix ? empty_think_length(text, length) : 0;
    put(r, text, block, 0);
    text += block;
    length -= block;
    bool again = mask && (prefix || block) && empty_think_length(text, length);
    put(r, text, length, again ? 0 : weight);
}

/* Earlier turns lose their reasoning in generation and under last_round, unless told otherwise. */
static bool drops_history_thinking(const dt_renderer *r)
{
    const dt_template_options *o = &r->chat->options;
    if (o->preserve_thinking >= 0)
        return !o->preserve_thinking;
    return r->mode == DT_TEMPLATE_GENERATE || o->loss == DT_LOSS_LAST_ROUND;
}

/* An assistant turn and its end. The think block is a matter of its first message. */
static void put_assistant(dt_renderer *r, const dt_turn *turn, bool last_turn)
{
    const dt_template_options *o = &r->chat->options;
    bool bare = !last_turn && (r->mode == DT_TEMPLATE_GENERATE || o->loss == DT_LOSS_LAST_ROUND);
    const char *text = r->content.data + turn->start;
    size_t length = 0;
    for (size_t i = 0; i < turn->n_segments; i++) {
        const dt_segment *segment = &r->segments[turn->first_segment + i];
        text += length;
        length = (size_t)(r->content.data + segment->end - text);
        const char *shown = text;
        size_t shown_length = length;
        bool prefix = false;
        if (i == 0 && !last_turn && drops_history_thinking(r)) {
            const char *end = find_last(text, length, END_THINK);
            shown = end ? end + LENGTH(END_THINK) : text;
            shown_length = (size_t)(text + length - shown);
            dtp_python_strip(&shown, &shown_length);
        } else if (i == 0) {
            prefix = !bare && !o->no_non_thinking_prefix && !starts_with(text, length, THINK);
        }
        put_segment(r, segment->message, shown, shown_length, prefix, last_turn);
    }
    if (!last_turn)
        put_literal(r, TURN_END, prompt_weight(r)); /* label_turn_ends comes back to it */
    else if (!ends_with(text, length, "<|im_end|>") && !ends_with(text, length, "<|endoftext|>"))
        put_literal(r, TURN_END, 1); /* a part of its own: it carries loss whatever the message says */
}

/* What stands in front of an answer to come. */
static void put_generation_prompt(dt_renderer *r)
{
    const dt_template_options *o = &r->chat->options;
    if (o->enable_thinking)
        put_literal(r, "<think>\n", prompt_weight(r));
    else
        put_literal(r, EMPTY_THINK, masks_empty_think(o) ? 0 : prompt_weight(r));
}

static void render(dt_renderer *r)
{
    double prompt = prompt_weight(r);
    const char *system = r->chat->system.data;
    size_t system_length = r->chat->system.length, first = 0;
    if (r->turns[0].role == DT_ROLE_SYSTEM) {
        first = 1;
        system = r->content.data;
        system_length = r->turns[0].end;
    } else if (system_length) {
        r->out->n_control += dtp_tokenizer_count_special(r->chat->tokenizer, system, system_length);
    }
    if (system_length) {
        put_literal(r, "<|im_start|>system\n", prompt);
        put(r, system, system_length, prompt);
        put_literal(r, TURN_END, prompt);
    }
    for (size_t i = first; i < r->n_turns; i++) {
        const dt_turn *turn = &r->turns[i];
        if (turn->role == DT_ROLE_ASSISTANT) {
            put_assistant(r, turn, i + 1 == r->n_turns);
            continue;
        }
        put_literal(r, "<|im_start|>user\n", prompt);
        put(r, r->content.data + turn->start, turn->end - turn->start, prompt);
        put_literal(r, "<|im_end|>\n<|im_start|>assistant\n", prompt);
    }
    if (r->turns[r->n_turns - 1].role == DT_ROLE_USER)
        put_generation_prompt(r);
}

/* ---- tokens and labels ---- */

/* Labels and weights for the ids from `start` on. */
static bool label(dt_encoded *out, size_t start, double weight)
{
    size_t n = out->ids.length;
    if (!dtp_ids_reserve(&out->labels, n - start) ||
        !dtp_grow((void **)&out->weights, &out->weights_capacity, n, sizeof *out->weights))
        return false;
    for (size_t i = start; i < n; i++) {
        bool target = weight > 0 && i > 0; /* nothing predicts the first token */
        out->labels.data[i] = target ? out->ids.data[i] : DT_LABEL_IGNORE;
        out->weights[i] = target ? (float)weight : 0;
        out->has_weights |= target && weight != 1;
    }
    out->labels.length = n;
    return true;
}

/* The end of a turn right behind trained tokens is trained too, with weight 1. */
static void label_turn_ends(const dt_ids *turn_end, dt_encoded *out)
{
    int32_t *labels = out->labels.data;
    size_t n = turn_end->length;
    for (size_t i = 1; i + n <= out->ids.length; i++) {
        bool border = labels[i - 1] != DT_LABEL_IGNORE && labels[i] == DT_LABEL_IGNORE;
        if (!border || memcmp(out->ids.data + i, turn_end->data, n * sizeof *labels) != 0)
            continue;
        for (size_t j = i; j < i + n; j++) {
            labels[j] = out->ids.data[j];
            out->weights[j] = 1;
        }
    }
}

static void count_targets(dt_encoded *out)
{
    for (size_t i = 0; i < out->labels.length; i++)
        out->n_targets += out->labels.data[i] != DT_LABEL_IGNORE;
}

static dt_status tokenise(dt_encoder *encoder, const dt_part *parts, size_t n_parts, dt_encoded *out, dt_err *err)
{
    size_t start = 0;
    for (size_t i = 0; i < n_parts; i++) {
        size_t before = out->ids.length;
        dt_status status = dtp_encode(encoder, out->text.data + start, parts[i].end - start, &out->ids, err);
        if (status != DT_OK)
            return status;
        if (!label(out, before, parts[i].weight))
            return dt_fail(err, DT_E_NOMEM, "out of memory for labels");
        start = parts[i].end;
    }
    return DT_OK;
}

void dtp_encoded_clear(dt_encoded *e)
{
    e->ids.length = e->labels.length = 0;
    e->n_targets = e->n_control = 0;
    e->has_weights = e->added_user = false;
    dtp_buf_clear(&e->text);
}

void dtp_encoded_free(dt_encoded *e)
{
    dtp_ids_free(&e->ids);
    dtp_ids_free(&e->labels);
    free(e->weights);
    dtp_buf_free(&e->text);
    *e = (dt_encoded){0};
}

dt_status dtp_template_encode(const dt_template *chat, dt_encoder *encoder, const dt_conversation *conversation,
                              dt_template_mode mode, dt_encoded *out, dt_err *err)
{
    dt_renderer r = {.chat = chat, .mode = mode, .out = out};
    r.no_user = (dt_message){.role = DT_ROLE_USER, .content = r.nothing};
    dtp_encoded_clear(out);
    dt_status status = make_turns(&r, conversation, err);
    if (status == DT_OK) {
        render(&r);
        if (r.failed || out->text.failed)
            status = dt_fail(err, DT_E_NOMEM, "out of memory for the text of a conversation");
    }
    if (status == DT_OK)
        status = tokenise(encoder, r.parts, r.n_parts, out, err);
    if (status == DT_OK) {
        label_turn_ends(&chat->turn_end, out);
        count_targets(out);
    }
    dtp_buf_free(&r.content);
    dtp_buf_free(&r.valid);
    free(r.turns);
    free(r.segments);
    free(r.parts);
    return status;
}

dt_status dtp_encode_plain(dt_encoder *encoder, const char *text, size_t length, dt_encoded *out, dt_err *err)
{
    dtp_encoded_clear(out);
    dtp_utf8_repair(text, length, &out->text);
    dt_status status = dtp_buf_status(&out->text, "text", err);
    dt_part all = {.end = out->text.length, .weight = 1};
    if (status == DT_OK)
        status = tokenise(encoder, &all, length > 0, out, err);
    if (status == DT_OK)
        count_targets(out);
    return status;
}
