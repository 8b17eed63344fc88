// Kernels whose elements are independent: SwiGLU, rotary positions, dropout and the updates of the optimizer.
#include "base/philox.h"
#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/cuda/kernels.h"

namespace orthant::cuda_kernels {
namespace {

constexpr int kBlock = 256;

template <class N>
__device__ inline N sigmoid(N x) {
  return 1 / (1 + exp(-x));
}

template <class T, int N>
__global__ void swiglu_forward_row(SwigluForward<T> args) {
  const int64_t row = blockIdx.x;
  const T* gate = args.gate_up + row * 2 * args.width;
  for (int64_t i = threadIdx.x * N; i < args.width; i += kBlock * N) {
    Wide<T> g[N], u[N];
    load(gate + i, g);
    load(gate + args.width + i, u);
#pragma unroll
    for (int j = 0; j < N; ++j) u[j] = g[j] * sigmoid(g[j]) * u[j];
    store(u, args.y + row * args.width + i);
  }
}

template <class T, int N>
__global__ void swiglu_backward_row(SwigluBackward<T> args) {
  const int64_t row = blockIdx.x;
  const T* gate = args.gate_up + row * 2 * args.width;
  T* d_gate = args.d_gate_up + row * 2 * args.width;
  for (int64_t i = threadIdx.x * N; i < args.width; i += kBlock * N) {
    Wide<T> g[N], u[N], d[N];
    load(gate + i, g);
    load(gate + args.width + i, u);
    load(args.dy + row * args.width + i, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Wide<T> s = sigmoid(g[j]), d_silu = s * (g[j] * (1 - s) + 1), silu = g[j] * s;
      g[j] = d[j] * u[j] * d_silu;
      u[j] = d[j] * silu;
    }
    store(g, d_gate + i);
    store(u, d_gate + args.width + i);
  }
}

// One block of threads for each token. An item is N pairs of a head's elements k and k + D/2. If D is odd, which
// requires N = 1 and no rotation, the last item is the last element.
template <class T, int N>
__global__ void rope_forward(RopeSplitForward<T> args) {
  const RotaryShape& shape = args.shape;
  const int64_t H = shape.heads, K = shape.kv_heads, D = shape.head_dim, half = D / 2, items = half / N + D % 2;
  const int64_t token = blockIdx.x, b = token / shape.tokens, t = token % shape.tokens;
  const T* in = args.qkv_BTC + token * (H + 2 * K) * D;
  const int64_t position =
      args.tables.cos == nullptr ? 0 : args.tables.positions[args.tables.positions_per_batch ? token : t];
  for (int64_t item = threadIdx.x; item < (H + 2 * K) * items; item += kBlock) {
    const int64_t head = item / items, i = item % items * N;
    const bool is_query = head < H, is_value = head >= H + K;
    T* out = is_query   ? args.q + shape.offset(b, H, head, t)
             : is_value ? args.v + shape.offset(b, K, head - H - K, t)
                        : args.k + shape.offset(b, K, head - H, t);
    if (N == 1 && i == half) {
      out[D - 1] = in[head * D + D - 1];
      continue;
    }
    Wide<T> x[N], y[N];
    load(in + head * D + i, x);
    load(in + head * D + half + i, y);
    if (!is_value && args.tables.cos != nullptr) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Wide<T> cos = args.tables.cos[position * half + i + j], sin = args.tables.sin[position * half + i + j];
        const Wide<T> a = x[j];
        x[j] = a * cos - y[j] * sin;
        y[j] = y[j] * cos + a * sin;
      }
    }
    store(x, out + i);
    store(y, out + half + i);
  }
}

template <class T, int N>
__device__ inline void add_heads(const T* from, int64_t heads, int64_t stride, Wide<T> (&sum)[N]) {
  load(from, sum);
  for (int64_t head = 1; head < heads; ++head) {
    Wide<T> more[N];
    load(from + head * stride, more);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += more[j];
  }
}

template <class T, int N>
__global__ void rope_backward(RopeSplitBackward<T> args) {
  const RotaryShape& shape = args.shape;
  const int64_t H = shape.heads, K = shape.kv_heads, D = shape.head_dim, half = D / 2, items = half / N + D % 2;
  const int64_t token = blockIdx.x, b = token / shape.tokens, t = token % shape.tokens;
  const int64_t head_stride = shape.by_token ? D : shape.tokens * D;
  const int64_t group = args.kv_per_query_head ? H / K : 1;
  T* out = args.dqkv_BTC + token * (H + 2 * K) * D;
  const int64_t position =
      args.tables.cos == nullptr ? 0 : args.tables.positions[args.tables.positions_per_batch ? token : t];
  for (int64_t item = threadIdx.x; item < (H + 2 * K) * items; item += kBlock) {
    const int64_t head = item / items, i = item % items * N;
    const bool is_query = head < H, is_value = head >= H + K;
    const int64_t summed = is_query ? 1 : group, heads = is_query ? H : K * group;
    const int64_t first = (is_query ? head : is_value ? head - H - K : head - H) * summed;
    const T* from = (is_query ? args.dq : is_value ? args.dv : args.dk) + shape.offset(b, heads, first, t);
    Wide<T> x[N], y[N];
    if (N == 1 && i == half) {
      add_heads(from + D - 1, summed, head_stride, x);
      store(x, out + head * D + D - 1);
      continue;
    }
    add_heads(from + i, summed, head_stride, x);
    add_heads(from + half + i, summed, head_stride, y);
    if (!is_value && args.tables.cos != nullptr) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Wide<T> cos = args.tables.cos[position * half + i + j], sin = args.tables.sin[position * half + i + j];
        const Wide<T> a = x[j];
        x[j] = a * cos + y[j] * sin;
        y[j] = y[j] * cos - a * sin;
      }
    }
    store(x, out + head * D + i);
    store(y, out + head * D + half + i);
  }
}

// One thread computes the four elements that one block of random words decides.
template <class T>
__global__ void drop_elements(Dropout<T> args, uint32_t threshold, Wide<T> factor) {
  const uint64_t block = args.first_index / 4 + static_cast<uint64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const auto words = philox_block(args.seed, args.stream, block);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t i = static_cast<int64_t>(4 * block + j - args.first_index);
    if (i < 0 || i >= args.count) continue;
    args.y[i] = words[j] >= threshold ? narrow<T>(widen(args.x[i]) * factor) : T{};
  }
}

// The operations of the CPU's kernels, in their order, so that the bits are equal where the CPU has fused
// multiply-add.
template <class T>
__global__ void adamw_element(AdamW<T> args, T decay, T rest1, T beta2, T rest2, T step, T root_scale, T eps) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const double scale = *args.gradient_scale;
  if (i >= args.count || scale == kSkipsUpdate) return;
  const T gradient = args.gradients[i] * static_cast<T>(scale), old_m = args.m[i];
  const T m = fma(rest1, gradient - old_m, old_m);
  const T v = fma(beta2, args.v[i], (gradient * gradient) * rest2);
  const T weight = fma(-step, m / fma(sqrt(v), root_scale, eps), args.weights[i] * decay);
  args.m[i] = m;
  args.v[i] = v;
  args.weights[i] = weight;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (args.bf16_weights != nullptr) args.bf16_weights[i] = narrow<Bf16>(weight);
  }
}

template <class T>
__global__ void sgd_element(Sgd<T> args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const double scale = *args.gradient_scale;
  if (i >= args.count || scale == kSkipsUpdate) return;
  const T old = args.weights[i];
  T update = fma(static_cast<T>(args.weight_decay), old, args.gradients[i] * static_cast<T>(scale));
  if (args.momentum_buffer != nullptr) {
    update = fma(static_cast<T>(args.momentum), args.momentum_buffer[i], update);
    args.momentum_buffer[i] = update;
  }
  const T weight = fma(-static_cast<T>(args.lr), update, old);
  args.weights[i] = weight;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (args.bf16_weights != nullptr) args.bf16_weights[i] = narrow<Bf16>(weight);
  }
}

}  // namespace

template <class T>
void swiglu_forward(const SwigluForward<T>& args, Stream stream) {
  if (args.rows == 0) return;
  const auto rows = static_cast<unsigned>(args.rows);
  if (fits_packs<T>(args.width, {args.gate_up, args.y})) {
    swiglu_forward_row<T, kPackElements<T>><<<rows, kBlock, 0, stream>>>(args);
  } else {
    swiglu_forward_row<T, 1><<<rows, kBlock, 0, stream>>>(args);
  }
  check_launch("swiglu_forward");
}

template <class T>
void swiglu_backward(const SwigluBackward<T>& args, Stream stream) {
  if (args.rows == 0) return;
  const auto rows = static_cast<unsigned>(args.rows);
  if (fits_packs<T>(args.width, {args.gate_up, args.dy, args.d_gate_up})) {
    swiglu_backward_row<T, kPackElements<T>><<<rows, kBlock, 0, stream>>>(args);
  } else {
    swiglu_backward_row<T, 1><<<rows, kBlock, 0, stream>>>(args);
  }
  check_launch("swiglu_backward");
}

template <class T>
void rope_split_forward(const RopeSplitForward<T>& args, Stream stream) {
  const auto tokens = static_cast<unsigned>(args.shape.batch * args.shape.tokens);
  if (tokens == 0) return;
  if (args.shape.head_dim % 2 == 0 && fits_packs<T>(args.shape.head_dim / 2, {args.qkv_BTC, args.q, args.k, args.v})) {
    rope_forward<T, kPackElements<T>><<<tokens, kBlock, 0, stream>>>(args);
  } else {
    rope_forward<T, 1><<<tokens, kBlock, 0, stream>>>(args);
  }
  check_launch("rope_split_forward");
}

template <class T>
void rope_split_backward(const RopeSplitBackward<T>& args, Stream stream) {
  const auto tokens = static_cast<unsigned>(args.shape.batch * args.shape.tokens);
  if (tokens == 0) return;
  if (args.shape.head_dim % 2 == 0 &&
      fits_packs<T>(args.shape.head_dim / 2, {args.dqkv_BTC, args.dq, args.dk, args.dv})) {
    rope_backward<T, kPackElements<T>><<<tokens, kBlock, 0, stream>>>(args);
  } else {
    rope_backward<T, 1><<<tokens, kBlock, 0, stream>>>(args);
  }
  check_launch("rope_split_backward");
}

template <class T>
void dropout(const Dropout<T>& args, Stream stream) {
  if (args.count == 0) return;
  const double limit = std::ceil(args.p * 4294967296.0);
  const uint32_t threshold = limit > 4294967295.0 ? 4294967295u : static_cast<uint32_t>(limit);
  const auto factor = static_cast<Wide<T>>(1.0 / (1.0 - args.p));
  const int64_t words = (static_cast<int64_t>(args.first_index % 4) + args.count + 3) / 4;
  drop_elements<T><<<blocks_for(words, kBlock), kBlock, 0, stream>>>(args, threshold, factor);
  check_launch("dropout");
}

template <class T>
void adamw(const AdamW<T>& args, Stream stream) {
  if (args.count == 0) return;
  const auto number = [](double value) { return static_cast<T>(value); };
  adamw_element<T><<<blocks_for(args.count, kBlock), kBlock, 0, stream>>>(
      args, number(1.0 - args.lr * args.weight_decay), number(1.0 - args.beta1), number(args.beta2),
      number(1.0 - args.beta2), number(args.lr / args.bias_correction1),
      number(1.0 / std::sqrt(args.bias_correction2)), number(args.eps));
  check_launch("adamw");
}

template <class T>
void sgd(const Sgd<T>& args, Stream stream) {
  if (args.count == 0) return;
  sgd_element<T><<<blocks_for(args.count, kBlock), kBlock, 0, stream>>>(args);
  check_launch("sgd");
}

#define ORTHANT_INSTANCES(function, Args)             \
  template void function(const Args<float>&, Stream); \
  template void function(const Args<double>&, Stream);
#define ORTHANT_INSTANCES_OF_ELEMENTS(function, Args) \
  ORTHANT_INSTANCES(function, Args)                   \
  template void function(const Args<Bf16>&, Stream);
ORTHANT_INSTANCES_OF_ELEMENTS(swiglu_forward, SwigluForward)
ORTHANT_INSTANCES_OF_ELEMENTS(swiglu_backward, SwigluBackward)
ORTHANT_INSTANCES_OF_ELEMENTS(rope_split_forward, RopeSplitForward)
ORTHANT_INSTANCES_OF_ELEMENTS(rope_split_backward, RopeSplitBackward)
ORTHANT_INSTANCES_OF_ELEMENTS(dropout, Dropout)
ORTHANT_INSTANCES(adamw, AdamW)
ORTHANT_INSTANCES(sgd, Sgd)
#undef ORTHANT_INSTANCES
#undef ORTHANT_INSTANCES_OF_ELEMENTS

}  // namespace orthant::cuda_kernels
