// Differences of elements in each floating dtype, with the special values; other dtypes are compared by their bytes.
#include "checkpoint/element_difference.h"

#include <array>
#include <cmath>
#include <limits>

#include "tests/checkpoint/fixtures.h"

namespace orthant::element_difference_test {
namespace {

template <typename Number, std::size_t N>
ElementDifference compare(Dtype dtype, const std::array<Number, N>& a, const std::array<Number, N>& b) {
  return compare_elements(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

TEST(ElementDifference, CountsAndMeasures) {
  const auto f32 = compare(Dtype::f32, std::array{1.0f, 2.0f, 3.0f}, std::array{1.0f, 2.5f, 2.75f});
  EXPECT_EQ(f32.num_elements, 3);
  EXPECT_EQ(f32.num_different, 2);
  EXPECT_EQ(f32.largest, 0.5);
  EXPECT_EQ(compare(Dtype::f64, std::array{1e-300}, std::array{-1e-300}).largest, 2e-300);
  // bfloat16: 1.0 is 3f80, and the next number is 1 + 1/128.
  EXPECT_EQ(compare(Dtype::bf16, std::array<uint16_t, 1>{0x3f80}, std::array<uint16_t, 1>{0x3f81}).largest, 1.0 / 128);
  // float16: 1.0 is 3c00, the next number is 1 + 1/1024; 7bff is 65504, the largest; 0001 is 2^-24, the smallest.
  EXPECT_EQ(compare(Dtype::f16, std::array<uint16_t, 1>{0x3c00}, std::array<uint16_t, 1>{0x3c01}).largest, 1.0 / 1024);
  EXPECT_EQ(compare(Dtype::f16, std::array<uint16_t, 1>{0x7bff}, std::array<uint16_t, 1>{0xfbff}).largest, 131008.0);
  EXPECT_EQ(compare(Dtype::f16, std::array<uint16_t, 1>{0x0001}, std::array<uint16_t, 1>{0x0000}).largest, 0x1p-24);
  EXPECT_EQ(compare(Dtype::f16, std::array<uint16_t, 1>{0x0400}, std::array<uint16_t, 1>{0x03ff}).largest, 0x1p-24);
}

TEST(ElementDifference, EqualTensorsDiffByNothing) {
  const auto same = compare(Dtype::f32, std::array{1.0f, NAN}, std::array{1.0f, NAN});
  EXPECT_EQ(same.num_different, 0);
  EXPECT_EQ(same.largest, 0.0);
  EXPECT_EQ(compare_elements(Dtype::f32, {}, {}).num_elements, 0);
}

TEST(ElementDifference, SpecialValues) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const auto zeros = compare(Dtype::f32, std::array{0.0f}, std::array{-0.0f});
  EXPECT_EQ(zeros.num_different, 1) << "their bytes differ";
  EXPECT_EQ(zeros.largest, 0.0);
  EXPECT_EQ(compare(Dtype::f32, std::array{NAN}, std::array{-NAN}).largest, 0.0);
  EXPECT_TRUE(std::isinf(*compare(Dtype::f32, std::array{NAN, 1.0f}, std::array{0.0f, 2.0f}).largest));
  EXPECT_TRUE(std::isinf(*compare(Dtype::f32, std::array{kInfinite}, std::array{-kInfinite}).largest));
  EXPECT_TRUE(std::isinf(*compare(Dtype::f16, std::array<uint16_t, 1>{0x7c00}, std::array<uint16_t, 1>{0}).largest));
  EXPECT_TRUE(std::isinf(*compare(Dtype::f16, std::array<uint16_t, 1>{0x7c01}, std::array<uint16_t, 1>{0}).largest));
}

TEST(ElementDifference, OtherDtypesByBytes) {
  const auto i32 = compare(Dtype::i32, std::array<int32_t, 3>{1, 2, 3}, std::array<int32_t, 3>{1, 2, -3});
  EXPECT_EQ(i32.num_elements, 3);
  EXPECT_EQ(i32.num_different, 1);
  EXPECT_FALSE(i32.largest);
  const auto f4 = compare(Dtype::f4, std::array<uint8_t, 3>{0, 1, 2}, std::array<uint8_t, 3>{16, 1, 3});
  EXPECT_EQ(f4.num_elements, 3) << "bytes of two elements";
  EXPECT_EQ(f4.num_different, 2);
  EXPECT_THROW(compare(Dtype::f32, std::array<uint8_t, 3>{}, std::array<uint8_t, 3>{}), LogicError);
}

}  // namespace
}  // namespace orthant::element_difference_test
