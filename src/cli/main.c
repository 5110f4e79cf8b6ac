/* deltune: finds the command, parses its arguments, runs it, prints its error, returns the exit code of cli.h. */
#include "cli/cli.h"
#include "cli/incumbent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { exit_failure = 1, exit_usage = 2 };

#ifdef __SANITIZE_ADDRESS__
/* The font library below the plot plug-in keeps caches until the process ends. */
DT_API const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfontconfig\n";
}
#endif

static const dt_command *find_command(const char *name)
{
    for (const dt_command *const *at = dtp_commands; *at; at++)
        if (strcmp((*at)->name, name) == 0)
            return *at;
    return NULL;
}

static void print_commands(FILE *to)
{
    fputs("Usage: deltune COMMAND --name value ...\n\nCommands\n", to);
    for (const dt_command *const *at = dtp_commands; *at; at++)
        fprintf(to, "  %-9s %s\n", (*at)->name, (*at)->summary);
    fputs("\ndeltune COMMAND --help lists a command's arguments.\n"
          "deltune --version prints the version.\n"
          "Exit codes: 0 good, 1 failed, 2 wrong usage,\n"
          "130 and 143 stopped by SIGINT and SIGTERM.\n",
          to);
}

static void print_help(const dt_command *command)
{
    printf("Usage: deltune %s %s%s--name value ...\n%s\n", command->name, command->operands ? command->operands : "",
           command->operands ? " " : "", command->summary);
    if (command->about) {
        putchar('\n');
        dtp_args_print_text(stdout, command->about, 0);
    }
    puts("\nDefaults are in [brackets]. Lists are space separated,\n"
         "booleans are true or false. --config FILE.json (or\n"
         ".yaml) gives values that the command line overrides.");
    dtp_args_print_help(stdout, command->table);
}

static void print_markdown(const dt_command *command)
{
    printf("## deltune %s\n\n%s\n", command->name, command->summary);
    dtp_args_print_markdown(stdout, command->table);
}

/* Errors are one line on stderr. */
static int report(const char *where, int result, const dt_err *err)
{
    if (result >= 0)
        return result;
    fflush(stdout);
    fprintf(stderr, "deltune%s%s: error: %s\n", *where ? " " : "", where,
            err->text[0] ? err->text : dt_status_name((dt_status)result));
    return result == DT_E_ARG ? exit_usage : exit_failure;
}

static int unknown_command(const char *name)
{
    const dt_command *best = NULL;
    size_t least = 4;
    for (const dt_command *const *at = dtp_commands; *at; at++) {
        size_t distance = dtp_edit_distance(name, (*at)->name);
        if (distance < least) {
            least = distance;
            best = *at;
        }
    }
    fprintf(stderr, "deltune: error: \"%s\" is not a command%s%s; deltune --help lists them\n", name,
            best ? "; nearest: " : "", best ? best->name : "");
    return exit_usage;
}

/* GCC's OpenMP runtime lets a thread that waits spin for milliseconds, unless the user says otherwise. Where processors
 * are shared that costs a factor of ten and more, and it gains nothing measurable where they are not
 * (docs/benchmarks.md). The runtime reads its settings before main, so its own variable is the one place left; it is
 * linked statically into the program, and where it is not the weak name is NULL and nothing changes. */
extern unsigned long long gomp_spin_count_var __attribute__((weak));

static void wait_politely(void)
{
    enum { spins = 1000 };
    if (&gomp_spin_count_var && !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
        gomp_spin_count_var = spins;
}

/* A caller may have closed stdin, stdout or stderr (2>&-). The next file opened would get that number, and what is
 * meant for the user would be written into a checkpoint or a log. So the numbers are taken, in the direction nobody
 * uses: reading and writing still fail as on a closed stream. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free number: fd */
}

/* Results on a full disk or a closed stream must not look complete. */
static int flushed(int result)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) /* an earlier flush may have failed, and dropped its text */
        return result;
    if (result == 0)
        perror("deltune: error: standard output");
    return result == 0 ? exit_failure : result;
}

static int run_command(const dt_command *command, int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command);
            return 0;
        }
        if (strcmp(argv[i], "--help-markdown") == 0) {
            print_markdown(command);
            return 0;
        }
    }
    wait_politely();
    dt_err err = {0};
    dt_args *args = NULL;
    int result = dtp_args_parse(&args, command->table, command->incumbent, command->operands != NULL, argc, argv, &err);
    if (result != DT_OK) {
        report(command->name, result, &err);
        return result == DT_E_IO ? exit_failure : exit_usage;
    }
    result = report(command->name, command->run(args, &err), &err);
    dtp_args_free(args);
    return result;
}

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    if (strcmp(name, "--version") == 0) {
        puts("deltune " DT_VERSION);
        return 0;
    }
    bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (help && argc < 3)) {
        print_commands(argc > 1 ? stdout : stderr);
        return argc > 1 ? 0 : exit_usage;
    }
    const dt_command *command = find_command(help ? argv[2] : name);
    if (!command)
        return unknown_command(help ? argv[2] : name);
    if (help) {
        print_help(command);
        return 0;
    }
    return run_command(command, argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    occupy_standard_streams();
    return flushed(run(argc, argv));
}
