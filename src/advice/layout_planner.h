// Plans the layouts of a search. Calls change nothing, so that several threads may plan at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "advice/layout_bounds.h"
#include "advice/layout_search.h"
#include "advice/layout_variants.h"
#include "advice/mesh_choices.h"

namespace orthant {

/// A layout to plan, and the kind of its mesh.
struct Candidate {
  std::string kind;
  Config config;
};

/// The outcome of planning a candidate.
struct Planned {
  enum { fits, too_large, too_slow, refused } outcome = refused;
  std::optional<FoundLayout> layout;  // if it fits, or is too large
};

class LayoutPlanner {
 public:
  /// All arguments must outlive it. Requires facts.hardware.
  LayoutPlanner(const Config& base, const RunFacts& facts, const LayoutVariants& variants,
                const ModelParameters& parameters)
      : base_(base), facts_(facts), variants_(variants), parameters_(parameters) {}

  /// Plans the candidate. A step of limit_s seconds or more is too slow.
  Planned plan(const Candidate& candidate, double limit_s) const;
  /// Plans the layouts of a mesh: with three schedules and every stage of ZeRO, and with more and more recomputation
  /// until the layout fits. More recomputation never makes a step shorter. Layouts whose bounds of time or memory show
  /// that they are too slow or too large are left out.
  std::vector<Planned> plan_all(const MeshChoice& mesh, double limit_s) const;

  /// The config with every stage of ZeRO, and with copies of sharded states.
  std::vector<Config> states_of(const MeshChoice& mesh, const Config& config) const;
  /// The lesser of a device's memory and run.memory_gib_per_rank. Layouts with more bytes of tensors do not fit.
  int64_t memory_limit() const;
  /// Lower bounds of a layout's memory, in bytes, from that of least cost to the best. 0 if the layout is illegal, or
  /// if the bound says nothing.
  int64_t least_state_bytes(const Config& config) const;
  int64_t bytes_with_few_microbatches(const Config& config) const;
  /// The bounds of layouts with these passes; none if they are illegal.
  std::optional<LayoutBounds> bounds_of(Config config, const ActivationCheckpointConfig& recomputation) const;

 private:
  std::vector<Planned> plan_schedule(const MeshChoice& mesh, const Config& config, double limit_s) const;
  FoundLayout layout_of(const Plan& plan) const;

  const Config& base_;
  const RunFacts& facts_;
  const LayoutVariants& variants_;
  const ModelParameters& parameters_;
};

}  // namespace orthant
