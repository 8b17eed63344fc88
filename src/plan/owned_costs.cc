#include "plan/owned_costs.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

#include "config/from_config.h"
#include "mesh/staging.h"

namespace orthant {
namespace {

Moved sum_elements(int64_t elements, int ranks, int position) {
  return elements_moved(CollectiveKind::all_reduce, ranks, position, std::array{elements});
}

// Sizes that all buckets share.
struct Sizes {
  explicit Sizes(const ParameterPlacement& plan)
      : shards_optimizer(plan.shards_optimizer()),
        master(master_bytes(plan.config)),
        element(dtype_bytes(plan.config.training.dtype)),
        copies(plan.mesh.axis_size(kReplica)),
        over_nccl(uses_nccl(plan.config)) {}
  bool shards_optimizer;
  int64_t master, element;  // bytes of an element of masters and gradients, and of weights
  int copies;               // of sharded states
  bool over_nccl;
};

BucketCosts bucket_costs(const Sizes& sizes, const GradientBucket& bucket, int ranks, int position, int copy) {
  const auto [shards_optimizer, master, element, copies, over_nccl] = sizes;
  const int64_t elements = bucket.elements.size();
  BucketCosts costs;
  if (elements == 0) return costs;
  if (!shards_optimizer) {
    if (ranks == 1) return costs;
    costs.reduction_buffer = reduction_buffer_bytes(shard(elements, ranks, position).size() * master, ranks, over_nccl);
    costs.reduction_bytes = master * sum_elements(elements, ranks, position);
    return costs;
  }
  const int64_t own = bucket.chunk(position).size();
  if (ranks > 1) {
    costs.reduction_buffer = reduction_buffer_bytes(own * master, ranks, over_nccl);
    costs.reduction_bytes = master * Moved{elements - own, (ranks - 1) * own};
    costs.gather_bytes = element * Moved{elements - bucket.chunk((position + 1) % ranks).size(), elements - own};
  }
  if (copies > 1) {
    costs.copies_buffer = reduction_buffer_bytes(shard(own, copies, copy).size() * master, copies, over_nccl);
    costs.copies_bytes = master * sum_elements(own, copies, copy);
  }
  return costs;
}

// Whether costs depend on which parameters a rank owns, and not only on the number of their elements.
bool costs_differ_by_parameter(const ParameterPlacement& plan) {
  const OptimizerConfig& optimizer = plan.config.optimizer;
  const auto is_partial = [](const StateTensor& tensor) { return tensor.scope != StateScope::every_parameter; };
  return optimizer.offload || plan.architecture.tie_word_embeddings ||
         std::ranges::any_of(optimizer_spec(optimizer).state, is_partial);
}

}  // namespace

BucketPositions::BucketPositions(const ParameterPlacement& plan) {
  std::vector<Axes> known;
  for (const GradientBucket& bucket : plan.buckets) {
    const auto found = std::ranges::find(known, bucket.axes);
    index_.push_back(static_cast<size_t>(found - known.begin()));
    if (found != known.end()) continue;
    known.push_back(bucket.axes);
    groups_.emplace_back(plan.mesh, bucket.axes);
  }
}

std::vector<int> BucketPositions::of(int rank) const {
  std::vector<int> positions;
  for (const GroupPositions& group : groups_) positions.push_back(group.of(rank));
  return positions;
}

std::vector<Range> owned_parts(const ParameterPlacement& plan, const ParameterShard& held,
                               const BucketPositions& groups, const std::vector<int>& positions) {
  return plan.owned_parts(held, [&](size_t bucket) { return positions[groups.index(bucket)]; });
}

PositionClasses::PositionClasses(const ParameterPlacement& plan, const ParameterShard& held,
                                 const BucketPositions& groups) {
  for (size_t group = 0; group < groups.num_groups(); ++group) {
    classes_.emplace_back(static_cast<size_t>(groups.group_size(group)));
    if (costs_differ_by_parameter(plan)) std::iota(classes_.back().begin(), classes_.back().end(), 0);
  }
  if (costs_differ_by_parameter(plan)) return;
  const bool has_chunks = plan.shards_optimizer();
  for (size_t i = 0; i < held.buckets.size(); ++i) {
    const GradientBucket& bucket = held.buckets[i];
    if (bucket.elements.size() == 0) continue;
    std::vector<int>& classes = classes_[groups.index(i)];
    const int ranks = groups.num_ranks(i);
    const auto size_at = [&](int position) {
      return has_chunks ? bucket.chunk(position).size() : shard(bucket.elements.size(), ranks, position).size();
    };
    // Positions of a class that differ in this bucket get different classes. Neighbors are often of the same class.
    using Kind = std::tuple<int, int64_t, int64_t>;
    std::map<Kind, int> refined;
    Kind last = {-1, 0, 0};
    int refined_class = -1;
    int64_t own = size_at(0);
    for (int position = 0; position < ranks; ++position) {
      const int64_t next = size_at((position + 1) % ranks);
      int& position_class = classes[static_cast<size_t>(position)];
      if (const Kind kind = {position_class, own, next}; kind != last) {
        refined_class = refined.try_emplace(kind, static_cast<int>(refined.size())).first->second;
        last = kind;
      }
      position_class = refined_class;
      own = next;
    }
  }
}

std::vector<int> PositionClasses::of(const std::vector<int>& positions) const {
  std::vector<int> classes;
  for (size_t group = 0; group < positions.size(); ++group) {
    classes.push_back(classes_[group][static_cast<size_t>(positions[group])]);
  }
  return classes;
}

OwnedCosts owned_costs(const ParameterPlacement& plan, const ParameterShard& held, const BucketPositions& groups,
                       const std::vector<int>& positions, int copy) {
  const OptimizerConfig& optimizer = plan.config.optimizer;
  const Sizes sizes(plan);
  const int64_t master = sizes.master;
  OwnedCosts costs;
  costs.buckets.reserve(held.buckets.size());
  for (size_t i = 0; i < held.buckets.size(); ++i) {
    const GradientBucket& bucket = held.buckets[i];
    const int position = positions[groups.index(i)];
    costs.buckets.push_back(bucket_costs(sizes, bucket, groups.num_ranks(i), position, copy));
    costs.elements += sizes.shards_optimizer ? bucket.chunk(position).size() : 0;
  }
  if (!plan.shards_optimizer()) costs.elements = held.elements;
  // Elements that the rank owns of each parameter. They are computed only where parameters are treated differently.
  std::vector<Range> owned;
  const auto owned_elements = [&](size_t parameter) {
    if (owned.empty()) owned = owned_parts(plan, held, groups, positions);
    return owned[parameter].size();
  };
  for (const StateTensor& tensor : optimizer_spec(optimizer).state) {
    if (tensor.scope == StateScope::every_parameter) {
      costs.state += master * costs.elements;
      continue;
    }
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      if (tensor.has(plan.parameters[i])) costs.state += master * owned_elements(i);
    }
  }
  if (optimizer.offload) {
    int64_t largest = 0, second = 0;
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      int64_t bytes = owned_elements(i) * state_bytes(optimizer, plan.parameters[i], static_cast<int>(master));
      if (bytes > largest) std::swap(bytes, largest);
      second = std::max(second, bytes);
    }
    costs.state_on_device = largest + second;
  }
  if (!plan.architecture.tie_word_embeddings) return costs;
  for (const auto& [original, copied] : plan.tied_pairs()) {
    costs.tied.push_back(std::max(owned_elements(original), owned_elements(copied)));
  }
  return costs;
}

}  // namespace orthant
