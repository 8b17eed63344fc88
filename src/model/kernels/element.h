// The element types of the fused kernels: the type that is stored and the wider type of the arithmetic.
#pragma once

#include <bit>
#include <cstdint>

namespace orthant {

/// A bfloat16 as stored: the upper half of a float. Layout-compatible with c10::BFloat16.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

/// Rounds to nearest, ties to even. A NaN stays a NaN.
inline Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

namespace kernel_detail {
template <class T>
struct WideOf;
template <>
struct WideOf<float> {
  using type = float;
};
template <>
struct WideOf<Bf16> {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
}  // namespace kernel_detail

/// The type of the arithmetic on a stored T, of row statistics and of parameter gradients: float for float and Bf16,
/// double for double.
template <class T>
using Wide = typename kernel_detail::WideOf<T>::type;

}  // namespace orthant
