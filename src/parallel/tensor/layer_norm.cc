#include "parallel/tensor/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/element.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;


// Mean and variance [tokens, 1] over the full width, from each column's part of the rows.
std::pair<at::Tensor, at::Tensor> moments(const TensorMesh& mesh, const at::Tensor& x_NC, int64_t width) {
  const int64_t rows = x_NC.size(0);
  const at::Tensor own = at::zeros({2, rows}, x_NC.options());
  if (x_NC.size(1) > 0) {
    const at::Tensor mean = x_NC.mean(1);
    own[0].copy_(mean);
    own[1].copy_((x_NC - mean.unsqueeze(1)).square_().sum(1));
  }
  const at::Tensor all = at::empty({mesh.plan().columns, 2, rows}, x_NC.options());
  mesh.comm().all_gather(all, own, kOverColumns).wait();
  at::Tensor mean = all[0][0].clone(), squares = all[0][1].clone();
  auto count = static_cast<double>(shard(width, mesh.plan().columns, 0).size());
  for (int column = 1; column < mesh.plan().columns; ++column) {
    const auto more = static_cast<double>(shard(width, mesh.plan().columns, column).size());
    if (more == 0) continue;
    const at::Tensor delta = all[column][0] - mean;
    mean.add_(delta, more / (count + more));
    squares.add_(all[column][1]).add_(delta.square(), count * more / (count + more));
    count += more;
  }
  return {mean.unsqueeze(1), squares.div_(static_cast<double>(width)).unsqueeze(1)};
}

struct ShardedLayerNorm : torch::autograd::Function<ShardedLayerNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain,
                            const at::Tensor& bias, const TensorMesh* mesh, double eps, int64_t width) {
    const auto type = wide(x.scalar_type());
    const at::Tensor x_NC = x.reshape({-1, x.size(-1)}).to(type);
    const auto [mean, variance] = moments(*mesh, x_NC, width);
    const at::Tensor rstd = (variance + eps).rsqrt(), normed = (x_NC - mean).mul_(rstd);
    context->save_for_backward({normed, rstd, gain});
    context->saved_data["mesh"] = reinterpret_cast<int64_t>(mesh);
    context->saved_data["width"] = width;
    return (normed * gain.to(type)).add_(bias.to(type)).to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& outer) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &normed = saved[0], &rstd = saved[1], &gain = saved[2];
    const auto* mesh = reinterpret_cast<const TensorMesh*>(context->saved_data["mesh"].toInt());
    const auto width = static_cast<double>(context->saved_data["width"].toInt());
    const at::Tensor dy = outer[0].reshape(normed.sizes()).to(normed.scalar_type());
    const at::Tensor g = dy * gain.to(normed.scalar_type());
    const at::Tensor sums = at::stack({g.sum(1), (g * normed).sum(1)});
    mesh->comm().all_reduce(sums, kOverColumns).wait();
    const at::Tensor dx =
        (g - sums[0].unsqueeze(1) / width - normed * (sums[1].unsqueeze(1) / width)).mul_(rstd);
    return {dx.to(outer[0].scalar_type()).view(outer[0].sizes()), (dy * normed).sum(0).to(gain.scalar_type()),
            dy.sum(0).to(gain.scalar_type()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor tensor_layer_norm(const TensorMesh& mesh, const at::Tensor& x, const at::Tensor& gain,
                             const at::Tensor& bias, double eps, int64_t width) {
  return ShardedLayerNorm::apply(x, gain, bias, &mesh, eps, width);
}

}  // namespace orthant
