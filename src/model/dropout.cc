#include "model/dropout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Drop : torch::autograd::Function<Drop> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Microbatch& batch,
                            const DropoutKey& key) {
    context->save_for_backward({batch.samples_B, batch.sequence_positions_T});
    context->saved_data["p"] = key.probability;
    context->saved_data["integers"] = std::vector<int64_t>{
        static_cast<int64_t>(key.seed), static_cast<int64_t>(key.site), batch.step, batch.sequence_length, key.width,
        key.first_channel};
    return apply_dropout_mask(x, batch, key);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto integers = context->saved_data["integers"].toIntVector();
    const DropoutKey key{context->saved_data["p"].toDouble(), static_cast<uint64_t>(integers[0]),
                         static_cast<uint64_t>(integers[1]), integers[4], integers[5]};
    Microbatch batch;
    batch.samples_B = saved[0];
    batch.sequence_positions_T = saved[1];
    batch.step = integers[2];
    batch.sequence_length = integers[3];
    return {apply_dropout_mask(gradients[0], batch, key), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor apply_dropout_mask(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key) {
  const at::Tensor x = x_BTC.contiguous(), y = at::empty_like(x);
  const int64_t B = x.size(0), T = x.size(1), C = x.size(2);
  ORTHANT_CHECK(batch.sequence_length > 0);
  const int64_t* samples = batch.samples_B.const_data_ptr<int64_t>();
  const at::Tensor all = batch.sequence_positions_T.defined() ? batch.sequence_positions_T : at::arange(T);
  ORTHANT_CHECK(all.numel() == T, all.numel(), T);
  const int64_t* positions = all.const_data_ptr<int64_t>();
  const int64_t width = key.width > 0 ? key.width : C;
  const uint64_t stream = static_cast<uint64_t>(batch.step) * 0x100000000u + key.site;
  for (int64_t b = 0; b < B; ++b) {
    // Consecutive positions form one run of element indices, if this rank holds all of their channels.
    for (int64_t t = 0, end = 0; t < T; t = end) {
      for (end = t + 1; width == C && end < T && positions[end] == positions[end - 1] + 1;) ++end;
      const int64_t offset = (b * T + t) * C;
      const int64_t first = (samples[b] * batch.sequence_length + positions[t]) * width + key.first_channel;
      by_element(x, [&]<class E>(E) {
        dropout<E>(x.device(), {.x = in<E>(x) + offset,
                                .y = out<E>(y) + offset,
                                .count = (end - t) * C,
                                .seed = key.seed,
                                .stream = stream,
                                .first_index = static_cast<uint64_t>(first),
                                .p = key.probability});
      });
    }
  }
  return y;
}

at::Tensor dropout_with_key(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key) {
  return key.probability == 0 ? x_BTC : Drop::apply(x_BTC, batch, key);
}

}  // namespace orthant
