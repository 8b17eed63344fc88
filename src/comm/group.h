// Group: the collectives of one ordered group of ranks, whatever carries them: our own algorithms on a Transport's
// messages, or NCCL's. Comm binds a Group to mesh axes, counts, and explains failures.
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

/// Counts of elements as bytes.
inline std::vector<int64_t> counts_in_bytes(std::span<const int64_t> counts, const at::Tensor& tensor) {
  std::vector<int64_t> bytes(counts.begin(), counts.end());
  for (auto& count : bytes) count *= tensor.element_size();
  return bytes;
}

/// An operation under way. Its tensors must stay untouched until wait() has returned.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is complete; throws any std::exception when it failed. Of tensors on a GPU: makes the
  /// current stream wait, and returns. A failure is then told to the group's OnLost.
  virtual void wait() = 0;
  /// True when wait() would not block on a peer any more.
  virtual bool done() = 0;
  /// done(), after a short look whether it becomes so: as long as a core may idle, before it is worth a sleep.
  virtual bool soon() { return done(); }
  /// From any thread: makes wait() throw soon. The operation itself may stay stuck: its group can only be abandoned.
  virtual void cancel() noexcept = 0;
  /// Bytes of messages that this rank has sent for it; -1 where the library below does not tell.
  virtual int64_t sent_bytes() const { return -1; }
};

/// A message to a position of the group, or from it. Sizes and tags as in send() and recv().
struct Transfer {
  at::Tensor tensor;
  int peer = 0;
  bool receive = false;
  int tag = 0;
};

/// Where an operation starts once another of this rank has ended, and `make` has been called.
struct Behind {
  Pending* operation = nullptr;
  std::function<void()> make;
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
  /// Sum over the group, at the root, in place; the others' tensors do not change.
  virtual std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root, const Behind& behind = {}) = 0;
  /// Several messages, none of which waits for another. Between two members they match by tag, in order within a tag;
  /// both sides name the same size and dtype. NCCL knows no tags and runs one exchange after another: there both sides
  /// post in one order, and what shall go both ways at once is one exchange.
  virtual std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) = 0;
  virtual std::unique_ptr<Pending> barrier() = 0;
};

/// Told the reason, on a thread of NCCL's, when an operation fails whose wait() has not blocked.
using OnLost = std::function<void(const std::string& reason)>;
/// True in builds with CUDA (ORTHANT_CUDA).
bool has_nccl();
/// c10d's NCCL for tensors of one CUDA device, which no other rank may use. All members call it with the same store
/// prefix; it returns when they are connected. LogicError in builds without CUDA.
std::unique_ptr<Group> nccl_group(at::Device device, const Store& store, int position, int size, double timeout_s,
                                  OnLost on_lost);

}  // namespace orthant
