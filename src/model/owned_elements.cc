#include "model/owned_elements.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

OwnedElements::OwnedElements(const FlatLayout& flat, const std::vector<ParameterInfo>& parameters, FlatChunks chunks)
    : chunks_(std::move(chunks)), parts_(parameters.size()) {
  for (const auto& [begin, end] : chunks_) {
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t first = flat.parameter_offsets[p], last = first + parameters[p].shard_size();
      const int64_t from = std::max(first, begin), to = std::min(last, end);
      if (from >= to) continue;
      ORTHANT_CHECK(parts_[p].count == 0, parameters[p].name, begin);
      parts_[p] = {.begin = from - first, .count = to - from, .offset = elements_ + from - begin};
    }
    elements_ += end - begin;
  }
}

}  // namespace orthant
