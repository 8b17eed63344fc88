#include "data/byte_trie.h"

#include <algorithm>

namespace orthant {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> texts) : nodes_(1) {
  std::ranges::sort(texts);
  // Nodes whose children are not made yet, with the texts that begin with the node's text, and its length.
  struct Open {
    uint32_t node;
    size_t begin, end, length;
  };
  std::vector<Open> open = {{0, 0, texts.size(), 0}};
  for (size_t next = 0; next < open.size(); ++next) {
    auto [node, begin, end, length] = open[next];
    for (; begin < end && texts[begin].first.size() == length; ++begin) {
      if (length > 0) nodes_[node].number = texts[begin].second;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = texts[begin].first[length];
      const size_t same = begin;
      while (begin < end && texts[begin].first[length] == byte) ++begin;
      open.push_back({static_cast<uint32_t>(nodes_.size()), same, begin, length + 1});
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      ++nodes_[node].children;
    }
  }
}

uint32_t ByteTrie::child(uint32_t node, uint8_t byte) const {
  const auto first = nodes_.begin() + nodes_[node].first_child, last = first + nodes_[node].children;
  const auto found = std::lower_bound(first, last, byte, [](const Node& one, uint8_t b) { return one.byte < b; });
  return found == last || found->byte != byte ? 0 : static_cast<uint32_t>(found - nodes_.begin());
}

}  // namespace orthant
