// tensor_embedding() and tensor_cross_entropy(): the layers whose vocabulary columns shard.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "model/linear.h"
#include "model/loss.h"
#include "model/token_checks.h"
#include "parallel/tensor/embedding_shard.h"
#include "parallel/tensor/layers.h"
#include "parallel/tensor/softmax_statistics.h"
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/weight_sum.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TensorEmbedding : torch::autograd::Function<TensorEmbedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor&,
                            const SliceMesh* mesh, int64_t weight, int64_t vocabulary, bool trains) {
    check_tokens(tokens, vocabulary);  // no column has the row of a token outside, which would be zeros
    context->save_for_backward({tokens});
    context->saved_data["mesh"] = reinterpret_cast<int64_t>(mesh);
    context->saved_data["weight"] = weight;
    context->saved_data["vocabulary"] = vocabulary;
    const auto& table = *reinterpret_cast<const Weight*>(weight);
    const EmbeddingShard shard(*mesh, table, tokens, mesh->column_rows(vocabulary), trains);
    const at::Tensor part = shard.look_up(*mesh, table);
    return part.view(mesh->part_shape(tokens.size(0), tokens.size(1)));
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_gradients) {
    const auto* mesh = reinterpret_cast<const SliceMesh*>(context->saved_data["mesh"].toInt());
    const auto& table = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const Range rows = mesh->column_rows(context->saved_data["vocabulary"].toInt());
    const EmbeddingShard shard(*mesh, table, context->get_saved_variables()[0], rows, true);
    shard.accumulate(*mesh, table, output_gradients[0].contiguous());
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// On the CPU std::exp() of each element, because at::exp() may differ from it in the last bit.
at::Tensor exponential(const at::Tensor& x_N) {
  if (!x_N.is_cpu()) return x_N.exp();
  const at::Tensor from_N = x_N.contiguous(), y_N = at::empty_like(from_N);
  const double* x = from_N.const_data_ptr<double>();
  std::transform(x, x + from_N.numel(), y_N.mutable_data_ptr<double>(), [](double each) { return std::exp(each); });
  return y_N;
}

// Replaces this column's statistics by those of the whole vocabulary.
void merge(const TensorMesh& mesh, const at::Tensor& own_NS, const OutputLoss& loss) {
  const at::Tensor sent_SN = own_NS.narrow(1, 0, loss.statistics()).t();
  sent_SN.copy_(merge_statistics(mesh.gather_columns(sent_SN), exponential));
}

// Sum of the losses of a chunk of tokens, a float64 scalar on their device. If with_gradient, the logits are
// overwritten by the loss's gradient.
at::Tensor softmax(const TensorMesh& mesh, const at::Tensor& logits, const at::Tensor& labels, int64_t vocabulary,
                   double scale, const OutputLoss& loss, bool with_gradient) {
  const Range part = shard(vocabulary, mesh.plan().columns, mesh.column());
  const auto numbers = logits.options().dtype(at::kDouble);
  const at::Tensor statistics_NS = at::empty({logits.size(0), 4}, numbers),
                   losses = at::empty({logits.size(0)}, numbers);
  by_element(logits, [&]<class T>(T) {
    const SoftmaxShard<T> args{.logits = out<T>(logits),
                               .labels = in<int64_t>(labels),
                               .rows = logits.size(0),
                               .vocab = part.size(),
                               .first = part.begin,
                               .statistics = out<SoftmaxStatistics>(statistics_NS),
                               .loss = loss,
                               .vocabulary = vocabulary,
                               .scale = scale,
                               .losses = out<double>(losses),
                               .write_gradient = with_gradient};
    softmax_statistics<T>(logits.device(), args);
    merge(mesh, statistics_NS, loss);
    softmax_loss<T>(logits.device(), args);
  });
  return sum_losses(losses);
}

struct TensorCrossEntropy : torch::autograd::Function<TensorCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& value,
                            const TensorMesh* mesh, int64_t weight_handle, int64_t vocabulary, int64_t width,
                            const Microbatch& batch, const OutputLoss& loss, bool with_gradient) {
    const auto& weight = *reinterpret_cast<const Weight*>(weight_handle);
    Arriving head(mesh->gather_rows(value.detach(), 1, width));
    const at::Tensor labels_BT1 = batch.labels_BT.unsqueeze(-1);
    check_labels(batch.labels_BT, vocabulary);
    const int64_t chunk = loss_chunk_rows(shard(vocabulary, mesh->plan().columns, 0).size(), x.is_cuda());
    const TokenPanels panels(*mesh, x.size(0), mesh->all_tokens(x.size(1)), width, true, x.element_size());
    StreamSum dx(panels);
    WeightSum dw(*mesh, weight, 1);
    at::Tensor losses = at::zeros({}, x.options().dtype(at::kDouble).requires_grad(false));
    for_panels(
        panels.all(), [&](const Range& panel) { return panels.gather(x, panel); },
        [&](const Range& panel, auto arrive) {
          const at::Tensor x_NC = flat(arrive()), w = head.get(), labels = panels.rows(labels_BT1, panel);
          const at::Tensor dx_NC = with_gradient ? at::empty_like(x_NC) : at::Tensor();
          for (int64_t begin = 0; begin < x_NC.size(0); begin += chunk) {
            const int64_t n = std::min(chunk, x_NC.size(0) - begin);
            const at::Tensor some = x_NC.narrow(0, begin, n), logits = matrix_product(some, w.t());
            losses = losses + softmax(*mesh, logits, labels.narrow(0, begin, n), vocabulary, batch.loss_scale, loss,
                                      with_gradient);
            if (!with_gradient) continue;
            write_product(dx_NC.narrow(0, begin, n), logits, w);
            dw.add(logits, some);
          }
          if (with_gradient) dx.send(panel, dx_NC);
        });
    if (with_gradient) {
      dw.begin();
      context->save_for_backward({dx.finish()});
      dw.finish();
      weight.written();
    }
    return losses * batch.loss_scale;
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_gradients) {
    // On other devices, reading the number would wait for them.
    ORTHANT_CHECK(!output_gradients[0].is_cpu() || output_gradients[0].item<double>() == 1.0);
    return {context->get_saved_variables()[0],
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor tensor_embedding(const SliceMesh& mesh, const at::Tensor& tokens, const Weight& table, int64_t vocabulary) {
  return TensorEmbedding::apply(tokens, table.value, &mesh, reinterpret_cast<int64_t>(&table), vocabulary,
                                at::GradMode::is_enabled());
}

at::Tensor tensor_cross_entropy(const TensorMesh& mesh, const at::Tensor& x, const Weight& head,
                                const UnshardedWeight& unsharded, const Microbatch& batch, const OutputLoss& loss) {
  const bool with_gradient = at::GradMode::is_enabled() && x.requires_grad();
  return TensorCrossEntropy::apply(x, head.value, &mesh, reinterpret_cast<int64_t>(&head), unsharded.out, unsharded.in,
                                   batch, loss, with_gradient);
}

}  // namespace orthant
