// Rank arithmetic of the mesh: a rank is a mixed-radix number whose digits are its coordinates, innermost axis first.
#include "mesh/mesh.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// Size of an axis, and the difference of the rank numbers of neighbors along it.
struct AxisStride {
  int size;
  int stride;
};

AxisStride find_axis(const Mesh& mesh, std::string_view axis) {
  int stride = 1;
  for (const Axis& each : mesh.axes) {
    if (each.name == axis) return {each.size, stride};
    stride *= each.size;
  }
  throw LogicError(fmt::format("the mesh {} has no axis '{}'", to_string(mesh), axis));
}

bool contains(std::span<const std::string> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Throws LogicError if one of the names is not an axis of the mesh.
void check_axes(const Mesh& mesh, std::span<const std::string> names) {
  for (const std::string& name : names) find_axis(mesh, name);
}

}  // namespace

Range shard(int64_t n, int parts, int index) {
  ORTHANT_CHECK(n >= 0 && parts >= 1 && index >= 0 && index < parts, n, parts, index);
  const int64_t base = n / parts;
  const int64_t longer = n % parts;
  const int64_t begin = index * base + std::min<int64_t>(index, longer);
  return {begin, begin + base + (index < longer ? 1 : 0)};
}

Mesh::Mesh(std::vector<Axis> inner_to_outer) : axes(std::move(inner_to_outer)) {
  int64_t ranks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    ORTHANT_CHECK(is_name(axes[i].name), axes[i].name);
    ORTHANT_CHECK(axes[i].size >= 1, axes[i].name, axes[i].size);
    for (size_t j = 0; j < i; ++j) ORTHANT_CHECK(axes[j].name != axes[i].name, axes[i].name);
    ranks *= axes[i].size;
    ORTHANT_CHECK(ranks <= std::numeric_limits<int>::max(), ranks);
  }
}

int Mesh::size() const {
  int ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  return ranks;
}

bool Mesh::has(std::string_view axis) const {
  return std::any_of(axes.begin(), axes.end(), [&](const Axis& each) { return each.name == axis; });
}

int Mesh::axis_size(std::string_view axis) const { return has(axis) ? find_axis(*this, axis).size : 1; }

int Mesh::coord(int rank, std::string_view axis) const {
  ORTHANT_CHECK(rank >= 0 && rank < size(), rank, size());
  const AxisStride found = find_axis(*this, axis);
  return rank / found.stride % found.size;
}

std::vector<int> Mesh::coords(int rank) const {
  ORTHANT_CHECK(rank >= 0 && rank < size(), rank, size());
  std::vector<int> out;
  for (const Axis& axis : axes) {
    out.push_back(rank % axis.size);
    rank /= axis.size;
  }
  return out;
}

int Mesh::rank_at(std::span<const int> coords) const {
  ORTHANT_CHECK(coords.size() == axes.size(), coords.size(), axes.size());
  int rank = 0;
  for (size_t i = axes.size(); i-- > 0;) {
    ORTHANT_CHECK(coords[i] >= 0 && coords[i] < axes[i].size, axes[i].name, coords[i], axes[i].size);
    rank = rank * axes[i].size + coords[i];
  }
  return rank;
}

int Mesh::rank_at(int rank, std::string_view axis, int coord) const {
  const AxisStride found = find_axis(*this, axis);
  ORTHANT_CHECK(coord >= 0 && coord < found.size, axis, coord, found.size);
  return rank + (coord - this->coord(rank, axis)) * found.stride;
}

std::vector<int> Mesh::group(int rank, std::span<const std::string> among) const {
  ORTHANT_CHECK(rank >= 0 && rank < size(), rank, size());
  check_axes(*this, among);
  const GroupPositions positions(*this, among);
  const int first = rank - positions.rank_at(positions.of(rank));
  std::vector<int> out;
  for (int position = 0; position < positions.size(); ++position) out.push_back(first + positions.rank_at(position));
  return out;
}

std::vector<int> Mesh::group(int rank, std::initializer_list<std::string> among) const {
  return group(rank, std::span<const std::string>(among.begin(), among.size()));
}

int Mesh::group_index(int rank, std::span<const std::string> among) const {
  check_axes(*this, among);
  int index = 0;
  for (size_t i = axes.size(); i-- > 0;)
    if (contains(among, axes[i].name)) index = index * axes[i].size + coord(rank, axes[i].name);
  return index;
}

int Mesh::group_size(std::span<const std::string> among) const {
  check_axes(*this, among);
  int ranks = 1;
  for (const Axis& axis : axes)
    if (contains(among, axis.name)) ranks *= axis.size;
  return ranks;
}

std::string Mesh::joined_name(std::span<const std::string> among) const {
  check_axes(*this, among);
  std::vector<std::string> names;
  for (const Axis& axis : axes)
    if (axis.size > 1 && contains(among, axis.name)) names.push_back(axis.name);
  return join(names, "+");
}

GroupPositions::GroupPositions(const Mesh& mesh, std::span<const std::string> among) {
  check_axes(mesh, among);
  int stride = 1;
  for (const Axis& axis : mesh.axes) {
    if (axis.size > 1 && contains(among, axis.name)) {
      // Neighboring axes count as one.
      const bool joins = !digits_.empty() && digits_.back().stride * digits_.back().size == stride;
      if (joins) {
        digits_.back().size *= axis.size;
      } else {
        digits_.push_back({axis.size, stride});
      }
      size_ *= axis.size;
    }
    stride *= axis.size;
  }
}

int GroupPositions::of(int rank) const {
  int position = 0, below = 1;
  for (const auto& [size, stride] : digits_) {
    position += rank / stride % size * below;
    below *= size;
  }
  return position;
}

int GroupPositions::rank_at(int position) const {
  int rank = 0;
  for (const auto& [size, stride] : digits_) {
    rank += position % size * stride;
    position /= size;
  }
  return rank;
}

std::vector<std::string> all_axes(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes) names.push_back(axis.name);
  return names;
}

std::string to_string(const Mesh& mesh) {
  std::vector<std::string> parts;
  for (const Axis& axis : mesh.axes) parts.push_back(fmt::format("{} {}", axis.name, axis.size));
  return "[" + join(parts, ", ") + "]";
}

}  // namespace orthant
