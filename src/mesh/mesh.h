// Mesh: named axes with sizes over the ranks 0..N-1. A value that no process needs to exist for; the one place in which
// ranks, coordinates and uneven shards are computed. Everything else asks it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// The integers begin, begin + 1, ..., end - 1.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// The one rule of uneven shards: n things over `parts` owners, balanced; the first n % parts shards hold one more.
/// Shards are contiguous and in order; some are empty where n < parts.
Range shard(int64_t n, int parts, int index);

struct Axis {
  std::string name;
  int size = 1;

  bool operator==(const Axis&) const = default;
};

/// Axes from inner to outer: the first varies fastest over the ranks. Without axes it is the mesh of one rank.
/// A plan lists every axis that its layouts name, those of size 1 too; asking for a coordinate along any other axis is
/// a LogicError, so that a misspelt axis cannot pass for one of size 1.
struct Mesh {
  std::vector<Axis> axes;

  Mesh() = default;
  /// LogicError if a size is below 1, a name is empty, not made of [a-z0-9_], or stands twice.
  explicit Mesh(std::vector<Axis> inner_to_outer);

  /// Number of ranks.
  int size() const;
  bool has(std::string_view axis) const;
  /// 1 for an axis that the mesh does not have.
  int axis_size(std::string_view axis) const;
  /// The rank's position along the axis.
  int coord(int rank, std::string_view axis) const;
  /// The rank's positions along all axes, in the mesh's order.
  std::vector<int> coords(int rank) const;
  /// Inverse of coords().
  int rank_at(std::span<const int> coords) const;
  /// The rank that differs from `rank` only by its position along the axis.
  int rank_at(int rank, std::string_view axis, int coord) const;

  /// The ranks that differ from `rank` only along these axes, itself among them: ordered by position, the mesh's
  /// innermost axis fastest, whatever order the axes are asked in. No axis: {rank}.
  std::vector<int> group(int rank, std::span<const std::string> among) const;
  std::vector<int> group(int rank, std::initializer_list<std::string> among) const;
  /// The rank's index in group(rank, among), and the length of that group.
  int group_index(int rank, std::span<const std::string> among) const;
  int group_size(std::span<const std::string> among) const;
  /// Those of the axes that have more than one position, in the mesh's order: "ulysses+data".
  std::string joined_name(std::span<const std::string> among) const;

  bool operator==(const Mesh&) const = default;
};

/// The names of all axes.
std::vector<std::string> all_axes(const Mesh& mesh);

/// "[tensor 2, ring 4, data 3]", inner to outer.
std::string to_string(const Mesh& mesh);
/// Reads what to_string() wrote; DataError if it is anything else.
Mesh parse_mesh(std::string_view text);

}  // namespace orthant
