// The elements of a rank's flat buffers whose optimizer state the rank keeps.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// Half-open ranges of a flat buffer, in ascending order.
using FlatChunks = std::vector<std::pair<int64_t, int64_t>>;

/// The chunks of a flat buffer that this rank owns. A buffer of owned elements holds them one after the other. If the
/// rank owns all elements of the flat buffer, both have the same layout.
class OwnedElements {
 public:
  /// A parameter must lie in at most one chunk (LogicError).
  OwnedElements(const FlatLayout& flat, const std::vector<ParameterInfo>& parameters, FlatChunks chunks);

  const FlatChunks& chunks() const { return chunks_; }
  int64_t elements() const { return elements_; }

  /// The part of a parameter that the rank owns: `count` elements from `begin` on, counted in this rank's shard of it.
  /// `offset` is their position in a buffer of owned elements.
  struct Part {
    int64_t begin = 0, count = 0, offset = 0;
  };
  const Part& part(size_t parameter) const { return parts_[parameter]; }

 private:
  FlatChunks chunks_;
  std::vector<Part> parts_;
  int64_t elements_ = 0;
};

}  // namespace orthant
