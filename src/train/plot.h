/* Curves as PNG files, drawn by the optional plug-in libdeltune-plot.so, so that the program itself needs no graphics
 * library. The plug-in is looked for beside the program, in ../lib of it, and where the system finds libraries. */
#ifndef DT_TRAIN_PLOT_H
#define DT_TRAIN_PLOT_H

#include <deltune/status.h>
#include <stddef.h>

/* One picture: 800 x 500 pixels (8 x 5 inches at 100 dpi), y over x, and what else is given:
 * - `smoothed`: a second curve over the pale first one, as TensorBoard draws it;
 * - `other`: a curve to compare y with; y_name and other_name stand in the legend;
 * - `below`: a third curve in a panel of its own under the first, which makes the picture 800 x 720.
 * Texts are UTF-8; values that are not finite leave gaps. */
typedef struct dt_plot {
    size_t struct_size;
    const char *path, *title;
    const double *x, *y;
    size_t n; /* >= 1; a single point is drawn as a dot */
    const double *smoothed;
    const double *other;
    const char *y_name, *other_name;
    const double *below;
    const char *below_title;
} dt_plot;

/* What the plug-in exports under DT_PLOT_SYMBOL: 0 = written; else a reason in `why`. */
typedef int (*dt_plot_png_fn)(const dt_plot *plot, char *why, size_t why_size);
#define DT_PLOT_SYMBOL "dt_plot_png"

/* Errors: DT_E_UNAVAILABLE without the plug-in; DT_E_IO. The picture appears whole or not at all. */
dt_status dtp_plot_png(const dt_plot *plot, dt_err *err);

/* The smoothing of TensorBoard's curves: x <- 0.9 x + value, c <- 0.9 c + 1, shown x / c. */
void dtp_plot_smooth(double *out, const double *values, size_t n);

#endif
