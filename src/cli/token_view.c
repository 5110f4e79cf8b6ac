#include "cli/token_view.h"
#include "text/unicode.h"
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

static const char BOLD[] = "\033[1m", DIM[] = "\033[2m", TARGET[] = "\033[32m", RESET[] = "\033[0m";

enum { MARGIN = 6 }; /* cells in front of the tokens: "loss" or a weight */

static bool is_target(const dt_ids *labels, size_t i)
{
    return labels->data[i] != DT_LABEL_IGNORE;
}

static void set_style(const dt_token_view *view, const char *style, dt_buf *out)
{
    if (view->colour)
        dtp_buf_puts(out, style);
}

/* Cells that valid UTF-8 takes on a terminal. */
static int cells(const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    int n = 0;
    while (p < end)
        n += utf8proc_charwidth((utf8proc_int32_t)dtp_utf8_next(&p));
    return n;
}

/* Characters that would move the cursor or cannot be seen, the escape character first of all. */
static bool is_invisible(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

static void put_character(const char *bytes, size_t n, uint32_t c, dt_buf *out)
{
    if (is_invisible(c))
        dtp_buf_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", c);
    else
        dtp_buf_append(out, bytes, n);
}

/* The text of a row: newlines move on, indented. */
static void put_text(const char *text, size_t length, bool *line_start, dt_buf *out)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    while (p < end) {
        const char *at = (const char *)p;
        uint32_t c = dtp_utf8_next(&p);
        if (c == '\n') {
            dtp_buf_putc(out, '\n');
            *line_start = true;
            continue;
        }
        if (*line_start)
            dtp_buf_puts(out, "  ");
        *line_start = false;
        if (c == '\t')
            dtp_buf_putc(out, '\t');
        else
            put_character(at, (size_t)((const char *)p - at), c, out);
    }
}

/* A token between quotes, on one line: \n, \t, \r, and \xNN for bytes that are no character of their own. */
static void put_piece(const char *piece, size_t length, dt_buf *out)
{
    const unsigned char *p = (const unsigned char *)piece;
    dtp_buf_putc(out, '"');
    for (size_t i = 0; i < length;) {
        size_t bad;
        bool incomplete;
        size_t n = dtp_utf8_check(p + i, length - i, &bad, &incomplete);
        const unsigned char *at = p + i;
        if (n == 0) {
            for (size_t j = 0; j < bad; j++)
                dtp_buf_printf(out, "\\x%02x", at[j]);
            i += bad;
            continue;
        }
        const char *escaped = *at == '\n'   ? "\\n"
                              : *at == '\r' ? "\\r"
                              : *at == '\t' ? "\\t"
                              : *at == '"'  ? "\\\""
                              : *at == '\\' ? "\\\\"
                                            : NULL;
        const unsigned char *next = at;
        if (escaped)
            dtp_buf_puts(out, escaped);
        else
            put_character((const char *)at, n, dtp_utf8_next(&next), out);
        i += n;
    }
    dtp_buf_putc(out, '"');
}

/* The decoded text, targets coloured. */
static dt_status view_text(const dt_token_view *view, const dt_ids *ids, const dt_ids *labels, dt_buf *out, dt_err *err)
{
    dt_buf text = {0};
    dt_stream_decoder stream = {0};
    bool line_start = true;
    dt_status st = DT_OK;
    for (size_t i = 0; i < ids->length && st == DT_OK;) {
        bool target = is_target(labels, i);
        dtp_buf_clear(&text);
        for (; i < ids->length && is_target(labels, i) == target && st == DT_OK; i++) {
            size_t length;
            if (dtp_tokenizer_piece(view->tokenizer, ids->data[i], &length))
                st = dtp_stream_decode(&stream, view->tokenizer, ids->data[i], false, &text, err);
            else
                dtp_buf_puts(&text, "?");
        }
        if (i == ids->length && st == DT_OK)
            st = dtp_stream_finish(&stream, &text, err);
        set_style(view, target ? TARGET : DIM, out);
        if (text.length)
            put_text(text.data, text.length, &line_start, out);
        set_style(view, RESET, out);
    }
    if (!line_start)
        dtp_buf_putc(out, '\n');
    dtp_buf_free(&text);
    return st;
}

/* What stands in the margin of a line of tokens: nothing, "loss", or the weight. */
static void put_margin(const dt_token_view *view, bool target, float weight, dt_buf *out)
{
    char margin[32] = "";
    if (target && weight == 1)
        strcpy(margin, "loss");
    else if (target)
        snprintf(margin, sizeof margin, "x%.3g", (double)weight);
    set_style(view, target ? TARGET : DIM, out);
    dtp_buf_printf(out, "%-*s", MARGIN, margin);
}

/* Lines of `id "piece"`; a new line where the loss begins or ends, and where the terminal does. */
static void view_pieces(const dt_token_view *view, const dt_ids *ids, const dt_ids *labels, const float *weights,
                        dt_buf *out)
{
    dt_buf item = {0};
    int column = 0;
    float line_weight = -1;
    for (size_t i = 0; i < ids->length; i++) {
        float weight = !is_target(labels, i) ? 0 : weights ? weights[i] : 1;
        size_t length = 0;
        const char *piece = dtp_tokenizer_piece(view->tokenizer, ids->data[i], &length);
        dtp_buf_clear(&item);
        dtp_buf_printf(&item, "%d ", ids->data[i]);
        if (piece)
            put_piece(piece, length, &item);
        else
            dtp_buf_puts(&item, "?");
        int width = item.data ? cells(item.data, item.length) : 0;
        bool wraps = column + 2 + width > view->columns;
        if (weight != line_weight || wraps) {
            if (column)
                dtp_buf_putc(out, '\n');
            put_margin(view, weight > 0, weight, out);
            column = MARGIN;
            line_weight = weight;
        } else {
            dtp_buf_puts(out, "  ");
            column += 2;
        }
        dtp_buf_append(out, item.data, item.length);
        column += width;
        out->failed |= item.failed;
    }
    set_style(view, RESET, out);
    if (column)
        dtp_buf_putc(out, '\n');
    dtp_buf_free(&item);
}

dt_status dtp_view_tokens(const dt_token_view *view, const char *title, const dt_ids *ids, const dt_ids *labels,
                          const float *weights, dt_buf *out, dt_err *err)
{
    size_t n_targets = 0;
    for (size_t i = 0; i < ids->length; i++)
        n_targets += is_target(labels, i);
    set_style(view, BOLD, out);
    dtp_buf_printf(out, "%s: %zu token%s, %zu with loss", title, ids->length, ids->length == 1 ? "" : "s", n_targets);
    set_style(view, RESET, out);
    dtp_buf_putc(out, '\n');
    dt_status st = view_text(view, ids, labels, out, err);
    if (st != DT_OK)
        return st;
    dtp_buf_putc(out, '\n');
    view_pieces(view, ids, labels, weights, out);
    return dtp_buf_status(out, title, err);
}
