// The parameters of one device, or what it holds of them: flat buffers of master weights, gradients and working copies,
// and named views into them.
#pragma once

#include "model/architecture.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// One matrix or vector as the model uses it: a parameter, or adjacent parameters fused into one (q, k, v).
/// Operators add their weight gradients into `gradient` themselves, in its own precision; autograd never holds one.
struct Weight {
  at::Tensor value;     // working dtype; a leaf that requires grad, so that autograd follows what it is used in
  at::Tensor gradient;  // master dtype
  int index = 0;        // position in Weights::all()
  const Weight* bias = nullptr;  // of a matrix: what a linear layer adds to its product; none: nothing
  const class Weights* owner = nullptr;  // none: nobody listens

  /// True for the first gradient of a step: the operator then overwrites instead of adding. Resets to false.
  bool take_fresh() const { return std::exchange(fresh, false); }
  /// Every operator says so when it has added one microbatch's share to `gradient`.
  void written() const;
  /// Lets `product` add one microbatch's share and says so: at once, or when Weights::deferred is carried out. What it
  /// captures lives as long.
  void add_share(std::function<void()> product) const;
  /// Whether add_share() puts it off.
  bool defers() const;
  mutable bool fresh = true;
};

/// Flat buffers hold the parameters in the given order (flat_layout()).
/// With a float32 or float64 working dtype, values and masters are the same memory; with bfloat16 the master is
/// float32.
class Weights {
 public:
  Weights(std::vector<ParameterInfo> parameters, at::ScalarType working);
  Weights(const Weights&) = delete;

  /// A weight by its parameter's name, or by the fused name of a group. LogicError when there is none.
  const Weight& operator[](const std::string& name) const;
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  const std::vector<Weight>& all() const { return weights_; }
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }

  /// Views of what is held of single parameters, by position in parameters().
  at::Tensor master(size_t parameter) const { return view(masters_, parameter); }
  at::Tensor gradient(size_t parameter) const { return view(gradients_, parameter); }
  at::Tensor view(const at::Tensor& flat, size_t parameter) const;

  at::Tensor masters() const { return masters_; }
  at::Tensor gradients() const { return gradients_; }
  at::Tensor values() const { return values_; }
  const FlatLayout& flat() const { return flat_; }

  /// Masters from the counter-based generator keyed by (seed, name, global index); then publish().
  void initialize(uint64_t seed);
  /// Copies masters to working values where they differ in dtype.
  void publish();
  /// Every weight's next gradient overwrites the last one.
  void begin_gradients();
  /// Zeroes the gradients of weights that got none in this step.
  void finish_gradients();
  /// Called whenever an operator has added to a weight's gradient.
  std::function<void(const Weight&)> on_gradient;
  /// Where set, products of weight gradients are put here in place of being carried out: the half of backward that
  /// nobody waits for (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2).
  std::vector<std::function<void()>>* deferred = nullptr;

 private:
  std::vector<ParameterInfo> parameters_;
  FlatLayout flat_;
  std::vector<Weight> weights_;
  std::map<std::string, int> by_name_;
  at::Tensor masters_, gradients_, values_;
};

/// The part of a whole tensor that is held of the parameter.
at::Tensor held_part(const ParameterInfo& parameter, at::Tensor whole);

/// The stream of random numbers that belongs to a name (FNV-1a, 64 bits).
uint64_t stream_of(std::string_view name);

}  // namespace orthant
