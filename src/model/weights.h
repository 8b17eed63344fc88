// The parameters of one device, or its shards of them: flat buffers of master weights, gradients and working copies,
// and named views into them.
#pragma once

#include "model/kept_elements_plan.h"
#include "model/owned_elements.h"
#include "model/segmented_buffer.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// One matrix or vector as the model uses it: a parameter, or adjacent parameters fused into one (q, k, v). Operators
/// add their weight gradients to `gradient` themselves, in its own dtype; autograd never holds one.
struct Weight {
  at::Tensor value;     // working dtype; a leaf that requires grad, so that autograd reaches the operators using it
  at::Tensor gradient;  // master dtype
  int index = 0;        // position in Weights::all()
  const Weight* bias = nullptr;  // bias that a linear layer adds to the product of this matrix; may be null
  const class Weights* owner = nullptr;  // null: written() reports to no one

  /// True for the first gradient of a step: the operator must then overwrite instead of add. Resets to false.
  bool take_overwrite_flag() const { return std::exchange(fresh, false); }
  /// Reports that an operator has added one microbatch's gradient to `gradient`; every operator must call it.
  void written() const;
  /// Adds one microbatch's gradient, of the weight's shape, and calls written().
  void add_gradient(const at::Tensor& more) const;
  /// Runs `product`, which adds one microbatch's gradient, then written(): at once, or later through Weights::deferred.
  /// Tensors that `product` captures live until then.
  void add_weight_product(std::function<void()> product) const;
  /// Whether add_weight_product() defers the product.
  bool defers() const;
  mutable bool fresh = true;
};

/// Which part of the weights' states a rank keeps between the passes of a step. By default it keeps all of them.
struct KeptStates {
  std::optional<FlatChunks> owned = {};  // chunks whose masters and optimizer state the rank keeps; nullopt: all
  /// The gradients and working values that it keeps; working values: all or owned. Unless all are kept, they exist in
  /// full in segments that the caller allocates and frees.
  KeptElements gradients = KeptElements::all, values = KeptElements::all;
  FlatChunks segments = {};  // ranges that tile the flat buffer; each weight lies in one
  bool shards_values() const { return values != KeptElements::all; }
};

/// Owns the flat buffers, with the parameters in the order of flat_layout(). For a float32 or float64 working dtype,
/// values and masters share memory; if only owned values are kept, the masters are these. For bfloat16 the masters are
/// float32, and only those of owned elements are kept.
class Weights {
 public:
  Weights(std::vector<ParameterInfo> parameters, at::ScalarType working, const KeptStates& kept = {},
          at::Device device = at::kCPU);
  Weights(const Weights&) = delete;

  /// A weight by its parameter's name, or by the fused name of several. LogicError if there is none.
  const Weight& operator[](const std::string& name) const;
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  const std::vector<Weight>& all() const { return weights_; }
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }

  /// Views of this rank's shards of single parameters, by index in parameters(). master() requires that the rank has
  /// the masters of all elements, value() and gradient() that their segments are allocated.
  at::Tensor master(size_t parameter) const;
  at::Tensor value(size_t parameter) const { return shard_in(values_, parameter); }
  at::Tensor gradient(size_t parameter) const { return shard_in(gradients_, parameter); }

  /// The owned elements, and one-dimensional views of those of one parameter. owned_gradient() is valid after the
  /// reduction; if no gradients are kept, it is a view of the segment. owned_value() is valid between steps.
  /// owned_part_of_shard() takes the same elements from a shard.
  const OwnedElements& owned() const { return owned_; }
  at::Tensor owned_master(size_t parameter) const;
  at::Tensor owned_gradient(size_t parameter) const;
  at::Tensor owned_value(size_t parameter) const;
  at::Tensor owned_part_of_shard(const at::Tensor& shard, size_t parameter) const;
  /// True if masters() has the layout of values(), false if it is a buffer of owned elements. Equal on all replicas.
  bool has_all_masters() const { return has_all_masters_; }
  /// Views of masters() that together have all owned elements and no others.
  std::vector<at::Tensor> owned_masters() const;
  /// Sets masters and working values from the parameter's shard.
  void set(size_t parameter, const at::Tensor& shard);
  /// False if set() would copy nothing: the rank keeps no element of the parameter between the passes of a step.
  bool keeps(size_t parameter) const { return keeps_value(parameter) || owned_.part(parameter).count > 0; }

  at::Tensor masters() const { return masters_; }
  /// The flat buffers, if the rank keeps all elements; LogicError otherwise.
  at::Tensor gradients() const;
  at::Tensor values() const;
  /// The buffers in segments, and buffers of the owned elements, which are defined only if the rank keeps just these.
  SegmentedBuffer& segmented_gradients() { return gradients_; }
  SegmentedBuffer& segmented_values() { return values_; }
  at::Tensor owned_gradients() const { return owned_gradients_; }
  at::Tensor owned_values() const { return owned_values_; }
  at::Device device() const { return masters_.device(); }
  at::ScalarType working_dtype() const { return values_.segment(0).scalar_type(); }
  const FlatLayout& flat() const { return flat_; }

  /// Sets all parameters from the counter-based generator keyed by (seed, name, global index).
  void initialize(uint64_t seed);
  /// Copies the masters of owned elements to working values if their dtypes differ.
  void publish();
  /// Starts a step: the next gradient of every weight overwrites the previous one.
  void begin_gradients();
  /// Zeroes the gradients of weights that received none in this step.
  void finish_gradients();
  /// Called after each addition to a weight's gradient.
  std::function<void(const Weight&)> on_gradient;
  /// If set, products of weight gradients are appended here instead of run. They are the half of backward on which no
  /// other stage depends (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2).
  std::vector<std::function<void()>>* deferred = nullptr;

 private:
  at::Tensor shard_in(const SegmentedBuffer& buffer, size_t parameter) const;
  at::Tensor part_of(const at::Tensor& owned, size_t parameter) const;
  bool keeps_value(size_t parameter) const;

  std::vector<ParameterInfo> parameters_;
  FlatLayout flat_;
  OwnedElements owned_;
  bool keeps_all_gradients_, has_all_masters_;
  SegmentedBuffer gradients_, values_;
  std::vector<Weight> weights_;
  std::map<std::string, int> by_name_;
  at::Tensor masters_, owned_gradients_, owned_values_;
};

/// The weight's value as autograd sees it. The gradient that autograd returns is added to the weight's own buffer.
at::Tensor use_weight(const Weight& weight);

/// This rank's shard of an unsharded tensor.
at::Tensor shard_of(const ParameterInfo& parameter, at::Tensor unsharded);

/// The number of the random stream that belongs to a name (its 64-bit FNV-1a hash).
uint64_t stream_of(std::string_view name);

}  // namespace orthant
