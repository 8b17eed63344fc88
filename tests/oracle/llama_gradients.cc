// Our side of compare_with_transformers.py: loads a Hugging Face directory into our model, and carries out one forward
// and backward.
//
//   llama_gradients DIRECTORY BATCH.safetensors OUT.safetensors plain|fused float32|float64
//
// BATCH has `tokens` and `labels`, int64 [B,T]. OUT receives `logits` [B,T,V], `loss` (mean over valid labels) and
// `gradient.NAME` of each parameter.
#include "base/errors.h"
#include "checkpoint/hf_directory.h"
#include "comm/vector_math.h"
#include "model/transformer.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace orthant {
namespace {

at::Tensor integers(const SafetensorsFile& file, const std::string& name) {
  const TensorBytes bytes = file.tensor(name);
  if (bytes.dtype != Dtype::i64) throw DataError(file.path() + ": " + name + " is not int64");
  return at::from_blob(const_cast<std::byte*>(bytes.bytes.data()), bytes.shape, at::kLong).clone();
}

Microbatch read_batch(const std::string& path) {
  const SafetensorsFile file(path);
  Microbatch batch;
  batch.tokens_BT = integers(file, "tokens");
  batch.labels_BT = integers(file, "labels");
  const int64_t B = batch.tokens_BT.size(0), T = batch.tokens_BT.size(1);
  batch.positions_BT = at::arange(T).unsqueeze(0).expand({B, T}).contiguous();
  batch.sequence_length = T;
  batch.samples_B = at::arange(B);
  batch.loss_scale = 1.0 / batch.labels_BT.ne(kIgnoredLabel).sum().item<double>();
  return batch;
}

class Results {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    kept_.push_back(tensor.detach().contiguous());
    const at::Tensor& t = kept_.back();
    const Dtype dtype = t.scalar_type() == at::kDouble ? Dtype::f64 : Dtype::f32;
    list_.push_back({name, dtype, t.sizes().vec(), {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}});
  }
  void write(const std::string& path) const { write_safetensors(path, list_); }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<TensorBytes> list_;
};

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 5) throw ConfigError("DIRECTORY BATCH OUT plain|fused float32|float64");
  const std::string& directory = arguments[0];
  const Architecture architecture = read_hf_config(directory).model;
  Weights weights(parameter_table(architecture), scalar_type(arguments[4]));
  load_weights(directory, weights);
  const Transformer model(architecture, weights, arguments[3] == "plain" ? plain_primitives() : fused_primitives(), {});
  const Microbatch batch = read_batch(arguments[1]);

  Results results;
  {
    at::NoGradGuard no_grad;
    Microbatch labeled = batch;  // every token has a label
    labeled.labels_BT = at::zeros_like(batch.labels_BT);
    const at::IntArrayRef BT = batch.tokens_BT.sizes();
    results.add("logits", model.logits(labeled).view({BT[0], BT[1], -1}));
  }
  weights.begin_gradients();
  const at::Tensor loss = model.forward(batch);
  torch::autograd::backward({loss}, {});
  results.add("loss", loss.reshape({1}));
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    results.add("gradient." + weights.parameters()[i].name, weights.gradient(i));
  }
  results.write(arguments[2]);
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) {
  try {
    orthant::resolve_vector_math();
    orthant::run(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
