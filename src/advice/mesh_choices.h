// The meshes that the search of layouts tries, each with several sizes of microbatches. Keys that the user has set
// stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/sharding.h"

namespace orthant {

/// A mesh and a size of microbatches.
struct MeshChoice {
  TensorPlan tensor;
  int64_t pipeline = 1, ulysses = 1, ring = 1, data = 1, local_batch = 1;

  /// The kinds of axes with several ranks: "tensor + data". Ulysses and ring axes are of the kind "sequence".
  std::string kind() const;
};

/// Meshes that a search tries in addition.
struct MeshSpace {
  bool idle_ranks = false;    // data ranks without sequences, and pipeline ranks without layers
  bool beyond_hosts = false;  // tensor axes of kind 1d that are longer than a host
};

/// Returns the meshes of facts.ranks ranks that keep the laws of meshes and batches, with microbatches of 1, 2, 4 and 8
/// sequences. Unless the user has set them, tensor axes are not longer than a host, and at most 64 ranks share a
/// sequence. All data ranks have sequences and
/// all pipeline ranks layers. `space` has exceptions. Requires facts.hardware.
std::vector<MeshChoice> mesh_choices(const Config& base, const RunFacts& facts, const MeshSpace& space = {});

/// Returns the configuration with this mesh and size of microbatches.
Config with_mesh(const Config& base, const MeshChoice& mesh);

}  // namespace orthant
