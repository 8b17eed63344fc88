// The fused kernels of GPUs, and ATen's operators in their place, compute what the CPU's kernels compute. The Gpu tests
// need a CUDA device.
#include "tests/model/device_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

namespace orthant::device_kernels {
namespace {

void check_norms(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{5, 64}, {3, 1000}, {67, 2048}, {17, 8192}, {2, 9000}, {2, 4099}, {1, 1}}) {
      const at::Tensor x = random({rows, cols}, type), none = at::zeros({rows, cols}, type);
      const at::Tensor rstd = at::zeros({rows}, wide(type));
      for (const bool adds : {false, true}) {
        expect_equal(place, {x, random({rows, cols}, type), random({cols}, type), none, none, rstd}, tolerance_of(type),
                     fmt::format("norm of {} x {}", rows, cols), [&](const Backend& at, const Tensors& t) {
                       by_element(x, [&]<class T>(T) {
                         RUN(at, rms_norm_forward,
                             RmsNormForward<T>{.x = in<T>(t[0]),
                                               .residual = adds ? in<T>(t[1]) : nullptr,
                                               .gamma = in<T>(t[2]),
                                               .eps = 1e-5,
                                               .rows = rows,
                                               .cols = cols,
                                               .sum = adds ? out<T>(t[3]) : nullptr,
                                               .y = out<T>(t[4]),
                                               .rstd = out<Wide<T>>(t[5])});
                       });
                     });
        const at::Tensor scale = (random({rows}, type).abs() + 0.5).to(wide(type));
        expect_equal(place,
                     {x, random({rows, cols}, type), random({cols}, type), scale, random({rows, cols}, type), none,
                      random({cols}, wide(type))},
                     4 * tolerance_of(type), fmt::format("backward of a norm of {} x {}", rows, cols),
                     [&](const Backend& at, const Tensors& t) {
                       by_element(x, [&]<class T>(T) {
                         RUN(at, rms_norm_backward,
                             RmsNormBackward<T>{.dy = in<T>(t[0]),
                                                .s = in<T>(t[1]),
                                                .gamma = in<T>(t[2]),
                                                .rstd = in<Wide<T>>(t[3]),
                                                .dsum = adds ? in<T>(t[4]) : nullptr,
                                                .rows = rows,
                                                .cols = cols,
                                                .dx = out<T>(t[5]),
                                                .dgamma = out<Wide<T>>(t[6])});
                       });
                     });
      }
    }
  }
}

constexpr std::pair<int64_t, int64_t> kNormShards[] = {{5, 64}, {67, 1000}, {3, 2048}, {2, 4099}, {9, 3}, {4, 0}};

// Columns of a wider norm: the two statistics.
void check_norm_statistics(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    const double tolerance = tolerance_of(wide(type));
    for (const auto& [rows, cols] : kNormShards) {
      const at::Tensor x = random({rows, cols}, type), y = random({rows, cols}, type),
                       numbers = at::zeros({rows}, wide(type));
      const std::string what = fmt::format("shard of {} x {}", rows, cols);
      for (const bool adds : {false, true}) {
        expect_equal(place, {x, y, at::zeros_like(x), numbers}, tolerance, "squares of a " + what,
                     [&](const Backend& at, const Tensors& t) {
                       by_element(x, [&]<class T>(T) {
                         RUN(at, rms_norm_squares,
                             RmsNormSquares<T>{.x = in<T>(t[0]),
                                               .residual = adds ? in<T>(t[1]) : nullptr,
                                               .rows = rows,
                                               .cols = cols,
                                               .sum = adds ? out<T>(t[2]) : nullptr,
                                               .squares = out<Wide<T>>(t[3])});
                       });
                     });
      }
      expect_equal(place, {y, x, random({cols}, type), numbers}, 4 * tolerance, "dots of a " + what,
                   [&](const Backend& at, const Tensors& t) {
                     by_element(x, [&]<class T>(T) {
                       RUN(at, rms_norm_dots,
                           RmsNormDots<T>{.dy = in<T>(t[0]),
                                          .s = in<T>(t[1]),
                                          .gamma = in<T>(t[2]),
                                          .rows = rows,
                                          .cols = cols,
                                          .dots = out<Wide<T>>(t[3])});
                     });
                   });
    }
  }
}

// Columns of a wider norm: the passes that read the sums of statistics over all shards.
void check_norms_of_shards(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, cols] : kNormShards) {
      if (cols == 0) continue;
      const at::Tensor x = random({rows, cols}, type), gamma = random({cols}, type), none = at::zeros_like(x);
      const at::Tensor sums = (random({rows}, type).abs() + 0.5).to(wide(type)) * static_cast<double>(3 * cols);
      const at::Tensor numbers = at::zeros({rows}, wide(type));
      const std::string what = fmt::format("shard of {} x {}", rows, cols);
      expect_equal(place, {x, gamma, sums, none, numbers}, tolerance_of(type), "norm of a " + what,
                   [&](const Backend& at, const Tensors& t) {
                     by_element(x, [&]<class T>(T) {
                       RUN(at, rms_norm_forward,
                           RmsNormForward<T>{.x = in<T>(t[0]),
                                             .gamma = in<T>(t[1]),
                                             .eps = 1e-5,
                                             .rows = rows,
                                             .cols = cols,
                                             .y = out<T>(t[3]),
                                             .rstd = out<Wide<T>>(t[4]),
                                             .width = 3 * cols,
                                             .squares = in<Wide<T>>(t[2])});
                     });
                   });
      expect_equal(place, {random({rows, cols}, type), x, gamma, numbers + 0.7, sums, none, random({cols}, wide(type))},
                   4 * tolerance_of(type), "backward of the norm of a " + what,
                   [&](const Backend& at, const Tensors& t) {
                     by_element(x, [&]<class T>(T) {
                       RUN(at, rms_norm_backward,
                           RmsNormBackward<T>{.dy = in<T>(t[0]),
                                              .s = in<T>(t[1]),
                                              .gamma = in<T>(t[2]),
                                              .rstd = in<Wide<T>>(t[3]),
                                              .rows = rows,
                                              .cols = cols,
                                              .dx = out<T>(t[5]),
                                              .dgamma = out<Wide<T>>(t[6]),
                                              .width = 3 * cols,
                                              .dots = in<Wide<T>>(t[4])});
                     });
                   });
    }
  }
}

// Heads of a token are adjacent rows of a wider matrix.
void check_head_norms(const Backend& place) {
  constexpr int64_t kTokens = 7, kHeads = 3, kWidth = 5, D = 16;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor qkv = random({kTokens, kWidth * D}, type), rstd = at::zeros({kTokens * kHeads}, wide(type));
    const RowGroups groups{.rows = kHeads, .stride = kWidth * D};
    expect_equal(place, {qkv, random({D}, type), at::zeros_like(qkv), rstd}, tolerance_of(type), "norms of heads",
                 [&](const Backend& at, const Tensors& t) {
                   by_element(qkv, [&]<class T>(T) {
                     RUN(at, rms_norm_forward,
                         RmsNormForward<T>{.x = in<T>(t[0]) + D,
                                           .gamma = in<T>(t[1]),
                                           .eps = 1e-5,
                                           .rows = kTokens * kHeads,
                                           .cols = D,
                                           .y = out<T>(t[2]) + D,
                                           .rstd = out<Wide<T>>(t[3]),
                                           .groups = groups});
                   });
                 });
    expect_equal(place,
                 {qkv, random({kTokens, kWidth * D}, type), random({D}, type), rstd + 0.7, at::zeros_like(qkv),
                  random({D}, wide(type))},
                 4 * tolerance_of(type), "backward of norms of heads", [&](const Backend& at, const Tensors& t) {
                   by_element(qkv, [&]<class T>(T) {
                     RUN(at, rms_norm_backward,
                         RmsNormBackward<T>{.dy = in<T>(t[0]) + D,
                                            .s = in<T>(t[1]) + D,
                                            .gamma = in<T>(t[2]),
                                            .rstd = in<Wide<T>>(t[3]),
                                            .rows = kTokens * kHeads,
                                            .cols = D,
                                            .dx = out<T>(t[4]) + D,
                                            .dgamma = out<Wide<T>>(t[5]),
                                            .groups = groups});
                   });
                 });
  }
}

void check_swiglu(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 24, 257, 4096}) {
      const at::Tensor gate_up = 4 * random({9, 2 * width}, type), half = at::zeros({9, width}, type);
      const std::string what = fmt::format("swiglu of width {}", width);
      expect_equal(place, {gate_up, half}, tolerance_of(type), what, [&](const Backend& at, const Tensors& t) {
        by_element(half,
                   [&]<class T>(T) { RUN(at, swiglu_forward, SwigluForward<T>{in<T>(t[0]), 9, width, out<T>(t[1])}); });
      });
      expect_equal(place, {random({9, width}, type), gate_up, at::zeros_like(gate_up)}, tolerance_of(type), what,
                   [&](const Backend& at, const Tensors& t) {
                     by_element(half, [&]<class T>(T) {
                       RUN(at, swiglu_backward, SwigluBackward<T>{in<T>(t[0]), in<T>(t[1]), 9, width, out<T>(t[2])});
                     });
                   });
    }
  }
}

void check_rotary(const Backend& place) {
  constexpr int64_t B = 2, N = 5, kPositions = 11;
  for (const at::ScalarType type : kTypes) {
    for (const auto& [H, K, D] :
         {std::tuple<int64_t, int64_t, int64_t>{4, 2, 32}, {3, 3, 6}, {6, 1, 128}, {4, 2, 17}, {2, 1, 1}}) {
      for (const auto& [rotates, by_token] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
        if (rotates && D % 2 != 0) continue;
        const at::Tensor angles = random({kPositions, D / 2}, wide(type));
        const at::Tensor positions = at::randint(0, kPositions, {B, N}, at::kLong);
        const auto tables = [&]<class T>(const Tensors& t, T) -> RotaryTables<T> {
          return {rotates ? in<Wide<T>>(t[0]) : nullptr, rotates ? in<Wide<T>>(t[1]) : nullptr, kPositions,
                  in<int64_t>(t[2]), true};
        };
        const at::Tensor qkv = random({B, N, (H + 2 * K) * D}, type);
        const at::Tensor q = random({B, H, N, D}, type), k = random({B, K, N, D}, type);
        expect_equal(
            place,
            {angles.cos(), angles.sin(), positions, qkv, at::zeros_like(q), at::zeros_like(k), at::zeros_like(k)},
            tolerance_of(type), "rotary positions", [&](const Backend& at, const Tensors& t) {
              by_element(qkv, [&]<class T>(T) {
                RUN(at, rope_split_forward,
                    RopeSplitForward<T>{.shape = {B, N, H, K, D, by_token},
                                        .tables = tables(t, T{}),
                                        .qkv_BTC = in<T>(t[3]),
                                        .q = out<T>(t[4]),
                                        .k = out<T>(t[5]),
                                        .v = out<T>(t[6])});
              });
            });
        for (const bool per_query : {false, true}) {
          const auto key_gradient = [&] { return random({B, per_query ? H : K, N, D}, type); };
          expect_equal(
              place, {angles.cos(), angles.sin(), positions, at::zeros_like(qkv), q, key_gradient(), key_gradient()},
              2 * tolerance_of(type), "backward of rotary positions", [&](const Backend& at, const Tensors& t) {
                by_element(qkv, [&]<class T>(T) {
                  RUN(at, rope_split_backward,
                      RopeSplitBackward<T>{.shape = {B, N, H, K, D, by_token},
                                           .tables = tables(t, T{}),
                                           .dq = in<T>(t[4]),
                                           .dk = in<T>(t[5]),
                                           .dv = in<T>(t[6]),
                                           .kv_per_query_head = per_query,
                                           .dqkv_BTC = out<T>(t[3])});
                });
              });
        }
      }
    }
  }
}

// The same elements must be dropped, in any part of a tensor.
void check_dropout(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 33) + 6}) {
      const at::Tensor x = random({1003}, type);
      expect_equal(place, {x, at::zeros_like(x)}, tolerance_of(type), "dropout",
                   [&](const Backend& at, const Tensors& t) {
                     by_element(x, [&]<class T>(T) {
                       RUN(at, dropout,
                           Dropout<T>{.x = in<T>(t[0]),
                                      .y = out<T>(t[1]),
                                      .count = 1003,
                                      .seed = 0x123456789abcdef0u,
                                      .stream = (uint64_t{7} << 32) + 3,
                                      .first_index = first,
                                      .p = 0.3});
                     });
                   });
    }
  }
}

// On a GPU, updates have the bits of a CPU with fused multiply-add. The factor of clipping is no power of two, so that
// a product that is not rounded before a sum would show.
void check_updates(const Backend& place) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const double tolerance = place.aten ? tolerance_of(type) : 0;
    constexpr int64_t kCount = 1001;
    const at::Tensor weights = random({kCount}, type), second = random({kCount}, type).square();
    const at::Tensor rounded = at::zeros({kCount}, at::kBFloat16);
    for (const double factor : {0.3, kSkipsUpdate}) {
      const at::Tensor scale = at::full({1}, factor, at::kDouble);
      const auto check = [&]<class T>(T) {
        const auto bf16 = [](const at::Tensor& t) { return sizeof(T) == 4 ? out<Bf16>(t) : nullptr; };
        expect_equal(place, {weights, random({kCount}, type), random({kCount}, type), second, rounded, scale},
                     tolerance, "adamw", [&](const Backend& at, const Tensors& t) {
                       RUN(at, adamw,
                           AdamW<T>{.weights = out<T>(t[0]),
                                    .gradients = in<T>(t[1]),
                                    .m = out<T>(t[2]),
                                    .v = out<T>(t[3]),
                                    .count = kCount,
                                    .lr = 0.01,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .bias_correction1 = 0.1,
                                    .bias_correction2 = 0.05,
                                    .gradient_scale = in<double>(t[5]),
                                    .bf16_weights = bf16(t[4])});
                     });
        for (const bool has_momentum : {false, true}) {
          expect_equal(place, {weights, random({kCount}, type), random({kCount}, type), rounded, scale}, tolerance,
                       "sgd", [&](const Backend& at, const Tensors& t) {
                         RUN(at, sgd,
                             Sgd<T>{.weights = out<T>(t[0]),
                                    .gradients = in<T>(t[1]),
                                    .momentum_buffer = has_momentum ? out<T>(t[2]) : nullptr,
                                    .count = kCount,
                                    .lr = 0.01,
                                    .momentum = 0.9,
                                    .weight_decay = 0.1,
                                    .gradient_scale = in<double>(t[4]),
                                    .bf16_weights = bf16(t[3])});
                       });
        }
      };
      type == at::kDouble ? check(double{}) : check(float{});
    }
  }
}

// The decision has the bits of the CPU.
void check_decisions(const Backend& place) {
  for (const double norm : {0.0, 0.3, 4.0, 5.0, 1e-30, std::numeric_limits<double>::infinity()}) {
    ExactSum sum;
    for (const double part : {0.1, 0.2, 0.7}) sum.add(part * norm * norm);
    const at::Tensor squares = at::empty({ExactSum::kNumbers}, at::kDouble);
    std::ranges::copy(sum.numbers(), squares.mutable_data_ptr<double>());
    for (const double loss : {2.0, std::nan("")}) {
      for (const double clipped_norm : {-1.0, 3.0}) {
        expect_equal(place, {at::full({1}, loss, at::kDouble), squares, at::zeros({1}, at::kDouble)}, 0, "a decision",
                     [&](const Backend& at, const Tensors& t) {
                       RUN(at, decide_update,
                           UpdateDecision{.loss = in<double>(t[0]),
                                          .squares = in<double>(t[1]),
                                          .skip_above_norm = 4.5,
                                          .max_norm = 0.7,
                                          .clipped_norm = clipped_norm,
                                          .gradient_scale = out<double>(t[2])});
                     });
      }
    }
  }
}

TEST(AtenKernels, ComputeWhatTheCpuKernelsCompute) {
  at::manual_seed(1);
  const Backend aten{.device = at::kCPU, .aten = true};
  check_norms(aten);
  check_norm_statistics(aten);
  check_norms_of_shards(aten);
  check_head_norms(aten);
  check_swiglu(aten);
  check_rotary(aten);
  check_dropout(aten);
  check_updates(aten);
  check_decisions(aten);
}

TEST(KernelsGpu, ComputeWhatTheCpuKernelsCompute) {
  REQUIRE_GPU();
  at::manual_seed(1);
  for (const Backend& gpu : kOnGpu) {
    check_norms(gpu);
    check_norm_statistics(gpu);
    check_norms_of_shards(gpu);
    check_head_norms(gpu);
    check_swiglu(gpu);
    check_rotary(gpu);
    check_dropout(gpu);
    check_updates(gpu);
  }
}

}  // namespace
}  // namespace orthant::device_kernels
