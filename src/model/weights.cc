#include "model/weights.h"

#include "base/errors.h"
#include "model/kernels/random.h"

#include <ATen/ATen.h>

namespace orthant {
namespace {

constexpr int64_t kAlignElements = 32;

// Offsets of the parameters; a parameter that continues a fused group starts where the last one ended.
std::vector<int64_t> offsets_of(const std::vector<ParameterInfo>& parameters, int64_t& end) {
  std::vector<int64_t> offsets;
  end = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool continues = i > 0 && !parameters[i].fused.empty() && parameters[i].fused == parameters[i - 1].fused;
    if (!continues) end = (end + kAlignElements - 1) / kAlignElements * kAlignElements;
    offsets.push_back(end);
    end += parameters[i].size();
  }
  return offsets;
}

template <class T>
void fill(T* out, int64_t count, uint64_t seed, const ParameterInfo& parameter) {
  fill_normal<T>({.out = out,
                  .count = count,
                  .seed = seed,
                  .stream = stream_of(parameter.name),
                  .first_index = 0,
                  .std = parameter.init_std});
}

}  // namespace

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int64_t flat_elements(const std::vector<ParameterInfo>& parameters) {
  int64_t end = 0;
  offsets_of(parameters, end);
  return end;
}

Weights::Weights(std::vector<ParameterInfo> parameters, at::ScalarType working, at::Device device)
    : parameters_(std::move(parameters)) {
  int64_t total = 0;
  offsets_ = offsets_of(parameters_, total);
  const auto master_dtype = working == at::kDouble ? at::kDouble : at::kFloat;
  masters_ = at::zeros({total}, at::dtype(master_dtype).device(device));
  gradients_ = at::zeros({total}, at::dtype(master_dtype).device(device));
  values_ = working == master_dtype ? masters_ : at::zeros({total}, at::dtype(working).device(device));

  for (size_t i = 0; i < parameters_.size();) {
    size_t end = i + 1;
    while (end < parameters_.size() && !parameters_[i].fused.empty() && parameters_[end].fused == parameters_[i].fused) ++end;
    std::vector<int64_t> shape = parameters_[i].shape;
    for (size_t j = i + 1; j < end; ++j) shape[0] += parameters_[j].shape[0];
    const int64_t size = offsets_[end - 1] + parameters_[end - 1].size() - offsets_[i];

    Weight weight;
    weight.value = values_.narrow(0, offsets_[i], size).view(shape).detach();
    weight.value.set_requires_grad(true);
    weight.gradient = gradients_.narrow(0, offsets_[i], size).view(shape);
    weight.index = static_cast<int>(weights_.size());
    weight.listener = &on_gradient;
    by_name_[end - i > 1 ? parameters_[i].fused : parameters_[i].name] = weight.index;
    extents_.emplace_back(offsets_[i], size);
    weights_.push_back(std::move(weight));
    i = end;
  }
}

const Weight& Weights::operator[](const std::string& name) const {
  const auto found = by_name_.find(name);
  ORTHANT_CHECK(found != by_name_.end(), name);
  return weights_[static_cast<size_t>(found->second)];
}

at::Tensor Weights::view(const at::Tensor& flat, size_t parameter) const {
  const auto& info = parameters_[parameter];
  return flat.narrow(0, offsets_[parameter], info.size()).view(info.shape);
}

void Weights::initialize(uint64_t seed) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor target = master(i);
    if (parameters_[i].init_std == 0) {
      target.fill_(1.0);
    } else if (target.scalar_type() == at::kDouble) {
      fill(target.mutable_data_ptr<double>(), target.numel(), seed, parameters_[i]);
    } else {
      fill(target.mutable_data_ptr<float>(), target.numel(), seed, parameters_[i]);
    }
  }
  publish();
}

void Weights::publish() {
  if (!values_.is_same(masters_)) values_.copy_(masters_);
}

void Weights::begin_gradients() {
  for (const Weight& weight : weights_) weight.fresh = true;
}

void Weights::finish_gradients() {
  for (const Weight& weight : weights_) {
    if (weight.take_fresh()) weight.gradient.zero_();
  }
}

}  // namespace orthant
