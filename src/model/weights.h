// The parameters of one device, or its shards of them: flat buffers of master weights, gradients and working copies,
// and named views into them.
#pragma once

#include "model/owned_elements.h"

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

/// Owns the flat buffers, with the parameters in the order of flat_layout(). For a float32 or float64 working dtype,
/// values and masters share memory. For bfloat16 the masters are float32, and only those of owned elements are kept.
class Weights {
 public:
  /// `owned`: the chunks of the flat buffer whose optimizer state this rank keeps; nullopt: all.
  Weights(std::vector<ParameterInfo> parameters, at::ScalarType working, std::optional<FlatChunks> owned = {});
  Weights(const Weights&) = delete;

  /// A weight by its parameter's name, or by the fused name of several. LogicError if there is none.
  const Weight& operator[](const std::string& name) const;
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  const std::vector<Weight>& all() const { return weights_; }
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }

  /// Views of this rank's shards of single parameters, by index in parameters(). master() requires that the rank has
  /// the masters of all elements.
  at::Tensor master(size_t parameter) const { return view(masters_, parameter); }
  at::Tensor gradient(size_t parameter) const { return view(gradients_, parameter); }
  at::Tensor view(const at::Tensor& flat, size_t parameter) const;

  /// The owned elements, and views of those of one parameter: its masters, and the same elements of a tensor with the
  /// parameter's shard. Each view has one dim.
  const OwnedElements& owned() const { return owned_; }
  at::Tensor owned_master(size_t parameter) const;
  at::Tensor owned_part_of_shard(const at::Tensor& shard, size_t parameter) const;
  /// True if masters() has the layout of values(), false if it is a buffer of owned elements. Equal on all replicas.
  bool has_all_masters() const { return has_all_masters_; }
  /// Views of masters() that together have all owned elements and no others.
  std::vector<at::Tensor> owned_masters() const;
  /// Sets masters and working values from the parameter's shard.
  void set(size_t parameter, const at::Tensor& shard);

  at::Tensor masters() const { return masters_; }
  at::Tensor gradients() const { return gradients_; }
  at::Tensor values() const { return values_; }
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
  std::vector<ParameterInfo> parameters_;
  FlatLayout flat_;
  OwnedElements owned_;
  bool has_all_masters_;
  std::vector<Weight> weights_;
  std::map<std::string, int> by_name_;
  at::Tensor masters_, gradients_, values_;
};

/// The weight's value as autograd sees it. The gradient that autograd returns is added to the weight's own buffer.
at::Tensor use_weight(const Weight& weight);

/// This rank's shard of an unsharded tensor.
at::Tensor shard_of(const ParameterInfo& parameter, at::Tensor whole);

/// The number of the random stream that belongs to a name (its 64-bit FNV-1a hash).
uint64_t stream_of(std::string_view name);

}  // namespace orthant
