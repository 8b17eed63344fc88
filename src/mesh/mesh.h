// Mesh: named axes with sizes over the ranks 0..N-1. It is a plain value, independent of running processes. All
// arithmetic of ranks, coordinates and uneven shards is in this file and nowhere else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// The half-open range of integers [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Shard `index` of n elements split into `parts` balanced shards. All uneven splits of the project use this rule.
/// Shards are contiguous and in order, and the first n % parts shards hold one element more than the others.
/// Example: n = 10, parts = 4 gives [0, 3), [3, 6), [6, 8), [8, 10). If n < parts, the last shards are empty.
Range shard(int64_t n, int parts, int index);

/// A named axis and the number of coordinates along it.
struct Axis {
  std::string name;
  int size = 1;

  bool operator==(const Axis&) const = default;
};

/// Axes are listed from inner to outer: the first varies fastest over the ranks. A mesh without axes has one rank.
/// A plan lists every axis that its layouts name, axes of size 1 included. A coordinate along any other axis is a
/// LogicError, so that a misspelled axis cannot pass for one of size 1.
/// Example: on [column 2, row 2, depth 2], rank 5 has coordinates column 1, row 0, depth 1. Its group over row is
/// {5, 7}, and its group over column and depth is {0, 1, 4, 5}.
struct Mesh {
  std::vector<Axis> axes;

  Mesh() = default;
  /// Throws LogicError if a size is below 1, or if a name is empty, has characters outside [a-z0-9_] or occurs twice.
  explicit Mesh(std::vector<Axis> inner_to_outer);

  /// Number of ranks.
  int size() const;
  bool has(std::string_view axis) const;
  /// Size of the axis; 1 for an axis that the mesh does not have.
  int axis_size(std::string_view axis) const;
  /// Coordinate of the rank along the axis.
  int coord(int rank, std::string_view axis) const;
  /// Coordinates of the rank along all axes, in the mesh's order.
  std::vector<int> coords(int rank) const;
  /// The rank with these coordinates; inverse of coords().
  int rank_at(std::span<const int> coords) const;
  /// The rank that has this coordinate along the axis and otherwise the coordinates of `rank`.
  int rank_at(int rank, std::string_view axis, int coord) const;

  /// The group of `rank` over the axes `among`: all ranks that differ from it only along these axes, itself included.
  /// The order is by coordinates, with the mesh's innermost axis fastest, and does not depend on the order of `among`.
  /// Without axes the group is {rank}.
  std::vector<int> group(int rank, std::span<const std::string> among) const;
  std::vector<int> group(int rank, std::initializer_list<std::string> among) const;
  /// Index of the rank in group(rank, among).
  int group_index(int rank, std::span<const std::string> among) const;
  /// Number of ranks in every group over these axes.
  int group_size(std::span<const std::string> among) const;
  /// Names of those axes in `among` whose size is above 1, in the mesh's order, joined by "+": "ulysses+data".
  std::string joined_name(std::span<const std::string> among) const;

  bool operator==(const Mesh&) const = default;
};

/// Positions of ranks in their groups over some axes. The axes are found once, for many ranks.
class GroupPositions {
 public:
  GroupPositions(const Mesh& mesh, std::span<const std::string> among);

  /// Number of positions: mesh.group_size(among).
  int size() const { return size_; }
  /// Position of the rank: mesh.group_index(rank, among).
  int of(int rank) const;
  /// The rank at this position whose coordinates along all other axes are 0.
  int rank_at(int position) const;

 private:
  struct Digit {
    int size, stride;  // of an axis in the numbers of ranks
  };
  std::vector<Digit> digits_;
  int size_ = 1;
};

/// Names of all axes, from inner to outer.
std::vector<std::string> all_axes(const Mesh& mesh);

/// Text form "[tensor 2, ring 4, data 3]", from inner to outer.
std::string to_string(const Mesh& mesh);

}  // namespace orthant
