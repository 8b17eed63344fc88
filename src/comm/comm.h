// Comm: the collectives of one rank, bound to the axes of the mesh. Groups are opened when first used; every
// operation is asynchronous and counted; a failure says who, what, during which Action, and because of whom.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/rendezvous.h"
#include "mesh/axes.h"
#include "mesh/mesh.h"

namespace orthant {

using Counts = std::span<const int64_t>;

/// How often an operation was called, and how many bytes this rank sent for it: by the formulas of mesh/collective.h,
/// which what was really sent is checked against whenever an operation has been waited for. (NCCL does not tell.)
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  bool operator==(const Traffic&) const = default;
};
/// (axes joined by "+" in mesh order, operation) -> traffic, e.g. ("data", "all_reduce").
using TrafficTable = std::map<std::pair<std::string, std::string>, Traffic>;

struct CommOptions {
  /// What carries CPU tensors: "ucx", "gloo", or "auto": UCX where all ranks have it.
  std::string transport = "auto";
  /// An operation that takes longer has failed. Long, because a rank may be busy saving; the dead and the silent are
  /// noticed otherwise, and much earlier (silence_s).
  double timeout_s = 300;
  /// How long ranks wait for each other to come.
  double meet_timeout_s = 60;
  /// A rank without a sign of life for this long has failed (its machine cut off; a process of this machine that is
  /// stopped or gone is noticed in seconds). At least three heartbeats, which are seldom where ranks meet in a file.
  double silence_s = 30;
  /// What happens when the run failed elsewhere while this rank's main thread may be stuck; `speak` is true on the
  /// one rank that should tell the user. Called on another thread, once. Default: print the message and `_exit(1)`,
  /// unflushed; for thread ranks, break off the operation waited for.
  std::function<void(const std::string& message, bool speak)> on_failure;
};

class CommState;
struct OpenGroup;

/// What a Work does, for messages.
struct Operation {
  const OpenGroup* group = nullptr;
  const char* kind = "";
  int64_t tensor_bytes = 0;
  int peer = -1;  // the other rank of a send or receive
  int64_t sent_bytes = 0;
};

/// An operation under way; its tensors must not be touched until wait() returns. A Work that is dropped is kept by its
/// Comm to the end, but only wait() makes its result sure. It must be waited for before its Comm ends.
class [[nodiscard]] Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Blocks until done, counting the time as exposed; the first call only. CommError: rank, operation, axes, bytes,
  /// activity and cause.
  void wait();
  /// True when wait() will not block on a peer. Drives nothing: an operation on at most 64 KiB, which does not go on in
  /// the background but on a lane, may stay undone until something is waited for.
  bool done() const;

 private:
  friend class Comm;
  friend class CommState;
  std::shared_ptr<CommState> state_;
  std::unique_ptr<Pending> pending_;
  Operation operation_;
};

/// One rank's end of the mesh. Operations take contiguous tensors of one dtype, as flat memory: on the CPU over UCX or
/// Gloo, on a CUDA device over NCCL, where Work::wait() makes the current stream wait and not the host. All ranks of a
/// group issue the same operations in the same order, and open NCCL's groups in one that does not wait in a circle.
/// Over a group of one rank an operation only copies, and counts nothing. Used by one thread at a time.
class Comm {
 public:
  /// Returns when all ranks of the mesh have come.
  Comm(Mesh mesh, int rank, Rendezvous rendezvous, CommOptions options = {});
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  const Mesh& mesh() const;
  int rank() const;
  int group_size(const Axes& axes) const;
  /// This rank's position in its group over the axes.
  int position(const Axes& axes) const;
  /// What carries CPU tensors: "ucx" or "gloo"; empty in a world of one rank.
  std::string transport() const;
  /// Opens the group now, rather than at its first operation with a tensor on the device.
  void prepare(const Axes& axes, at::Device device = at::kCPU);
  /// The same end of the same mesh with groups of its own, so that what is issued there keeps no order with what is
  /// issued here; it goes on while the rank computes, however small it is. Members use the same number, 1 to 7. Counts
  /// here, and this Comm must outlive it.
  Comm lane(int number) const;

  /// Sum over the group, in place. Sends 2 (n-1)/n of the bytes: balanced chunks to their owners, and a sum to all.
  /// LogicError for a dtype without a sum (ordered_sum.h), here and in the other sums.
  Work all_reduce(const at::Tensor& tensor, const Axes& axes);
  /// output = this position's chunk of the sum of all inputs. `counts`: elements per position; empty: equal. Sends the
  /// input but for the own chunk.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts = {});
  /// output = the inputs of all positions in order. Sends the output but for the next position's shard (round a ring).
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts = {});
  /// Chunk i of input goes to position i, chunk i of output comes from it. Sends what leaves this rank.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts output_counts = {},
                  Counts input_counts = {});
  /// From the root position to all. Counted as a chain: everybody but the last passes the tensor on.
  Work broadcast(const at::Tensor& tensor, const Axes& axes, int root = 0);
  /// Sum over the group at the root, in place; elsewhere the tensor does not change. All others send it.
  Work reduce(const at::Tensor& tensor, const Axes& axes, int root = 0);
  /// The same of what `make` puts into the tensor, once `behind` has ended; neither need be waited for in between. It
  /// runs on any thread while no message moves, so it is short and calls nothing of Comm; and maybe after the Work is
  /// dropped, even while an exception unwinds this rank: what it reads, it owns. What it throws fails the sum.
  Work reduce(const at::Tensor& tensor, const Axes& axes, int root, const Work& behind, std::function<void()> make);
  /// Round the ring: input goes `by` positions on, output comes from as far back. Their sizes may differ.
  Work shift(const at::Tensor& output, const at::Tensor& input, const Axes& axes, int by = 1);
  /// To and from a position of the group; messages match by tag (0 to 2^19 - 2), in order within one. A send may not
  /// finish before its recv is posted, so post both directions before waiting; on a GPU, as one exchange().
  Work send(const at::Tensor& tensor, const Axes& axes, int to, int tag = 0);
  Work recv(const at::Tensor& tensor, const Axes& axes, int from, int tag = 0);
  /// Several messages at once, none of which waits for another: the way to pass shards round a ring. On a GPU, messages
  /// between two ranks match in the order posted, whatever their tags.
  Work exchange(std::span<const Transfer> transfers, const Axes& axes);
  /// Of the hosts; says nothing about streams.
  Work barrier(const Axes& axes);

  /// Lets what has come meanwhile go on: operations on at most 64 KiB do not while the rank computes, and a peer may
  /// wait for one of them to end.
  void progress();

  TrafficTable traffic() const;
  /// Sum over all axes and operations.
  Traffic total_traffic() const;
  /// Seconds spent blocked in Work::wait().
  double exposed_wait_s() const;

  /// What this rank does now, for errors: "0B3, action 7 of 12 of step 41".
  void set_activity(std::string activity);
  /// Stops the run: tells all ranks that this one fails, and why. True on the one rank that should tell the user.
  /// A CommError thrown by an operation has been told already: calling this with it just asks who speaks.
  bool abort(const std::string& message);

 private:
  Comm(std::shared_ptr<CommState> state, int lane);
  OpenGroup& open(const Axes& axes, at::Device device = at::kCPU) const;
  Work messages(const char* kind, std::span<const Transfer> transfers, OpenGroup& group);

  std::shared_ptr<CommState> state_;
  int lane_ = 0;
};

}  // namespace orthant
