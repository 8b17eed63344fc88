// Recomputation of activations, as values: the operations of a block that run again in backward, so that forward need
// not keep their tensors (Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, arXiv 2205.05198, section 5).
//
// Example: the ranges of each name in a LLaMA block, whose operations block_plan.h lists (0 to 7):
//
//   norms      [0, 2) norm, qkv_proj; [4, 6) norm, gate_up_proj
//   attention  [2, 4) attention, o_proj
//   swiglu     [6, 8) swiglu, down_proj
//   mlp        [5, 8) gate_up_proj, swiglu, down_proj
//
// Ranges that overlap are merged: norms and mlp make [0, 2) and [4, 8). Ranges that only touch stay apart.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "model/block_plan.h"

namespace orthant {

/// The operations [begin, end) of a block, the last of which is linear. Forward keeps only the input of the first;
/// for a norm this is the residual stream after the addition. Backward runs the range again without its last
/// product, because backward does not need the output of that product.
struct RecomputedRange {
  size_t begin = 0, end = 0;

  size_t last_product() const { return end - 1; }
  bool contains(size_t operation) const { return begin <= operation && operation < end; }
  bool operator==(const RecomputedRange&) const = default;
};

/// The names that recomputed_ranges() takes: parts of a block, and the whole block.
inline constexpr const char* kRecomputedParts[] = {"attention", "mlp", "norms", "swiglu"};
inline constexpr const char* kWholeBlock = "block";

/// Returns the ranges that the names select, in order: norms with the products that read them, attention with its
/// output projection, the MLP, or only its activation (swiglu, gelu) with the product that reads it. Throws LogicError
/// for a name that selects no operation of the block.
std::vector<RecomputedRange> recomputed_ranges(const std::vector<Operation>& block,
                                               const std::vector<std::string>& names);

/// Returns the operations that backward runs again: those of the ranges, without the last product of each.
std::vector<Operation> repeated_operations(const std::vector<Operation>& block,
                                           const std::vector<RecomputedRange>& ranges);

/// The recomputation of a model: the names of what a block recomputes, and which blocks do.
struct Recomputation {
  std::vector<std::string> names = {};  // empty: no block recomputes
  int64_t layers = 1;  // every block whose number, counted from 1, is a multiple of this recomputes

  bool is_on() const { return !names.empty(); }
  bool applies_to(int64_t layer) const { return is_on() && (layer + 1) % layers == 0; }
  /// The number of blocks among the layers [begin, end) that recompute.
  int64_t num_layers(int64_t begin, int64_t end) const { return is_on() ? end / layers - begin / layers : 0; }
  std::vector<RecomputedRange> ranges(const std::vector<Operation>& block) const {
    return recomputed_ranges(block, names);
  }
  /// Operations that a recomputing block repeats in backward.
  std::vector<Operation> repeated(const std::vector<Operation>& block) const {
    return repeated_operations(block, ranges(block));
  }
  /// True if attention is among them.
  bool repeats_attention(const std::vector<Operation>& block) const;

  auto operator<=>(const Recomputation&) const = default;
};

}  // namespace orthant
