#include "runtime/hf_files.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "runtime/tensor_files.h"

namespace orthant {

HfFiles::HfFiles(const TensorSet& set, const std::string& directory, const HfFamily& family,
                 const std::vector<ParameterInfo>& parameters)
    : set_(set), directory_(directory), parameters_(parameters), tensors_(hf_tensors(family, parameters)) {
  for (HfTensor& tensor : tensors_) {
    if (!set.contains(tensor.name) && set.contains(tensor.other_name)) tensor.name = tensor.other_name;
    int64_t first_row = 0;
    for (const size_t p : tensor.parameters) {
      places_[parameters[p].name] = {&tensor, first_row};
      first_row += parameters[p].shape[0];
    }
  }
}

void HfFiles::check(std::span<const std::string> optional) const {
  std::vector<ExpectedTensor> want;
  for (const HfTensor& tensor : tensors_) want.push_back({tensor.name, tensor.shape});
  check_tensors(set_, want, directory_, optional);
}

void HfFiles::check_model() const {
  const std::string head = "lm_head.weight";
  if (std::ranges::find(parameters_, head, &ParameterInfo::global_name) != parameters_.end()) return check();
  const std::string optional[] = {head};
  check(optional);
  if (!set_.contains(head) || tensor_of_file(set_.tensor(head), directory_).equal(parameter(0))) return;
  throw DataError(
      fmt::format("{}: tie_word_embeddings is true, but lm_head.weight differs from the embedding's weights; "
                  "set it to false in config.json",
                  directory_));
}

at::Tensor HfFiles::parameter(size_t p) const {
  const auto& [tensor, first_row] = places_.at(parameters_[p].global_name());
  const at::Tensor whole = tensor_of_file(set_.tensor(tensor->name), directory_);
  return (tensor->transposed ? whole.t() : whole).narrow(0, first_row, parameters_[p].shape[0]);
}

}  // namespace orthant
