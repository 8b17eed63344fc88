// All ranks of a mesh, simulated in one process with plain arrays of integers. Ranks shards a tensor by a layout,
// carries out Collectives by messages, counts the elements that each rank sends, and checks whether the ranks hold a
// given layout. It reads only kind, axis and dims of a Collective and splits by its own arithmetic. Therefore it can
// detect a wrong plan.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "mesh/collective.h"
#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "tests/mesh/arrays.h"
#include "tests/support/random.h"

namespace orthant {

/// Draws a mesh of one to four axes of sizes 1 to 5, with at most 60 ranks.
inline Mesh random_mesh(Random& random) {
  for (;;) {
    std::vector<Axis> axes;
    const int count = 1 + random.below(4);
    int ranks = 1;
    for (int i = 0; i < count; ++i) {
      axes.push_back({std::string(1, static_cast<char>('a' + i)), 1 + random.below(5)});
      ranks *= axes.back().size;
    }
    if (ranks <= 60) return Mesh(axes);
  }
}

/// Draws a layout: every axis gets a random placement, and the axes of a split are in random order.
inline Layout random_layout(Random& random, const Mesh& mesh, int dims) {
  Layout layout = unsharded_layout(dims);
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes) {
    const int place = random.below(static_cast<int>(names.size()) + 1);
    names.insert(names.begin() + place, axis.name);
  }
  for (const std::string& name : names) {
    const int choice = random.below(dims + 3);
    if (choice < dims) layout.split[static_cast<size_t>(choice)].push_back(name);
    if (choice == dims) layout.partial.push_back(name);
    if (choice == dims + 1) layout.replicated.push_back(name);
  }
  return layout;
}

class Ranks {
 public:
  /// Distributes the tensor as the layout says. Summands of P are random, and the last one completes the sum.
  Ranks(const Mesh& mesh, const Layout& layout, const Array& tensor, Random& random)
      : sent(static_cast<size_t>(mesh.size()), 0), mesh_(mesh) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const int original = first_copy(layout, rank);
      const Array piece = cut(tensor, local_ranges(mesh, layout, tensor.shape, rank));
      locals.push_back(original < rank ? locals[static_cast<size_t>(original)]
                       : is_last_summand(layout, rank) ? piece
                                                       : random_array(random, piece.shape));
    }
    for (int rank = 0; rank < mesh.size(); ++rank) {
      if (!is_last_summand(layout, rank)) continue;
      for (int member : mesh.group(rank, layout.partial)) {
        if (member == rank) continue;
        for (size_t i = 0; i < local(rank).data.size(); ++i) local(rank).data[i] -= local(member).data[i];
      }
    }
  }

  /// Whether the ranks hold the tensor in that layout.
  bool hold(const Layout& layout, const Array& tensor) {
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const Array expected = cut(tensor, local_ranges(mesh_, layout, tensor.shape, rank));
      Array sum = zeros(expected.shape);
      for (int member : mesh_.group(rank, layout.partial)) {
        if (local(member).shape != expected.shape) return false;
        add(sum, local(member));
      }
      if (sum != expected || local(rank) != local(first_copy(layout, rank))) return false;
    }
    return true;
  }

  /// Carries out one step. Throws std::exception if that is impossible.
  void carry_out(const Collective& step) {
    std::vector<Array> results(locals.size());
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const std::vector<int> group = mesh_.group(rank, {step.axis});
      if (group.front() != rank) continue;
      std::vector<Array> members;
      for (int member : group) members.push_back(local(member));
      std::vector<int64_t> counts(group.size(), 0);
      members = stepped(step, std::move(members), counts);
      for (size_t i = 0; i < group.size(); ++i) {
        results[static_cast<size_t>(group[i])] = std::move(members[i]);
        sent[static_cast<size_t>(group[i])] += counts[i];
      }
    }
    locals = std::move(results);
  }

  std::vector<Array> locals;
  std::vector<int64_t> sent;  // elements sent, by rank

  Array& local(int rank) { return locals[static_cast<size_t>(rank)]; }

 private:
  using Group = std::vector<Array>;
  using Counts = std::vector<int64_t>;

  /// The rank with coordinate 0 along all axes over which the layout holds copies (R and I).
  int first_copy(const Layout& layout, int rank) const {
    for (const Axis& axis : mesh_.axes) {
      const AxisPlacementKind kind = axis_placement(layout, axis.name).kind;
      if (kind == AxisPlacementKind::R || kind == AxisPlacementKind::I) rank = mesh_.rank_at(rank, axis.name, 0);
    }
    return rank;
  }
  bool is_last_summand(const Layout& layout, int rank) const {
    for (const std::string& axis : layout.partial)
      if (mesh_.coord(rank, axis) != mesh_.axis_size(axis) - 1) return false;
    return true;
  }

  static std::vector<Array> pieces(const Array& array, int dim, int parts) {
    std::vector<Array> out;
    const int64_t extent = array.shape.at(static_cast<size_t>(dim));
    int64_t at = 0;
    for (int i = 0; i < parts; ++i) {
      const int64_t length = extent / parts + (i < extent % parts ? 1 : 0);
      out.push_back(cut(array, dim, {at, at + length}));
      at += length;
    }
    return out;
  }

  /// Ring all-gather. Returns blocks[owner][holder]: in each step, a rank passes on the block that it received last.
  static std::vector<Group> ring_gather(const Group& own, Counts& counts) {
    const size_t n = own.size();
    std::vector<Group> blocks(n, Group(n));
    for (size_t c = 0; c < n; ++c) blocks[c][c] = own[c];
    for (size_t step = 0; step + 1 < n; ++step)
      for (size_t c = 0; c < n; ++c) {
        const size_t owner = (c + n - step) % n;
        counts[c] += static_cast<int64_t>(blocks[owner][c].data.size());
        blocks[owner][(c + 1) % n] = blocks[owner][c];
      }
    return blocks;
  }

  /// All-gather by direct messages: each rank sends its block to all others.
  static std::vector<Group> direct_gather(const Group& own, Counts& counts) {
    const size_t n = own.size();
    for (size_t c = 0; c < n; ++c) counts[c] += static_cast<int64_t>((n - 1) * own[c].data.size());
    std::vector<Group> blocks;
    for (const Array& block : own) blocks.emplace_back(n, block);
    return blocks;
  }

  /// Ring reduce-scatter of parts[holder][piece]. Piece k starts at coordinate k + 1 and travels the ring. Each rank
  /// adds its summand, until coordinate k holds the sum.
  static Group ring_reduce(const std::vector<Group>& parts, Counts& counts) {
    const size_t n = parts.size();
    Group out;
    for (size_t piece = 0; piece < n; ++piece) {
      Array sum = parts[(piece + 1) % n][piece];
      for (size_t hop = 1; hop < n; ++hop) {
        counts[(piece + hop) % n] += static_cast<int64_t>(sum.data.size());
        add(sum, parts[(piece + hop + 1) % n][piece]);
      }
      out.push_back(sum);
    }
    return out;
  }

  /// For each coordinate, the blocks of all owners, joined along the dim.
  static Group joined_blocks(const std::vector<Group>& blocks, int dim) {
    Group out;
    for (size_t c = 0; c < blocks.size(); ++c) {
      Group mine;
      for (const Group& held : blocks) mine.push_back(held[c]);
      out.push_back(joined(mine, dim));
    }
    return out;
  }

  static Group all_reduced(const Group& in, Counts& counts) {
    std::vector<Group> chunks;
    for (const Array& each : in) {
      if (each.shape != in[0].shape) throw std::runtime_error("summands of different shapes");
      chunks.push_back(pieces({{static_cast<int64_t>(each.data.size())}, each.data}, 0, static_cast<int>(in.size())));
    }
    Group out = joined_blocks(direct_gather(ring_reduce(chunks, counts), counts), 0);
    for (Array& each : out) each.shape = in[0].shape;
    return out;
  }

  static Group all_to_all(const Group& in, int from_dim, int to_dim, Counts& counts) {
    std::vector<Group> cuts;
    for (const Array& each : in) cuts.push_back(pieces(each, to_dim, static_cast<int>(in.size())));
    Group out;
    for (size_t c = 0; c < in.size(); ++c) {
      Group mine;
      for (size_t from = 0; from < in.size(); ++from) {
        if (from != c) counts[from] += static_cast<int64_t>(cuts[from][c].data.size());
        mine.push_back(cuts[from][c]);
      }
      out.push_back(joined(mine, from_dim));
    }
    return out;
  }

  static Group padded(const Group& in, int dim) {
    Group out;
    for (size_t c = 0; c < in.size(); ++c) {
      Group mine;
      for (size_t other = 0; other < in.size(); ++other) mine.push_back(other == c ? in[c] : zeros(in[other].shape));
      out.push_back(joined(mine, dim));
    }
    return out;
  }

  /// broadcast, reduce and shift, which pass one array from neighbor to neighbor, and reduce_in_chunks, whose chunks go
  /// to their owners, and their sums to coordinate 0.
  static Group passed_on(CollectiveKind kind, const Group& in, Counts& counts) {
    const size_t n = in.size();
    Group out = in;
    for (size_t c = 0; c < n && kind == CollectiveKind::broadcast; ++c) {
      out[c] = in[0];
      if (c + 1 < n) counts[c] += static_cast<int64_t>(in[0].data.size());
    }
    const bool in_chunks = kind == CollectiveKind::reduce_in_chunks && n > 2;
    const auto all = static_cast<int64_t>(in[0].data.size());
    for (size_t c = n; c-- > 0 && (kind == CollectiveKind::reduce || kind == CollectiveKind::reduce_in_chunks);) {
      if (c > 0 && !in_chunks) counts[c] += all;
      for (size_t owner = 0; owner < n && in_chunks; ++owner) {
        const int64_t chunk = shard(all, static_cast<int>(n), static_cast<int>(owner)).size();
        if (owner != c || c > 0) counts[c] += chunk;
      }
      if (c > 0) add(out[c - 1], out[c]);
    }
    for (size_t c = 0; c < n && n > 1 && kind == CollectiveKind::shift; ++c) {
      counts[c] += static_cast<int64_t>(in[c].data.size());
      out[(c + 1) % n] = in[c];
    }
    return out;
  }

  static Group stepped(const Collective& step, Group in, Counts& counts) {
    const int n = static_cast<int>(in.size());
    std::vector<Group> cuts;
    switch (step.kind) {
      case CollectiveKind::all_gather:
        return joined_blocks(ring_gather(in, counts), step.from_dim);
      case CollectiveKind::all_reduce:
        return all_reduced(in, counts);
      case CollectiveKind::reduce_scatter:
        for (const Array& each : in) cuts.push_back(pieces(each, step.to_dim, n));
        return ring_reduce(cuts, counts);
      case CollectiveKind::all_to_all:
        return all_to_all(in, step.from_dim, step.to_dim, counts);
      case CollectiveKind::slice:
        for (size_t c = 0; c < in.size(); ++c) in[c] = pieces(in[c], step.to_dim, n)[c];
        return in;
      case CollectiveKind::pad:
        return padded(in, step.from_dim);
      case CollectiveKind::mask_replicas:
        for (size_t c = 1; c < in.size(); ++c) in[c] = zeros(in[c].shape);
        return in;
      case CollectiveKind::relabel:
        return in;
      default:
        return passed_on(step.kind, in, counts);
    }
  }

  Mesh mesh_;
};

}  // namespace orthant
