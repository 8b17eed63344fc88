// Enumerates the variants of a mesh or layout that a search tries: stages of ZeRO and copies of sharded states,
// recomputation, schedules, placements of the vocabulary, of layers and of tokens, and orders of axes over hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "advice/mesh_choices.h"

namespace orthant {

/// Keys that the user has set keep their values. `base` and `facts` must outlive it.
class LayoutVariants {
 public:
  LayoutVariants(const Config& base, const RunFacts& facts) : base_(base), facts_(facts) {}

  /// Pipeline ranks without layers are tried, too.
  void allow_idle_ranks() { allows_idle_ranks_ = true; }
  bool allows_idle_ranks() const { return allows_idle_ranks_; }
  /// Whether this number of stages is tried on each pipeline rank.
  bool has_layers_for(int stages, int64_t pipeline) const;

  /// The config with every stage of ZeRO, each with its values of zero_reshard; and the same with the most copies of
  /// the sharded states (HSDP) for which has_room() is true.
  std::vector<Config> states(const MeshChoice& mesh, const Config& config,
                             const std::function<bool(const Config&)>& has_room) const;
  /// From no recomputation to the most. Each setting recomputes all that the settings of the level before it do.
  std::vector<std::vector<ActivationCheckpointConfig>> recomputations() const;
  /// A pipeline with each other placement of the vocabulary, each other schedule, and layers placed by their costs.
  std::vector<Config> pipelines(const Config& config) const;
  /// A pipeline over several hosts with the data axis as the outer one; empty if the user has set the outer axis.
  std::vector<Config> axis_orders(const Config& config) const;
  /// Ring attention with the placement "stripe"; empty if the user has set the placement.
  std::vector<Config> token_placements(const Config& config) const;
  /// A layout with every other number of copies of the states that ZeRO shards.
  std::vector<Config> copies(const Config& config) const;
  /// A layout that recomputes other operations than recomputations() lists, or those of every second layer.
  std::vector<Config> partial_recomputations(const Config& config) const;
  /// A layout with recomputation: the same with one recomputed operation of every third, or up to every eighth, layer.
  std::vector<Config> sparse_recomputations(const Config& config) const;
  /// The mesh with the schedules and the placements of the vocabulary that need least memory.
  std::vector<Config> lean_pipelines(const MeshChoice& mesh) const;

 private:
  /// Numbers of copies of the states that ZeRO may shard over `data` ranks, in ascending order; none if the user has
  /// set them.
  std::vector<int64_t> copy_numbers(int64_t data) const;
  bool recomputation_is_given() const;
  Config with_recomputation(Config config, std::vector<std::string> operations, int64_t layers) const;

  const Config& base_;
  const RunFacts& facts_;
  bool allows_idle_ranks_ = false;
};

}  // namespace orthant
