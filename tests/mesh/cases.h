// Random redistributions (mesh, two layouts, shape) for the tests of redistribute().
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "mesh/redistribute.h"
#include "tests/mesh/simulated_ranks.h"

namespace orthant {

inline constexpr int64_t kBytes = 4;

struct Case {
  Mesh mesh;
  Layout from, to;
  std::vector<int64_t> shape;
};

/// Draws a case. If `ample`, every extent is at least the number of ranks, so that no shard is empty.
inline Case random_case(Random& random, bool ample = false) {
  Case c{.mesh = random_mesh(random), .from = {}, .to = {}, .shape = {}};
  while (ample && c.mesh.size() > 24) c.mesh = random_mesh(random);
  const int dims = random.below(ample ? 3 : 4);
  int64_t budget = 20000 / c.mesh.size();
  for (int dim = 0; dim < dims; ++dim) {
    const int64_t extent = ample ? c.mesh.size() + random.below(4) : random.below(14);
    c.shape.push_back(ample ? extent : std::min(extent, std::max<int64_t>(budget, 1)));
    budget /= std::max<int64_t>(c.shape.back(), 1);
  }
  c.from = random_layout(random, c.mesh, dims);
  c.to = random_layout(random, c.mesh, dims);
  return c;
}

inline std::string text(const Case& c, const std::vector<Collective>& plan = {}) {
  std::string out = to_string(c.mesh) + " " + to_string(c.from) + " => " + to_string(c.to) + " shape";
  for (int64_t extent : c.shape) out += " " + std::to_string(extent);
  for (const Collective& step : plan) out += "\n  " + to_string(step);
  return out;
}

/// Maximum of bytes_sent() over all ranks, by max_elements_sent(). Shard 0 is a largest shard of every axis, and every
/// formula grows with the extents. So the busiest rank has coordinate 0 on all other axes.
inline int64_t max_bytes_sent(const Mesh& mesh, const Collective& collective, const Layout& before,
                              std::span<const int64_t> global_shape) {
  Layout without_split = before;
  if (collective.from_dim >= 0) without_split.split.at(static_cast<size_t>(collective.from_dim)).pop_back();
  return kBytes * max_elements_sent(collective.kind, mesh.axis_size(collective.axis),
                                    local_shape(mesh, without_split, global_shape, 0), collective.from_dim,
                                    collective.to_dim);
}

inline std::vector<CollectiveKind> kinds(const std::vector<Collective>& plan) {
  std::vector<CollectiveKind> out;
  for (const Collective& step : plan) out.push_back(step.kind);
  return out;
}

}  // namespace orthant
