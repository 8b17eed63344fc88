// Tensor meshes and their run-file keys.
#pragma once

#include "tests/support/sequence_cuts.h"

#include <string>
#include <vector>

namespace orthant {

struct TensorCut {
  int ranks = 1;
  std::vector<std::string> keys;

  std::string name() const {
    std::string text = fmt::format("{} ranks", ranks);
    for (const auto& key : keys) text += ", " + key.substr(key.find('.') + 1);
    return text;
  }
};

inline std::string tensor_key(const std::string& key, const std::string& value) {
  return "parallelism.tensor_parallel_" + key + "=" + value;
}
inline TensorCut one_dimension(int columns, std::vector<std::string> more = {}, int others = 1) {
  more.push_back(tensor_key("degree", std::to_string(columns)));
  return {columns * others, more};
}
inline TensorCut grid(int rows, int columns, int depth, std::vector<std::string> more = {}, int others = 1) {
  more.push_back(tensor_key("kind", depth > 1 ? "2.5d" : "2d"));
  more.push_back(tensor_key("mesh", fmt::format("[{},{},{}]", rows, columns, depth)));
  return {rows * columns * depth * others, more};
}

inline const std::string kSumma = tensor_key("product", "summa"), kNoSequence = tensor_key("sequence", "false"),
                  kWithRing = "parallelism.context_parallel_ring=2",
                  kWithUlysses = "parallelism.context_parallel_ulysses=2",
                  kRecompute = "activation_checkpoint.mode=full";

/// For the tiny run: a sequence for each of eight ranks.
inline const std::vector<std::string> kBatch = {"training.global_batch_size=8"};

}  // namespace orthant
