#include "model/aten_kernels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

#include "base/errors.h"
#include "base/labels.h"
#include "base/philox.h"
#include "model/element.h"

namespace orthant::aten_kernels {
namespace {

template <class T>
constexpr at::ScalarType kType = std::is_same_v<T, double>    ? at::kDouble
                                 : std::is_same_v<T, float>   ? at::kFloat
                                 : std::is_same_v<T, int64_t> ? at::kLong
                                                              : at::kBFloat16;

// A tensor over this memory. The caller must not write to it if the memory is const.
template <class T>
at::Tensor tensor(at::Device device, const T* memory, at::IntArrayRef shape, at::OptionalIntArrayRef strides = {}) {
  return at::for_blob(const_cast<T*>(memory), shape)
      .strides(strides)
      .options(at::TensorOptions(device).dtype(kType<T>))
      .target_device(device)
      .make_tensor();
}
template <class T>
at::Tensor rows_of(at::Device device, const T* memory, int64_t rows, int64_t cols, const RowGroups& groups = {}) {
  if (groups.rows == 0) return tensor(device, memory, {rows, cols});
  const std::array<int64_t, 3> shape{rows / groups.rows, groups.rows, cols}, strides{groups.stride, cols, 1};
  return tensor(device, memory, shape, strides);
}
template <class T>
at::Tensor to_wide(const at::Tensor& t) {
  return t.to(kType<Wide<T>>);
}
at::Tensor column(const at::Tensor& t) { return t.unsqueeze(-1); }

}  // namespace

template <class T>
void rms_norm_squares(at::Device device, const RmsNormSquares<T>& args) {
  at::Tensor s = rows_of(device, args.x, args.rows, args.cols);
  if (args.residual != nullptr) {
    const at::Tensor sum = rows_of(device, args.sum, args.rows, args.cols);
    s = sum.copy_(s + rows_of(device, args.residual, args.rows, args.cols));
  }
  tensor(device, args.squares, {args.rows}).copy_(to_wide<T>(s).square().sum(-1));
}

template <class T>
void rms_norm_forward(at::Device device, const RmsNormForward<T>& args) {
  at::Tensor s = rows_of(device, args.x, args.rows, args.cols, args.groups);
  if (args.residual != nullptr) {
    const at::Tensor sum = rows_of(device, args.sum, args.rows, args.cols);
    s = sum.copy_(s + rows_of(device, args.residual, args.rows, args.cols));
  }
  const at::Tensor x = to_wide<T>(s), gamma = to_wide<T>(tensor(device, args.gamma, {args.cols}));
  const at::Tensor squares = args.squares != nullptr ? tensor(device, args.squares, {args.rows}) : x.square().sum(-1);
  const auto width = static_cast<double>(args.squares != nullptr ? args.width : args.cols);
  const at::Tensor rstd = (squares.to(at::kDouble) / width + args.eps).rsqrt().to(x.scalar_type());
  tensor(device, args.rstd, {args.rows}).copy_(rstd.reshape({args.rows}));
  rows_of(device, args.y, args.rows, args.cols, args.groups).copy_(x * column(rstd) * gamma);
}

template <class T>
void rms_norm_dots(at::Device device, const RmsNormDots<T>& args) {
  const auto wide = [&](const T* rows) { return to_wide<T>(rows_of(device, rows, args.rows, args.cols)); };
  const at::Tensor g = wide(args.dy) * to_wide<T>(tensor(device, args.gamma, {args.cols}));
  tensor(device, args.dots, {args.rows}).copy_((g * wide(args.s)).sum(-1));
}

template <class T>
void rms_norm_backward(at::Device device, const RmsNormBackward<T>& args) {
  const auto rows = [&](const T* of) { return rows_of(device, of, args.rows, args.cols, args.groups); };
  const at::Tensor dy = to_wide<T>(rows(args.dy)), s = to_wide<T>(rows(args.s));
  const at::Tensor gamma = to_wide<T>(tensor(device, args.gamma, {args.cols}));
  at::IntArrayRef of_rows = s.sizes().slice(0, static_cast<size_t>(s.dim() - 1));
  const at::Tensor rstd = tensor(device, args.rstd, {args.rows}).view(of_rows);
  const at::Tensor dot = args.dots != nullptr ? tensor(device, args.dots, {args.rows}) : (dy * gamma * s).sum(-1);
  const auto width = static_cast<double>(args.dots != nullptr ? args.width : args.cols);
  const at::Tensor r = rstd.to(at::kDouble), scaled = dy * column(rstd);
  const at::Tensor pull = (r * r * r * dot.to(at::kDouble) / width).to(s.scalar_type());
  at::Tensor dx = scaled * gamma - s * column(pull);
  if (args.dsum != nullptr) dx = dx + to_wide<T>(rows(args.dsum));
  rows(args.dx).copy_(dx);
  tensor(device, args.dgamma, {args.cols}).add_((scaled * s).flatten(0, -2).sum(0));
}

template <class T>
void swiglu_forward(at::Device device, const SwigluForward<T>& args) {
  const at::Tensor gate_up = to_wide<T>(tensor(device, args.gate_up, {args.rows, 2 * args.width}));
  const auto halves = gate_up.chunk(2, 1);
  tensor(device, args.y, {args.rows, args.width}).copy_(at::silu(halves[0]) * halves[1]);
}

template <class T>
void swiglu_backward(at::Device device, const SwigluBackward<T>& args) {
  const at::Tensor gate_up = to_wide<T>(tensor(device, args.gate_up, {args.rows, 2 * args.width}));
  const auto halves = gate_up.chunk(2, 1);
  const at::Tensor &g = halves[0], d = to_wide<T>(tensor(device, args.dy, {args.rows, args.width}));
  const at::Tensor sigmoid = g.sigmoid(), d_silu = sigmoid * (g * (1 - sigmoid) + 1);
  const at::Tensor out = tensor(device, args.d_gate_up, {args.rows, 2 * args.width});
  const at::Tensor d_up = d * (g * sigmoid), d_gate = d * halves[1] * d_silu;
  out.narrow(1, 0, args.width).copy_(d_gate);
  out.narrow(1, args.width, args.width).copy_(d_up);
}

namespace {

// Rotates x [B,T,heads,D] by the angles of its tokens, or by the negative angles if `back`.
template <class T>
at::Tensor rotate(at::Device device, const RotaryShape& shape, const RotaryTables<T>& tables, const at::Tensor& x,
                  bool back) {
  if (tables.cos == nullptr) return x;
  const int64_t half = shape.head_dim / 2, sequences = tables.positions_per_batch ? shape.batch : 1;
  const at::Tensor positions = tensor(device, tables.positions, {sequences * shape.tokens});
  const auto angles = [&](const Wide<T>* table) {
    const at::Tensor all = tensor(device, table, {tables.max_position, half});
    return all.index_select(0, positions).view({sequences, shape.tokens, 1, half});
  };
  const at::Tensor cos = angles(tables.cos), sin = back ? -angles(tables.sin) : angles(tables.sin);
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

}  // namespace

template <class T>
void rope_split_forward(at::Device device, const RopeSplitForward<T>& args) {
  const auto& [B, N, H, K, D, by_token] = args.shape;
  const at::Tensor qkv = to_wide<T>(tensor(device, args.qkv_BTC, {B, N, H + 2 * K, D}));
  const auto write = [&](T* out, int64_t heads, const at::Tensor& x_BTHD) {
    if (by_token) {
      tensor(device, out, {B, N, heads, D}).copy_(x_BTHD);
    } else {
      tensor(device, out, {B, heads, N, D}).copy_(x_BTHD.transpose(1, 2));
    }
  };
  write(args.q, H, rotate(device, args.shape, args.tables, qkv.narrow(2, 0, H), false));
  write(args.k, K, rotate(device, args.shape, args.tables, qkv.narrow(2, H, K), false));
  write(args.v, K, qkv.narrow(2, H + K, K));
}

template <class T>
void rope_split_backward(at::Device device, const RopeSplitBackward<T>& args) {
  const auto& [B, N, H, K, D, by_token] = args.shape;
  const int64_t group = args.kv_per_query_head ? H / K : 1;
  const at::Tensor out = tensor(device, args.dqkv_BTC, {B, N, H + 2 * K, D});
  const auto read = [&](const T* in, int64_t heads, int64_t summed) {
    return by_token ? to_wide<T>(tensor(device, in, {B, N, heads, summed, D})).sum(3)
                    : to_wide<T>(tensor(device, in, {B, heads, summed, N, D})).sum(2).transpose(1, 2);
  };
  out.narrow(2, 0, H).copy_(rotate(device, args.shape, args.tables, read(args.dq, H, 1), true));
  out.narrow(2, H, K).copy_(rotate(device, args.shape, args.tables, read(args.dk, K, group), true));
  out.narrow(2, H + K, K).copy_(read(args.dv, K, group));
}

namespace {

constexpr int64_t kWord = 0xffffffff;

// The four words of philox_block(seed, stream, block) for consecutive blocks: [blocks, 4], int64.
at::Tensor philox_words(at::Device device, uint64_t seed, uint64_t stream, uint64_t first, int64_t blocks) {
  const auto low = [](uint64_t x) { return static_cast<int64_t>(x & kWord); };
  const auto high = [](uint64_t x) { return static_cast<int64_t>(x >> 32); };
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  // A block number of more than 62 bits does not occur: it is a quarter of an element's number.
  const at::Tensor number = at::arange(blocks, options) + static_cast<int64_t>(first);
  at::Tensor a = number & kWord, b = number.bitwise_right_shift(32);
  at::Tensor c = at::full_like(a, low(stream)), d = at::full_like(a, high(stream));
  int64_t key0 = low(seed), key1 = high(seed);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    // The products wrap around; their bits are those of unsigned products.
    const at::Tensor product0 = a * int64_t{kPhiloxMultiplier0}, product1 = c * int64_t{kPhiloxMultiplier1};
    a = ((product1.bitwise_right_shift(32) & kWord).bitwise_xor_(b)).bitwise_xor_(key0);
    c = ((product0.bitwise_right_shift(32) & kWord).bitwise_xor_(d)).bitwise_xor_(key1);
    b = product1 & kWord;
    d = product0 & kWord;
    key0 = (key0 + kPhiloxKeyStep0) & kWord, key1 = (key1 + kPhiloxKeyStep1) & kWord;
  }
  return at::stack({a, b, c, d}, 1);
}

}  // namespace

template <class T>
void dropout(at::Device device, const Dropout<T>& args) {
  ORTHANT_CHECK(args.p >= 0.0 && args.p < 1.0, args.p);
  if (args.count == 0) return;
  const auto skip = static_cast<int64_t>(args.first_index % 4);
  const int64_t blocks = (skip + args.count + 3) / 4;
  const at::Tensor words =
      philox_words(device, args.seed, args.stream, args.first_index / 4, blocks).flatten().narrow(0, skip, args.count);
  const auto threshold = static_cast<int64_t>(std::min(std::ceil(args.p * 4294967296.0), 4294967295.0));
  const at::Tensor x = to_wide<T>(tensor(device, args.x, {args.count})) * (1.0 / (1.0 - args.p));
  tensor(device, args.y, {args.count}).copy_(x.masked_fill(words.lt(threshold), 0));
}

namespace {

// The logits of a shard of the vocabulary in wide arithmetic, and the columns of its labels.
struct Logits {
  at::Tensor logits, slopes;  // [rows, vocab]; slopes are undefined without capping
  // [rows]: column of the label, 0 if another shard has it; whether this shard has it; whether it is ignored
  at::Tensor label_column, has_label, is_ignored;

  at::Tensor at_label(const at::Tensor& all, double otherwise) const {
    if (all.size(1) == 0) return at::full({all.size(0)}, otherwise, all.options());
    return all.gather(1, column(label_column)).squeeze(1).masked_fill(has_label.logical_not(), otherwise);
  }
};

Logits logits_of(const at::Tensor& products, const at::Tensor& labels, int64_t first, const OutputLoss& loss) {
  Logits made{.logits = products};
  if (loss.softcap > 0) {
    const at::Tensor bend = (products / loss.softcap).tanh();
    made.logits = bend * loss.softcap;
    made.slopes = 1 - bend * bend;
  }
  const at::Tensor columns = labels - first;
  made.has_label = columns.ge(0).logical_and_(columns.lt(products.size(1)));
  made.label_column = columns.masked_fill(made.has_label.logical_not(), 0);
  made.is_ignored = labels.eq(kIgnoredLabel);
  return made;
}

// SoftmaxStatistics of each row as float64 columns: maximum, sum, picked, total.
at::Tensor statistics_of(const Logits& of, const std::optional<at::Tensor>& maximum, const OutputLoss& loss) {
  const auto wide = of.logits.scalar_type();
  const double none = loss.softcap > 0 ? -loss.softcap : -std::numeric_limits<double>::infinity();
  const auto options = of.logits.options().dtype(at::kDouble);
  const at::Tensor top = maximum                  ? *maximum
                         : of.logits.size(1) == 0 ? at::full({of.logits.size(0)}, none, options)
                                                  : of.logits.amax(1).to(at::kDouble);
  const at::Tensor sum = (of.logits - column(top.to(wide))).exp().sum(1, false, at::kDouble);
  const at::Tensor picked = of.at_label(of.logits, 0).to(at::kDouble);
  const at::Tensor total = loss.smoothing > 0 ? of.logits.sum(1, false, at::kDouble) : at::zeros_like(sum);
  return at::stack({top, sum, picked, total}, 1);
}

// The gradient of the products, from the statistics over the full vocabulary; see row_factors() in kernels/loss.cc.
at::Tensor gradient_of(const Logits& of, const at::Tensor& statistics, double scale, const OutputLoss& loss,
                       int64_t vocabulary) {
  if (of.logits.size(1) == 0) return of.logits;
  const auto wide = of.logits.scalar_type();
  const at::Tensor top = statistics.select(1, 0), sum = statistics.select(1, 1);
  at::Tensor factor = scale / sum;
  if (loss.z_weight > 0) factor = factor * (1 + 2 * loss.z_weight * (sum.log() + top));
  const double uniform = loss.smoothing > 0 ? scale * loss.smoothing / static_cast<double>(vocabulary) : 0;
  const double of_label = loss.smoothing > 0 ? scale * (1 - loss.smoothing) : scale;
  at::Tensor gradient = (of.logits - column(top.to(wide))).exp() * column(factor.to(wide)) - uniform;
  const at::Tensor taken = of.has_label.to(wide) * of_label;
  gradient.scatter_add_(1, column(of.label_column), column(-taken));
  if (of.slopes.defined()) gradient = gradient * of.slopes;
  return gradient.masked_fill_(column(of.is_ignored), 0);
}

// The losses of rows, from the statistics over the full vocabulary; see loss_of() in kernels/loss.cc.
at::Tensor losses_of(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary) {
  const at::Tensor top = statistics.select(1, 0), log_sum = statistics.select(1, 1).log();
  const at::Tensor picked = statistics.select(1, 2);
  at::Tensor losses = log_sum + (top - picked);
  if (loss.smoothing > 0) {
    losses = losses + loss.smoothing * (picked - statistics.select(1, 3) / static_cast<double>(vocabulary));
  }
  if (loss.z_weight > 0) losses = losses + loss.z_weight * (log_sum + top).square();
  return losses;
}

template <class T>
at::Tensor statistics_tensor(at::Device device, const SoftmaxStatistics* statistics, int64_t rows) {
  static_assert(sizeof(SoftmaxStatistics) == 4 * sizeof(double));
  return tensor(device, reinterpret_cast<const double*>(statistics), {rows, 4});
}

}  // namespace

template <class T>
void softmax_cross_entropy(at::Device device, const SoftmaxCrossEntropy<T>& args) {
  const at::Tensor products = tensor(device, args.logits, {args.rows, args.vocab});
  const at::Tensor labels = tensor(device, args.labels, {args.rows});
  const Logits of = logits_of(to_wide<T>(products), labels, 0, args.loss);
  const at::Tensor statistics = statistics_of(of, std::nullopt, args.loss);
  const at::Tensor losses = losses_of(statistics, args.loss, args.vocab);
  tensor(device, args.losses, {args.rows}).copy_(losses.masked_fill(of.is_ignored, 0));
  if (args.write_gradient) products.copy_(gradient_of(of, statistics, args.scale, args.loss, args.vocab));
}

template <class T>
void softmax_statistics(at::Device device, const SoftmaxShard<T>& args) {
  const at::Tensor products = tensor(device, args.logits, {args.rows, args.vocab});
  const Logits of = logits_of(to_wide<T>(products), tensor(device, args.labels, {args.rows}), args.first, args.loss);
  statistics_tensor<T>(device, args.statistics, args.rows).copy_(statistics_of(of, std::nullopt, args.loss));
}

template <class T>
void softmax_loss(at::Device device, const SoftmaxShard<T>& args) {
  const at::Tensor products = tensor(device, args.logits, {args.rows, args.vocab});
  const Logits of = logits_of(to_wide<T>(products), tensor(device, args.labels, {args.rows}), args.first, args.loss);
  const at::Tensor statistics = statistics_tensor<T>(device, args.statistics, args.rows);
  const at::Tensor losses = losses_of(statistics, args.loss, args.vocabulary);
  tensor(device, args.losses, {args.rows}).copy_(losses.masked_fill(of.is_ignored, 0));
  if (args.write_gradient) products.copy_(gradient_of(of, statistics, args.scale, args.loss, args.vocabulary));
}

template <class T>
void softmax_exponentials(at::Device device, const SoftmaxExponentials<T>& args) {
  const at::Tensor products = tensor(device, args.logits, {args.rows, args.vocab});
  const Logits of = logits_of(products.clone(), tensor(device, args.labels, {args.rows}), args.first, args.loss);
  const at::Tensor statistics = statistics_tensor<T>(device, args.statistics, args.rows);
  const auto maximum = args.has_maximum ? std::optional(statistics.select(1, 0).clone()) : std::nullopt;
  statistics.copy_(statistics_of(of, maximum, args.loss));
  if (args.label_slopes != nullptr) {
    tensor(device, args.label_slopes, {args.rows}).copy_(of.at_label(of.slopes, 1));
  }
  if (args.exponentials == nullptr || args.vocab == 0) return;
  at::Tensor kept = (of.logits - column(statistics.select(1, 0).to(products.scalar_type()))).exp();
  if (of.slopes.defined()) kept = kept * of.slopes;
  kept.masked_fill_(column(of.is_ignored), 0);
  const at::Tensor at_label = kept.gather(1, column(of.label_column)).masked_fill_(column(of.has_label), 0);
  kept.scatter_(1, column(of.label_column), at_label);
  tensor(device, args.exponentials, {args.rows, args.vocab}).copy_(kept);
  if (args.slopes == nullptr) return;
  tensor(device, args.slopes, {args.rows, args.vocab}).copy_(of.slopes.masked_fill(column(of.is_ignored), 0));
}

template <class T>
void adamw(at::Device device, const AdamW<T>& args) {
  const auto flat = [&](const T* memory) { return tensor(device, memory, {args.count}); };
  const at::Tensor scale = tensor(device, args.gradient_scale, {});
  if (scale.item<double>() == kSkipsUpdate) return;
  const at::Tensor gradient = flat(args.gradients) * scale, m = flat(args.m), v = flat(args.v);
  m.add_((gradient - m) * (1 - args.beta1));
  v.mul_(args.beta2).add_(gradient.square() * (1 - args.beta2));
  const at::Tensor denominator = v.sqrt() * (1 / std::sqrt(args.bias_correction2)) + args.eps;
  const at::Tensor weights = flat(args.weights);
  weights.mul_(1 - args.lr * args.weight_decay).sub_((m / denominator) * (args.lr / args.bias_correction1));
  if (args.bf16_weights != nullptr) tensor(device, args.bf16_weights, {args.count}).copy_(weights);
}

template <class T>
void sgd(at::Device device, const Sgd<T>& args) {
  const auto flat = [&](const T* memory) { return tensor(device, memory, {args.count}); };
  const at::Tensor weights = flat(args.weights), scale = tensor(device, args.gradient_scale, {});
  if (scale.item<double>() == kSkipsUpdate) return;
  at::Tensor update = flat(args.gradients) * scale + weights * args.weight_decay;
  if (args.momentum_buffer != nullptr) update = flat(args.momentum_buffer).mul_(args.momentum).add_(update);
  weights.sub_(update * args.lr);
  if (args.bf16_weights != nullptr) tensor(device, args.bf16_weights, {args.count}).copy_(weights);
}

void decide_update(at::Device device, const UpdateDecision& args) {
  const at::Tensor loss = tensor(device, args.loss, {}).cpu();
  const at::Tensor squares = tensor(device, args.squares, {ExactSum::kNumbers}).cpu();
  const double norm = std::sqrt(ExactSum::value_of(squares.const_data_ptr<double>()));
  tensor(device, args.gradient_scale, {}).fill_(gradient_scale_of(args, loss.item<double>(), norm));
}

void add_squares(const at::Tensor& x, ExactSum& sum) {
  const int64_t rest = (kNormBlockElements - x.numel() % kNormBlockElements) % kNormBlockElements;
  const at::Tensor blocks = at::constant_pad_nd(x.to(at::kDouble), {0, rest}).view({-1, kNormBlockElements});
  const at::Tensor sums = blocks.square().sum(1).cpu();
  for (const double one : std::span(sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel()))) sum.add(one);
}

#define ORTHANT_ATEN_KERNEL(function, Args)                    \
  template void function(at::Device, const Args<float>& args); \
  template void function(at::Device, const Args<double>& args);
#define ORTHANT_ATEN_KERNEL_OF_ELEMENTS(function, Args) \
  ORTHANT_ATEN_KERNEL(function, Args)                   \
  template void function(at::Device, const Args<Bf16>& args);
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rms_norm_forward, RmsNormForward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rms_norm_squares, RmsNormSquares)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rms_norm_dots, RmsNormDots)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rms_norm_backward, RmsNormBackward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(swiglu_forward, SwigluForward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(swiglu_backward, SwigluBackward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rope_split_forward, RopeSplitForward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(rope_split_backward, RopeSplitBackward)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(dropout, Dropout)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(softmax_cross_entropy, SoftmaxCrossEntropy)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(softmax_statistics, SoftmaxShard)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(softmax_loss, SoftmaxShard)
ORTHANT_ATEN_KERNEL_OF_ELEMENTS(softmax_exponentials, SoftmaxExponentials)
ORTHANT_ATEN_KERNEL(adamw, AdamW)
ORTHANT_ATEN_KERNEL(sgd, Sgd)
#undef ORTHANT_ATEN_KERNEL
#undef ORTHANT_ATEN_KERNEL_OF_ELEMENTS

}  // namespace orthant::aten_kernels
