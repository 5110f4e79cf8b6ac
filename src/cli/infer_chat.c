/* deltune infer on a terminal: a conversation of several turns. */
#include "cli/cli.h"
#include "cli/infer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const help = "/clear  forget the conversation\n"
                                "/help   this list\n"
                                "Ctrl-C  stop the answer;  Ctrl-D  leave\n";

typedef enum turn { TURN_TEXT, TURN_AGAIN, TURN_END } turn;

static void print_prompt(void)
{
    fputs(dtp_stdout_is_terminal() ? "\033[1m>\033[0m " : "> ", stdout);
    fflush(stdout);
}

/* False after Ctrl-C. A signal can come between the question and the wait, or be taken by another thread, and then
 * nothing ends the wait: so it is a short one, again and again. */
static bool wait_for_input(void)
{
    enum { milliseconds = 100 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!dtp_infer_interrupted())
        if (poll(&input, 1, milliseconds) > 0)
            return true;
    return false;
}

/* One line of the user, without its end. Ctrl-C empties the line. */
static turn read_turn(char **line, size_t *capacity, size_t *length)
{
    print_prompt();
    ssize_t n = -1;
    bool stopped = !wait_for_input();
    if (!stopped) {
        n = getline(line, capacity, stdin);
        stopped = n < 0 && errno == EINTR && dtp_infer_interrupted();
    }
    if (stopped) {
        clearerr(stdin);
        putchar('\n');
        return TURN_AGAIN;
    }
    if (n < 0) {
        putchar('\n');
        return TURN_END;
    }
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r'))
        (*line)[--n] = '\0';
    *length = (size_t)n;
    return n > 0 ? TURN_TEXT : TURN_AGAIN;
}

static bool obey(const char *line, dt_conversation *conversation)
{
    if (strcmp(line, "/clear") == 0) {
        dtp_conversation_clear(conversation);
        puts("(a new conversation)");
    } else if (strcmp(line, "/help") == 0) {
        fputs(help, stdout);
    } else {
        return false;
    }
    return true;
}

/* A question and its answer join the conversation together, or not at all. */
static dt_status answer_turn(dt_infer *infer, dt_conversation *conversation, const char *line, size_t length,
                             dt_err *err)
{
    dt_finish finish;
    size_t before = conversation->count;
    bool stream = dtp_args_bool(infer->args, "stream");
    if (!dtp_conversation_add(conversation, DT_ROLE_USER, line, length))
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    dt_status status = dtp_infer_answer(infer, conversation, stream ? stdout : NULL, &finish, err);
    if (status != DT_OK) {
        free(conversation->messages[before].content);
        conversation->count = before;
        return status;
    }
    if (!stream)
        fwrite(infer->response.data, 1, infer->response.length, stdout);
    puts(finish == DT_FINISH_CANCELLED ? " (stopped)" : finish == DT_FINISH_LENGTH ? " (cut at its longest)" : "");
    if (!dtp_conversation_add(conversation, DT_ROLE_ASSISTANT, infer->response.data, infer->response.length))
        return dt_fail(err, DT_E_NOMEM, "out of memory");
    return DT_OK;
}

int dtp_infer_chat(dt_infer *infer, dt_err *err)
{
    char *line = NULL;
    size_t capacity = 0, length = 0;
    dt_conversation conversation = {0};
    dt_status status = DT_OK;
    infer->conversation = true;
    setvbuf(stdin, NULL, _IONBF, 0); /* what has come is seen by poll, not hidden in a buffer */
    printf("%s%s%s. Ctrl-C stops an answer, Ctrl-D leaves, /help.\n", infer->model_folder,
           infer->adapter_folder ? " with " : "", infer->adapter_folder ? infer->adapter_folder : "");
    for (turn next; status == DT_OK && (next = read_turn(&line, &capacity, &length)) != TURN_END;) {
        if (next == TURN_AGAIN || obey(line, &conversation))
            continue;
        dtp_infer_interrupted(); /* one that came with the line */
        status = answer_turn(infer, &conversation, line, length, err);
        dtp_infer_interrupted();
        if (status == DT_E_ARG) { /* too long for the context, say: the conversation stays usable */
            printf("%s; /clear starts again, --max_length makes room\n", err->text);
            status = DT_OK;
        }
    }
    free(line);
    dtp_conversation_free(&conversation);
    return status;
}
