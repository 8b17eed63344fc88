#include "model/weights.h"

#include "base/errors.h"
#include "model/kernels/random.h"

#include <ATen/ATen.h>

namespace orthant {
namespace {

// Fills this rank's shard, one run of consecutive global indices at a time: all rows at once if rows are unsharded,
// else row by row. The value of an element depends only on its global index.
template <class T>
void fill(T* out, uint64_t seed, const ParameterInfo& parameter) {
  const auto& shape = parameter.shape;
  const auto& held = parameter.held;
  const bool has_full_rows = held.empty() || shape.size() == 1 || (held[1].first == 0 && held[1].second == shape[1]);
  ORTHANT_CHECK(held.empty() || shape.size() <= 2, parameter.name, shape.size());
  const auto run = [&](int64_t first, int64_t count) {
    fill_normal<T>({.out = out,
                    .count = count,
                    .seed = seed,
                    .stream = stream_of(parameter.global_name()),
                    .first_index = static_cast<uint64_t>(first),
                    .std = parameter.init_std});
    out += count;
  };
  if (held.empty()) return run(0, parameter.size());
  const int64_t columns = shape.size() == 1 ? 1 : shape[1];
  if (has_full_rows) return run(held[0].first * columns, parameter.shard_size());
  for (int64_t row = held[0].first; row < held[0].second; ++row) {
    run(row * columns + held[1].first, held[1].second - held[1].first);
  }
}

SegmentedBuffer buffer_of(const FlatLayout& flat, const KeptStates& kept, KeptElements elements,
                          const at::TensorOptions& options) {
  using enum SegmentedBuffer::Begin;
  return elements == KeptElements::all ? SegmentedBuffer({{0, flat.elements}}, options, zeros)
                                       : SegmentedBuffer(kept.segments, options, freed);
}

at::ScalarType master_dtype_of(at::ScalarType working) { return working == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

at::Tensor shard_of(const ParameterInfo& parameter, at::Tensor unsharded) {
  ORTHANT_CHECK(unsharded.sizes() == at::IntArrayRef(parameter.shape), parameter.name, unsharded.dim());
  for (size_t dim = 0; dim < parameter.held.size(); ++dim) {
    const auto [begin, end] = parameter.held[dim];
    unsharded = unsharded.narrow(static_cast<int64_t>(dim), begin, end - begin);
  }
  return unsharded;
}

void Weight::written() const {
  if (owner != nullptr && owner->on_gradient) owner->on_gradient(*this);
}

void Weight::add_gradient(const at::Tensor& more) const {
  if (take_overwrite_flag()) {
    gradient.copy_(more);
  } else {
    gradient.add_(more);
  }
  written();
}

bool Weight::defers() const { return owner != nullptr && owner->deferred != nullptr; }

void Weight::add_weight_product(std::function<void()> product) const {
  auto share = [this, product = std::move(product)] {
    product();
    written();
  };
  if (defers()) {
    owner->deferred->push_back(std::move(share));
  } else {
    share();
  }
}

Weights::Weights(std::vector<ParameterInfo> parameters, at::ScalarType working, const KeptStates& kept,
                 at::Device device)
    : parameters_(std::move(parameters)),
      flat_(flat_layout(parameters_)),
      owned_(flat_, parameters_, kept.owned ? *kept.owned : FlatChunks{{0, flat_.elements}}),
      keeps_all_gradients_(kept.gradients == KeptElements::all),
      has_all_masters_(!kept.owned || (working != at::kBFloat16 && !kept.shards_values())),
      gradients_(buffer_of(flat_, kept, kept.gradients, at::TensorOptions(device).dtype(master_dtype_of(working)))),
      values_(buffer_of(flat_, kept, kept.values, at::TensorOptions(device).dtype(working))) {
  const auto master_dtype = master_dtype_of(working);
  const auto owned_buffer = [&](at::ScalarType dtype) {
    return at::zeros({owned_.elements()}, at::TensorOptions(device).dtype(dtype));
  };
  const bool shares_values = working == master_dtype && !kept.shards_values();
  masters_ = shares_values ? values_.segment(0) : owned_buffer(master_dtype);
  if (kept.gradients == KeptElements::owned) owned_gradients_ = owned_buffer(master_dtype);
  if (kept.shards_values()) owned_values_ = working == master_dtype ? masters_ : owned_buffer(working);

  for (size_t w = 0; w < flat_.weights.size(); ++w) {
    const auto [first, end] = flat_.members[w];
    const auto [offset, size] = flat_.weights[w];
    std::vector<int64_t> shape = parameters_[first].shard_shape();
    for (size_t i = first + 1; i < end; ++i) shape[0] += parameters_[i].shard_shape()[0];

    Weight weight;
    weight.value = values_.narrow(offset, size).view(shape).detach();
    weight.value.set_requires_grad(true);
    weight.gradient = gradients_.narrow(offset, size).view(shape);
    weight.index = static_cast<int>(w);
    weight.owner = this;
    by_name_[end - first > 1 ? parameters_[first].fused : parameters_[first].name] = weight.index;
    weights_.push_back(std::move(weight));
  }
  for (size_t w = 1; w < weights_.size(); ++w) {
    if (parameters_[flat_.members[w].first].is_bias()) weights_[w - 1].bias = &weights_[w];
  }
}

const Weight& Weights::operator[](const std::string& name) const {
  const auto found = by_name_.find(name);
  ORTHANT_CHECK(found != by_name_.end(), name);
  return weights_[static_cast<size_t>(found->second)];
}

at::Tensor Weights::shard_in(const SegmentedBuffer& buffer, size_t parameter) const {
  const auto& info = parameters_[parameter];
  return buffer.narrow(flat_.parameter_offsets[parameter], info.shard_size()).view(info.shard_shape());
}

at::Tensor Weights::part_of(const at::Tensor& owned, size_t parameter) const {
  const auto& part = owned_.part(parameter);
  return owned.narrow(0, part.offset, part.count);
}

at::Tensor Weights::master(size_t parameter) const {
  const auto& info = parameters_[parameter];
  return masters_.narrow(0, flat_.parameter_offsets[parameter], info.shard_size()).view(info.shard_shape());
}

at::Tensor Weights::owned_master(size_t parameter) const {
  return has_all_masters() ? owned_part_of_shard(master(parameter), parameter) : part_of(masters_, parameter);
}

at::Tensor Weights::owned_gradient(size_t parameter) const {
  return owned_gradients_.defined() ? part_of(owned_gradients_, parameter)
                                    : owned_part_of_shard(gradient(parameter), parameter);
}

at::Tensor Weights::owned_value(size_t parameter) const {
  return owned_values_.defined() ? part_of(owned_values_, parameter) : owned_part_of_shard(value(parameter), parameter);
}

at::Tensor Weights::gradients() const {
  ORTHANT_CHECK(keeps_all_gradients_, flat_.elements);
  return gradients_.segment(0);
}

at::Tensor Weights::values() const {
  ORTHANT_CHECK(!owned_values_.defined(), flat_.elements);
  return values_.segment(0);
}

at::Tensor Weights::owned_part_of_shard(const at::Tensor& shard, size_t parameter) const {
  const auto& part = owned_.part(parameter);
  return shard.reshape(-1).narrow(0, part.begin, part.count);
}

std::vector<at::Tensor> Weights::owned_masters() const {
  if (!has_all_masters()) return {masters_};
  std::vector<at::Tensor> views;
  for (const auto& [begin, end] : owned_.chunks()) views.push_back(masters_.narrow(0, begin, end - begin));
  return views;
}

// True if the memory of the shard's working values exists now.
bool Weights::keeps_value(size_t parameter) const {
  const int64_t begin = flat_.parameter_offsets[parameter], count = parameters_[parameter].shard_size();
  return count > 0 && values_.is_allocated(values_.segment_of(begin, count));
}

void Weights::set(size_t parameter, const at::Tensor& shard) {
  const at::NoGradGuard no_grad;
  if (keeps_value(parameter)) value(parameter).copy_(shard);
  if (owned_values_.defined()) owned_value(parameter).copy_(owned_part_of_shard(shard, parameter));
  if (masters_.scalar_type() != working_dtype()) owned_master(parameter).copy_(owned_part_of_shard(shard, parameter));
}

void Weights::initialize(uint64_t seed) {
  // The CPU draws the numbers, so that they have the same bits on every device.
  const bool in_place = has_all_masters_ && masters_.is_cpu();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor target =
        in_place ? master(i) : at::empty(parameters_[i].shard_shape(), masters_.options().device(at::kCPU));
    if (parameters_[i].init_std == 0) {
      target.fill_(parameters_[i].is_bias() ? 0.0 : 1.0);
    } else if (target.scalar_type() == at::kDouble) {
      fill(target.mutable_data_ptr<double>(), seed, parameters_[i]);
    } else {
      fill(target.mutable_data_ptr<float>(), seed, parameters_[i]);
    }
    if (!in_place) set(i, target);
  }
  publish();
}

void Weights::publish() {
  if (working_dtype() == masters_.scalar_type()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) owned_value(i).copy_(owned_master(i));
}

void Weights::begin_gradients() {
  for (const Weight& weight : weights_) weight.fresh = true;
}

void Weights::finish_gradients() {
  for (const Weight& weight : weights_) {
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
  }
}

}  // namespace orthant
