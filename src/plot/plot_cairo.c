/* libdeltune-plot.so: draws the curves of a run with cairo. See train/plot.h for the contract. */
#include "train/plot.h"

#include <cairo.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

enum { width = 800, height = 500, left = 90, right = 20, top = 45, bottom = 50, tick_length = 5 };

typedef struct dt_axis {
    double low, high, step; /* data range shown; distance of two ticks */
} dt_axis;

typedef struct dt_colour {
    double red, green, blue;
} dt_colour;
static const dt_colour original = {1.0, 0.886, 0.851}, strong = {1.0, 0.439, 0.263}, ink = {0.1, 0.1, 0.1};

/* A step of 1, 2 or 5 times a power of ten that cuts the range into at most ten parts, and a margin of five percent. */
static dt_axis make_axis(const double *values, size_t n)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (isfinite(values[i])) {
            low = fmin(low, values[i]);
            high = fmax(high, values[i]);
        }
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

static double to_x(const dt_axis *axis, double x)
{
    return left + (x - axis->low) / (axis->high - axis->low) * (width - left - right);
}

static double to_y(const dt_axis *axis, double y)
{
    return height - bottom - (y - axis->low) / (axis->high - axis->low) * (height - top - bottom);
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

static void draw_frame(cairo_t *c, const char *title, const dt_axis *x, const dt_axis *y)
{
    char text[32];
    set_colour(c, ink);
    cairo_set_line_width(c, 1);
    cairo_rectangle(c, left + 0.5, top + 0.5, width - left - right - 1, height - top - bottom - 1);
    cairo_stroke(c);
    cairo_set_font_size(c, 16);
    put_text(c, title, (left + width - right) / 2.0, top - 14, 0.5);
    cairo_set_font_size(c, 13);
    for (double at = ceil(x->low / x->step) * x->step; at <= x->high; at += x->step) {
        double px = floor(to_x(x, at)) + 0.5;
        cairo_move_to(c, px, height - bottom);
        cairo_line_to(c, px, height - bottom + tick_length);
        cairo_stroke(c);
        snprintf(text, sizeof text, "%g", fabs(at) < x->step * 1e-9 ? 0 : at);
        put_text(c, text, px, height - bottom + 20, 0.5);
    }
    for (double at = ceil(y->low / y->step) * y->step; at <= y->high; at += y->step) {
        double py = floor(to_y(y, at)) + 0.5;
        cairo_move_to(c, left - tick_length, py);
        cairo_line_to(c, left, py);
        cairo_stroke(c);
        snprintf(text, sizeof text, "%.5g", fabs(at) < y->step * 1e-9 ? 0 : at);
        put_text(c, text, left - 10, py + 4.5, 1);
    }
}

static void draw_curve(cairo_t *c, const dt_plot *plot, const double *values, const dt_axis *x, const dt_axis *y)
{
    bool pen_down = false; /* a value that is not finite leaves a gap */
    for (size_t i = 0; i < plot->n; i++) {
        if (!isfinite(values[i])) {
            pen_down = false;
            continue;
        }
        double px = to_x(x, plot->x[i]), py = to_y(y, values[i]);
        if (pen_down)
            cairo_line_to(c, px, py);
        else
            cairo_move_to(c, px, py);
        pen_down = true;
    }
    cairo_set_line_width(c, 2);
    cairo_set_line_join(c, CAIRO_LINE_JOIN_ROUND);
    cairo_stroke(c);
}

static void draw_legend(cairo_t *c)
{
    static const char *const names[] = {"original", "smoothed"};
    const dt_colour colours[] = {original, strong};
    for (int i = 0; i < 2; i++) {
        double y = top + 22 + 20 * i, x = width - right - 120;
        set_colour(c, colours[i]);
        cairo_set_line_width(c, 3);
        cairo_move_to(c, x, y - 4);
        cairo_line_to(c, x + 28, y - 4);
        cairo_stroke(c);
        set_colour(c, ink);
        put_text(c, names[i], x + 36, y, 0);
    }
}

__attribute__((visibility("default"))) int dt_plot_png(const dt_plot *plot, char *why, size_t why_size);

int dt_plot_png(const dt_plot *plot, char *why, size_t why_size)
{
    if (plot->struct_size != sizeof *plot || plot->n == 0) {
        snprintf(why, why_size, "the plot plug-in is of another version");
        return 1;
    }
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    cairo_t *c = cairo_create(surface);
    set_colour(c, (dt_colour){1, 1, 1});
    cairo_paint(c);
    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    dt_axis x = make_axis(plot->x, plot->n), y = make_axis(plot->y, plot->n);
    draw_frame(c, plot->title, &x, &y);
    if (plot->n == 1) {
        set_colour(c, strong);
        cairo_arc(c, to_x(&x, plot->x[0]), to_y(&y, plot->y[0]), 4, 0, 2 * 3.14159265358979);
        cairo_fill(c);
    } else if (plot->smoothed) {
        set_colour(c, original);
        draw_curve(c, plot, plot->y, &x, &y);
        set_colour(c, strong);
        draw_curve(c, plot, plot->smoothed, &x, &y);
        draw_legend(c);
    } else {
        set_colour(c, strong);
        draw_curve(c, plot, plot->y, &x, &y);
    }
    cairo_status_t status = cairo_surface_write_to_png(surface, plot->path);
    if (status != CAIRO_STATUS_SUCCESS)
        snprintf(why, why_size, "%s", cairo_status_to_string(status));
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    return status != CAIRO_STATUS_SUCCESS;
}
