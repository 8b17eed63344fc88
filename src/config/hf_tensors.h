// How the files of a Hugging Face family store the parameters: under which names, in which order of dims, and which of
// them side by side in one tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// The place of a parameter in the files: rows [first_row, first_row + its rows) of a tensor. If `transposed`, the file
/// stores that tensor with its two dims exchanged, as [in, out].
struct HfTensor {
  std::string name;
  std::string other_name = {};  // under which some files store it; may be empty
  std::vector<int64_t> shape;   // in the file
  bool transposed = false;
  int64_t first_row = 0;
};

/// Returns the place of a parameter of the model. All families but GPT-2 use the parameter's own name and shape. GPT-2
/// stores the matrices of a block as [in, out], and query, key and value projections side by side. Its names begin with
/// "transformer.", or in older files without.
HfTensor hf_tensor(const Architecture& model, const ParameterInfo& parameter);

}  // namespace orthant
