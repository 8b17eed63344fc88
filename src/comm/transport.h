// Transport: what carries tensors between the ranks of one group. One small interface, so that c10d's Gloo and NCCL and
// our own transports stand side by side; Comm binds it to mesh axes, counts, and explains failures.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/store.h"

namespace orthant {

/// An operation under way. Its tensors must stay untouched until wait() has returned.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is complete; throws any std::exception when it failed. Called at most once. Of tensors
  /// on a GPU: makes the current stream wait, and returns. A failure is then told to the transport's OnLost.
  virtual void wait() = 0;
  /// True when wait() would not block on a peer any more; may stay false where the transport cannot tell.
  virtual bool done() = 0;
  /// From any thread: makes wait() throw soon. The operation itself may stay stuck: its group can only be abandoned.
  virtual void cancel() noexcept = 0;
};

/// A message to a position of the group, or from it. Sizes and tags as in send() and recv().
struct Transfer {
  at::Tensor tensor;
  int peer = 0;
  bool receive = false;
  int tag = 0;
};

/// The operations of one ordered group of ranks. Each returns at once. All members issue the same operations in the
/// same order; several may be under way. Tensors are contiguous memory and taken as flat; `counts` are elements per
/// position.
class Group {
 public:
  virtual ~Group() = default;
  /// Sum over the group, in place; bit-equal on all members.
  virtual std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor) = 0;
  /// output = the sum of this position's chunk of every member's input; summed in order of position.
  virtual std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                  std::span<const int64_t> counts) = 0;
  /// output = all members' inputs, one after another.
  virtual std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                              std::span<const int64_t> counts) = 0;
  /// Chunk i of input goes to position i; chunk i of output comes from there.
  virtual std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                              std::span<const int64_t> output_counts,
                                              std::span<const int64_t> input_counts) = 0;
  virtual std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) = 0;
  /// Messages between two members match by tag, in order within a tag. Both sides name the same size and dtype. NCCL
  /// knows no tags and runs one operation after another: there both sides post in one order, and what shall go both
  /// ways at once is an exchange.
  virtual std::unique_ptr<Pending> send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual std::unique_ptr<Pending> recv(const at::Tensor& tensor, int from, int tag) = 0;
  /// Several messages, none of which waits for another. Here: posts all, waits for all.
  virtual std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers);
  virtual std::unique_ptr<Pending> barrier() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Opens the group; all members call it with the same store prefix, and it returns when they are connected.
  virtual std::unique_ptr<Group> open(const Store& store, int position, int size, double timeout_s) = 0;
};

/// c10d's Gloo over TCP, for CPU tensors; `address` is the local address that the peers can reach.
std::unique_ptr<Transport> gloo_transport(const std::string& address);

/// Told the reason, on a thread of the transport, when an operation fails whose wait() has not blocked.
using OnLost = std::function<void(const std::string& reason)>;
/// True in builds with CUDA (ORTHANT_CUDA).
bool has_nccl();
/// c10d's NCCL for tensors of one CUDA device, which no other rank may use. LogicError in builds without CUDA.
std::unique_ptr<Transport> nccl_transport(at::Device device, OnLost on_lost);

}  // namespace orthant
