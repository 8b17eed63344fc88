// Compares two saved models: checkpoints, or Hugging Face directories. Tensors are compared by their hashes, which
// manifests state; elements are read only where tensors differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/element_difference.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// A tensor that both have with the same dtype and shape, and with different bytes.
struct TensorDifference {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::optional<ElementDifference> elements;  // of the first tensors only; see DiffOptions
};

/// A tensor that both have, with different dtypes or shapes.
struct FormDifference {
  std::string name;
  Dtype dtype_a = Dtype::f32, dtype_b = Dtype::f32;
  std::vector<int64_t> shape_a, shape_b;
};

/// A field of state.json, such as step, as JSON text. "none" if the checkpoint does not have it.
struct StateDifference {
  std::string field, a, b;
};

/// All lists are sorted by name.
struct CheckpointDiff {
  int64_t num_tensors = 0;    // that both have
  bool read_tensors = false;  // hashes were computed from files, because a manifest does not state them
  std::vector<TensorDifference> tensors;
  std::vector<FormDifference> forms;
  std::vector<std::string> only_a, only_b;
  std::vector<StateDifference> state;
  std::vector<std::string> settings;  // of config.json and config.toml, those that differ: no difference of the model
  bool equal() const { return tensors.empty() && forms.empty() && only_a.empty() && only_b.empty() && state.empty(); }
};

struct DiffOptions {
  bool weights_only = false;  // compare the model, not the optimizer and the state of the run
  int max_read = 10;          // number of different tensors whose elements are compared
};

/// Compares two directories. The state is compared if both have one; its field `mesh` is left out, because checkpoints
/// do not depend on the layout. Throws DataError if a directory is neither a complete checkpoint (by the sizes of its
/// files) nor a Hugging Face directory.
CheckpointDiff diff_checkpoints(const std::string& a, const std::string& b, const DiffOptions& options = {});

}  // namespace orthant
