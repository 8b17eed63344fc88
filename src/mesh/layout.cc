// Local ranges of layouts, and the parser of their text form.
#include "mesh/layout.h"

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Parser state over the text form of a layout.
struct Reader {
  std::string_view text;
  size_t at = 0;

  [[noreturn]] void fail(std::string_view expected) const {
    throw DataError(fmt::format(
        "'{}' is not a layout such as [S(data, tensor), -] P(ring): expected {} at character {}", text, expected, at));
  }
  void skip_spaces() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool take(std::string_view word) {
    skip_spaces();
    if (text.substr(at, word.size()) != word) return false;
    at += word.size();
    return true;
  }
  void demand(std::string_view word) {
    if (!take(word)) fail(fmt::format("'{}'", word));
  }
  bool done() {
    skip_spaces();
    return at == text.size();
  }

  /// Reads axis names up to the closing parenthesis. The opening parenthesis is already consumed.
  std::vector<std::string> names() {
    std::vector<std::string> out;
    do {
      skip_spaces();
      const size_t begin = at;
      while (at < text.size() && std::string_view(",()[] ").find(text[at]) == std::string_view::npos) ++at;
      if (at == begin) fail("the name of an axis");
      out.emplace_back(text.substr(begin, at - begin));
    } while (take(","));
    demand(")");
    return out;
  }
};

}  // namespace

bool Layout::operator==(const Layout& other) const {
  return split == other.split && sorted(partial) == sorted(other.partial) &&
         sorted(replicated) == sorted(other.replicated);
}

AxisPlacement axis_placement(const Layout& layout, std::string_view axis) {
  for (size_t dim = 0; dim < layout.split.size(); ++dim) {
    const std::vector<std::string>& split_axes = layout.split[dim];
    const auto found = std::find(split_axes.begin(), split_axes.end(), axis);
    if (found != split_axes.end())
      return {AxisPlacementKind::S, static_cast<int>(dim), static_cast<int>(found - split_axes.begin())};
  }
  if (contains(layout.partial, axis)) return {.kind = AxisPlacementKind::P};
  if (contains(layout.replicated, axis)) return {.kind = AxisPlacementKind::R};
  return {};
}

Layout dual(const Layout& layout) {
  return {.split = layout.split, .partial = layout.replicated, .replicated = layout.partial};
}

Layout unsharded_layout(int dims) {
  return {.split = std::vector<std::vector<std::string>>(static_cast<size_t>(dims))};
}

void check_layout(const Mesh& mesh, const Layout& layout, int dims) {
  ORTHANT_CHECK(static_cast<int>(layout.split.size()) == dims, to_string(layout), dims);
  std::set<std::string> seen;
  const auto check = [&](const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) {
      ORTHANT_CHECK(mesh.has(axis), to_string(layout), axis, to_string(mesh));
      ORTHANT_CHECK(seen.insert(axis).second, to_string(layout), axis);
    }
  };
  for (const auto& axes : layout.split) check(axes);
  check(layout.partial);
  check(layout.replicated);
}

std::vector<Range> local_ranges(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                int rank) {
  check_layout(mesh, layout, static_cast<int>(global_shape.size()));
  std::vector<Range> out;
  for (size_t dim = 0; dim < global_shape.size(); ++dim) {
    Range held = {0, global_shape[dim]};
    for (const std::string& axis : layout.split[dim]) {
      const Range part = shard(held.size(), mesh.axis_size(axis), mesh.coord(rank, axis));
      held = {held.begin + part.begin, held.begin + part.end};
    }
    out.push_back(held);
  }
  return out;
}

std::vector<int64_t> local_shape(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                 int rank) {
  std::vector<int64_t> out;
  for (const Range& range : local_ranges(mesh, layout, global_shape, rank)) out.push_back(range.size());
  return out;
}

int64_t volume(std::span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

std::string to_string(const Layout& layout) {
  std::vector<std::string> dims;
  for (const auto& axes : layout.split) dims.push_back(axes.empty() ? "-" : fmt::format("S({})", join(axes, ", ")));
  std::string out = fmt::format("[{}]", join(dims, ", "));
  if (!layout.partial.empty()) out += fmt::format(" P({})", join(layout.partial, ", "));
  if (!layout.replicated.empty()) out += fmt::format(" R({})", join(layout.replicated, ", "));
  return out;
}

Layout parse_layout(std::string_view text) {
  Reader reader{.text = text};
  Layout layout;
  reader.demand("[");
  if (!reader.take("]")) {
    do {
      if (reader.take("-")) {
        layout.split.emplace_back();
      } else {
        reader.demand("S(");
        layout.split.push_back(reader.names());
      }
    } while (reader.take(","));
    reader.demand("]");
  }
  if (reader.take("P(")) layout.partial = reader.names();
  if (reader.take("R(")) layout.replicated = reader.names();
  if (!reader.done()) reader.fail("the end");
  return layout;
}

}  // namespace orthant
