#include "calibrate/measure_kernels.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "calibrate/on_all_cores.h"
#include "model/attention.h"
#include "model/linear.h"
#include "model/local_operations.h"
#include "model/norms.h"
#include "model/optimizer.h"

namespace orthant {
namespace {

at::ScalarType type_of(const std::string& dtype) {
  return dtype == "bfloat16" ? at::kBFloat16 : dtype == "float32" ? at::kFloat : at::kDouble;
}

double bytes_of(const std::string& dtype) { return static_cast<double>(c10::elementSize(type_of(dtype))); }

at::Tensor filled_tensor(const std::vector<int64_t>& shape, const std::string& dtype) {
  return at::full(shape, 0.5, type_of(dtype));
}

struct Case {
  std::string what;
  std::function<void(double seconds)> measure;
};

void add_products(std::vector<Case>& cases, Measurements& measured) {
  const auto add = [&](const std::string& dtype, ProductKind kind, int64_t m, int64_t k, int64_t n) {
    cases.push_back(
        {"products", [&measured, dtype, kind, m, k, n](double seconds) {
           const double bytes = bytes_of(dtype) * static_cast<double>(m * k + k * n + m * n);
           const double took = time_on_all_cores(measured.cores, seconds, bytes, [&]() -> std::function<void()> {
             if (kind == ProductKind::forward) {
               return
                   [x = filled_tensor({m, k}, dtype), w = filled_tensor({n, k}, dtype)] { matrix_product(x, w.t()); };
             }
             if (kind == ProductKind::input_gradient) {
               return [dy = filled_tensor({m, k}, dtype), w = filled_tensor({k, n}, dtype)] { matrix_product(dy, w); };
             }
             const std::string master = dtype == "bfloat16" ? "float32" : dtype;
             return [dy = filled_tensor({k, m}, dtype), x = filled_tensor({k, n}, dtype),
                     sum = filled_tensor({m, n}, master)] { add_product(sum, dy.t(), x, true); };
           });
           measured.products.push_back({kind, m, k, n, dtype, took});
         }});
  };
  for (const std::string dtype : {"float32", "bfloat16"}) {
    for (const int64_t width : {64, 128, 256, 512, 1024}) {
      for (const int64_t tokens : {64, 256, 1024}) {
        for (const auto& [in, out] : {std::pair{width, width}, {width, 3 * width}, {3 * width, width}}) {
          add(dtype, ProductKind::forward, tokens, in, out);
          add(dtype, ProductKind::input_gradient, tokens, out, in);
          const bool is_float32 = dtype == "float32";
          add(dtype, is_float32 ? ProductKind::weight_gradient : ProductKind::weight_gradient_float32, out, tokens, in);
        }
      }
    }
  }
  for (const int64_t width : {128, 512}) add("float64", ProductKind::forward, 256, width, width);
}

void add_attention(std::vector<Case>& cases, Measurements& measured) {
  const auto add = [&](const std::string& dtype, int64_t tokens, int64_t head_dim) {
    cases.push_back({"attention", [&measured, dtype, tokens, head_dim](double seconds) {
                       constexpr int64_t kHeads = 4;
                       const AttentionSize size = {.query_tokens = tokens,
                                                   .key_tokens = tokens,
                                                   .heads = kHeads,
                                                   .kv_heads = kHeads,
                                                   .qk_head_dim = head_dim,
                                                   .v_head_dim = head_dim,
                                                   .visible_share = 0.5 + 0.5 / static_cast<double>(tokens)};
                       std::vector<int64_t> positions(static_cast<size_t>(tokens));
                       std::iota(positions.begin(), positions.end(), 0);
                       const std::vector<AttentionTile> tiles =
                           attention_tiles(compute_visibility({.causal = true}, positions, tokens), positions);
                       const ScoreRule rule{1 / std::sqrt(static_cast<double>(head_dim))};
                       for (const bool backward : {false, true}) {
                         const double bytes = 4 * bytes_of(dtype) * static_cast<double>(kHeads * tokens * head_dim);
                         const double took =
                             time_on_all_cores(measured.cores, seconds, bytes, [&]() -> std::function<void()> {
                               const auto make = [&] { return filled_tensor({1, kHeads, tokens, head_dim}, dtype); };
                               const at::Tensor q = make(), k = make(), v = make(), dout = make();
                               if (!backward)
                                 return [=, &tiles] { attend(AttentionKernel::flash, q, k, v, tiles, rule); };
                               const PartialAttention all = attend(AttentionKernel::flash, q, k, v, tiles, rule);
                               return [=, &tiles] {
                                 attend_backward_single_block(AttentionKernel::flash, dout, q, k, v, all.out_BHTD,
                                                              all.lse_BHT, tiles, rule);
                               };
                             });
                         measured.attention.push_back({backward, size, dtype, took});
                       }
                     }});
  };
  for (const std::string dtype : {"float32", "bfloat16"}) {
    for (const int64_t head_dim : {32, 64}) {
      for (const int64_t tokens : {64, 128, 256, 512}) add(dtype, tokens, head_dim);
    }
  }
}

// Bytes are counted as a plan counts them: each operation reads and writes its input and output once.
void add_memory_bound(std::vector<Case>& cases, Measurements& measured) {
  const auto time = [&](double bytes, const std::function<std::function<void()>()>& make) {
    cases.push_back({"norms, activations and updates", [&measured, bytes, make](double seconds) {
                       measured.kernels.push_back({bytes, time_on_all_cores(measured.cores, seconds, bytes, make)});
                     }});
  };
  for (const std::string dtype : {"float32", "bfloat16"}) {
    for (const int64_t width : {64, 256, 1024}) {
      for (const int64_t tokens : {64, 512}) {
        const double stream = static_cast<double>(tokens * width) * bytes_of(dtype);
        const auto norm = [=](bool backward) {
          return [=]() -> std::function<void()> {
            const auto gain = std::make_shared<Weight>();
            gain->value = filled_tensor({width}, dtype).requires_grad_(true);
            gain->gradient = filled_tensor({width}, "float32");
            const at::Tensor x = filled_tensor({1, tokens, width}, dtype).requires_grad_(true);
            const at::Tensor added = filled_tensor({1, tokens, width}, dtype).requires_grad_(true);
            if (!backward) return [=] { fused_add_norm("rms_norm", x, added, *gain, 1e-5); };
            const auto [y, sum] = fused_add_norm("rms_norm", x, added, *gain, 1e-5);
            return [=, out = y, dy = filled_tensor({1, tokens, width}, dtype)] {
              torch::autograd::grad({out}, {x, added}, {dy}, /*retain_graph=*/true);
              (void)gain;
            };
          };
        };
        time(4 * stream, norm(false));
        time(4 * stream, norm(true));
        const auto swiglu = [=](bool backward) {
          return [=]() -> std::function<void()> {
            const at::Tensor x = filled_tensor({1, tokens, 2 * width}, dtype).requires_grad_(true);
            if (!backward) return [=] { fused_local("swiglu", x, nullptr, {}, 0); };
            const at::Tensor y = fused_local("swiglu", x, nullptr, {}, 0);
            return [=, dy = filled_tensor({1, tokens, width}, dtype)] {
              torch::autograd::grad({y}, {x}, {dy}, /*retain_graph=*/true);
            };
          };
        };
        time(3 * stream, swiglu(false));
        time(5 * stream, swiglu(true));
      }
    }
  }
  for (const int64_t elements : {int64_t{1} << 18, int64_t{1} << 21}) {
    constexpr double kBytesOfElement = 4 * (1 + 1 + 2 + 4);  // gradient twice; weight and two states read and written
    time(kBytesOfElement * static_cast<double>(elements), [=]() -> std::function<void()> {
      const auto weights = std::make_shared<Weights>(
          std::vector<ParameterInfo>{{.name = "w", .shape = {elements / 512, 512}}}, at::kFloat);
      weights->gradient(0).copy_(filled_tensor({elements / 512, 512}, "float32"));
      const auto optimizer = std::make_shared<Optimizer>(*weights, OptimizerConfig());
      const at::Tensor scale = at::ones({}, at::kDouble);
      return [=] {
        SquaresSum sum;
        add_gradient_squares(*weights, 0, 0, elements, sum);
        optimizer->step(1, 1e-3, scale);
      };
    });
  }
}

}  // namespace

void measure_kernels(Measurements& measured, double seconds, const ReportProgress& report) {
  std::vector<Case> cases;
  add_products(cases, measured);
  add_attention(cases, measured);
  add_memory_bound(cases, measured);
  const double each = seconds / static_cast<double>(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    report(static_cast<double>(i) / static_cast<double>(cases.size()), cases[i].what);
    cases[i].measure(each / 2);  // the other half is for operands, first calls and kernels that take longer
  }
}

}  // namespace orthant
