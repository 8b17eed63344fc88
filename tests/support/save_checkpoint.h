// Saves a checkpoint from one process, as a run with one rank does.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// The tensors of a checkpoint, and the number of files for its weights.
struct CheckpointTensors {
  std::vector<TensorBytes> weights, optimizer;
  size_t weight_files = 1;
};

inline std::string save_checkpoint(const std::string& checkpoints_dir, int64_t step, const CheckpointContent& content,
                                   const CheckpointTensors& tensors, int keep_latest_k) {
  const NewCheckpoint checkpoint(checkpoints_dir, step);
  try {
    checkpoint.begin();
    Manifest part{.step = step, .files = {}, .tensors = {}};
    const auto write = [&](const std::string& name, std::span<const TensorBytes> own) {
      add_file(part, name, write_safetensors(checkpoint.directory() + "/" + name, own));
    };
    const size_t files = tensors.weight_files, each = tensors.weights.size() / files;
    for (size_t i = 0; i < files; ++i) {
      const auto rest = std::span(tensors.weights).subspan(i * each);
      write(files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files),
            i + 1 < files ? rest.first(each) : rest);
    }
    write("orthant/optimizer.safetensors", tensors.optimizer);
    checkpoint.complete(content, std::span(&part, 1), keep_latest_k);
    return checkpoint.target();
  } catch (const DataError& error) {
    throw checkpoint.abandon(error.what());
  } catch (const Error&) {
    (void)checkpoint.abandon("");
    throw;
  }
}

}  // namespace orthant
