// tensor_linear(): linear layers on a tensor mesh, in the stationary forms and in SUMMA's.
#include "model/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/element.h"
#include "parallel/tensor/key_heads.h"
#include "parallel/tensor/layers.h"
#include "parallel/tensor/products.h"
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/weight_sum.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Arguments of a call in addition to its tensors. Mesh and weight must outlive backward, as the model does.
struct Call {
  const TensorMesh* mesh;
  const Weight* weight;
  UnshardedWeight unsharded;
};

// The stationary forms. Rows shard the weight's input dim if the output is stationary, otherwise its output dim.
int row_dim(const Call& call) { return call.unsharded.stationary == Stationary::output ? 1 : 0; }
Redistribution weight_of_rows(const Call& call) {
  const int64_t extent = row_dim(call) == 1 ? call.unsharded.in : call.unsharded.out;
  return call.mesh->gather_rows(call.weight->value.detach(), row_dim(call), extent);
}

at::Tensor multiply(const Call& call, const at::Tensor& x) {
  Arriving weight(weight_of_rows(call));
  const auto turned = [&] { return weight.get().t(); };
  return call.unsharded.stationary == Stationary::output ? gather_and_multiply(*call.mesh, x, call.unsharded.in, turned)
                                                         : multiply_and_sum(*call.mesh, x, turned);
}

// The input is gathered during the product for its gradient. That gradient is summed over columns during the product
// for the weight's gradient.
at::Tensor output_stationary_gradients(const Call& call, const at::Tensor& x, const at::Tensor& dy, bool wants_dx) {
  Arriving weight(weight_of_rows(call));
  const TokenPanels panels(*call.mesh, dy.size(0), dy.size(1), call.unsharded.in, true, dy.element_size());
  StreamSum dx(panels);
  WeightSum dw(*call.mesh, *call.weight, 1);
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(x, panel); },
      [&](const Range& panel, auto arrive) {
        const at::Tensor dy_NO = panels.rows(dy, panel), w = weight.get();
        if (wants_dx) dx.send(panel, matrix_product(dy_NO, w));
        dw.add(dy_NO, flat(arrive()));
      });
  dw.begin();  // runs at the same time as the last panel's sum over columns
  const at::Tensor sum = wants_dx ? dx.finish() : at::Tensor();
  dw.finish();
  return sum;
}

at::Tensor input_stationary_gradients(const Call& call, const at::Tensor& x, const at::Tensor& dy, bool wants_dx) {
  Arriving weight(weight_of_rows(call));
  const TokenPanels panels(*call.mesh, x.size(0), x.size(1), call.unsharded.out, false, dy.element_size());
  WeightSum dw(*call.mesh, *call.weight, 0);
  at::Tensor dx;
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(dy, panel); },
      [&](const Range& panel, auto arrive) {
        const at::Tensor dy_NO = flat(arrive()), w = weight.get();
        if (wants_dx) panels.multiply(dx, panel, dy_NO, w);
        dw.add(dy_NO, panels.rows(x, panel));
      });
  dw.begin();
  dw.finish();
  return dx;
}

at::Tensor gradients(const Call& call, const at::Tensor& x, const at::Tensor& dy, bool wants_dx) {
  return call.unsharded.stationary == Stationary::output ? output_stationary_gradients(call, x, dy, wants_dx)
                                                         : input_stationary_gradients(call, x, dy, wants_dx);
}

// The two halves of a split backward, I and W, with the same numbers panel by panel. In an input-stationary layer both
// gather dy. Keeping it from I to W would take 2 C (1 - 1/columns) elements a token and layer for the o and down
// projections. On eight columns this equals everything else that waits for W, and schedules that fill bubbles with W
// would hold more than 1F1B. The second gather adds a fifth to a layer's volume, in panels, while no rank waits for it.
at::Tensor input_gradient(const Call& call, const at::Tensor& dy) {
  Arriving weight(weight_of_rows(call));
  const auto matrix = [&] { return weight.get(); };
  return call.unsharded.stationary == Stationary::output
             ? multiply_and_sum(*call.mesh, dy, matrix)
             : gather_and_multiply(*call.mesh, dy, call.unsharded.out, matrix);
}

void weight_gradient(const Call& call, const at::Tensor& x, const at::Tensor& dy) {
  const bool output = call.unsharded.stationary == Stationary::output;
  const at::Tensor &part = output ? x : dy, &all = output ? dy : x;  // of the stream, and of this column's width
  const TokenPanels panels(*call.mesh, all.size(0), all.size(1), output ? call.unsharded.in : call.unsharded.out,
                           output, part.element_size());
  WeightSum dw(*call.mesh, *call.weight, row_dim(call));
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(part, panel); },
      [&](const Range& panel, auto arrive) {
        const at::Tensor rows = panels.rows(all, panel), stream = flat(arrive());
        dw.add(output ? rows : stream, output ? stream : rows);
      });
  dw.begin();
  dw.finish();
}

// The papers' form. Its weight matrix [K, N] = [in, out] is the transpose of the stored one.
at::Tensor summa(const Call& call, const at::Tensor& x) {
  const at::Tensor y = TensorProducts(call.mesh->comm(), ProductForm::summa)
                           .ab(flat(x), call.weight->value.detach().t(), call.unsharded.in);
  auto shape = x.sizes().vec();
  shape.back() = y.size(1);
  return y.view(shape);
}
at::Tensor summa_input_gradient(const Call& call, const at::Tensor& x, const at::Tensor& dy) {
  const TensorProducts products(call.mesh->comm(), ProductForm::summa);
  return products.abt(flat(dy), call.weight->value.detach().t(), call.unsharded.in).view(x.sizes());
}
void summa_weight_gradient(const Call& call, const at::Tensor& x, const at::Tensor& dy) {
  const TensorProducts products(call.mesh->comm(), ProductForm::summa);
  add_to_gradient(*call.weight, products.atb(flat(x), flat(dy), call.unsharded.in).t());
}

bool makes_heads(const Call& call) { return call.unsharded.heads.query > 0; }

at::Tensor run_backward(const Call& call, const at::Tensor& x, const at::Tensor& gradient, bool wants_dx) {
  const at::Tensor dy = makes_heads(call) ? return_key_heads(*call.mesh, call.unsharded.heads, gradient) : gradient;
  accumulate_bias(*call.weight, flat(dy));
  const bool summa = call.mesh->plan().form == ProductForm::summa;
  at::Tensor dx;
  if (!summa && !call.weight->defers()) {
    dx = gradients(call, x, dy, wants_dx);
    call.weight->written();
    return dx;
  }
  if (wants_dx) dx = summa ? summa_input_gradient(call, x, dy) : input_gradient(call, dy);
  call.weight->add_weight_product([=] { summa ? summa_weight_gradient(call, x, dy) : weight_gradient(call, x, dy); });
  return dx;
}

struct TensorLinear : torch::autograd::Function<TensorLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&, const Call& call) {
    context->save_for_backward({x});
    context->saved_data["mesh"] = reinterpret_cast<int64_t>(call.mesh);
    context->saved_data["weight"] = reinterpret_cast<int64_t>(call.weight);
    const auto& [out, in, stationary, heads] = call.unsharded;
    context->saved_data["unsharded"] =
        std::vector<int64_t>{out, in, static_cast<int64_t>(stationary), heads.query, heads.key, heads.head_dim};
    const at::Tensor y = call.mesh->plan().form == ProductForm::summa ? summa(call, x) : multiply(call, x);
    // A bias is sharded like y, so it is added once: in an input-stationary layer after the sum over columns.
    if (call.weight->bias != nullptr) y.add_(call.weight->bias->value);
    return makes_heads(call) ? receive_key_heads(*call.mesh, call.unsharded.heads, y) : y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_gradients) {
    const auto unsharded = context->saved_data["unsharded"].toIntVector();
    const Call call{reinterpret_cast<const TensorMesh*>(context->saved_data["mesh"].toInt()),
                    reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt()),
                    {unsharded[0],
                     unsharded[1],
                     static_cast<Stationary>(unsharded[2]),
                     {unsharded[3], unsharded[4], unsharded[5]}}};
    // x may be kept until W. Detached, it does not keep the graph that made it, which holds more tensors.
    const at::Tensor x = context->get_saved_variables()[0].detach(), dy = output_gradients[0].contiguous();
    return {run_backward(call, x, dy, context->needs_input_grad(0)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor tensor_linear(const TensorMesh& mesh, const at::Tensor& x, const Weight& weight,
                         const UnshardedWeight& unsharded) {
  return TensorLinear::apply(x, weight.value, Call{&mesh, &weight, unsharded});
}

at::Tensor tensor_linear_backward(const TensorMesh& mesh, const at::Tensor& x, const Weight& weight,
                                  const UnshardedWeight& unsharded, const at::Tensor& dy) {
  return run_backward({&mesh, &weight, unsharded}, x.detach(), dy.contiguous(), true);
}

}  // namespace orthant
