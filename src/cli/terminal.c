#include "cli/cli.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NARROW = 60, WIDE = 120 };

bool dtp_stdout_is_terminal(void)
{
    const char *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no_color && *no_color);
}

int dtp_stdout_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return isatty(STDOUT_FILENO) ? NARROW : WIDE;
    return size.ws_col < WIDE ? size.ws_col : WIDE;
}
