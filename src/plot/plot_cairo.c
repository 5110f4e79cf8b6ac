/* libdeltune-plot.so: draws the curves of a run with cairo. See train/plot.h for the contract. */
#include "train/plot.h"

#include <cairo.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

enum { width = 800, height = 500, height_with_below = 720, left = 90, right = 20, title_height = 45 };
enum { bottom = 50, tick_length = 5 };

typedef struct dt_axis {
    double low, high, step; /* data range shown; distance of two ticks */
} dt_axis;

/* A frame with its axes. */
typedef struct dt_panel {
    double top, bottom; /* pixels */
    dt_axis x, y;
} dt_panel;

typedef struct dt_colour {
    double red, green, blue;
} dt_colour;
static const dt_colour pale = {1.0, 0.886, 0.851}, strong = {1.0, 0.439, 0.263}, cool = {0.55, 0.72, 0.9},
                       grey = {0.75, 0.75, 0.75}, ink = {0.1, 0.1, 0.1};

static void widen(double *low, double *high, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isfinite(values[i])) {
            *low = fmin(*low, values[i]);
            *high = fmax(*high, values[i]);
        }
}

/* Of one or two (else NULL) lists of values: a step of 1, 2 or 5 times a power of ten that cuts the range into at most
 * ten parts, and a margin of five percent. */
static dt_axis make_axis(const double *values, const double *others, size_t n)
{
    double low = INFINITY, high = -INFINITY;
    widen(&low, &high, values, n);
    if (others)
        widen(&low, &high, others, n);
    if (!(low <= high))
        low = high = 0;
    if (low == high) {
        double around = low == 0 ? 0.05 : fabs(low) * 0.05;
        low -= around;
        high += around;
    }
    double margin = (high - low) * 0.05;
    dt_axis axis = {low - margin, high + margin, 0};
    double raw = (axis.high - axis.low) / 8, power = pow(10, floor(log10(raw)));
    axis.step = raw / power <= 1 ? power : raw / power <= 2 ? 2 * power : raw / power <= 5 ? 5 * power : 10 * power;
    return axis;
}

static double to_x(const dt_panel *p, double x)
{
    return left + (x - p->x.low) / (p->x.high - p->x.low) * (width - left - right);
}

static double to_y(const dt_panel *p, double y)
{
    return p->bottom - (y - p->y.low) / (p->y.high - p->y.low) * (p->bottom - p->top);
}

static void set_colour(cairo_t *c, dt_colour colour)
{
    cairo_set_source_rgb(c, colour.red, colour.green, colour.blue);
}

/* Text whose anchor is at (x, y): across 0 left, 0.5 centre, 1 right. */
static void put_text(cairo_t *c, const char *text, double x, double y, double across)
{
    cairo_text_extents_t size;
    cairo_text_extents(c, text, &size);
    cairo_move_to(c, x - size.x_advance * across, y);
    cairo_show_text(c, text);
}

static void draw_frame(cairo_t *c, const char *title, const dt_panel *p)
{
    char text[32];
    set_colour(c, ink);
    cairo_set_line_width(c, 1);
    cairo_rectangle(c, left + 0.5, p->top + 0.5, width - left - right - 1, p->bottom - p->top - 1);
    cairo_stroke(c);
    cairo_set_font_size(c, 16);
    put_text(c, title, (left + width - right) / 2.0, p->top - 14, 0.5);
    cairo_set_font_size(c, 13);
    for (double at = ceil(p->x.low / p->x.step) * p->x.step; at <= p->x.high; at += p->x.step) {
        double px = floor(to_x(p, at)) + 0.5;
        cairo_move_to(c, px, p->bottom);
        cairo_line_to(c, px, p->bottom + tick_length);
        cairo_stroke(c);
        snprintf(text, sizeof text, "%g", fabs(at) < p->x.step * 1e-9 ? 0 : at);
        put_text(c, text, px, p->bottom + 20, 0.5);
    }
    for (double at = ceil(p->y.low / p->y.step) * p->y.step; at <= p->y.high; at += p->y.step) {
        double py = floor(to_y(p, at)) + 0.5;
        cairo_move_to(c, left - tick_length, py);
        cairo_line_to(c, left, py);
        cairo_stroke(c);
        snprintf(text, sizeof text, "%.5g", fabs(at) < p->y.step * 1e-9 ? 0 : at);
        put_text(c, text, left - 10, py + 4.5, 1);
    }
}

/* A single point is a dot. */
static void draw_curve(cairo_t *c, const dt_plot *plot, const double *values, const dt_panel *p, dt_colour colour,
                       double line_width)
{
    set_colour(c, colour);
    if (plot->n == 1) {
        if (isfinite(values[0])) {
            cairo_arc(c, to_x(p, plot->x[0]), to_y(p, values[0]), 4, 0, 2 * 3.14159265358979);
            cairo_fill(c);
        }
        return;
    }
    bool pen_down = false; /* a value that is not finite leaves a gap */
    for (size_t i = 0; i < plot->n; i++) {
        if (!isfinite(values[i])) {
            pen_down = false;
            continue;
        }
        double px = to_x(p, plot->x[i]), py = to_y(p, values[i]);
        if (pen_down)
            cairo_line_to(c, px, py);
        else
            cairo_move_to(c, px, py);
        pen_down = true;
    }
    cairo_set_line_width(c, line_width);
    cairo_set_line_join(c, CAIRO_LINE_JOIN_ROUND);
    cairo_stroke(c);
}

/* Two names in the upper right corner, where a falling curve leaves room. */
static void draw_legend(cairo_t *c, const char *const names[2], const dt_colour colours[2])
{
    double widest = 76;
    for (int i = 0; i < 2; i++) {
        cairo_text_extents_t size;
        cairo_text_extents(c, names[i], &size);
        widest = fmax(widest, size.x_advance);
    }
    for (int i = 0; i < 2; i++) {
        double y = title_height + 22 + 20 * i, x = width - right - 44 - widest;
        set_colour(c, colours[i]);
        cairo_set_line_width(c, 3);
        cairo_move_to(c, x, y - 4);
        cairo_line_to(c, x + 28, y - 4);
        cairo_stroke(c);
        set_colour(c, ink);
        put_text(c, names[i], x + 36, y, 0);
    }
}

static void draw_main(cairo_t *c, const dt_plot *plot, const dt_panel *p)
{
    draw_frame(c, plot->title, p);
    if (plot->other) { /* the first wide and pale, so that both are seen where they are equal */
        draw_curve(c, plot, plot->y, p, cool, 5);
        draw_curve(c, plot, plot->other, p, strong, 1.5);
        draw_legend(c, (const char *const[]){plot->y_name, plot->other_name}, (const dt_colour[]){cool, strong});
    } else if (plot->smoothed && plot->n > 1) {
        draw_curve(c, plot, plot->y, p, pale, 2);
        draw_curve(c, plot, plot->smoothed, p, strong, 2);
        draw_legend(c, (const char *const[]){"original", "smoothed"}, (const dt_colour[]){pale, strong});
    } else
        draw_curve(c, plot, plot->y, p, strong, 2);
}

static void draw_below(cairo_t *c, const dt_plot *plot, const dt_panel *p)
{
    draw_frame(c, plot->below_title, p);
    if (p->y.low < 0 && p->y.high > 0) {
        set_colour(c, grey);
        cairo_set_line_width(c, 1);
        cairo_move_to(c, left, floor(to_y(p, 0)) + 0.5);
        cairo_line_to(c, width - right, floor(to_y(p, 0)) + 0.5);
        cairo_stroke(c);
    }
    draw_curve(c, plot, plot->below, p, strong, 1.5);
}

__attribute__((visibility("default"))) int dt_plot_png(const dt_plot *plot, char *why, size_t why_size);

int dt_plot_png(const dt_plot *plot, char *why, size_t why_size)
{
    if (plot->struct_size != sizeof *plot || plot->n == 0) {
        snprintf(why, why_size, "the plot plug-in is of another version");
        return 1;
    }
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, plot->below ? height_with_below : height);
    cairo_t *c = cairo_create(surface);
    set_colour(c, (dt_colour){1, 1, 1});
    cairo_paint(c);
    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    dt_panel panel = {title_height, height - bottom, make_axis(plot->x, NULL, plot->n),
                      make_axis(plot->y, plot->other, plot->n)};
    draw_main(c, plot, &panel);
    if (plot->below) {
        panel = (dt_panel){height + title_height - 10, height_with_below - bottom, panel.x,
                           make_axis(plot->below, NULL, plot->n)};
        draw_below(c, plot, &panel);
    }
    cairo_status_t status = cairo_status(c); /* such as text that is not UTF-8 */
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_write_to_png(surface, plot->path);
    if (status != CAIRO_STATUS_SUCCESS)
        snprintf(why, why_size, "%s", cairo_status_to_string(status));
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    return status != CAIRO_STATUS_SUCCESS;
}
