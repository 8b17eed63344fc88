#include "model/recompute_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"

namespace orthant {
namespace {

using Ranges = std::vector<RecomputedRange>;

bool is_linear(const Operation& operation) { return operation.kind == OperationKind::linear; }

// Returns the end of the range whose last product is the first one from `at` on.
size_t end_of_range(const std::vector<Operation>& block, size_t at) {
  while (at < block.size() && !is_linear(block[at])) ++at;
  ORTHANT_CHECK(at < block.size(), at);
  return at + 1;
}

// Returns the index after the last product before `at`, or 0.
size_t after_product_before(const std::vector<Operation>& block, size_t at) {
  while (at > 0 && !is_linear(block[at - 1])) --at;
  return at;
}

// True if the operation is the activation of the MLP: a local operation that a product reads.
bool is_activation(const std::vector<Operation>& block, size_t at) {
  return block[at].kind == OperationKind::local && at + 1 < block.size() && is_linear(block[at + 1]);
}

Ranges ranges_of(const std::vector<Operation>& block, const std::string& name) {
  if (name == kWholeBlock) return {{0, block.size()}};
  Ranges ranges;
  for (size_t i = 0; i < block.size(); ++i) {
    const OperationKind kind = block[i].kind;
    const size_t begin = after_product_before(block, i);
    if (name == "norms" && kind == OperationKind::norm) ranges.push_back({i, end_of_range(block, i)});
    if (name == "attention" && kind == OperationKind::attention) ranges.push_back({begin, end_of_range(block, i)});
    if (name == "swiglu" && is_activation(block, i)) ranges.push_back({i, end_of_range(block, i)});
    if (name == "mlp" && is_activation(block, i)) ranges.push_back({begin - 1, end_of_range(block, i)});
  }
  return ranges;
}

}  // namespace

Ranges recomputed_ranges(const std::vector<Operation>& block, const std::vector<std::string>& names) {
  Ranges all;
  for (const std::string& name : names) {
    const Ranges ranges = ranges_of(block, name);
    if (ranges.empty()) throw LogicError(fmt::format("a block has no operations to recompute named {}", name));
    all.insert(all.end(), ranges.begin(), ranges.end());
  }
  std::ranges::sort(all, {}, &RecomputedRange::begin);
  Ranges merged;
  for (const RecomputedRange& range : all) {
    if (merged.empty() || range.begin >= merged.back().end) {
      merged.push_back(range);
    } else {
      merged.back().end = std::max(merged.back().end, range.end);
    }
  }
  return merged;
}

std::vector<Operation> repeated_operations(const std::vector<Operation>& block, const Ranges& ranges) {
  std::vector<Operation> repeated;
  for (const RecomputedRange& range : ranges) {
    for (size_t i = range.begin; i < range.last_product(); ++i) repeated.push_back(block[i]);
  }
  return repeated;
}

bool Recomputation::repeats_attention(const std::vector<Operation>& block) const {
  return std::ranges::count(repeated(block), OperationKind::attention, &Operation::kind) > 0;
}

}  // namespace orthant
