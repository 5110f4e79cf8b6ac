#include "data/row_format.h"

#include "data/literal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A row being read. Every function below returns false after writing the reason. */
typedef struct reading {
    dt_row *row;
    const dt_row_format *format;
    const json_t *json;
    char *why;
    size_t n_why;
} reading;

static bool DT_PRINTF(2, 3) bad(const reading *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, r->n_why, format, args);
    va_end(args);
    return false;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "a number",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "missing";
}

/* ---- Columns ---- */

/* The names that mean one thing; the first is the standard one, which wins when several are there. */
static const char *const message_names[] = {"messages", "conversation", "conversations", NULL};
static const char *const system_names[] = {"system", "system_prompt", NULL};
static const char *const query_names[] = {"query", "prompt", "input", "instruction", "question", "problem", NULL};
static const char *const response_names[] = {"response", "answer",   "output", "targets",    "target",  "answer_key",
                                             "answers",  "solution", "text",   "completion", "content", NULL};

static bool one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcasecmp(name, *names))
            return true;
    return false;
}

/* The name a column goes by after --columns. Two columns renamed to one name keep their own, as the incumbent has it.
 */
static const char *renamed(const reading *r, const char *name)
{
    const char *old, *target = NULL;
    json_t *new_name, *value;
    if (!r->format->renames)
        return name;
    json_object_foreach(r->format->renames, old, new_name) if (!strcasecmp(old, name)) target =
        json_string_value(new_name);
    if (!target)
        return name;
    json_object_foreach(r->format->renames, old, new_name)
    {
        const char *other;
        if (!strcasecmp(old, name) || strcmp(json_string_value(new_name), target))
            continue;
        json_object_foreach((json_t *)(uintptr_t)r->json, other, value) if (!strcasecmp(other, old)) return name;
    }
    return target;
}

typedef struct column {
    const char *name;    /* as in the row; NULL when there is none */
    const json_t *value; /* NULL when absent, null, or ambiguous */
    bool ambiguous;      /* several columns, none of the standard name */
    const char *other;   /* one more of them */
} column;

/* Looks for the columns that go by one of the names. Null ones count only when there is no other. */
static column find(const reading *r, const char *const *names)
{
    column found = {0};
    const char *name;
    json_t *value;
    size_t count = 0;
    bool standard = false;
    json_object_foreach((json_t *)(uintptr_t)r->json, name, value)
    {
        const char *known = renamed(r, name);
        if (!one_of(known, names))
            continue;
        if (json_is_null(value)) {
            if (!found.name)
                found.name = name;
            continue;
        }
        bool is_standard = !strcasecmp(known, names[0]);
        if (standard && !is_standard)
            continue;
        count = is_standard && !standard ? 1 : count + 1;
        standard = is_standard;
        found.other = found.name;
        found.name = name;
        found.value = value;
    }
    if (count > 1) {
        found.ambiguous = true;
        found.value = NULL;
    }
    return found;
}

static column find_name(const reading *r, const char *name)
{
    const char *const names[] = {name, NULL};
    return find(r, names);
}

static bool ambiguous(const reading *r, const column *c, const char *target)
{
    return bad(r, "columns \"%s\" and \"%s\" could both be the %s; name one with --columns", c->other, c->name, target);
}

/* ---- Text values ---- */

/* Text that is a string, or a list of text parts joined in `joined`. */
typedef struct text_value {
    const char *data;
    size_t length;
    dt_buf joined;
} text_value;

static bool read_parts(const reading *r, const json_t *parts, const char *what, text_value *out)
{
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        text = text && !json_is_null(text) ? text : json_object_get(part, "value");
        if (!type)
            return bad(r, "%s: part %zu has no type", what, i);
        if (strcmp(type, "text"))
            return bad(r, "%s: part %zu is of type \"%.40s\"; only text is supported", what, i, type);
        if (!json_is_string(text))
            return bad(r, "%s: the text of part %zu is %s", what, i, type_name(text));
        dtp_buf_append(&out->joined, json_string_value(text), json_string_length(text));
    }
    if (out->joined.failed)
        return bad(r, "%s: out of memory", what);
    out->data = out->joined.data ? out->joined.data : "";
    out->length = out->joined.length;
    return true;
}

static bool read_text(const reading *r, const json_t *value, const char *what, text_value *out)
{
    *out = (text_value){0};
    if (json_is_array(value))
        return read_parts(r, value, what, out);
    if (!json_is_string(value))
        return bad(r, "%s is %s, expected a string", what, type_name(value));
    out->data = json_string_value(value);
    out->length = json_string_length(value);
    return true;
}

static dt_message *add(const reading *r, dt_role role, const char *data, size_t length)
{
    dt_message *message = dtp_conversation_add(&r->row->conversation, role, data, length);
    if (!message)
        bad(r, "out of memory");
    return message;
}

static dt_message *add_text(const reading *r, dt_role role, const json_t *value, const char *what)
{
    text_value text;
    dt_message *message = read_text(r, value, what, &text) ? add(r, role, text.data, text.length) : NULL;
    dtp_buf_free(&text.joined);
    return message;
}

/* The system column, when it is there and not null. */
static bool add_system(const reading *r)
{
    column system = find(r, system_names);
    if (system.ambiguous)
        return ambiguous(r, &system, "system text");
    return !system.value || add_text(r, DT_ROLE_SYSTEM, system.value, "system");
}

/* A list, or a string that holds one; *owned is what to release. */
static const json_t *list_of(const reading *r, const json_t *value, const char *what, json_t **owned)
{
    char why[200];
    *owned = NULL;
    if (json_is_string(value)) {
        value = *owned = dtp_literal_parse(json_string_value(value), json_string_length(value), why, sizeof why);
        if (!value) {
            bad(r, "%s: %s", what, why);
            return NULL;
        }
    }
    if (json_is_array(value))
        return value;
    bad(r, "%s is %s, expected a list", what, type_name(value));
    return NULL;
}

/* ---- Messages ---- */

static bool role_of(const char *name, dt_role *role)
{
    static const struct {
        const char *name;
        dt_role role;
    } roles[] = {
        {"user", DT_ROLE_USER},
        {"human", DT_ROLE_USER},
        {"assistant", DT_ROLE_ASSISTANT},
        {"gpt", DT_ROLE_ASSISTANT},
        {"bot", DT_ROLE_ASSISTANT},
        {"system", DT_ROLE_SYSTEM},
        {"tool_call", DT_ROLE_TOOL_CALL},
        {"function_call", DT_ROLE_TOOL_CALL},
        {"function-call", DT_ROLE_TOOL_CALL},
        {"tool", DT_ROLE_TOOL_RESPONSE},
        {"tool_response", DT_ROLE_TOOL_RESPONSE},
        {"function_response", DT_ROLE_TOOL_RESPONSE},
        {"function-response", DT_ROLE_TOOL_RESPONSE},
        {"observation", DT_ROLE_TOOL_RESPONSE},
        {"observations", DT_ROLE_TOOL_RESPONSE},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(name, roles[i].name)) {
            *role = roles[i].role;
            return true;
        }
    return false;
}

/* The value of the last of the keys that is there: where both a standard and another name stand, the other one wins, as
 * the incumbent's renaming has it. */
static const json_t *any_key(const json_t *object, const char *const *keys)
{
    const json_t *found = NULL;
    for (; *keys; keys++) {
        const json_t *value = json_object_get(object, *keys);
        found = value ? value : found;
    }
    return found;
}

static bool read_loss_keys(const reading *r, const json_t *item, size_t index, dt_message *message)
{
    const json_t *loss = json_object_get(item, "loss"), *scale = json_object_get(item, "loss_scale");
    if (loss && !json_is_null(loss)) {
        double value = json_is_number(loss) ? json_number_value(loss) : json_is_true(loss);
        if (!(json_is_boolean(loss) || json_is_number(loss)) || (value != 0 && value != 1))
            return bad(r, "message %zu: loss is %s, expected true or false", index, type_name(loss));
        message->has_loss = true;
        message->loss = value != 0;
    }
    if (scale && !json_is_null(scale)) {
        double value = json_number_value(scale);
        if (!json_is_number(scale) || !isfinite(value) || value < 0)
            return bad(r, "message %zu: loss_scale is not a number >= 0", index);
        message->has_loss_scale = true;
        message->loss_scale = value;
    }
    return true;
}

static void count_dropped_keys(const reading *r, const json_t *item, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)item, key, value)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key))
            k++;
        r->row->dropped_keys += !*k;
    }
}

static bool read_message(const reading *r, const json_t *item, size_t index)
{
    static const char *const role_keys[] = {"role", "from", NULL}, *const content_keys[] = {"content", "value", NULL},
                             *const known[] = {"role", "from", "content", "value", "loss", "loss_scale", NULL};
    const json_t *name = any_key(item, role_keys), *content = any_key(item, content_keys);
    char what[48];
    dt_role role;
    snprintf(what, sizeof what, "message %zu: content", index);
    if (!json_is_string(name))
        return bad(r, "message %zu: role is %s", index, type_name(name));
    if (!role_of(json_string_value(name), &role))
        return bad(r, "message %zu: unknown role \"%.40s\"", index, json_string_value(name));
    if (!content || json_is_null(content))
        return bad(r, "message %zu (%s): content is %s", index, json_string_value(name), type_name(content));
    if (index == 0 && role != DT_ROLE_SYSTEM && !add_system(r))
        return false;
    dt_message *message = add_text(r, role, content, what);
    count_dropped_keys(r, item, known);
    return message && read_loss_keys(r, item, index, message);
}

/* Sharegpt pairs: {"human": ..., "assistant": ...}. */
static bool read_pair(const reading *r, const json_t *item, size_t index)
{
    static const char *const user_keys[] = {"user", "human", NULL},
                             *const assistant_keys[] = {"assistant", "gpt", "bot", NULL},
                             *const known[] = {"user", "human", "assistant", "gpt", "bot", NULL};
    const json_t *user = any_key(item, user_keys), *assistant = any_key(item, assistant_keys);
    if (!user || json_is_null(user) || !assistant || json_is_null(assistant))
        return bad(r, "turn %zu: neither role and content nor a pair of user and assistant texts", index);
    if (index == 0 && !add_system(r))
        return false;
    count_dropped_keys(r, item, known);
    return add_text(r, DT_ROLE_USER, user, "user") && add_text(r, DT_ROLE_ASSISTANT, assistant, "assistant");
}

static bool read_message_list(const reading *r, const json_t *list)
{
    static const char *const message_keys[] = {"role", "from", "content", "value", NULL};
    size_t i;
    json_t *item;
    if (json_array_size(list) == 0)
        return bad(r, "the list of messages is empty");
    bool pairs = !any_key(json_array_get(list, 0), message_keys);
    json_array_foreach(list, i, item)
    {
        if (!json_is_object(item))
            return bad(r, "message %zu is %s, expected an object", i, type_name(item));
        if (!(pairs ? read_pair(r, item, i) : read_message(r, item, i)))
            return false;
    }
    return true;
}

static bool read_messages(const reading *r, const column *messages)
{
    json_t *owned;
    const json_t *list = list_of(r, messages->value, messages->name, &owned);
    bool good = list && read_message_list(r, list);
    json_decref(owned);
    return good;
}

/* ---- Query and response ---- */

static bool read_history_pairs(const reading *r, const json_t *list)
{
    size_t i;
    json_t *turn;
    json_array_foreach(list, i, turn)
    {
        const json_t *query = json_array_get(turn, 0), *response = json_array_get(turn, 1);
        if (json_array_size(turn) != 2)
            return bad(r, "history: turn %zu is not a list of query and response", i);
        if (json_is_null(response))
            return bad(r, "history: the response of turn %zu is null", i);
        if (!json_is_null(query) && !add_text(r, DT_ROLE_USER, query, "history: a query"))
            return false;
        if (!add_text(r, DT_ROLE_ASSISTANT, response, "history: a response"))
            return false;
    }
    return true;
}

static bool read_history(const reading *r)
{
    column history = find_name(r, "history");
    json_t *owned;
    if (!history.value || (json_is_string(history.value) && json_string_length(history.value) == 0))
        return true;
    const json_t *list = list_of(r, history.value, "history", &owned);
    bool good = list && read_history_pairs(r, list);
    json_decref(owned);
    return good;
}

static bool read_response(const reading *r, const json_t *value, const column *found)
{
    if (!value && found->ambiguous)
        return ambiguous(r, found, "response");
    if (!value && r->format->prompts)
        return true;
    if (!value)
        return found->name ? bad(r, "%s is null", found->name) : bad(r, "there is no response");
    if (json_is_array(value) && json_is_string(json_array_get(value, 0)))
        value = json_array_get(value, 0); /* alternatives: the first is taken */
    return add_text(r, DT_ROLE_ASSISTANT, value, found->name ? found->name : "response") != NULL;
}

static bool read_query_response(const reading *r, const column *query, const column *response)
{
    if (query->ambiguous)
        return ambiguous(r, query, "query");
    if (query->name && !query->value)
        return bad(r, "%s is null", query->name);
    if (!add_system(r) || !read_history(r))
        return false;
    if (query->value && !add_text(r, DT_ROLE_USER, query->value, query->name))
        return false;
    return read_response(r, response->value, response);
}

/* ---- Alpaca ---- */

static bool optional_string(const reading *r, const column *c, const char **text, size_t *length)
{
    if (c->value && !json_is_string(c->value))
        return bad(r, "%s is %s, expected a string", c->name, type_name(c->value));
    *text = c->value ? json_string_value(c->value) : NULL;
    *length = c->value ? json_string_length(c->value) : 0;
    return true;
}

static bool add_alpaca_query(const reading *r, const column *instruction, const column *input)
{
    static const char marker[] = "\xe8\xbe\x93\xe5\x85\xa5\xef\xbc\x9a"; /* "input:" in Chinese, 3 characters */
    const char *first, *second;
    size_t n_first, n_second;
    if (!optional_string(r, instruction, &first, &n_first) || !optional_string(r, input, &second, &n_second))
        return false;
    if (r->format->is_alpaca_zh && n_second >= sizeof marker - 1 && !memcmp(second, marker, sizeof marker - 1)) {
        second += sizeof marker - 1;
        n_second -= sizeof marker - 1;
    }
    if (n_first && n_second) {
        dt_buf query = {0};
        dtp_buf_append(&query, first, n_first);
        dtp_buf_putc(&query, '\n');
        dtp_buf_append(&query, second, n_second);
        bool good = query.failed ? bad(r, "out of memory") : add(r, DT_ROLE_USER, query.data, query.length) != NULL;
        dtp_buf_free(&query);
        return good;
    }
    if (n_first)
        return add(r, DT_ROLE_USER, first, n_first) != NULL;
    if (!second)
        return bad(r, "instruction is %s and input is null", first ? "empty" : "null");
    return add(r, DT_ROLE_USER, second, n_second) != NULL;
}

static bool read_alpaca(const reading *r, const column *instruction, const column *input)
{
    column response = find(r, response_names), output = find_name(r, "output");
    return add_system(r) && read_history(r) && add_alpaca_query(r, instruction, input) &&
           (output.value ? read_response(r, output.value, &output) : read_response(r, response.value, &response));
}

/* ---- Tokens ---- */

static bool read_ids(const reading *r, const json_t *list, const char *name, dt_ids *out)
{
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return bad(r, "%s is %s, expected a list of integers", name, type_name(list));
    if (!dtp_ids_reserve(out, json_array_size(list)))
        return bad(r, "out of memory");
    json_array_foreach(list, i, item)
    {
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < INT32_MIN || value > INT32_MAX)
            return bad(r, "%s: entry %zu is not a token id", name, i);
        out->data[out->length++] = (int32_t)value;
    }
    return true;
}

static bool read_tokens(const reading *r, const json_t *ids)
{
    dt_row *row = r->row;
    column labels = find_name(r, "labels");
    row->kind = DT_ROW_TOKENS;
    if (!read_ids(r, ids, "input_ids", &row->ids) ||
        !read_ids(r, labels.value ? labels.value : ids, labels.value ? "labels" : "input_ids", &row->labels))
        return false;
    if (row->labels.length != row->ids.length)
        return bad(r, "%zu input_ids but %zu labels", row->ids.length, row->labels.length);
    return true;
}

/* ---- Choice of the format ---- */

static bool is_filled(const json_t *value)
{
    return json_is_array(value)    ? json_array_size(value) > 0
           : json_is_object(value) ? json_object_size(value) > 0
           : json_is_string(value) ? json_string_length(value) > 0 && strcmp(json_string_value(value), "[]")
                                   : json_is_true(value) || json_is_number(value);
}

static bool check_unsupported_columns(const reading *r)
{
    static const char *const media[] = {"images", "image", "videos", "video", "audios", "audio", NULL};
    for (const char *const *name = media; *name; name++)
        if (is_filled(find_name(r, *name).value))
            return bad(r, "it has \"%s\"; only text is supported", *name);
    r->row->conversation.has_tools = is_filled(find_name(r, "tools").value);
    return true;
}

static bool no_format(const reading *r, const column *messages)
{
    dt_buf names = {.maximum = 200};
    const char *name;
    json_t *value;
    if (messages->name)
        return bad(r, "%s is null", messages->name);
    json_object_foreach((json_t *)(uintptr_t)r->json, name, value)
        dtp_buf_printf(&names, "%s%s", names.length ? ", " : "", name);
    bad(r, "no column with messages, a query or a response (columns: %s)", names.length ? names.data : "none");
    dtp_buf_free(&names);
    return false;
}

static bool read_conversation(const reading *r)
{
    column messages = find(r, message_names), query = find(r, query_names), response = find(r, response_names),
           instruction = find_name(r, "instruction"), input = find_name(r, "input"), text = find_name(r, "text");
    bool is_alpaca = instruction.name && input.name;
    if (r->format->plain_text && json_is_string(text.value) && !messages.value && !query.value && !query.ambiguous) {
        r->row->kind = DT_ROW_TEXT;
        dtp_buf_append(&r->row->text, json_string_value(text.value), json_string_length(text.value));
        return !r->row->text.failed || bad(r, "out of memory");
    }
    r->row->kind = DT_ROW_CONVERSATION;
    if (!check_unsupported_columns(r))
        return false;
    if (messages.ambiguous)
        return ambiguous(r, &messages, "messages");
    if (messages.value)
        return read_messages(r, &messages);
    if (is_alpaca)
        return read_alpaca(r, &instruction, &input);
    if (query.name || response.name)
        return read_query_response(r, &query, &response);
    return no_format(r, &messages);
}

bool dtp_row_read(dt_row *row, const dt_row_format *format, const json_t *json, char *why, size_t n_why)
{
    reading r = {.row = row, .format = format, .json = json, .why = why, .n_why = n_why};
    dtp_conversation_clear(&row->conversation);
    row->conversation.has_tools = false;
    dtp_buf_clear(&row->text);
    row->ids.length = row->labels.length = 0;
    row->dropped_keys = 0;
    if (!json_is_object(json))
        return bad(&r, "the row is %s, expected an object", type_name(json));
    column ids = find_name(&r, "input_ids");
    return ids.value ? read_tokens(&r, ids.value) : read_conversation(&r);
}

/* ---- Options ---- */

dt_status dtp_row_format_open(dt_row_format *out, const dt_row_options *options, dt_err *err)
{
    *out = (dt_row_format){.plain_text = options->plain_text, .prompts = options->prompts};
    if (!options->columns || !*options->columns)
        return DT_OK;
    char why[200] = "it is not an object of strings";
    json_t *columns = dtp_literal_parse(options->columns, strlen(options->columns), why, sizeof why), *value;
    bool good = json_is_object(columns);
    const char *key;
    if (good)
        json_object_foreach(columns, key, value) good = good && json_is_string(value);
    if (!good) {
        json_decref(columns);
        return dt_fail(err, DT_E_ARG, "--columns %s: expected '{\"old\": \"new\"}': %s", options->columns, why);
    }
    out->renames = columns;
    return DT_OK;
}

void dtp_row_format_close(dt_row_format *format)
{
    json_decref(format->renames);
    *format = (dt_row_format){0};
}
