#include "fixture.h"

#include "core/log.h"

char log_text[16384];

static void keep_line(void *user, dt_log_level level, const char *line)
{
    (void)user;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s%s\n", level == DT_LOG_WARNING ? "WARNING " : "INFO ", line);
}

void clear_log(void)
{
    log_text[0] = '\0';
}

int count_in_log(const char *part)
{
    int n = 0;
    for (const char *at = log_text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    dtp_log_set_sink(keep_line, NULL);
    clear_log();
    return !f || dt_ctx_create(&f->ctx, &f->err) || dt_exec_create(&f->exec, f->ctx, DT_DEVICE_CPU, 0, 1, &f->err);
}

int tear_down(void **state)
{
    fixture *f = *state;
    dt_exec_free(f->exec);
    dt_ctx_free(f->ctx);
    free(f);
    return 0;
}

const char *plugin(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s.so", DT_PLUGINS, name);
    return path;
}

dt_registration *load(fixture *f, const char *name)
{
    dt_registration *r = NULL;
    assert_ok(dt_ctx_load_plugin(f->ctx, plugin(name), 0, &r, &f->err), &f->err);
    return r;
}

const dt_gdn_args *gdn_call(fixture *f, int64_t K, const int *lengths)
{
    int64_t n = 0;
    f->cu[0] = 0;
    for (; lengths[n] >= 0; n++)
        f->cu[n + 1] = f->cu[n] + lengths[n];
    int64_t T = f->cu[n];
    for (int i = 0; i < MAX_TOKENS * MAX_HEAD; i++) {
        f->x[i] = 10;
        f->y[i] = -1;
        f->dy[i] = 20;
    }
    dt_tensor x = dt_tensor_3d(f->x, DT_F32, T, 1, K);
#define ROWS(buffer) dt_tensor_3d(buffer, DT_F32, T, 1, K)
#define GATE(i)      dt_tensor_2d(f->gates[i], DT_F32, T, 1)
    f->gdn = (dt_gdn_args){DT_GDN_ARGS,
                           .q = x,
                           .k = x,
                           .v = x,
                           .g = GATE(0),
                           .beta = GATE(1),
                           .o = ROWS(f->y),
                           .seqs = {f->cu, NULL, n, n, T, T},
                           .scale = 1,
                           .d_o = ROWS(f->dy),
                           .dq = ROWS(f->dx[0]),
                           .dk = ROWS(f->dx[1]),
                           .dv = ROWS(f->dx[2]),
                           .dg = GATE(2),
                           .dbeta = GATE(3)};
    return &f->gdn;
}

int who(fixture *f, int64_t K, const int *lengths)
{
    dt_status status = dt_op_forward(f->exec, DT_OP_GDN, gdn_call(f, K, lengths), NULL, &f->err);
    return status == DT_OK ? (int)(f->y[0] - 10) : (int)status;
}
