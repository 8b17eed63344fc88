// Group: collectives and messages over one ordered group of ranks, carried by our own algorithms or by NCCL. Comm binds
// a Group to mesh axes, counts its bytes and explains its failures.
//
// The growth of each operation with the number of ranks is in collectives.h. Over NCCL and n ranks, reduce_scatter
// needs a buffer of n chunks, and reduce one of n tensors at the root. An all_gather of unequal shards is n broadcasts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/store.h"
#include "mesh/collective.h"

namespace orthant {

/// Converts counts of elements to bytes.
inline std::vector<int64_t> counts_in_bytes(std::span<const int64_t> counts, const at::Tensor& tensor) {
  std::vector<int64_t> bytes(counts.begin(), counts.end());
  for (auto& count : bytes) count *= tensor.element_size();
  return bytes;
}

/// An operation in progress. Its tensors must not be touched until wait() has returned.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is complete; throws any std::exception if it failed. For tensors on a GPU, makes the
  /// current stream wait and returns. A later failure then goes to the group's OnLost.
  virtual void wait() = 0;
  /// True if wait() would no longer block on a peer.
  virtual bool done() = 0;
  /// Like done(), but first polls for a short time, up to which polling is cheaper than sleeping.
  virtual bool poll() { return done(); }
  /// May be called from any thread: makes wait() throw soon. The operation itself may remain blocked; its group must
  /// then be abandoned, not closed.
  virtual void cancel() noexcept = 0;
  /// Bytes of the messages that this rank has sent and received for the operation; none if the library does not report
  /// them.
  virtual std::optional<Moved> moved_bytes() const { return std::nullopt; }
};

/// A message to or from a position of the group. Size and tag must match on both sides, as for send() and recv().
struct Transfer {
  at::Tensor tensor;
  int peer = 0;
  bool receive = false;
  int tag = 0;
};

/// A start condition: the operation starts after `operation` of this rank has completed and `make` has been called.
struct StartAfter {
  Pending* operation = nullptr;
  std::function<void()> make;
};

/// The operations of one ordered group of ranks. Each call returns at once. All members must issue the same operations
/// in the same order; several may be in progress. Tensors are contiguous and treated as flat memory. `counts` are
/// elements per position.
class Group {
 public:
  virtual ~Group() = default;
  /// Sums over the group, in place; the results are bit-equal on all members. The last `maxima` elements are not added:
  /// their result is the largest of the group.
  virtual std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) = 0;
  /// The same sum of few elements over many members, each of which exchanges messages with few others.
  virtual std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) = 0;
  /// output = the sum over all members of this position's chunk of their input, in order of position.
  virtual std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                  std::span<const int64_t> counts) = 0;
  /// output = the inputs of all members, in order of position.
  virtual std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                              std::span<const int64_t> counts) = 0;
  /// Chunk i of input goes to position i; chunk i of output comes from position i.
  virtual std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                              std::span<const int64_t> output_counts,
                                              std::span<const int64_t> input_counts) = 0;
  virtual std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) = 0;
  /// Sums over the group at the root, in place. The tensors of other members do not change.
  virtual std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root) = 0;
  /// The same sum with fewer bytes into the root (collectives.h).
  virtual std::unique_ptr<Pending> reduce_in_chunks(const at::Tensor& tensor, int root,
                                                    const StartAfter& after = {}) = 0;
  /// Several messages at once; no message waits for another. Between two members, messages match by tag, in order
  /// within a tag. Both sides must give the same size and dtype. NCCL has no tags and runs exchanges one after another.
  /// There, both sides must post in the same order, and messages that go both ways at once must be in one exchange.
  virtual std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) = 0;
  /// One message. A CPU group that keeps the order of NCCL orders the messages of each direction by themselves. Over
  /// NCCL, Comm calls it on the group of the direction.
  virtual std::unique_ptr<Pending> message(const Transfer& transfer) = 0;
  virtual std::unique_ptr<Pending> barrier() = 0;
};

/// Called with the reason, on an NCCL thread, when an operation fails whose wait() has not blocked the host.
using OnLost = std::function<void(const std::string& reason)>;
/// True in builds with CUDA (ORTHANT_CUDA).
bool has_nccl();
/// Returns c10d's NCCL group for tensors of one CUDA device, which no other rank may use. All members call it with the
/// same store prefix. It returns once they are connected. Throws LogicError in builds without CUDA.
std::unique_ptr<Group> nccl_group(at::Device device, const Store& store, int position, int size, double timeout_s,
                                  OnLost on_lost);

}  // namespace orthant
