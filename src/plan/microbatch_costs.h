// Memory and messages of one microbatch on a rank, which depend on the sizes of the rank's shards of sequences, heads,
// widths and vocabulary.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "parallel/tensor/slice_traffic_plan.h"
#include "plan/microbatch_memory.h"

namespace orthant {

struct MicrobatchCosts {
  MicrobatchMemory memory;
  int64_t stream_bytes = 0;   // of a message between stages
  SequenceTraffic attention;  // of one layer
  TensorTraffic tensor;
  std::vector<Messages> vocabulary;  // of vocabulary layers that are sharded over the pipeline, between its ranks
  TensorSliceTraffic slice;          // of the same layers, within a tensor mesh

  auto operator<=>(const MicrobatchCosts&) const = default;
};

/// The costs of a rank's microbatches, by their number of sequences.
using MicrobatchCostsBySize = std::map<int64_t, MicrobatchCosts>;

/// Returns the costs of a microbatch of each of these numbers of sequences on the rank.
MicrobatchCostsBySize microbatch_costs(const Pipeline& plan, int rank, const std::vector<int64_t>& sizes);

/// The microbatch_costs() of every rank. They are computed once per position on the axes that shard activations, and
/// equal costs are stored once.
class MicrobatchCostsByRank {
 public:
  explicit MicrobatchCostsByRank(const Pipeline& plan);
  const std::shared_ptr<const MicrobatchCostsBySize>& of(int rank) const;

 private:
  GroupPositions positions_;
  std::vector<std::shared_ptr<const MicrobatchCostsBySize>> costs_;  // by position
};

/// Returns the numbers of sequences that the microbatches of any rank have, 0 left out.
std::vector<int64_t> microbatch_sizes(const Sharding& sharding);

}  // namespace orthant
