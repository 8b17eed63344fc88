// Follows one row and tracks the bytes held by activations, messages and partial sums.
#include "schedule/row_memory.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "schedule/barriers.h"

namespace orthant {

using enum ActionKind;

/// State of the memory while one rank's row is carried out.
class RowWalk {
 public:
  using BytesOf = RowMemory::BytesOf;
  RowWalk(const std::vector<Action>& row, const PerResult<int>& send_completions, const BytesOf& bytes_of,
          const std::vector<UnitBytes>& units, int stage_with_loss)
      : row_(row),
        send_completions_(send_completions),
        bytes_of_(bytes_of),
        units_(units),
        stage_with_loss_(stage_with_loss),
        leaving_(row.size()) {
    for (const Action& action : row) {
      if (action.kind == F) stages_.insert(action.stage);
    }
  }

  RowProfile run() {
    for (at_ = 0; at_ < row_.size(); ++at_) follow(row_[at_]);
    at_ = row_.empty() ? 0 : row_.size() - 1;
    complete_reduction();
    return std::move(profile_);
  }

 private:
  void follow(const Action& action) {
    if (facts(action.kind).counts != NumberMeaning::microbatch) {
      if (!units_.empty()) update_unit(action);
      return;
    }
    post(at_);
    if (!units_.empty() && bytes_of(action).kept + bytes_of(action).host > 0) allocate_gradients(action);
    if (facts(action.kind).stream == Stream::send) send(action, at_);
    if (facts(action.kind).stream == Stream::compute) compute(action);
    peak(0);
  }

  MicrobatchBytes bytes_of(const Action& action) const { return bytes_of_(action.stage, action.microbatch); }

  /// Raises the level of a reduction's state to the bytes held now and `transient`.
  void raise(RowProfile::Reduction state, int64_t transient) {
    const HeldBytes held{kept_, messages_, sums_, units_bytes_, transient};
    profile_.rest_.kept = std::max(profile_.rest_.kept, kept_);
    profile_.raise({state, reduction_.value_or(BucketKey())}, held, at_, row_[at_]);
  }
  void peak(int64_t transient) {
    raise(reduction_ ? RowProfile::Reduction::running : RowProfile::Reduction::none, transient);
  }

  /// The device holds the offloaded activations of the block that computes, which the pass counts, and of one other
  /// block if there is one: they are copied to the host, or come from there.
  int64_t other_block(const MicrobatchBytes& bytes) const {
    return std::min(bytes.host_block, host_ - bytes.host_block);
  }

  using BucketKey = RowProfile::BucketKey;
  const UnitBytes& unit(int stage) const { return units_[static_cast<size_t>(stage)]; }
  const UnitBytes::Bucket& bucket(const BucketKey& key) const { return unit(key.first).buckets.at(key.second); }

  void update_unit(const Action& action) {
    if (action.kind == UNSHARD) units_bytes_ += unit(action.stage).weights;
    if (action.kind == RESHARD) units_bytes_ -= unit(action.stage).weights;
    if (action.kind == REDUCE) {
      const BucketKey key{action.stage, action.microbatch};
      complete_reduction();
      allocate(key);
      reduction_ = key;
      peak(0);
      if (bucket(key).is_local) complete_reduction();
    }
    peak(0);
  }

  void allocate_gradients(const Action& action) {
    const bool writes = action.kind == B || action.kind == I || action.kind == W ||
                        (action.kind == F && action.stage == stage_with_loss_);
    if (!writes) return;
    for (const int stage : action.kind == F ? unit(action.stage).forward : unit(action.stage).backward) {
      for (const auto& [number, bytes] : unit(stage).buckets) {
        if (reduction_ == BucketKey{stage, number}) complete_reduction();
        allocate({stage, number});
      }
    }
  }

  void allocate(const BucketKey& key) {
    if (written_.insert(key).second) units_bytes_ += bucket(key).gradients;
  }

  void complete_reduction() {
    if (!reduction_) return;
    raise(RowProfile::Reduction::complete, 0);
    units_bytes_ -= bucket(*reduction_).gradients;
    written_.erase(*reduction_);
    reduction_.reset();
  }

  /// Posts the RECV at index i. If index i is a computation, posts all RECVs between it and the next computation.
  void post(size_t i) {
    const Stream stream = facts(row_[i].kind).stream;
    for (posted_ = std::max(posted_, i); posted_ < row_.size(); ++posted_) {
      const Action& next = row_[posted_];
      if (posted_ > i && (stream != Stream::compute || facts(next.kind).stream == Stream::compute)) break;
      if (facts(next.kind).stream != Stream::receive) continue;
      messages_ += next.kind == RECV_F ? bytes_of(next).input : bytes_of(next).output;
    }
  }

  /// Frees the messages whose send completion is at this index, and schedules the release of the new one.
  void send(const Action& action, size_t place) {
    messages_ -= leaving_[place];
    const auto send_completion = static_cast<size_t>(send_completions_[action]);
    const MicrobatchBytes bytes = bytes_of(action);
    if (action.kind == SEND_F && bytes.sends_input) return;
    if (send_completion < row_.size()) leaving_[send_completion] += action.kind == SEND_F ? bytes.output : bytes.input;
  }

  /// Bytes of the stage's input that the stage before it on this rank keeps, because it sends its own input.
  int64_t shared_input(const Action& action) const {
    const int before = action.stage - 1;
    const bool is_shared = stages_.contains(before) && bytes_of_(before, action.microbatch).sends_input;
    return is_shared ? bytes_of(action).input : 0;
  }

  void compute(const Action& action) {
    const MicrobatchBytes bytes = bytes_of(action);
    const int64_t shared = shared_input(action);
    switch (action.kind) {
      case F:
        messages_ -= embeddings_in_transit_.erase(action.microbatch) > 0 ? bytes.embedding : 0;
        messages_ -= shared > 0 ? 0 : bytes.input;
        kept_ += bytes.kept - shared, host_ += bytes.host;
        profile_.rest_.host = std::max(profile_.rest_.host, host_), profile_.rest_.offloaded += bytes.host;
        peak(bytes.forward + other_block(bytes));
        messages_ += bytes.sends_input ? 0 : bytes.output;
        break;
      case B:
      case I:
        messages_ -= bytes.output;
        peak((action.kind == B ? bytes.backward : bytes.backward_for_input) + other_block(bytes));
        kept_ += (action.kind == B ? 0 : bytes.for_weights) + shared - bytes.kept, host_ -= bytes.host;
        messages_ += bytes.input;
        sums_ += action.kind == B ? bytes.summands : 0;
        break;
      case W:
        peak(bytes.weights);
        kept_ -= bytes.for_weights;
        sums_ += bytes.summands;
        break;
      case S:
        peak(bytes.softmax_forward);
        kept_ += bytes.softmax + bytes.logits;
        break;
      case Z: kept_ -= bytes.logits; break;
      case T:
      case TW:
        peak(bytes.softmax_backward);
        kept_ -= bytes.softmax;
        break;
      case E:
        peak(bytes.lookup);
        embeddings_in_transit_.insert(action.microbatch);
        messages_ += bytes.embedding;
        break;
      case EB: peak(bytes.lookup_backward); break;
      default: break;
    }
  }

  const std::vector<Action>& row_;
  const PerResult<int>& send_completions_;
  const BytesOf& bytes_of_;
  const std::vector<UnitBytes>& units_;
  const int stage_with_loss_;  // its F computes the loss, which writes gradients
  std::set<int> stages_;       // of this rank
  RowProfile profile_;
  size_t at_ = 0;               // index of the present Action
  int64_t units_bytes_ = 0;     // of gathered weights, and gradients in full
  std::set<BucketKey> written_; // buckets whose gradients are held
  std::optional<BucketKey> reduction_;
  int64_t kept_ = 0, host_ = 0, messages_ = 0, sums_ = 0;
  std::set<int> embeddings_in_transit_;  // microbatches after E and before their first F
  size_t posted_ = 0;  // all RECVs before this index are posted
  std::vector<int64_t> leaving_;  // bytes of messages to free, by the index of their send completion
};

void RowProfile::raise(const State& state, const HeldBytes& held, size_t index, const Action& at) {
  Level& level = levels_[state];
  if (level.order < 0 || held.total() > level.held.total()) level = {held, order_, at};
  ++order_;
  const bool is_same = !moments_.empty() && moments_.back().index == index && moments_.back().state == state;
  if (!is_same) moments_.push_back({index, state});
  moments_.back().bytes = std::max(moments_.back().bytes, held.total());
}

RowBytes RowProfile::peak(const BytesOfReduction& bytes_of) const {
  RowBytes most = rest_;
  int64_t order = -1;
  for (const auto& [state, level] : levels_) {
    HeldBytes held = level.held;
    add(held, state, bytes_of);
    const int64_t total = held.total(), largest = most.peak.total();
    if (total < largest || (total == largest && order <= level.order)) continue;
    most.peak = held, most.at = level.at, order = level.order;
  }
  return most;
}

std::vector<int64_t> RowProfile::trace(size_t actions, const BytesOfReduction& bytes_of) const {
  std::vector<int64_t> trace(actions);
  for (const Moment& moment : moments_) {
    HeldBytes more;
    add(more, moment.state, bytes_of);
    trace[moment.index] = std::max(trace[moment.index], moment.bytes + more.total());
  }
  return trace;
}

void RowProfile::add(HeldBytes& held, const State& state, const BytesOfReduction& bytes_of) {
  if (state.reduction == Reduction::none) return;
  const ReductionBytes bytes = bytes_of(state.bucket.first, state.bucket.second);
  if (state.reduction == Reduction::running) held.units += bytes.buffer;
  if (state.reduction == Reduction::complete) held.temporaries += bytes.update;
}

RowMemory::RowMemory(const Schedule& schedule) : schedule_(schedule), send_completions_(send_completions(schedule)) {}

RowProfile RowMemory::profile(int rank, const BytesOf& bytes_of, const std::vector<UnitBytes>& units) const {
  const bool shards_output = !units.empty() && !vocabulary_kinds(schedule_).output.empty();
  const int stage_with_loss = shards_output ? -1 : static_cast<int>(schedule_.stage_owner.size()) - 1;
  return RowWalk(schedule_.rows[static_cast<size_t>(rank)], send_completions_, bytes_of, units, stage_with_loss).run();
}

}  // namespace orthant
