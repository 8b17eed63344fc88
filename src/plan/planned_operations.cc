// Lists the operations that a rank starts, by walking along its row.
#include "plan/planned_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "config/from_config.h"
#include "parallel/vocabulary/channels_plan.h"
#include "plan/plan.h"
#include "plan/vocabulary.h"
#include "schedule/posted_receives.h"

namespace orthant {
namespace {

using enum ActionKind;

class OperationList {
 public:
  OperationList(const ParameterPlacement& plan, const RankValues& rank)
      : plan_(plan),
        rank_(rank),
        master_(master_bytes(plan.config)),
        working_(dtype_bytes(plan.config.training.dtype)),
        buckets_(plan.buckets_by_stage()),
        units_(plan.units()),
        next_bucket_(static_cast<int>(plan.buckets.size()) - 1) {}

  std::vector<PlannedOperation> take() {
    const std::vector<Action>& row = plan_.schedule.rows[static_cast<size_t>(rank_.pipeline_rank)];
    const std::vector<PostedReceive> receives = posted_receives(row);
    auto next = receives.begin();
    for (size_t i = 0; i < row.size(); ++i) {
      for (; next != receives.end() && next->posted_at <= static_cast<int>(i); ++next) add_message(row, next->index);
      add(row, static_cast<int>(i));
    }
    action_index_ = static_cast<int>(row.size());
    if (!plan_.post_validates()) add_end();
    return std::move(list_);
  }

 private:
  int64_t sequences(int microbatch) const {
    return rank_.data_shard.microbatches[static_cast<size_t>(microbatch)].size();
  }
  const MicrobatchCosts& costs(int microbatch) const { return rank_.microbatches->at(sequences(microbatch)); }
  int owner(int stage) const { return plan_.stages[static_cast<size_t>(stage)].owner; }
  int64_t elements(size_t bucket) const { return rank_.held->buckets[bucket].elements.size(); }
  bool is_first() const { return plan_.stages.front().owner == rank_.pipeline_rank; }
  bool is_last() const { return plan_.stages.back().owner == rank_.pipeline_rank; }

  void set_action(const Action& action, int index) {
    action_ = action;
    action_index_ = index;
  }

  void add(const std::vector<Action>& row, int index) {
    const Action& action = row[static_cast<size_t>(index)];
    set_action(action, index);
    switch (action.kind) {
      case SEND_F:
      case SEND_B:
        return add_message(row, index);
      case UNSHARD:
        return add_gathers(action.stage);
      case REDUCE:
        return add_reduction(action);
      case FINALIZE:
        return add_total();
      case STEP:
        return add_end();
      default:
        break;
    }
    if (!plan_.vocabulary.empty() && facts(action.kind).counts == NumberMeaning::microbatch &&
        sequences(action.microbatch) > 0) {
      add_vocabulary(action);
    }
  }

  void add_operation(std::string kind, const Axes& axes, int64_t bytes, int channel = 0) {
    if (plan_.mesh.group_size(axes) == 1) return;
    std::string group = plan_.mesh.joined_name(axes);
    if (channel > 0) group += fmt::format("#{}", channel);
    list_.push_back({action_, std::move(kind), std::move(group), bytes, -1, action_index_});
  }
  void add_collective(CollectiveKind kind, const Axes& axes, int64_t bytes, int channel = 0) {
    add_operation(std::string(name_of(kind)), axes, bytes, channel);
  }
  void add_between(const char* kind, int peer, int64_t bytes) {
    list_.push_back({action_, kind, kPipeline, bytes, peer, action_index_});
  }

  void add_message(const std::vector<Action>& row, int index) {
    const Action& action = row[static_cast<size_t>(index)];
    if (sequences(action.microbatch) == 0) return;
    set_action(action, index);
    const bool sends = facts(action.kind).stream == Stream::send;
    add_between(sends ? "send" : "recv", owner(matching_message(action).stage), costs(action.microbatch).stream_bytes);
  }

  void add_gather(size_t bucket) {
    if (elements(bucket) == 0) return;
    add_collective(CollectiveKind::all_gather, plan_.buckets[bucket].axes, elements(bucket) * working_);
  }

  void add_gathers(int stage) {
    const auto at = static_cast<size_t>(stage);
    for (const int number : units_.buckets[at])
      add_gather(static_cast<size_t>(buckets_[at][static_cast<size_t>(number)]));
  }

  // Without gradients by unit, the reducer starts a bucket after all later ones, so REDUCE also starts those.
  void add_reduction(const Action& action) {
    const auto& own = buckets_[static_cast<size_t>(action.stage)];
    const int bucket = own[static_cast<size_t>(action.microbatch)];
    if (plan_.has_gradients_by_unit()) return start_reduction(static_cast<size_t>(bucket));
    while (next_bucket_ >= bucket) start_reduction(static_cast<size_t>(next_bucket_--));
    if (elements(static_cast<size_t>(bucket)) > 0) add_sum_over_copies();
  }

  void start_reduction(size_t bucket) {
    if (elements(bucket) == 0) return;
    const auto kind = plan_.shards_optimizer() ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
    add_collective(kind, plan_.buckets[bucket].axes, elements(bucket) * master_);
    // With an update in backward, no gradient stays for a sum over copies after the row.
    if (plan_.has_gradients_by_unit() && plan_.kept_gradients() != KeptElements::owned) add_sum_over_copies();
  }

  // The sum of this rank's chunk of a bucket. All copies have the same chunk.
  void add_sum_over_copies() {
    if (!plan_.copy_axes().empty()) add_collective(CollectiveKind::all_reduce, plan_.copy_axes(), -1);
  }

  // The ranks other than the root post a broadcast early. So its list has them in increasing order of microbatches.
  void add_vocabulary(const Action& action) {
    const int64_t stream = costs(action.microbatch).stream_bytes;
    const auto kind = root_sum(uses_nccl(plan_.config));
    const bool naive = algorithm_of(plan_)->rounds() == 2, early = algorithm_of(plan_)->early();
    const bool ends = plan_.stages[static_cast<size_t>(action.stage)].last;
    switch (action.kind) {
      case F:
        if (ends) add_collective(CollectiveKind::broadcast, kOverPipeline, stream, kOutputInputChannel);
        return;
      case S:
        if (!is_last()) add_collective(CollectiveKind::broadcast, kOverPipeline, stream, kOutputInputChannel);
        add_statistics_gather(action, naive ? 1 : make_output_loss(plan_.config).statistics(), kStatisticsChannel);
        if (early) add_collective(kind, kOverPipeline, stream, kOutputGradientChannel);
        return;
      case Z:
        return add_statistics_gather(action, make_output_loss(plan_.config).statistics() - 1, kExponentialsChannel);
      case T:
        if (!early) add_collective(kind, kOverPipeline, stream, kOutputGradientChannel);
        return;
      case E:
        return add_collective(kind, kOverPipeline, stream, kEmbeddingChannel);
      case EB:
        if (!is_first()) add_collective(CollectiveKind::broadcast, kOverPipeline, stream, kEmbeddingGradientChannel);
        return;
      case B:
      case I:
        if (plan_.stages[static_cast<size_t>(action.stage)].first)
          add_collective(CollectiveKind::broadcast, kOverPipeline, stream, kEmbeddingGradientChannel);
        return;
      default:
        return;
    }
  }

  // A rank sends the statistics of all ranks but one; they have `count` numbers a token of the `statistics` in total.
  void add_statistics_gather(const Action& action, int count, int channel) {
    const int ranks = plan_.mesh.axis_size(kPipeline), all = make_output_loss(plan_.config).statistics();
    for (const Messages& m : costs(action.microbatch).vocabulary) {
      if (m.collective != name_of(CollectiveKind::all_gather)) continue;
      add_collective(CollectiveKind::all_gather, kOverPipeline, m.bytes.sent / (ranks - 1) * ranks / all * count,
                     channel);
    }
  }

  // The total of the previous step's statistics, which comes from the last pipeline rank.
  void add_total() {
    const int64_t bytes = StepSignals::kBytes;
    const int here = rank_.pipeline_rank;
    if (here + 1 < plan_.mesh.axis_size(kPipeline)) add_between("recv", here + 1, bytes);
    if (here > 0) add_between("send", here - 1, bytes);
  }

  void add_end() {
    action_ = {STEP};
    if (plan_.has_gradients_by_unit() && plan_.kept_gradients() == KeptElements::owned) {
      for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket)
        if (elements(bucket) > 0) add_sum_over_copies();
    }
    add_tied_gradients();
    const int64_t bytes = StepSignals::kBytes;
    const Axes statistics = statistics_axes(plan_);
    add_collective(small_sum(plan_.mesh.group_size(statistics)), statistics, bytes);
    if (plan_.post_validates()) {
      const int here = rank_.pipeline_rank;
      if (here > 0) add_between("recv", here - 1, bytes);
      if (here + 1 < plan_.mesh.axis_size(kPipeline)) add_between("send", here + 1, bytes);
    }
    for (int64_t i = 0; i < rank_.matrices->calls; ++i)
      add_collective(CollectiveKind::all_to_all, plan_.matrix_axes, -1);
    for (size_t bucket = 0; bucket < plan_.buckets.size() && plan_.shards_optimizer(); ++bucket)
      if (!plan_.shards_weights() || !plan_.belongs_to_unit(bucket)) add_gather(bucket);
  }

  void add_tied_gradients() {
    const auto pairs = plan_.tied_pairs();
    for (size_t pair = 0; pair < pairs.size(); ++pair) {
      const int one = plan_.owner_of(pairs[pair].first), other = plan_.owner_of(pairs[pair].second);
      if (one == other || (rank_.pipeline_rank != one && rank_.pipeline_rank != other)) continue;
      add_between("exchange", rank_.pipeline_rank == one ? other : one, 2 * rank_.owned->tied[pair] * master_);
    }
  }

  const ParameterPlacement& plan_;
  const RankValues& rank_;
  const int64_t master_, working_;  // bytes of an element of gradients, and of weights
  const std::vector<std::vector<int>> buckets_;
  const ShardedUnits units_;
  int next_bucket_;
  Action action_;  // of the operations that are added
  int action_index_ = 0;
  std::vector<PlannedOperation> list_;
};

}  // namespace

std::vector<PlannedOperation> planned_operations(const ParameterPlacement& plan, const RankValues& rank) {
  return OperationList(plan, rank).take();
}

}  // namespace orthant
