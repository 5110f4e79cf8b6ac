#include "core/test.h"

#include "core/file.h"
#include "core/json.h"
#include "model/safetensors.h"
#include <unistd.h>

/* A file in memory: header length (the real one unless lied about), header, `data` zero bytes. */
static unsigned char *make_file(const char *header, size_t data, int64_t lie, size_t *length_out)
{
    size_t n = strlen(header);
    uint64_t said = lie >= 0 ? (uint64_t)lie : n;
    unsigned char *bytes = calloc(1, 8 + n + data);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(said >> (8 * i));
    memcpy(bytes + 8, header, n);
    *length_out = 8 + n + data;
    return bytes;
}

static void test_refusals(void **state)
{
    (void)state;
#define A16 "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}"
    static const struct {
        const char *header;
        size_t data;
        int64_t lie;
        const char *part;
    } cases[] = {
        {"{}", 0, 3, "header says 3 bytes, only 2 follow"},
        {"{}", 0, INT64_MAX, "header says"},
        {"{}", 0, 0, "does not begin with '{'"},
        {"[]", 0, -1, "does not begin with '{'"},
        {"{\"a\":", 0, -1, "bad.safetensors"},
        {"{" A16 "," A16 "}", 16, -1, "duplicate"},
        {"{" A16 "}", 15, -1, "tensor a: data_offsets [0, 16] leave the 15 bytes"},
        {"{" A16 "}", 17, -1, "1 bytes at the end"},
        {"{" A16 ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}", 24, -1,
         "tensor b overlaps tensor a"},
        {"{" A16 ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[20,36]}}", 36, -1,
         "4 bytes before tensor b"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[4,20]}}", 20, -1, "4 bytes before tensor a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, -1, "data_offsets [16, 0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", 16, -1, "data_offsets [-16, 0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", 16, -1, "not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0.0,16]}}", 16, -1, "not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]}}", 16, -1,
         "tensor a: data_offsets span 16 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, -1, "tensor a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, -1, "tensor a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", 16, -1, "shape[0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, -1, "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, -1, "tensor a: unknown dtype F33"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, -1, "tensor a: unknown dtype (missing)"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16, -1, "shape is missing"},
        {"{\"a\":7}", 0, -1, "'a' is not a tensor"},
        {"{\"\":{}}", 0, -1, "'' is not a tensor"},
        {"{\"__metadata__\":{\"format\":7}}", 0, -1, "__metadata__.format"},
        {"{\"__metadata__\":[]}", 0, -1, "__metadata__"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length;
        unsigned char *bytes = make_file(cases[i].header, cases[i].data, cases[i].lie, &length);
        dt_err err = {0};
        dt_st *st = NULL;
        assert_fails(dtp_st_open_memory(&st, bytes, length, "bad.safetensors", &err), &err, DT_E_FORMAT, cases[i].part);
        assert_non_null(strstr(err.text, "bad.safetensors"));
        assert_null(st);
        free(bytes);
    }
    dt_err err = {0};
    dt_st *st;
    assert_fails(dtp_st_open_memory(&st, "1234567", 7, "short", &err), &err, DT_E_FORMAT, "at least 8 bytes");
}

/* Every truncation and every single-bit flip of a good file is either refused or still consistent. */
static void test_damage(void **state)
{
    (void)state;
    size_t length;
    unsigned char *good =
        make_file("{" A16 ",\"e\":{\"dtype\":\"I8\",\"shape\":[0,7],\"data_offsets\":[16,16]}}", 16, -1, &length);
    dt_err err = {0};
    dt_st *st;
    for (size_t cut = 0; cut < length; cut++)
        assert_int_equal(dtp_st_open_memory(&st, good, cut, "cut", &err), DT_E_FORMAT);
    for (size_t bit = 0; bit < 8 * (length - 16); bit++) {
        good[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (dtp_st_open_memory(&st, good, length, "flip", &err) == DT_OK) {
            for (size_t i = 0; i < dtp_st_count(st); i++) {
                const unsigned char *data = dtp_st_at(st, i)->data;
                assert_true(data >= good && data + dtp_st_at(st, i)->bytes <= good + length);
            }
            dtp_st_close(st);
        }
        good[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    free(good);
}

static char *temporary_folder(void)
{
    char *folder = strdup("/tmp/dt_st_XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static dt_status emit_pattern(void *user, size_t index, dt_st_sink *sink, dt_err *err)
{
    const dt_st_spec *specs = user;
    uint64_t n;
    dt_status status = dtp_st_spec_bytes(&specs[index], &n, err);
    for (uint64_t i = 0; status == DT_OK && i < n; i++) {
        unsigned char byte = (unsigned char)(index * 31 + i);
        status = dtp_st_put(sink, &byte, 1, err);
    }
    return status;
}

static void check_pattern(const dt_st *st, const dt_st_spec *specs, size_t index)
{
    const dt_st_tensor *t = dtp_st_find(st, specs[index].name);
    assert_non_null(t);
    assert_string_equal(t->dtype_name, specs[index].dtype);
    assert_int_equal(t->rank, specs[index].rank);
    for (int d = 0; d < t->rank; d++)
        assert_int_equal(t->shape[d], specs[index].shape[d]);
    for (size_t i = 0; i < t->bytes; i++)
        assert_int_equal(((const unsigned char *)t->data)[i], (unsigned char)(index * 31 + i));
    dt_err err = {0};
    dt_tensor view;
    if (t->dtype != DT_NONE && t->rank <= DT_MAX_RANK)
        assert_ok(dtp_st_view(st, t, &view, &err), &err);
}

/* Odd element counts of every width: the writer must still align each tensor. */
static const dt_st_spec specs[] = {
    {"b.half", "BF16", 1, {3}, NULL}, {"a.bytes", "U8", 2, {5, 1}, NULL},        {"c.double", "F64", 1, {2}, NULL},
    {"scalar", "F32", 0, {0}, NULL},  {"deep", "F16", 5, {1, 2, 1, 3, 1}, NULL}, {"none", "F32", 2, {0, 4}, NULL},
};
enum { N_SPECS = sizeof specs / sizeof *specs };

static void test_round_trip(void **state)
{
    (void)state;
    dt_err err = {0};
    char *folder = temporary_folder(), *path = dtp_path_join(folder, "x.safetensors");
    const dt_st_meta meta[] = {{"format", "pt"}, {"step", "12"}};
    assert_ok(dtp_st_write(path, specs, N_SPECS, meta, 2, emit_pattern, (void *)(uintptr_t)specs, &err), &err);
    dt_st *st;
    assert_ok(dtp_st_open(&st, path, &err), &err);
    assert_int_equal(dtp_st_count(st), N_SPECS);
    assert_string_equal(dtp_st_metadata(st, "step"), "12");
    assert_null(dtp_st_metadata(st, "nothing"));
    for (size_t i = 0; i < N_SPECS; i++)
        check_pattern(st, specs, i);
    dt_tensor view;
    assert_ok(dtp_st_get(st, "scalar", &view, &err), &err);
    assert_int_equal(view.rank, 1);
    assert_int_equal(dt_tensor_numel(&view), 1);
    assert_fails(dtp_st_get(st, "deep", &view, &err), &err, DT_E_SHAPE, "tensor deep has 5 dimensions");
    assert_fails(dtp_st_get(st, "absent", &view, &err), &err, DT_E_FORMAT, "tensor absent is missing");
    dtp_st_close(st);

    dt_st_spec twice[2] = {specs[0], specs[0]};
    assert_fails(dtp_st_write(path, twice, 2, NULL, 0, emit_pattern, twice, &err), &err, DT_E_ARG, "twice");
    assert_ok(dtp_remove_tree(folder, &err), &err);
    free(path);
    free(folder);
}

static void test_shards(void **state)
{
    (void)state;
    dt_err err = {0};
    char *folder = temporary_folder();
    assert_ok(dtp_st_write_sharded(folder, specs, N_SPECS, 16, emit_pattern, (void *)(uintptr_t)specs, &err), &err);
    char *path = dtp_path_join(folder, "model.safetensors.index.json");
    json_t *index;
    assert_ok(dtp_json_load(&index, path, 0, &err), &err);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
                     6 + 5 + 16 + 4 + 12);
    const json_t *map = json_object_get(index, "weight_map");
    assert_int_equal(json_object_size(map), N_SPECS);
    assert_string_equal(json_string_value(json_object_get(map, "b.half")), "model-00001-of-00003.safetensors");
    for (size_t i = 0; i < N_SPECS; i++) {
        char *shard = dtp_path_join(folder, json_string_value(json_object_get(map, specs[i].name)));
        dt_st *st;
        assert_ok(dtp_st_open(&st, shard, &err), &err);
        check_pattern(st, specs, i);
        dtp_st_close(st);
        free(shard);
    }
    json_decref(index);
    /* One file in the place of shards, and back: what a reader would prefer is always the last save. */
    char *single = dtp_path_join(folder, "model.safetensors");
    assert_ok(dtp_st_write_sharded(folder, specs, N_SPECS, 1000, emit_pattern, (void *)(uintptr_t)specs, &err), &err);
    assert_true(dtp_file_exists(single) && !dtp_file_exists(path));
    assert_ok(dtp_st_write_sharded(folder, specs, N_SPECS, 16, emit_pattern, (void *)(uintptr_t)specs, &err), &err);
    assert_true(!dtp_file_exists(single) && dtp_file_exists(path));
    free(single);
    assert_ok(dtp_remove_tree(folder, &err), &err);
    free(path);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
