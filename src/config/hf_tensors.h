// The tensors in the files of a Hugging Face family: under which names they store a model's parameters, in which order
// of dims, and which of them side by side in one tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/hf_family.h"
#include "model/architecture.h"

namespace orthant {

/// A tensor in the files. It has the rows of its parameters one after another. If `transposed`, the file stores it with
/// its two dims exchanged, as [in, out].
struct HfTensor {
  std::string name;
  std::string other_name;  // under which some files store it; may be empty
  std::vector<int64_t> shape;  // in the file
  bool transposed = false;
  std::vector<size_t> parameters;  // their places in the list of parameters
};

/// Returns the tensors that store these parameters in files of the family, in the order of the parameters. A parameter
/// that is a copy of another one is stored in no file.
std::vector<HfTensor> hf_tensors(const HfFamily& family, const std::vector<ParameterInfo>& parameters);

}  // namespace orthant
