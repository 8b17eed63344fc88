// Measures the fused CPU kernels in bytes per second: the bytes that a kernel reads and writes once, divided by its
// time. Kernels run on one thread unless OMP_NUM_THREADS is set. `copy` is a memcpy of the same sizes, for comparison.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "model/kernels/activation.h"
#include "model/kernels/loss.h"
#include "model/kernels/norm.h"
#include "model/kernels/optimizer.h"
#include "model/kernels/random.h"
#include "model/kernels/reduce.h"
#include "model/kernels/rotary.h"

namespace orthant {
namespace {

template <class T>
std::vector<T> normals(int64_t count, uint64_t stream) {
  std::vector<Wide<T>> wide(static_cast<size_t>(count));
  fill_normal(FillNormal<Wide<T>>{.out = wide.data(), .count = count, .seed = 1, .stream = stream, .first_index = 0});
  if constexpr (std::is_same_v<T, Bf16>) {
    std::vector<Bf16> narrow(wide.size());
    std::transform(wide.begin(), wide.end(), narrow.begin(), to_bf16);
    return narrow;
  } else {
    return wide;
  }
}

/// Runs fn, which reads and writes `bytes` bytes, in the loop of the benchmark.
template <class Fn>
void measure(benchmark::State& state, int64_t bytes, const Fn& fn) {
  for (auto _ : state) {
    fn();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void copy(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  const auto x = normals<float>(count, 1);
  std::vector<float> y(x.size());
  measure(state, 8 * count, [&] { std::memcpy(y.data(), x.data(), x.size() * sizeof(float)); });
}

template <class T>
void rms_norm_with_residual(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1), count = rows * cols;
  const auto x = normals<T>(count, 1), residual = normals<T>(count, 2), gamma = normals<T>(cols, 3);
  std::vector<T> sum(x.size()), y(x.size());
  std::vector<Wide<T>> rstd(static_cast<size_t>(rows));
  const RmsNormForward<T> args{.x = x.data(),
                               .residual = residual.data(),
                               .gamma = gamma.data(),
                               .eps = 1e-5,
                               .rows = rows,
                               .cols = cols,
                               .sum = sum.data(),
                               .y = y.data(),
                               .rstd = rstd.data()};
  measure(state, 4 * count * static_cast<int64_t>(sizeof(T)), [&] { rms_norm_forward(args); });
}

template <class T>
void rms_norm_gradient(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1), count = rows * cols;
  const auto dy = normals<T>(count, 1), s = normals<T>(count, 2), dsum = normals<T>(count, 3);
  const auto gamma = normals<T>(cols, 4);
  const std::vector<Wide<T>> rstd(static_cast<size_t>(rows), 1);
  std::vector<T> dx(dy.size());
  std::vector<Wide<T>> dgamma(static_cast<size_t>(cols));
  const RmsNormBackward<T> args{.dy = dy.data(),
                                .s = s.data(),
                                .gamma = gamma.data(),
                                .rstd = rstd.data(),
                                .dsum = dsum.data(),
                                .rows = rows,
                                .cols = cols,
                                .dx = dx.data(),
                                .dgamma = dgamma.data()};
  measure(state, 4 * count * static_cast<int64_t>(sizeof(T)), [&] { rms_norm_backward(args); });
}

/// Arguments of the rotary kernels: heads of 32 elements, one key head per two query heads. `cols` is the width of all
/// query heads.
template <class T>
struct RotaryCase {
  RotaryCase(int64_t rows, int64_t cols)
      : shape{.batch = 4, .tokens = rows / 4, .heads = cols / 32, .kv_heads = cols / 64, .head_dim = 32},
        angles(static_cast<size_t>(shape.tokens * 16), 0.5f),
        qkv(normals<T>(rows * cols * 2, 1)),
        q(static_cast<size_t>(rows * cols)),
        k(static_cast<size_t>(rows * cols / 2)),
        v(k) {
    for (int64_t t = 0; t < shape.tokens; ++t) positions.push_back(t);
  }
  RotaryTables<T> tables() const { return {angles.data(), angles.data(), shape.tokens, positions.data(), false}; }
  int64_t bytes() const { return 2 * static_cast<int64_t>(qkv.size() * sizeof(T)); }

  RotaryShape shape;
  std::vector<int64_t> positions;
  std::vector<Wide<T>> angles;
  std::vector<T> qkv, q, k, v;
};

template <class T>
void rope_split(benchmark::State& state) {
  RotaryCase<T> c(state.range(0), state.range(1));
  const RopeSplitForward<T> args{.shape = c.shape,
                                 .tables = c.tables(),
                                 .qkv_BTC = c.qkv.data(),
                                 .q = c.q.data(),
                                 .k = c.k.data(),
                                 .v = c.v.data()};
  measure(state, c.bytes(), [&] { rope_split_forward(args); });
}

template <class T>
void rope_split_gradient(benchmark::State& state) {
  RotaryCase<T> c(state.range(0), state.range(1));
  const RopeSplitBackward<T> args{.shape = c.shape,
                                  .tables = c.tables(),
                                  .dq = c.q.data(),
                                  .dk = c.k.data(),
                                  .dv = c.v.data(),
                                  .kv_per_query_head = false,
                                  .dqkv_BTC = c.qkv.data()};
  measure(state, c.bytes(), [&] { rope_split_backward(args); });
}

template <class T>
void swiglu(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1), count = rows * cols;
  const auto gate_up = normals<T>(2 * count, 1);
  std::vector<T> y(static_cast<size_t>(count));
  const SwigluForward<T> args{.gate_up = gate_up.data(), .rows = rows, .width = cols, .y = y.data()};
  measure(state, 3 * count * static_cast<int64_t>(sizeof(T)), [&] { swiglu_forward(args); });
}

template <class T>
void swiglu_gradient(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1), count = rows * cols;
  const auto gate_up = normals<T>(2 * count, 1), dy = normals<T>(count, 2);
  std::vector<T> d(gate_up.size());
  const SwigluBackward<T> args{
      .dy = dy.data(), .gate_up = gate_up.data(), .rows = rows, .width = cols, .d_gate_up = d.data()};
  measure(state, 5 * count * static_cast<int64_t>(sizeof(T)), [&] { swiglu_backward(args); });
}

template <class T>
void cross_entropy(benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = state.range(1), count = rows * vocab;
  const auto logits = normals<T>(count, 1);
  auto work = logits;
  const std::vector<int64_t> labels(static_cast<size_t>(rows), 7);
  std::vector<double> losses(static_cast<size_t>(rows));
  const SoftmaxCrossEntropy<T> args{.logits = work.data(),
                                    .labels = labels.data(),
                                    .rows = rows,
                                    .vocab = vocab,
                                    .scale = 1e-3,
                                    .losses = losses.data()};
  // The kernel overwrites the logits with their gradient, which is the next iteration's input. That is valid, because
  // the work depends on the sizes only.
  measure(state, 2 * count * static_cast<int64_t>(sizeof(T)), [&] { softmax_cross_entropy(args); });
}

void adamw_with_copy(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  auto weights = normals<float>(count, 1), m = normals<float>(count, 2), v = std::vector<float>(weights.size(), 1.0f);
  const auto gradients = normals<float>(count, 3);
  std::vector<Bf16> copies(weights.size());
  constexpr double kScale = 1;
  const AdamW<float> args{.weights = weights.data(),
                          .gradients = gradients.data(),
                          .m = m.data(),
                          .v = v.data(),
                          .count = count,
                          .lr = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .bias_correction1 = 0.5,
                          .bias_correction2 = 0.5,
                          .gradient_scale = &kScale,
                          .bf16_weights = copies.data()};
  measure(state, 30 * count, [&] { adamw(args); });
}

void squares(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  const auto x = normals<float>(count, 1);
  measure(state, 4 * count, [&] {
    ExactSum sum;
    add_squares(x.data(), count, sum);
    benchmark::DoNotOptimize(sum.value());
  });
}

template <class T>
void dropout_mask(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  const auto x = normals<T>(count, 1);
  std::vector<T> y(x.size());
  const Dropout<T> args{
      .x = x.data(), .y = y.data(), .count = count, .seed = 1, .stream = 2, .first_index = 3, .p = 0.1};
  measure(state, 2 * count * static_cast<int64_t>(sizeof(T)), [&] { dropout(args); });
}

void initial_weights(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  std::vector<float> out(static_cast<size_t>(count));
  const FillNormal<float> args{.out = out.data(), .count = count, .seed = 1, .stream = 2, .first_index = 0};
  measure(state, 4 * count, [&] { fill_normal(args); });
}

#define ORTHANT_ROWS ->Args({1024, 256})->Args({1024, 768})
#define ORTHANT_BOTH(name)            \
  BENCHMARK(name<float>) ORTHANT_ROWS; \
  BENCHMARK(name<Bf16>) ORTHANT_ROWS

BENCHMARK(copy) ORTHANT_ROWS->Args({1024, 32000});
ORTHANT_BOTH(rms_norm_with_residual);
ORTHANT_BOTH(rms_norm_gradient);
ORTHANT_BOTH(rope_split);
ORTHANT_BOTH(rope_split_gradient);
ORTHANT_BOTH(swiglu);
ORTHANT_BOTH(swiglu_gradient);
BENCHMARK(cross_entropy<float>)->Args({1024, 257})->Args({1024, 32000});
BENCHMARK(cross_entropy<Bf16>)->Args({1024, 257})->Args({1024, 32000});
BENCHMARK(adamw_with_copy) ORTHANT_ROWS->Args({1024, 32000});
BENCHMARK(squares) ORTHANT_ROWS->Args({1024, 32000});
ORTHANT_BOTH(dropout_mask);
BENCHMARK(initial_weights) ORTHANT_ROWS;

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) {
  if (!std::getenv("OMP_NUM_THREADS")) omp_set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
