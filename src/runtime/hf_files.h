// The parameters of a model in the files of a Hugging Face directory of some family.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "config/hf_tensors.h"

namespace orthant {

/// Finds parameters in tensors whose names, joint matrices and order of dims are those of a family. All references must
/// outlive it.
class HfFiles {
 public:
  HfFiles(const TensorSet& set, const std::string& directory, const HfFamily& family,
          const std::vector<ParameterInfo>& parameters);

  /// Throws DataError if tensors are missing, unexpected or of another shape.
  void check(std::span<const std::string> optional = {}) const;
  /// check() for a directory of another program: a tied model may have its output layer too, with equal weights.
  void check_model() const;

  /// A view of the unsharded parameter.
  at::Tensor parameter(size_t p) const;
  /// The tensors of the files, under the names that these files have.
  const std::vector<HfTensor>& tensors() const { return tensors_; }

 private:
  struct Place {
    const HfTensor* tensor;
    int64_t first_row;
  };
  const TensorSet& set_;
  const std::string& directory_;
  const std::vector<ParameterInfo>& parameters_;
  std::vector<HfTensor> tensors_;
  std::map<std::string, Place> places_;
};

}  // namespace orthant
