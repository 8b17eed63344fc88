#include "model/weights.h"

#include "base/errors.h"
#include "model/kernels/random.h"

#include <ATen/ATen.h>

namespace orthant {
namespace {

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

Weights::Weights(std::vector<ParameterInfo> parameters, at::ScalarType working, int64_t bundle)
    : parameters_(std::move(parameters)), flat_(flat_layout(parameters_)) {
  const auto master_dtype = working == at::kDouble ? at::kDouble : at::kFloat;
  masters_ = at::zeros({flat_.elements}, master_dtype);
  bundled_ = at::zeros({bundle + flat_.elements}, master_dtype);
  gradients_ = bundled_.narrow(0, bundle, flat_.elements);
  values_ = working == master_dtype ? masters_ : at::zeros({flat_.elements}, working);

  for (size_t w = 0; w < flat_.weights.size(); ++w) {
    const auto [first, end] = flat_.members[w];
    const auto [offset, size] = flat_.weights[w];
    std::vector<int64_t> shape = parameters_[first].shape;
    for (size_t i = first + 1; i < end; ++i) shape[0] += parameters_[i].shape[0];

    Weight weight;
    weight.value = values_.narrow(0, offset, size).view(shape).detach();
    weight.value.set_requires_grad(true);
    weight.gradient = gradients_.narrow(0, offset, size).view(shape);
    weight.index = static_cast<int>(w);
    weight.listener = &on_gradient;
    by_name_[end - first > 1 ? parameters_[first].fused : parameters_[first].name] = weight.index;
    weights_.push_back(std::move(weight));
  }
}

const Weight& Weights::operator[](const std::string& name) const {
  const auto found = by_name_.find(name);
  ORTHANT_CHECK(found != by_name_.end(), name);
  return weights_[static_cast<size_t>(found->second)];
}

at::Tensor Weights::view(const at::Tensor& flat, size_t parameter) const {
  const auto& info = parameters_[parameter];
  return flat.narrow(0, flat_.parameter_offsets[parameter], info.size()).view(info.shape);
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
