/* Matrix products: cuBLASLt behind gemm.cuh, or, emulated, a plain loop. */
#include "providers/cuda/gemm.cuh"

#include "providers/cuda/device.cuh"
#include "providers/cuda/elements.cuh"

enum { GEMM_CONVERT_THREADS = 256 };

/* Eight elements a thread. */
DT_KERNEL(GEMM_CONVERT_THREADS, 1)
gemm_convert_kernel(const gemm_matrix from, const gemm_matrix to, int64_t rows, int64_t width)
{
    int64_t units = (width + 7) / 8, k = (int64_t)blockIdx.x * GEMM_CONVERT_THREADS + threadIdx.x, row = k / units;
    if (row >= rows)
        return;
    for (int64_t i = k % units * 8; i < width && i < k % units * 8 + 8; i++)
        store_element(to.data, to.dtype == DT_F32, row * to.pitch + i,
                      load_element(from.data, from.dtype == DT_F32, row * from.pitch + i));
}
dt_status dtp_gemm_convert(dt_exec *exec, const dt_tensor *from, const gemm_matrix *to, dt_err *err)
{
    gemm_matrix source = {from->data, from->stride[0], from->dtype};
    int64_t units = from->shape[0] * dtp_blocks(from->shape[1], 8);
    return DT_LAUNCH(err, exec, dtp_blocks(units, GEMM_CONVERT_THREADS), GEMM_CONVERT_THREADS, 0, gemm_convert_kernel,
                     source, *to, from->shape[0], from->shape[1]);
}

#ifdef DT_EMULATE
static float gemm_element(const gemm_matrix *m, int64_t row, int64_t column)
{
    int64_t i = row * m->pitch + column;
    return m->dtype == DT_F32 ? ((const float *)m->data)[i] : dt_bf16_to_f32(((const uint16_t *)m->data)[i]);
}
static void gemm_loop(const gemm_product *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            double sum = p->c.data ? gemm_element(&p->c, i, j) : 0.0;
            for (int64_t k = 0; k < p->inner; k++)
                sum += (double)(p->a_transposed ? gemm_element(&p->a, k, i) : gemm_element(&p->a, i, k)) *
                       (p->b_transposed ? gemm_element(&p->b, j, k) : gemm_element(&p->b, k, j));
            if (p->d.dtype == DT_F32)
                ((float *)p->d.data)[i * p->d.pitch + j] = (float)sum;
            else
                ((uint16_t *)p->d.data)[i * p->d.pitch + j] = dt_f32_to_bf16((float)sum);
        }
}
dt_status dtp_gemm(dt_exec *exec, const gemm_product *p, void *workspace, dt_err *err)
{
    gemm_product product = *p;
    (void)workspace, (void)err;
    dtp_cuda_emulate(exec, [=]() { gemm_loop(&product); });
    return DT_OK;
}
int dtp_gemm_probe(int device_index, char *why, size_t why_size)
{
    (void)device_index, (void)why, (void)why_size;
    return 1;
}
#else
#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>

/* ---- the library ---- */

#define GEMM_FUNCTIONS(X)                                                                                              \
    X(Create)                                                                                                          \
    X(GetVersion)                                                                                                      \
    X(GetStatusName)                                                                                                   \
    X(Matmul)                                                                                                          \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(MatmulAlgoConfigGetAttribute)

enum { GEMM_DEVICES = 64, GEMM_CHOICES = 8 };

static struct {
    bool opened; /* successfully */
#define GEMM_POINTER(name) decltype(&cublasLt##name) name;
    GEMM_FUNCTIONS(GEMM_POINTER)
    cublasLtHandle_t handle[GEMM_DEVICES];
} gemm_library;

static pthread_mutex_t gemm_lock = PTHREAD_MUTEX_INITIALIZER; /* of the library and the plans */

static void *gemm_open_file(char *why, size_t why_size)
{
    static const char *const files[] = {"libcublasLt.so.13",
                                        "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12",
                                        "/usr/local/cuda/lib/libcublasLt.so.12"};
    const char *path = getenv("DELTUNE_CUBLASLT");
    void *file = NULL;
    if (path) {
        if (!(file = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
            snprintf(why, why_size, "DELTUNE_CUBLASLT: %s", dlerror());
        return file;
    }
    for (size_t i = 0; !file && i < sizeof files / sizeof *files; i++)
        file = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (!file)
        snprintf(why, why_size,
                 "libcublasLt.so.13 (or .12) is not in the loader's path nor in /usr/local/cuda: install the CUDA "
                 "libraries, or name the file in DELTUNE_CUBLASLT");
    return file;
}
static bool gemm_open_library(char *why, size_t why_size)
{
    if (gemm_library.opened)
        return true;
    void *file = gemm_open_file(why, why_size);
    if (!file)
        return false;
#define GEMM_RESOLVE(name)                                                                                             \
    gemm_library.name = (decltype(&cublasLt##name))dlsym(file, "cublasLt" #name);                                      \
    if (!gemm_library.name) {                                                                                          \
        snprintf(why, why_size, "the cuBLASLt library lacks cublasLt%s", #name);                                       \
        dlclose(file);                                                                                                 \
        return false;                                                                                                  \
    }
    GEMM_FUNCTIONS(GEMM_RESOLVE)
    return gemm_library.opened = true;
}
static bool gemm_open_device(int device, char *why, size_t why_size)
{
    if (device < 0 || device >= GEMM_DEVICES) {
        snprintf(why, why_size, "device %d: matrix products know devices below %d", device, GEMM_DEVICES);
        return false;
    }
    if (!gemm_open_library(why, why_size))
        return false;
    if (gemm_library.handle[device])
        return true;
    cublasStatus_t st = gemm_library.Create(&gemm_library.handle[device]);
    if (st == CUBLAS_STATUS_SUCCESS)
        return true;
    gemm_library.handle[device] = NULL;
    snprintf(why, why_size, "cublasLtCreate (version %zu) on device %d: %s", gemm_library.GetVersion(), device,
             gemm_library.GetStatusName(st));
    return false;
}
int dtp_gemm_probe(int device_index, char *why, size_t why_size)
{
    pthread_mutex_lock(&gemm_lock);
    bool usable = gemm_open_device(device_index, why, why_size);
    pthread_mutex_unlock(&gemm_lock);
    return usable;
}

/* ---- plans: what is known of a shape ---- */

struct gemm_key {
    int64_t rows, columns, inner, pitch_a, pitch_b, pitch_c, pitch_d;
    int32_t in, out, a_transposed, b_transposed, adds, alignment, device, unused;
};
struct gemm_plan {
    gemm_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d; /* as the library names them: its A is our B */
    cublasLtMatmulHeuristicResult_t result[GEMM_CHOICES];
    int choices, choice;
    bool tuned; /* the choice stands */
    gemm_plan *next;
};
static gemm_plan *gemm_plans;

static int32_t gemm_alignment(const gemm_product *p)
{
    uintptr_t bits = (uintptr_t)p->a.data | (uintptr_t)p->b.data | (uintptr_t)p->c.data | (uintptr_t)p->d.data | 256;
    return (int32_t)(bits & (~bits + 1));
}
static gemm_key gemm_key_of(const dt_exec *exec, const gemm_product *p)
{
    gemm_key k;
    memset(&k, 0, sizeof k);
    k.rows = p->rows, k.columns = p->columns, k.inner = p->inner;
    k.pitch_a = p->a.pitch, k.pitch_b = p->b.pitch, k.pitch_d = p->d.pitch;
    k.adds = p->c.data != NULL;
    k.pitch_c = k.adds ? p->c.pitch : p->d.pitch;
    k.in = p->a.dtype, k.out = p->d.dtype;
    k.a_transposed = p->a_transposed, k.b_transposed = p->b_transposed;
    k.alignment = gemm_alignment(p);
    k.device = exec->device_index;
    return k;
}
static cudaDataType_t gemm_type(int32_t dtype)
{
    return dtype == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Row-major matrices are their own transposes to the library, which thinks in columns: D^T = B^T A^T. */
static cublasStatus_t gemm_describe(gemm_plan *plan)
{
    const gemm_key *k = &plan->key;
    cublasOperation_t op_a = k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t in = gemm_type(k->in), out = gemm_type(k->out);
    cublasStatus_t st = gemm_library.MatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatrixLayoutCreate(&plan->a, in, (uint64_t)(k->b_transposed ? k->inner : k->columns),
                                             (uint64_t)(k->b_transposed ? k->columns : k->inner), k->pitch_b);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatrixLayoutCreate(&plan->b, in, (uint64_t)(k->a_transposed ? k->rows : k->inner),
                                             (uint64_t)(k->a_transposed ? k->inner : k->rows), k->pitch_a);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatrixLayoutCreate(&plan->c, out, (uint64_t)k->columns, (uint64_t)k->rows, k->pitch_c);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatrixLayoutCreate(&plan->d, out, (uint64_t)k->columns, (uint64_t)k->rows, k->pitch_d);
    return st;
}
/* The candidates, best first. Partial sums of split products stay f32. */
static cublasStatus_t gemm_ask(gemm_plan *plan)
{
    const gemm_key *k = &plan->key;
    cublasLtMatmulPreference_t preference = NULL;
    size_t workspace = GEMM_WORKSPACE;
    uint32_t alignment = (uint32_t)k->alignment,
             reductions =
                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | (k->out == DT_F32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0u);
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t st = gemm_library.MatmulPreferenceCreate(&preference);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                       sizeof workspace);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                       &reductions, sizeof reductions);
    for (int i = 0; st == CUBLAS_STATUS_SUCCESS && i < 4; i++)
        st = gemm_library.MatmulPreferenceSetAttribute(preference, operands[i], &alignment, sizeof alignment);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_library.MatmulAlgoGetHeuristic(gemm_library.handle[k->device], plan->desc, plan->a, plan->b, plan->c,
                                                 plan->d, preference, GEMM_CHOICES, plan->result, &plan->choices);
    if (preference)
        gemm_library.MatmulPreferenceDestroy(preference);
    return st;
}
static void gemm_forget(gemm_plan *plan)
{
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->c, plan->d};
    for (cublasLtMatrixLayout_t layout : layouts)
        if (layout)
            gemm_library.MatrixLayoutDestroy(layout);
    if (plan->desc)
        gemm_library.MatmulDescDestroy(plan->desc);
    free(plan);
}
static dt_status gemm_refuse(const gemm_key *k, const char *what, cublasStatus_t st, dt_err *err)
{
    return dt_fail(err, DT_E_UNSUPPORTED,
                   "cuBLASLt %zu: %s for a product [%lld, %lld] x [%lld, %lld], row pitches %lld, %lld, %lld, "
                   "%d-byte alignment: %s",
                   gemm_library.GetVersion(), what, (long long)k->rows, (long long)k->inner, (long long)k->inner,
                   (long long)k->columns, (long long)k->pitch_a, (long long)k->pitch_b, (long long)k->pitch_d,
                   (int)k->alignment, gemm_library.GetStatusName(st));
}
static dt_status gemm_make_plan(gemm_plan **out, const gemm_key *key, dt_err *err)
{
    char why[256];
    if (!gemm_open_device(key->device, why, sizeof why))
        return dt_fail(err, DT_E_UNAVAILABLE, "%s", why);
    gemm_plan *plan = (gemm_plan *)calloc(1, sizeof *plan);
    if (!plan)
        return dt_fail(err, DT_E_NOMEM, "no memory for the plan of a matrix product");
    plan->key = *key;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* what asking does is no part of a recorded step */
    cudaThreadExchangeStreamCaptureMode(&mode);
    cublasStatus_t st = gemm_describe(plan);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = gemm_ask(plan);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (st == CUBLAS_STATUS_SUCCESS && plan->choices == 0)
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    if (st != CUBLAS_STATUS_SUCCESS) {
        gemm_forget(plan);
        return gemm_refuse(key, "no algorithm", st, err);
    }
    *out = plan;
    return DT_OK;
}
static dt_status gemm_plan_of(gemm_plan **out, const gemm_key *key, dt_err *err)
{
    dt_status st = DT_OK;
    pthread_mutex_lock(&gemm_lock);
    gemm_plan *plan = gemm_plans;
    while (plan && memcmp(&plan->key, key, sizeof *key) != 0)
        plan = plan->next;
    if (!plan && (st = gemm_make_plan(&plan, key, err)) == DT_OK) {
        plan->next = gemm_plans;
        gemm_plans = plan;
    }
    pthread_mutex_unlock(&gemm_lock);
    *out = plan;
    return st;
}

static cublasStatus_t gemm_run(dt_exec *exec, const gemm_plan *plan, const gemm_product *p, void *workspace)
{
    static const float zero = 0.0f, one = 1.0f;
    const void *c = p->c.data ? p->c.data : p->d.data;
    return gemm_library.Matmul(gemm_library.handle[plan->key.device], plan->desc, &one, p->b.data, plan->a, p->a.data,
                               plan->b, p->c.data ? &one : &zero, c, plan->c, p->d.data, plan->d,
                               &plan->result[plan->choice].algo, workspace, GEMM_WORKSPACE, (cudaStream_t)exec->stream);
}

#include "providers/cuda/gemm_tune.cuh"

dt_status dtp_gemm(dt_exec *exec, const gemm_product *p, void *workspace, dt_err *err)
{
    if (p->rows <= 0 || p->columns <= 0)
        return DT_OK;
    gemm_key key = gemm_key_of(exec, p);
    gemm_plan *plan;
    dt_status status = gemm_plan_of(&plan, &key, err);
    if (status != DT_OK)
        return status;
    pthread_mutex_lock(&gemm_lock);
    if (!plan->tuned)
        gemm_tune(exec, plan, p, workspace);
    pthread_mutex_unlock(&gemm_lock);
    cublasStatus_t st = gemm_run(exec, plan, p, workspace);
    return st == CUBLAS_STATUS_SUCCESS ? DT_OK : gemm_refuse(&key, "launch failed", st, err);
}

/* ---- for measurements ---- */

int dtp_gemm_choices(dt_exec *exec, const gemm_product *p, dt_err *err)
{
    gemm_key key = gemm_key_of(exec, p);
    gemm_plan *plan;
    return gemm_plan_of(&plan, &key, err) == DT_OK ? plan->choices : 0;
}
static int gemm_attribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute, size_t size)
{
    int32_t value = 0;
    size_t written;
    gemm_library.MatmulAlgoConfigGetAttribute(algo, attribute, &value, size, &written);
    return value;
}
dt_status dtp_gemm_choose(dt_exec *exec, const gemm_product *p, int choice, char *text, size_t text_size, dt_err *err)
{
    gemm_key key = gemm_key_of(exec, p);
    gemm_plan *plan;
    dt_status st = gemm_plan_of(&plan, &key, err);
    if (st != DT_OK)
        return st;
    plan->choice = choice;
    plan->tuned = true;
    const cublasLtMatmulHeuristicResult_t *r = &plan->result[choice];
    snprintf(
        text, text_size, "id %d tile %d stages %d splitk %d scheme %d custom %d cluster %d waves %.2f workspace %zu",
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_ID, 4), gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4),
        gemm_attribute(&r->algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2), r->wavesCount, r->workspaceSize);
    return DT_OK;
}
#endif
