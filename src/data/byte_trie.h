// A trie over bytes: finds all texts of a set that are prefixes of a given text.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// Maps texts to numbers.
class ByteTrie {
 public:
  /// The pairs may be in any order; of equal texts, the largest number is kept. Empty texts are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> texts = {});

  /// Calls found(length, number) for each text of the set with which `text` begins, the shortest first.
  template <typename Found>
  void for_each_prefix(std::string_view text, Found&& found) const {
    uint32_t node = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      node = child(node, static_cast<uint8_t>(text[at]));
      if (node == 0) return;
      if (nodes_[node].number >= 0) found(at + 1, nodes_[node].number);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;  // the last of the node's text
    int32_t number = -1;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;  // the root first; children of a node side by side, in the order of their bytes
};

}  // namespace orthant
