#include "comm/flat.h"

#include <algorithm>

namespace orthant {

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view(-1); }

at::Tensor flat_bytes(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }

std::vector<int64_t> counts_in_bytes(std::span<const int64_t> counts, const at::Tensor& tensor) {
  std::vector<int64_t> bytes(counts.begin(), counts.end());
  for (auto& count : bytes) count *= tensor.element_size();
  return bytes;
}

bool all_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

void sum_in_order(const at::Tensor& chunks, const at::Tensor& output) {
  const bool narrow = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  at::Tensor sum = narrow ? chunks[0].to(at::kFloat) : chunks[0];
  for (int64_t i = 1; i < chunks.size(0); ++i) sum.add_(chunks[i]);
  output.copy_(sum);
}

}  // namespace orthant
