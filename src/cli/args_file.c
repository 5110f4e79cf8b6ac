#include "cli/args_file.h"

#include "core/file.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>

enum { maximum_bytes = 1 << 20 };

#ifdef DT_HAVE_YAML
#include <errno.h>
#include <yaml.h>

static dt_status yaml_fail(dt_err *err, const char *where, yaml_mark_t mark, const char *what)
{
    return dt_fail(err, DT_E_FORMAT, "%s:%zu: %s", where, mark.line + 1, what);
}

/* Plain scalars of the YAML core schema; anything else, and everything quoted, is text. */
static json_t *yaml_scalar(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return json_string(text);
    if (*text == '\0' || strcmp(text, "null") == 0 || strcmp(text, "~") == 0)
        return json_null();
    if (strcmp(text, "true") == 0 || strcmp(text, "True") == 0)
        return json_true();
    if (strcmp(text, "false") == 0 || strcmp(text, "False") == 0)
        return json_false();
    return json_string(text); /* numbers are parsed by the argument's own type */
}

static dt_status yaml_value(json_t **out, yaml_document_t *document, const yaml_node_t *node, int depth,
                            const char *where, dt_err *err);

static dt_status yaml_list(json_t **out, yaml_document_t *document, const yaml_node_t *node, int depth,
                           const char *where, dt_err *err)
{
    json_t *list = json_array();
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        json_t *value = NULL;
        dt_status st = yaml_value(&value, document, yaml_document_get_node(document, *item), depth + 1, where, err);
        if (st != DT_OK) {
            json_decref(list);
            return st;
        }
        json_array_append_new(list, value);
    }
    *out = list;
    return DT_OK;
}

static dt_status yaml_mapping(json_t **out, yaml_document_t *document, const yaml_node_t *node, int depth,
                              const char *where, dt_err *err)
{
    json_t *object = json_object();
    dt_status st = DT_OK;
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(document, pair->key);
        json_t *value = NULL;
        if (key->type != YAML_SCALAR_NODE)
            st = yaml_fail(err, where, key->start_mark, "a key must be a name");
        else if (json_object_get(object, (const char *)key->data.scalar.value))
            st = dt_fail(err, DT_E_FORMAT, "%s:%zu: %s is given twice", where, key->start_mark.line + 1,
                         (const char *)key->data.scalar.value);
        else
            st = yaml_value(&value, document, yaml_document_get_node(document, pair->value), depth + 1, where, err);
        if (st == DT_OK && json_object_set_new(object, (const char *)key->data.scalar.value, value) != 0)
            st = yaml_fail(err, where, key->start_mark, "the key is not valid UTF-8");
        if (st != DT_OK) {
            json_decref(object);
            return st;
        }
    }
    *out = object;
    return DT_OK;
}

static dt_status yaml_value(json_t **out, yaml_document_t *document, const yaml_node_t *node, int depth,
                            const char *where, dt_err *err)
{
    if (depth > 16) /* also ends aliases that contain themselves */
        return yaml_fail(err, where, node->start_mark, "nested too deeply");
    switch (node->type) {
    case YAML_SCALAR_NODE:
        *out = yaml_scalar(node);
        return *out ? DT_OK : yaml_fail(err, where, node->start_mark, "the value is not valid UTF-8");
    case YAML_SEQUENCE_NODE: return yaml_list(out, document, node, depth, where, err);
    case YAML_MAPPING_NODE: return yaml_mapping(out, document, node, depth, where, err);
    default: return yaml_fail(err, where, node->start_mark, "unexpected YAML node");
    }
}

static dt_status parse_yaml(json_t **out, const char *text, size_t length, const char *where, dt_err *err)
{
    yaml_parser_t parser;
    yaml_document_t document;
    if (!yaml_parser_initialize(&parser))
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", where);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    dt_status st;
    if (!yaml_parser_load(&parser, &document)) {
        st = dt_fail(err, DT_E_FORMAT, "%s:%zu: %s", where, parser.problem_mark.line + 1,
                     parser.problem ? parser.problem : "not valid YAML");
    } else {
        const yaml_node_t *root = yaml_document_get_root_node(&document);
        st = root ? yaml_value(out, &document, root, 0, where, err)
                  : dt_fail(err, DT_E_FORMAT, "%s: the file is empty", where);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return st;
}
#else
static dt_status parse_yaml(json_t **out, const char *text, size_t length, const char *where, dt_err *err)
{
    (void)out;
    (void)text;
    (void)length;
    return dt_fail(err, DT_E_UNSUPPORTED, "%s: this build has no libyaml; write the file as JSON", where);
}
#endif

dt_status dtp_args_file_parse(json_t **out, const char *text, size_t length, bool yaml, const char *where, dt_err *err)
{
    json_t *value = NULL;
    dt_status st =
        yaml ? parse_yaml(&value, text, length, where, err) : dtp_json_parse(&value, text, length, where, err);
    if (st == DT_OK && !json_is_object(value)) {
        json_decref(value);
        st = dt_fail(err, DT_E_FORMAT, "%s: expected an object of name: value", where);
    }
    if (st == DT_OK)
        *out = value;
    return st;
}

dt_status dtp_args_file_load(json_t **out, const char *path, dt_err *err)
{
    char *text = NULL;
    size_t length = 0;
    dt_status st = dtp_read_file(path, maximum_bytes, &text, &length, err);
    if (st != DT_OK)
        return st;
    const char *dot = strrchr(path, '.');
    bool yaml = dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
    st = dtp_args_file_parse(out, text, length, yaml, path, err);
    free(text);
    return st;
}
