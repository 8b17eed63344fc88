#include "runtime/tensor_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"

namespace orthant {
namespace {

constexpr std::array<std::pair<Dtype, at::ScalarType>, 5> kTypes = {{{Dtype::f64, at::kDouble},
                                                                     {Dtype::f32, at::kFloat},
                                                                     {Dtype::bf16, at::kBFloat16},
                                                                     {Dtype::f16, at::kHalf},
                                                                     {Dtype::i64, at::kLong}}};

}  // namespace

Dtype dtype_of(at::ScalarType type) {
  const auto found = std::ranges::find(kTypes, type, &std::pair<Dtype, at::ScalarType>::second);
  ORTHANT_CHECK(found != kTypes.end(), static_cast<int>(type));
  return found->first;
}

std::span<const std::byte> bytes_of(const at::Tensor& t) {
  ORTHANT_CHECK(t.is_contiguous() && t.is_cpu(), t.dim());
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

at::Tensor tensor_of_file(const TensorBytes& stored, const std::string& source) {
  const auto found = std::ranges::find(kTypes, stored.dtype, &std::pair<Dtype, at::ScalarType>::first);
  if (found == kTypes.end()) {
    throw DataError(fmt::format("{}: {} is stored as {}; F64, F32, BF16, F16 and I64 can be loaded", source,
                                stored.name, dtype_name(stored.dtype)));
  }
  return at::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape,
                       at::TensorOptions().dtype(found->second));
}

}  // namespace orthant
