#include "train/plot.h"

#include "core/memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dtp_plot_smooth(double *out, const double *values, size_t n)
{
    double x = 0, c = 0;
    for (size_t i = 0; i < n; i++) {
        x = 0.9 * x + values[i];
        c = 0.9 * c + 1;
        out[i] = x / c;
    }
}

/* The plug-in stays loaded: it is asked for many pictures at the end of a run. */
static dt_plot_png_fn load(char why[256])
{
    static const char *const places[] = {"%s/libdeltune-plot.so", "%s/../lib/libdeltune-plot.so",
                                         "%s/../lib/" DT_LIBRARY_ARCH "/libdeltune-plot.so", NULL};
    char program[4096], path[4352];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    void *library = NULL;
    for (int i = 0; !library && places[i]; i++) {
        snprintf(path, sizeof path, places[i], program);
        if (access(path, R_OK) == 0 && !(library = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
            snprintf(why, 256, "%s", dlerror());
    }
    if (!library && !*why && !(library = dlopen("libdeltune-plot.so", RTLD_NOW | RTLD_LOCAL)))
        snprintf(why, 256, "libdeltune-plot.so is not installed");
    dt_plot_png_fn function = NULL;
    void *symbol = library ? dlsym(library, DT_PLOT_SYMBOL) : NULL;
    memcpy(&function, &symbol, sizeof function); /* POSIX: object and function pointers have one size */
    if (library && !function)
        snprintf(why, 256, "libdeltune-plot.so has no %s", DT_PLOT_SYMBOL);
    return function;
}

dt_status dtp_plot_png(const dt_plot *plot, dt_err *err)
{
    char why[256] = "";
    dt_plot_png_fn draw = load(why);
    if (!draw)
        return dt_fail(err, DT_E_UNAVAILABLE, "no curves as pictures: %s", why);
    char *temporary = dtp_format("%s.tmp", plot->path);
    if (!temporary)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", plot->path);
    dt_plot hidden = *plot;
    hidden.path = temporary;
    dt_status st = DT_OK;
    if (draw(&hidden, why, sizeof why) != 0)
        st = dt_fail(err, DT_E_IO, "%s: %s", plot->path, why);
    else if (rename(temporary, plot->path) != 0)
        st = dt_fail(err, DT_E_IO, "%s: rename: %s", plot->path, strerror(errno));
    if (st != DT_OK)
        unlink(temporary);
    free(temporary);
    return st;
}
