// Times of kernels, collectives and messages on a machine. All functions are pure, and take constant time. More work
// or more bytes never take less time. Times are in seconds, without the effect of other kernels or messages that run
// at the same time.
#pragma once

#include <cstdint>
#include <string_view>

#include "hardware/hardware.h"
#include "mesh/collective.h"

namespace orthant {

/// FLOPs per second of one device at its peak. Throws LogicError for a dtype other than bfloat16, float32 or float64.
double peak_flop_per_s(const Hardware& hardware, std::string_view dtype);

/// The products of a linear layer y = x W^T with x of [tokens, in], W of [out, in] and y of [tokens, out].
enum class ProductKind {
  forward,                  // y: m = tokens, k = in, n = out
  input_gradient,           // gradient of x: m = tokens, k = out, n = in
  weight_gradient,          // gradient of W: m = out, k = tokens, n = in; accumulates in the operands' dtype
  weight_gradient_float32,  // the same; accumulates in float32
};

/// Seconds of one product of [m, k] and [k, n]. The model: tiles of the output are made in waves over the compute
/// units, at a rate that falls with the work of the kernel (throttled_share). The traffic of the output and a part of
/// that of the operands add to this, and all traffic is a lower bound:
///   latency + max(waves * units * 2 * tile * k / (peak * share) + exposed bytes / bandwidth, all bytes / bandwidth)
/// The fastest of three tiles counts: tile, tile transposed, and half the columns. Requires m, k, n >= 1. Throws
/// LogicError for a dtype other than bfloat16, float32 or float64.
double product_seconds(const Hardware& hardware, ProductKind kind, int64_t m, int64_t k, int64_t n,
                       std::string_view dtype);

/// Size of one attention on one device.
struct AttentionSize {
  int64_t sequences = 1;
  int64_t query_tokens = 1;  // of one sequence, on this device
  int64_t key_tokens = 1;    // of one sequence, that this device visits
  int64_t heads = 1;         // query heads on this device
  int64_t kv_heads = 1;      // key and value heads on this device
  int64_t qk_head_dim = 1;
  int64_t v_head_dim = 1;
  double visible_share = 0.5;  // visible (query, key) pairs divided by all pairs: 1 without a mask, 0.5 if causal
  bool stores_scores = false;  // scores are computed and stored in float32 or wider, not fused: those with a cap
};

/// FLOPs of the visible pairs: 2 * pairs * heads * (qk_head_dim + v_head_dim) forward, 2.5 times this backward, because
/// the backward pass of fused attention has 5 products and the forward pass 2.
double attention_flop(const AttentionSize& size, bool backward);

/// Seconds of one fused attention. Compute units take tiles of query tokens. The last units to finish add a tail, and
/// the kernel never takes less than its longest tile, which is twice the mean with a causal mask:
///   latency + max(longest tile, all tiles / units + tail * longest tile), and at least all bytes / bandwidth
/// Stored scores add the time of the passes over them. Throws LogicError for an unknown dtype.
double attention_seconds(const Hardware& hardware, bool backward, const AttentionSize& size, std::string_view dtype);

/// Share of the rate of a short kernel that a kernel with this work in FLOPs reaches, under the device's power limit:
/// (1 + sustained * r) / (1 + r) with r = sqrt(work / half_work). It falls from 1 to sustained_share.
double throttled_share(double work_flop, double sustained_share, double half_work_flop);

/// Seconds of one kernel that reads and writes this number of bytes in the device's memory. 0 bytes take 0 seconds.
double kernel_seconds(const Hardware& hardware, double bytes);

/// A group of ranks, one per device, spread evenly over hosts. Requires 1 <= hosts <= ranks.
struct GroupOnHosts {
  int64_t ranks = 1, hosts = 1;
};

/// Seconds of one collective in which one rank sends bytes_sent bytes (bytes_sent() in mesh/collective.h); of an
/// all_reduce_by_tree, bytes_sent are those of the tensor. A group of one rank, and kinds that do not communicate, take
/// 0. The formulas are at the top of link_time.cc.
double collective_seconds(const Hardware& hardware, CollectiveKind kind, const GroupOnHosts& group, double bytes_sent);

/// Seconds of one message from one rank to another. 0 bytes take the latency.
double message_seconds(const Hardware& hardware, bool same_host, double bytes);

}  // namespace orthant
