#include "core/test.h"

#include <deltune/tensor.h>

static void slices_and_splits_address_the_right_elements(void **state)
{
    (void)state;
    float data[4 * 6];
    dt_tensor t = dt_tensor_2d(data, DT_F32, 4, 6);
    dt_tensor s = dt_tensor_split_last(dt_tensor_slice(t, 1, 2, 6), 2); /* [4, 2, 2] inside rows of 6 */
    assert_ptr_equal(s.data, data + 2);
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.shape[1], 2);
    assert_int_equal(s.stride[0], 6);
    assert_int_equal(s.stride[1], 2);
    assert_false(dt_tensor_is_contiguous(&s));
    assert_true(dt_tensor_is_contiguous(&t));
    assert_int_equal(dt_tensor_numel(&s), 16);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(dt_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(dt_f32_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: a tie, to even */
    assert_int_equal(dt_f32_to_bf16(1.01171875f), 0x3f82); /* 1 + 3 * 2^-8: a tie, to even */
    assert_int_equal(dt_f32_to_bf16(3.4e38f), 0x7f80);     /* above the largest bf16: infinity */
    assert_true(isnan(dt_bf16_to_f32(dt_f32_to_bf16(NAN))));
    for (uint32_t h = 0; h < 0x7f80; h++)
        assert_int_equal(dt_f32_to_bf16(dt_bf16_to_f32((uint16_t)h)), h);
}

static void f16_widens_exactly(void **state)
{
    (void)state;
    assert_true(dt_f16_to_f32(0x3c00) == 1.0f);
    assert_true(dt_f16_to_f32(0xc000) == -2.0f);
    assert_true(dt_f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(dt_f16_to_f32(0x7bff) == 65504.0f);
    assert_true(isinf(dt_f16_to_f32(0x7c00)) && isnan(dt_f16_to_f32(0x7e00)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_and_splits_address_the_right_elements),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_widens_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
