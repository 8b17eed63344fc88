// Adds the passes of the sharded vocabulary layers to a schedule.
#include "plan/vocabulary.h"

#include <fmt/format.h>

#include "base/errors.h"
#include "config/from_config.h"
#include "config/refusal.h"
#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/plan.h"
#include "schedule/passes.h"

namespace orthant {
namespace {

constexpr const char* kKey = "parallelism.vocabulary_parallel";

// Throws ConfigError unless the stage's passes of this kind are in the order of microbatches. Their results are
// broadcast to all ranks in that order.
void require_order(const Config& config, const Schedule& schedule, ActionKind kind, int stage, const char* what) {
  int last = -1;
  for (const Action& action : schedule.rows[static_cast<size_t>(schedule.stage_owner[static_cast<size_t>(stage)])]) {
    const bool same = action.kind == kind || (kind == ActionKind::B && action.kind == ActionKind::I);
    if (!same || action.stage != stage) continue;
    if (action.microbatch < last) {
      const std::string where = config.locate("parallelism.pipeline_parallel_schedule");
      throw Refusal(fmt::format("{}: {} must come before microbatch {}, because with {} all ranks receive {} in the "
                                "order of microbatches",
                                where, to_string(action), last, config.locate(kKey), what),
                    {kKey});
    }
    last = action.microbatch;
  }
}

}  // namespace

std::string vocabulary_order_of(const Config& config) {
  const auto& p = config.parallelism;
  if (p.vocabulary_parallel == "none") return "";
  const auto law = [&](const char* text) { return fmt::format("{} {}", text, config.locate(kKey)); };
  if (!shards_vocabulary(config)) {
    const bool by_cost = p.pipeline_parallel_layers.empty() || p.pipeline_parallel_layers == std::vector<int64_t>{-1};
    if (!by_cost) refuse(config, "parallelism.pipeline_parallel_layers", law("must be [] with"), {kKey});
    return "";
  }
  if (p.vocabulary_parallel != "interlaced") return p.vocabulary_parallel;
  if (p.pipeline_parallel_schedule != "1f1b")
    refuse(config, "parallelism.pipeline_parallel_schedule", law("must be \"1f1b\" with"), {kKey});
  return "algorithm_1";
}

const VocabularyAlgorithm* algorithm_of(const Sharding& sharding) {
  return sharding.vocabulary.empty() ? nullptr : &vocabulary_algorithm(sharding.vocabulary);
}

int count_extra_warmup_forwards(const Config& config, int stages_per_rank) {
  if (!shards_vocabulary(config)) return 0;
  return vocabulary_algorithm(config.parallelism.vocabulary_parallel).extra_warmup_forwards(stages_per_rank);
}

Schedule with_vocabulary(const Sharding& sharding, Schedule schedule, const Durations& durations) {
  for (auto& row : schedule.rows) std::erase_if(row, is_message);
  require_order(sharding.config, schedule, ActionKind::F, stage_count(schedule) - 1, "the last stage's outputs");
  require_order(sharding.config, schedule, ActionKind::B, 0, "the first stage's gradients");
  const bool has_output = sharding.config.parallelism.vocabulary_parallel == "interlaced";
  return add_messages(has_output ? add_input_layer(schedule, durations)
                                 : add_vocabulary(schedule, vocabulary_algorithm(sharding.vocabulary), durations));
}

}  // namespace orthant
