// Plain arrays of integers, held by the simulated ranks of the mesh tests: slicing, joining and adding them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mesh/layout.h"
#include "tests/support/random.h"

namespace orthant {

struct Array {
  std::vector<int64_t> shape;
  std::vector<int64_t> data;

  int64_t& at(const std::vector<int64_t>& index) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
    return data.at(static_cast<size_t>(flat));
  }
  bool operator==(const Array&) const = default;
};

inline Array zeros(std::vector<int64_t> shape) {
  const size_t n = static_cast<size_t>(volume(shape));
  return {std::move(shape), std::vector<int64_t>(n, 0)};
}

inline Array random_array(Random& random, const std::vector<int64_t>& shape) {
  Array out = zeros(shape);
  for (int64_t& value : out.data) value = 1 + random.below(1000);
  return out;
}

/// Calls fn(index) for every index of the shape, in row-major order.
template <typename Fn>
void for_each_index(const std::vector<int64_t>& shape, const Fn& fn) {
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t left = volume(shape); left > 0; --left) {
    fn(index);
    for (size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
}

/// The part of the array within the ranges, one per dim.
inline Array cut(Array whole_array, const std::vector<Range>& ranges) {
  std::vector<int64_t> shape;
  for (const Range& range : ranges) shape.push_back(range.size());
  Array out = zeros(shape);
  for_each_index(shape, [&](std::vector<int64_t> index) {
    int64_t& to = out.at(index);
    for (size_t d = 0; d < index.size(); ++d) index[d] += ranges[d].begin;
    to = whole_array.at(index);
  });
  return out;
}

inline Array cut(const Array& array, int dim, Range range) {
  std::vector<Range> ranges;
  for (const int64_t extent : array.shape) ranges.push_back({0, extent});
  ranges.at(static_cast<size_t>(dim)) = range;
  return cut(array, ranges);
}

inline Array joined(std::vector<Array> parts, int dim) {
  const size_t d = static_cast<size_t>(dim);
  std::vector<int64_t> shape = parts.at(0).shape;
  shape.at(d) = 0;
  for (const Array& part : parts) {
    for (size_t other = 0; other < shape.size(); ++other)
      if (other != d && part.shape[other] != shape[other]) throw std::runtime_error("shards that do not fit together");
    shape[d] += part.shape[d];
  }
  Array out = zeros(shape);
  int64_t offset = 0;
  for (Array& part : parts) {
    for_each_index(part.shape, [&](std::vector<int64_t> index) {
      const int64_t value = part.at(index);
      index[d] += offset;
      out.at(index) = value;
    });
    offset += part.shape[d];
  }
  return out;
}

inline void add(Array& sum, const Array& summand) {
  if (sum.shape != summand.shape) throw std::runtime_error("summands of different shapes");
  for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += summand.data[i];
}

}  // namespace orthant
