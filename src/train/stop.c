#include "train/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* A signal has no owner: the one place where state of the process is the right scope. */
static volatile sig_atomic_t stop_signal;
static struct sigaction former_int, former_term;

static void handle(int signal_number)
{
    if (stop_signal)
        _exit(128 + signal_number);
    stop_signal = signal_number;
    static const char text[] = "\ndeltune: stopping after this step; once more to leave at once\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

void dtp_stop_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    sigaction(SIGINT, &action, &former_int);
    sigaction(SIGTERM, &action, &former_term);
}

void dtp_stop_uninstall(void)
{
    sigaction(SIGINT, &former_int, NULL);
    sigaction(SIGTERM, &former_term, NULL);
}

int dtp_stop_requested(void)
{
    return stop_signal;
}
