// Peak memory of one rank's row: activations, messages and transient buffers, in bytes or any other unit. It follows
// from the order of the Actions and does not depend on their durations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/send_completions.h"

namespace orthant {

/// Memory of one microbatch on one stage.
struct MicrobatchBytes {
  int64_t kept = 0;         // activations held from F to B or I
  int64_t host = 0;         // activations held in host memory from F to B or I
  int64_t host_block = 0;   // those of its largest block
  int64_t for_weights = 0;  // the part of them, and gradients, held from I to W
  int64_t input = 0;        // input that F receives, and the gradient of it that B sends; 0 on the first stage
  int64_t output = 0;       // output that F sends, and the gradient of it that B receives; 0 on the last stage
  bool sends_input = false;  // the output is the input that is kept, as of a stage without layers
  /// Transient peak of a pass, in addition to all activations held at that time. For F these include its own. For B and
  /// I they are those held when the pass begins, and the peak includes the gradient that the pass reads.
  int64_t forward = 0, backward = 0, backward_for_input = 0;
  int64_t weights = 0;   // transient peak of W, in addition to all activations held when it begins
  int64_t summands = 0;  // other ranks' partial sums, for gradient reductions that B or W starts; held to the row's end
  int64_t softmax = 0;   // held on every rank from S to T or TW
  int64_t logits = 0;    // held from S to Z, if the schedule has Z
  int64_t softmax_forward = 0, softmax_backward = 0;  // transient peak of S, and of T or TW
  int64_t lookup = 0, lookup_backward = 0;            // transient peak of E, and of EB
  int64_t embedding = 0;  // held on every rank from E to the microbatch's first F there: until then its sum may be sent
};

/// Weights and gradients of a stage that exist in full only while passes need them.
struct UnitBytes {
  /// Stages whose gradients are written: forward by the F with the loss, backward by B, I and W.
  std::vector<int> forward = {}, backward = {};
  int64_t weights = 0;  // held from UNSHARD to RESHARD
  /// Gradients are held from the first pass that writes them, a reduction's buffers from REDUCE. Both are freed when
  /// the reduction is complete: at the next REDUCE, at a pass that writes to the same bucket, or at the row's end. The
  /// buffers are freed first, so that an update from the summed gradients does not count them. If only this rank has a
  /// part in it, it is complete at once.
  struct Bucket {
    int64_t gradients = 0;
    bool is_local = false;
  };
  std::map<int, Bucket> buckets = {};  // by the number in REDUCE
};

/// Bytes that a rank holds at one moment of its row.
struct HeldBytes {
  int64_t activations = 0;
  int64_t messages = 0;      // buffers of messages between stages
  int64_t partial_sums = 0;  // other ranks' parts of gradient reductions
  int64_t units = 0;         // gathered weights, gradients and reductions of sharded units
  int64_t temporaries = 0;   // of the Action that runs

  int64_t total() const { return activations + messages + partial_sums + units + temporaries; }
  bool operator==(const HeldBytes&) const = default;
};

/// Peaks of one row.
struct RowBytes {
  int64_t kept = 0;     // the most activations
  HeldBytes peak = {};  // the most of all
  Action at = {};       // the Action that reaches this peak first
  int64_t host = 0;  // activations in host memory
  int64_t offloaded = 0;  // the sum of all activations that were copied there
};

/// Bytes of a bucket that ranks with the same row and shards may differ in: buffers of its reduction, and transient
/// bytes when the reduction is complete.
struct ReductionBytes {
  int64_t buffer = 0, update = 0;
};

/// A row whose peaks are known up to the ReductionBytes of its buckets. At most one reduction is in progress at a time,
/// so the peak is the largest of one sum for each bucket.
class RowProfile {
 public:
  /// The bytes of a stage's bucket with this number.
  using BytesOfReduction = std::function<ReductionBytes(int stage, int number)>;
  RowBytes peak(const BytesOfReduction& bytes_of) const;
  /// The most bytes held during each of the row's Actions, of which there are `actions`. 0 for those that hold nothing.
  std::vector<int64_t> trace(size_t actions, const BytesOfReduction& bytes_of) const;

 private:
  friend class RowWalk;
  enum class Reduction { none, running, complete };
  using BucketKey = std::pair<int, int>;  // stage, number of the bucket
  struct State {
    Reduction reduction = Reduction::none;
    BucketKey bucket = {};
    auto operator<=>(const State&) const = default;
  };
  // The most that is held in a state, without the bytes of the reduction.
  struct Level {
    HeldBytes held;
    int64_t order = -1;  // of the moment that reaches it first
    Action at = {};
  };
  struct Moment {
    size_t index;  // of the Action
    State state;
    int64_t bytes = 0;
  };
  void raise(const State& state, const HeldBytes& held, size_t index, const Action& at);
  static void add(HeldBytes& held, const State& state, const BytesOfReduction& bytes_of);

  RowBytes rest_;  // the peaks that do not depend on reductions
  std::map<State, Level> levels_;
  std::vector<Moment> moments_;
  int64_t order_ = 0;  // number of moments looked at
};

/// Computes the memory of the rows of one schedule. A RECV between two computations is posted before the first one. Its
/// buffer is held from there until the pass that reads it. If two neighboring stages are on one rank, the result is
/// held from the pass that makes it to the pass that reads it. A sent message is held until its send completion: see
/// send_completions().
class RowMemory {
 public:
  using BytesOf = std::function<MicrobatchBytes(int stage, int microbatch)>;
  explicit RowMemory(const Schedule& schedule);
  /// The rank's row, where bytes_of gives the memory of each microbatch on each stage: zeros for a microbatch whose
  /// passes this rank skips. `units`: by stage; empty if weights and gradients are not sharded.
  RowProfile profile(int rank, const BytesOf& bytes_of, const std::vector<UnitBytes>& units = {}) const;

 private:
  const Schedule& schedule_;
  const PerResult<int> send_completions_;
};

}  // namespace orthant
