#include "model/model_check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "model/model.h"
#include "model/widen.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative L2 allowed against float64 (docs/numerics.md). */
typedef struct {
    double hidden, loss, grad, gate_grad, lora_grad;
    double median_grad, median_lora_grad; /* half of the tensors are within it; 0 = not judged */
} tolerances;
/* gate_grad: A_log and dt_bias, sums of small differences over all tokens. */
static const tolerances f32_tolerances = {3e-5, 1e-5, 3e-4, 1e-3, 2e-4, 0, 0};
/* The cases are small and badly conditioned in bf16: PyTorch's own bf16 run of tiny_dense is off by 6.3e-2 in hidden
 * states, by 0.20 (median) to 0.36 in gradients of weights (0.31 of the gates), by 0.25 to 0.72 in those of adapters.
 * One and a half times its error, twice for the gates (a few numbers each), a quarter more where that is near 1: what a
 * missing term or a wrong sign exceeds. The arithmetic of gradients is what the fp32 check is for. */
static const tolerances bf16_tolerances = {8e-2, 1e-2, 0.54, 0.62, 0.9, 0.3, 0.37};

typedef struct {
    int32_t *ids, *labels;
    int64_t length, offset; /* first row in the stored tensors */
} sample;

typedef struct {
    const char *folder;
    dt_exec *exec;
    dt_dtype activation;
    const tolerances *tolerance;
    sample *samples;
    int64_t n, T, targets; /* T and targets over all samples */
    dt_st *expected, *expected_lora;
    dt_model_case_report *report;
    /* filled while a pack runs */
    const dt_model_config *config;
    dt_model *model;
    float *hidden, *logits;  /* [layers + 1][T][hidden], [T][vocab] in file order */
    const int32_t *pack_row; /* row of the pack -> row in file order, or -1 for padding */
    dt_status tap_status;
    dt_err *tap_err;
} model_case;

bool dtp_case_layout_by_name(const char *name, dt_case_layout *out)
{
    static const char *const names[] = {"pack", "padding_free", "padded", "single"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            *out = (dt_case_layout)i;
            return true;
        }
    return false;
}

/* ---- reading the case ---- */

static dt_status case_path(const model_case *c, const char *name, char **out, dt_err *err)
{
    *out = dtp_path_join(c->folder, name);
    return *out ? DT_OK : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", c->folder);
}

static dt_status read_ids(const json_t *list, const char *where, int64_t n, int32_t **out, dt_err *err)
{
    int32_t *ids = dtp_calloc(n ? (size_t)n : 1, sizeof *ids);
    *out = ids;
    if (!ids)
        return dt_fail(err, DT_E_NOMEM, "%s: no memory for %lld tokens", where, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < INT32_MIN || json_integer_value(id) > INT32_MAX)
            return dt_fail(err, DT_E_FORMAT, "%s: element %lld is no token id", where, (long long)i);
        ids[i] = (int32_t)json_integer_value(id);
    }
    return DT_OK;
}

static dt_status read_sample(model_case *c, sample *s, const char *line, size_t length, const char *where, dt_err *err)
{
    json_t *row;
    dt_status status = dtp_json_parse(&row, line, length, where, err);
    if (status != DT_OK)
        return status;
    const json_t *ids = json_object_get(row, "input_ids"), *labels = json_object_get(row, "labels");
    s->length = (int64_t)json_array_size(ids);
    s->offset = c->T;
    if (s->length < 1 || (int64_t)json_array_size(labels) != s->length)
        status = dt_fail(err, DT_E_FORMAT, "%s: expected input_ids and as many labels", where);
    if (status == DT_OK)
        status = read_ids(ids, where, s->length, &s->ids, err);
    if (status == DT_OK)
        status = read_ids(labels, where, s->length, &s->labels, err);
    for (int64_t t = 1; status == DT_OK && t < s->length; t++)
        c->targets += s->labels[t] >= 0;
    c->T += s->length;
    json_decref(row);
    return status;
}

static dt_status read_samples(model_case *c, dt_err *err)
{
    char *path, *text;
    size_t length;
    dt_status status = case_path(c, "tokens.jsonl", &path, err);
    if (status != DT_OK)
        return status;
    status = dtp_read_file(path, 0, &text, &length, err);
    c->samples = dtp_calloc((size_t)c->n, sizeof *c->samples);
    if (status == DT_OK && !c->samples)
        status = dt_fail(err, DT_E_NOMEM, "%s: no memory for %lld rows", path, (long long)c->n);
    const char *line = status == DT_OK ? text : NULL;
    for (int64_t i = 0; status == DT_OK && i < c->n; i++) {
        const size_t n = strcspn(line, "\n");
        char where[512];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)i + 1);
        status =
            n ? read_sample(c, &c->samples[i], line, n, where, err)
              : dt_fail(err, DT_E_FORMAT, "%s: the batch has %lld rows, the file ends here", where, (long long)c->n);
        line += n + (line[n] == '\n');
    }
    if (line)
        free(text);
    free(path);
    return status;
}

static dt_status read_settings(model_case *c, dt_err *err)
{
    char *path;
    json_t *root = NULL;
    dt_status status = case_path(c, "expected.json", &path, err);
    if (status == DT_OK)
        status = dtp_json_load(&root, path, 0, err);
    if (status == DT_OK)
        status = dtp_json_get_int(root, "per_step", path, &c->n, err);
    if (status == DT_OK && (c->n < 1 || c->n > 4096))
        status = dt_fail(err, DT_E_FORMAT, "%s: per_step: expected 1 to 4096 rows, found %lld", path, (long long)c->n);
    json_decref(root);
    free(path);
    return status;
}

static dt_status open_expected(const model_case *c, const char *name, bool optional, dt_st **out, dt_err *err)
{
    char *path;
    dt_status status = case_path(c, name, &path, err);
    if (status == DT_OK && !(optional && !dtp_file_exists(path)))
        status = dtp_st_open(out, path, err);
    free(path);
    return status;
}

static dt_status read_case(model_case *c, dt_err *err)
{
    dt_status status = read_settings(c, err);
    if (status == DT_OK)
        status = read_samples(c, err);
    if (status == DT_OK)
        status = open_expected(c, "expected_first_batch.safetensors", false, &c->expected, err);
    if (status == DT_OK)
        status = open_expected(c, "expected_lora_grads.safetensors", true, &c->expected_lora, err);
    return status;
}

static void free_case(model_case *c)
{
    for (int64_t i = 0; c->samples && i < c->n; i++) {
        free(c->samples[i].ids);
        free(c->samples[i].labels);
    }
    free(c->samples);
    free(c->hidden);
    free(c->logits);
    dtp_st_close(c->expected);
    dtp_st_close(c->expected_lora);
}

/* ---- comparing ---- */

static dt_status add_row(dt_model_case_report *r, const char *name, double error, double tolerance, dt_err *err)
{
    if (!dtp_grow((void **)&r->row, &r->capacity, r->n_rows + 1, sizeof *r->row))
        return dt_fail(err, DT_E_NOMEM, "no memory for the report");
    dt_model_case_row *row = &r->row[r->n_rows++];
    *row = (dt_model_case_row){.error = error, .tolerance = tolerance, .passed = error <= tolerance}; /* NaN fails */
    snprintf(row->name, sizeof row->name, "%s", name);
    r->passed = r->passed && row->passed;
    return DT_OK;
}

static double relative_l2(const float *x, const float *reference, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - reference[i];
        difference += d * d;
        norm += (double)reference[i] * reference[i];
    }
    return sqrt(difference) / (sqrt(norm) + 1e-30);
}

/* The stored tensor as F32 of `count` elements. */
static dt_status stored(const dt_st *file, const char *name, int64_t count, const float **out, dt_err *err)
{
    dt_tensor t;
    dt_status status = dtp_st_get(file, name, &t, err);
    if (status == DT_OK && (t.dtype != DT_F32 || dt_tensor_numel(&t) != count))
        status = dt_fail(err, DT_E_SHAPE, "%s: tensor %s: expected %lld F32 elements, found %lld %s", dtp_st_path(file),
                         name, (long long)count, (long long)dt_tensor_numel(&t), dt_dtype_name(t.dtype));
    if (status == DT_OK)
        *out = t.data;
    return status;
}

static dt_status compare_hidden(model_case *c, dt_err *err)
{
    const dt_model_config *g = c->config;
    const int64_t layer = c->T * g->hidden;
    const float *hidden, *logits;
    dt_status status = stored(c->expected, "hidden_states", (g->layers + 1) * layer, &hidden, err);
    for (int64_t i = 0; status == DT_OK && i <= g->layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "hidden_states[%lld]", (long long)i);
        status = add_row(c->report, name, relative_l2(c->hidden + i * layer, hidden + i * layer, layer),
                         c->tolerance->hidden, err);
    }
    if (status == DT_OK)
        status = stored(c->expected, "logits", c->T * g->vocab, &logits, err);
    if (status == DT_OK)
        status =
            add_row(c->report, "logits", relative_l2(c->logits, logits, c->T * g->vocab), c->tolerance->hidden, err);
    return status;
}

static dt_status compare_loss(model_case *c, double loss, int64_t targets, dt_err *err)
{
    const float *expected;
    dt_status status = stored(c->expected, "loss", 1, &expected, err);
    if (status == DT_OK && targets != c->targets)
        status = dt_fail(err, DT_E_INTERNAL, "%lld targets were computed, the rows have %lld", (long long)targets,
                         (long long)c->targets);
    if (status == DT_OK)
        status = add_row(c->report, "loss", fabs(loss - *expected) / fabs((double)*expected), c->tolerance->loss, err);
    return status;
}

/* Stored gradients are named as in the text-only layout, whatever the layout of the model. */
static void stored_name(char out[DT_MAX_NAME + 64], const model_case *c, const char *segment, bool lora)
{
    const char *prefix = dtp_config_prefix(c->config);
    const bool inside = !strncmp(segment, prefix, strlen(prefix));
    snprintf(out, DT_MAX_NAME + 64, "grad.%s%s%s", lora ? "base_model.model." : "", inside ? "model." : "",
             segment + (inside ? strlen(prefix) : 0));
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of the errors of rows `first` and later. */
static dt_status compare_median(model_case *c, size_t first, bool lora, dt_err *err)
{
    const double tolerance = lora ? c->tolerance->median_lora_grad : c->tolerance->median_grad;
    const size_t n = c->report->n_rows - first;
    if (n == 0 || tolerance == 0)
        return DT_OK;
    double *errors = dtp_calloc(n, sizeof *errors);
    if (!errors)
        return dt_fail(err, DT_E_NOMEM, "no memory for the report");
    for (size_t i = 0; i < n; i++) {
        const double error = c->report->row[first + i].error;
        errors[i] = isnan(error) ? INFINITY : error;
    }
    qsort(errors, n, sizeof *errors, by_value);
    const double median = errors[n / 2];
    free(errors);
    return add_row(c->report, lora ? "median.lora" : "median.weights", median, tolerance, err);
}

static dt_status compare_gradients(model_case *c, const dt_st *expected, bool lora, dt_err *err)
{
    const dt_trainable *t = dtp_model_trainable(c->model);
    float *grad = dtp_calloc((size_t)t->count, sizeof *grad);
    if (!grad)
        return dt_fail(err, DT_E_NOMEM, "no memory for %lld gradients", (long long)t->count);
    dt_status status = dt_exec_download(c->exec, grad, t->grad, (size_t)t->count * sizeof *grad, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(c->exec, err);
    const size_t first = c->report->n_rows;
    for (int64_t i = 0; status == DT_OK && i < t->n_segments; i++) {
        char name[DT_MAX_NAME + 64];
        const float *reference;
        stored_name(name, c, t->names[i], lora);
        if (!lora && !dtp_st_find(expected, name)) /* a case may store some weight gradients only, or none */
            continue;
        status = stored(expected, name, t->segments[i].count, &reference, err);
        const bool gate = strstr(name, "A_log") || strstr(name, "dt_bias");
        if (status == DT_OK)
            status =
                add_row(c->report, name, relative_l2(grad + t->segments[i].offset, reference, t->segments[i].count),
                        lora   ? c->tolerance->lora_grad
                        : gate ? c->tolerance->gate_grad
                               : c->tolerance->grad,
                        err);
    }
    free(grad);
    return status == DT_OK ? compare_median(c, first, lora, err) : status;
}

/* ---- running ---- */

/* Brings rows of a device tensor to their places in file order. */
static dt_status collect(model_case *c, const dt_tensor *rows, float *to, dt_err *err)
{
    const int64_t T = rows->shape[0], width = rows->shape[1];
    const size_t element = dt_dtype_size(rows->dtype), pitch = (size_t)rows->stride[0] * element;
    char *host = dtp_calloc((size_t)T, pitch);
    if (!host)
        return dt_fail(err, DT_E_NOMEM, "no memory for %lld rows of %lld", (long long)T, (long long)width);
    const size_t bytes = T ? (size_t)(T - 1) * pitch + (size_t)width * element : 0;
    dt_status status = dt_exec_download(c->exec, host, rows->data, bytes, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(c->exec, err);
    for (int64_t t = 0; status == DT_OK && t < T; t++)
        if (c->pack_row[t] >= 0)
            dtp_widen(to + c->pack_row[t] * width, host + (size_t)t * pitch, rows->dtype, (size_t)width);
    free(host);
    return status;
}

static dt_status collect_logits(model_case *c, const dt_tensor *hidden, dt_err *err)
{
    void *memory;
    const int64_t T = hidden->shape[0], V = c->config->vocab;
    dt_status status = dt_exec_alloc(c->exec, &memory, (size_t)(T * V) * dt_dtype_size(hidden->dtype), err);
    if (status != DT_OK)
        return status;
    const dt_tensor logits = dt_tensor_2d(memory, hidden->dtype, T, V);
    status = dtp_model_logits(c->model, *hidden, logits, err);
    if (status == DT_OK)
        status = collect(c, &logits, c->logits, err);
    dt_exec_release(c->exec, memory);
    return status;
}

static void tap(void *user, int64_t index, const dt_tensor *hidden)
{
    model_case *c = user;
    if (c->tap_status == DT_OK)
        c->tap_status = collect(c, hidden, c->hidden + index * c->T * c->config->hidden, c->tap_err);
    if (c->tap_status == DT_OK && index == c->config->layers)
        c->tap_status = collect_logits(c, hidden, c->tap_err);
}

/* A row being put together from samples. */
typedef struct {
    int32_t *tokens, *targets, *positions, *cu_seqlens, *file_row;
    int64_t T, n_seq;
} builder;

static void add_sample(builder *b, const sample *s, int64_t length)
{
    b->cu_seqlens[b->n_seq++] = (int32_t)b->T;
    for (int64_t t = 0; t < length; t++, b->T++) {
        const bool real = t < s->length;
        b->tokens[b->T] = real ? s->ids[t] : 0;
        b->targets[b->T] = t + 1 < s->length && s->labels[t + 1] >= 0 ? s->labels[t + 1] : -1;
        b->positions[b->T] = (int32_t)t;
        b->file_row[b->T] = real ? (int32_t)(s->offset + t) : -1;
    }
    b->cu_seqlens[b->n_seq] = (int32_t)b->T;
}

static dt_status run_built(model_case *c, builder *b, double *loss, int64_t *targets, dt_err *err)
{
    const dt_pack pack = {.T = b->T,
                          .n_seq = b->n_seq,
                          .tokens = b->tokens,
                          .positions = b->positions,
                          .targets = b->targets,
                          .cu_seqlens = b->cu_seqlens};
    dt_cross_entropy_result result = {0};
    c->pack_row = b->file_row;
    dt_status status =
        dtp_model_backward(c->model, &pack, (float)(1.0 / (double)c->targets), (dt_step_key){0}, &result, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(c->exec, err);
    if (status == DT_OK)
        status = c->tap_status;
    *loss += result.loss / (double)c->targets;
    *targets += result.targets;
    b->T = b->n_seq = 0;
    return status;
}

static int longest_first(const void *a, const void *b)
{
    const sample *const *x = a, *const *y = b;
    if ((*x)->length != (*y)->length)
        return (*x)->length > (*y)->length ? -1 : 1;
    return (*x)->offset < (*y)->offset ? -1 : 1;
}

static dt_status run_layout(model_case *c, builder *b, dt_case_layout layout, const sample **order, int64_t longest,
                            double *loss, int64_t *targets, dt_err *err)
{
    for (int64_t i = 0; i < c->n; i++)
        order[i] = &c->samples[i];
    if (layout == DT_CASE_PACK)
        qsort(order, (size_t)c->n, sizeof *order, longest_first);
    dt_status status = dtp_model_zero_grad(c->model, err);
    for (int64_t i = 0; status == DT_OK && i < c->n; i++) {
        add_sample(b, order[i], layout == DT_CASE_PADDED ? longest : order[i]->length);
        if (layout == DT_CASE_SINGLE || i + 1 == c->n)
            status = run_built(c, b, loss, targets, err);
    }
    return status;
}

/* One forward and backward of the whole batch on the opened model. */
static dt_status run_batch(model_case *c, dt_case_layout layout, double *loss, int64_t *targets, dt_err *err)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < c->n; i++)
        longest = c->samples[i].length > longest ? c->samples[i].length : longest;
    const int64_t rows = layout == DT_CASE_PADDED ? c->n * longest : c->T;
    int32_t *numbers = dtp_calloc((size_t)(4 * rows + c->n + 1), sizeof *numbers);
    const sample **order = dtp_calloc((size_t)c->n, sizeof *order);
    const dt_plan_options plan = {.max_tokens = rows, .max_n_seq = c->n, .train = true};
    dt_plan_report report;
    dt_status status = numbers && order
                           ? dtp_model_plan(c->model, &plan, &report, err)
                           : dt_fail(err, DT_E_NOMEM, "no memory for a batch of %lld rows", (long long)rows);
    builder b = {.tokens = numbers};
    if (status == DT_OK) {
        b.targets = numbers + rows;
        b.positions = numbers + 2 * rows;
        b.file_row = numbers + 3 * rows;
        b.cu_seqlens = numbers + 4 * rows;
        *loss = 0;
        *targets = 0;
        status = run_layout(c, &b, layout, order, longest, loss, targets, err);
    }
    free(numbers);
    free(order);
    return status;
}

static dt_status open_model(model_case *c, bool lora, dt_err *err)
{
    char *folder = NULL, *adapter = NULL;
    dt_status status = case_path(c, "model", &folder, err);
    if (status == DT_OK && lora)
        status = case_path(c, "adapter_init", &adapter, err);
    const dt_model_options options = {
        .folder = folder, .adapter = adapter, .tune = lora ? DT_TUNE_LORA : DT_TUNE_FULL, .activation = c->activation};
    if (status == DT_OK)
        status = dtp_model_open(&c->model, c->exec, &options, err);
    if (status == DT_OK)
        c->config = dtp_model_config(c->model);
    free(folder);
    free(adapter);
    return status;
}

static dt_status check_weights(model_case *c, dt_case_layout layout, dt_err *err)
{
    double loss;
    int64_t targets;
    dt_status status = open_model(c, false, err);
    if (status != DT_OK)
        return status;
    c->hidden = dtp_calloc((size_t)((c->config->layers + 1) * c->T * c->config->hidden), sizeof *c->hidden);
    c->logits = dtp_calloc((size_t)(c->T * c->config->vocab), sizeof *c->logits);
    if (!c->hidden || !c->logits)
        return dt_fail(err, DT_E_NOMEM, "no memory for the hidden states of %lld tokens", (long long)c->T);
    c->tap_err = err;
    dtp_model_set_tap(c->model, tap, c);
    status = run_batch(c, layout, &loss, &targets, err);
    if (status == DT_OK)
        status = compare_hidden(c, err);
    if (status == DT_OK)
        status = compare_loss(c, loss, targets, err);
    if (status == DT_OK)
        status = compare_gradients(c, c->expected, false, err);
    return status;
}

static dt_status check_adapter(model_case *c, dt_case_layout layout, dt_err *err)
{
    double loss;
    int64_t targets;
    dt_status status = open_model(c, true, err);
    if (status == DT_OK)
        status = run_batch(c, layout, &loss, &targets, err);
    if (status == DT_OK)
        status = compare_gradients(c, c->expected_lora, true, err);
    return status;
}

dt_status dtp_model_case_run(dt_model_case_report *out, dt_exec *exec, const char *folder, dt_case_layout layout,
                             dt_dtype activation, dt_err *err)
{
    *out = (dt_model_case_report){.passed = true};
    model_case c = {.folder = folder,
                    .exec = exec,
                    .activation = activation,
                    .report = out,
                    .tolerance = activation == DT_BF16 ? &bf16_tolerances : &f32_tolerances};
    dt_status status = read_case(&c, err);
    if (status == DT_OK)
        status = check_weights(&c, layout, err);
    dtp_model_close(c.model);
    c.model = NULL;
    if (status == DT_OK && c.expected_lora)
        status = check_adapter(&c, layout, err);
    dtp_model_close(c.model);
    free_case(&c);
    if (status != DT_OK)
        dtp_model_case_free(out);
    return status;
}

void dtp_model_case_free(dt_model_case_report *report)
{
    free(report->row);
    *report = (dt_model_case_report){0};
}
