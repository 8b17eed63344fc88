// Comm: collectives and point-to-point messages of one rank, over groups of ranks named by mesh axes. A group is opened
// at its first use. Every operation is asynchronous, and its calls and bytes are counted. An error names the rank, the
// operation, the current Action and the cause.
//
// Growth, with P = number of ranks: constructing and destroying a Comm costs a constant number of store requests per
// rank, and each connection to another rank one or two more. A Comm holds O(P) memory: a record for each rank. The
// costs and the connections of an operation are in collectives.h, those of heartbeats in watch.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm_options.h"
#include "comm/group.h"
#include "launch/rendezvous.h"
#include "launch/roll_call.h"
#include "mesh/axes.h"
#include "mesh/collective.h"
#include "mesh/mesh.h"

namespace orthant {

using Counts = std::span<const int64_t>;

/// Calls of one operation, and the bytes that this rank sent and received for it. The bytes follow the formulas of
/// mesh/collective.h. Work::wait() checks them against the messages of the operation; NCCL does not report those, so
/// its operations are not checked.
struct Traffic {
  int64_t calls = 0;
  Moved bytes = {};
  bool operator==(const Traffic&) const = default;
};
/// Key: axes joined by "+" in mesh order, and operation, e.g. ("data", "all_reduce").
using TrafficTable = std::map<std::pair<std::string, std::string>, Traffic>;

/// An operation that a rank has started.
struct StartedOperation {
  std::string kind;   // "all_reduce"
  std::string group;  // axes joined by "+", and after "@" or "#" the device or channel
  int64_t bytes = 0;  // of the tensor
  int peer = -1;      // rank of the other side if there is exactly one
};

class CommState;
struct OpenGroup;

/// A message of an operation.
struct GroupMessage {
  int position = 0;  // of the other side in the group
  bool receive = false;
  int64_t number = 0;  // among the messages of this direction between the two ranks over the group, from 1
};

/// Description of an operation, for error messages and for the check of bytes.
struct GroupCall {
  const OpenGroup* group = nullptr;
  const char* kind = "";
  int64_t tensor_bytes = 0;
  Moved bytes = {};
  /// The messages of a send, recv, exchange or shift; empty for a collective.
  std::vector<GroupMessage> messages = {};
  /// Number of a collective in its group, from 1; 0 for messages.
  int64_t number = 0;
};

/// An operation in progress. Its tensors must not be touched until wait() returns. Wait for it before its Comm is
/// destroyed. A Work destroyed without wait() is kept by its Comm, but then its result is not guaranteed.
class [[nodiscard]] Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Blocks until the operation is complete; later calls do nothing. The time counts as exposed. Throws CommError with
  /// rank, operation, axes, bytes, activity and cause.
  void wait();
  /// True if wait() would not block on a peer. This call does not advance any operation. An operation on at most 64 KiB
  /// advances in the background only on a channel (see channel()). Elsewhere it may stay incomplete until this rank
  /// waits for some operation.
  bool done() const;

 private:
  friend class Comm;
  friend class CommState;
  std::shared_ptr<CommState> state_;
  std::unique_ptr<Pending> pending_;
  GroupCall operation_;
};

/// One rank's access to the mesh. Tensors of an operation are contiguous, of one dtype, and treated as flat memory. CPU
/// tensors travel over UCX or Gloo. CUDA tensors travel over NCCL, where Work::wait() blocks the current stream and not
/// the host; or, with CommOptions::through_host_memory, as CPU tensors do. All ranks of a group must issue the same
/// operations in the same order. Over a group of one rank, an operation copies locally and is not counted. One thread
/// at a time may use a Comm.
class Comm {
 public:
  /// Returns once all ranks of the mesh have connected.
  Comm(Mesh mesh, int rank, Rendezvous rendezvous, CommOptions options = {});
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  const Mesh& mesh() const;
  int rank() const;
  int group_size(const Axes& axes) const;
  /// This rank's position in its group over the axes, from 0 to group_size() - 1.
  int position(const Axes& axes) const;
  /// The transport of CPU tensors: "ucx" or "gloo"; empty if there is only one rank.
  std::string transport() const;
  /// Number of ranks to which this rank's transport has a connection, from the first message with them on.
  int num_connections() const;
  /// Opens the group now instead of at its first operation with a tensor on the device. Over NCCL, that waits for the
  /// other members: all ranks must open their groups in one order, by prepare() or by their first operations.
  void prepare(const Axes& axes, at::Device device = at::kCPU);
  /// Over NCCL, opens a group of two ranks for each direction: a pair of positions (from, to) of the group over the
  /// axes. send() and recv() of CUDA tensors throw LogicError without it; shift() and exchange() do not need it. All
  /// members must pass the same set, and each opens the directions that contain it. For other transports it does
  /// nothing.
  void prepare_messages(const Axes& axes, at::Device device, const std::set<std::pair<int, int>>& directions);
  /// Returns a channel: the same ranks with separate groups, whose operations need no order relative to this Comm's.
  /// Operations on a channel advance in the background while the rank computes, even small ones. All members must use
  /// the same number, from 1 to 7. Its traffic is counted in this Comm, which must outlive the channel.
  Comm channel(int number) const;

  /// Sums over the group, in place. Sends about 2 (n-1)/n of the tensor's bytes over n ranks: balanced chunks to their
  /// owners, then this rank's summed chunk to the other ranks. This and the other sums throw LogicError for a dtype
  /// without a sum (ordered_sum.h).
  Work all_reduce(const at::Tensor& tensor, const Axes& axes);
  /// The same sum of the few numbers that all ranks exchange in a step. With more than 8 ranks it is counted as an
  /// all_reduce_by_tree, and each rank needs a connection to at most 2 log2 n others (collectives.h). It has the bits
  /// of all_reduce(), except over NCCL with more than 8 ranks, where NCCL chooses the order of additions. Throws
  /// LogicError for float16 and bfloat16, whose sums are formed in float32. The last `maxima` elements, which must be
  /// float64, are not added: their result is the largest of the group.
  Work all_reduce_small(const at::Tensor& tensor, const Axes& axes, int64_t maxima = 0);
  /// output = the sum over all ranks of the chunk of `input` that belongs to this position. `counts`: elements per
  /// position; if empty, all are equal. Sends the input except this position's own chunk.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts = {});
  /// output = the inputs of all positions, in order. Sends the output except the next position's shard, as in a ring.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts = {});
  /// Chunk i of input goes to position i; chunk i of output comes from position i. Sends the chunks for other
  /// positions.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts output_counts = {},
                  Counts input_counts = {});
  /// Copies the root position's tensor to all. Counted as a chain: every rank except the last sends the tensor once.
  Work broadcast(const at::Tensor& tensor, const Axes& axes, int root = 0);
  /// Sums over the group at the root, in place. Other ranks send their tensor once; it does not change.
  Work reduce(const at::Tensor& tensor, const Axes& axes, int root = 0);
  /// The same sum with fewer bytes into the root: chunks go to their owners, and the sums of chunks to the root. It
  /// also sends all chunks but its own. Over NCCL it is a reduce.
  Work reduce_in_chunks(const at::Tensor& tensor, const Axes& axes, int root = 0);
  /// The same sum, started in the background once the operation `after` has completed and `make` has filled the tensor.
  /// `make` may run on any thread; it must be short, must not call Comm, and must own the data that it reads. The sum
  /// fails with an error of `after` or an exception from `make`.
  Work reduce_in_chunks(const at::Tensor& tensor, const Axes& axes, int root, const Work& after,
                        std::function<void()> make);
  /// Shifts along the ring: input goes to position + `by`, output comes from position - `by`. Their sizes may differ.
  Work shift(const at::Tensor& output, const at::Tensor& input, const Axes& axes, int by = 1);
  /// Sends to, or receives from, a position of the group. Messages match by tag (0 to 2^19 - 3), in order within a tag.
  /// A send may not complete before its receive is posted. Therefore post both directions before waiting. Over NCCL,
  /// prepare_messages() comes first, and messages of one direction match in the order posted, whatever their tags.
  Work send(const at::Tensor& tensor, const Axes& axes, int to, int tag = 0);
  Work recv(const at::Tensor& tensor, const Axes& axes, int from, int tag = 0);
  /// Several messages at once; no message waits for another. Use it to pass shards along a ring. Over NCCL, messages
  /// between two ranks match in the order posted, whatever their tags.
  Work exchange(std::span<const Transfer> transfers, const Axes& axes);
  /// Synchronizes the hosts. It does not synchronize CUDA streams.
  Work barrier(const Axes& axes);

  /// Processes messages that have arrived. Operations on at most 64 KiB do not advance while the rank computes, and a
  /// peer may be waiting for one of them.
  void progress();

  /// Until the result is destroyed, messages advance although the rank does nothing here. Hold it while the rank waits
  /// for anything but a Work, such as a roll call or a disk: the transport may still hold back a message, such as the
  /// acknowledgement of a completed one, that a peer waits for.
  [[nodiscard]] std::shared_ptr<void> keep_advancing();
  /// Opens the next roll call of all ranks at their store. It has no time limit and waits for no message. It may be
  /// called on another thread, one call at a time, and ends with CommError if the run fails. All ranks must open the
  /// same number, in the same order. Unless `awaited` is empty, ranks that are slow to reach the call are warned of:
  /// "the run has waited 8 s for rank 3 of 8 to AWAITED".
  RollCall open_roll_call(const std::string& awaited = "");

  /// The last operations that this rank has started, the oldest first. Operations over one rank are left out.
  std::vector<StartedOperation> last_operations() const;

  TrafficTable traffic() const;
  /// Sum over all axes and operations.
  Traffic total_traffic() const;
  /// Seconds spent blocked in Work::wait().
  double exposed_wait_s() const;

  /// Sets the rank's current activity for error messages, e.g. "0B3, action 7 of 12 of step 41".
  void set_activity(std::string activity);
  /// Stops the run: reports to all ranks that this rank fails, and why. Returns true on the one rank that must report
  /// to the user. A CommError thrown by an operation has already been reported; calling this with it only returns that
  /// answer.
  bool abort(const std::string& message);

 private:
  Comm(std::shared_ptr<CommState> state, int channel);
  OpenGroup& open(const Axes& axes, at::Device device = at::kCPU) const;
  Work messages(const char* kind, std::span<const Transfer> transfers, OpenGroup& group);
  Work message(const char* kind, const Transfer& transfer, OpenGroup& group);
  static GroupCall call_of(const char* kind, std::span<const Transfer> transfers, const OpenGroup& group);

  std::shared_ptr<CommState> state_;
  int channel_ = 0;
};

}  // namespace orthant
