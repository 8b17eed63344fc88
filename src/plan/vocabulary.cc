// Adds the passes of the sharded vocabulary layers to a schedule.
#include "plan/vocabulary.h"

#include <fmt/format.h>

#include "base/errors.h"
#include "config/refusal.h"
#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/plan.h"
#include "schedule/passes.h"

namespace orthant {
namespace {

constexpr std::string_view kKey = "parallelism.vocabulary_parallel";

// Throws ConfigError unless the stage's passes of this kind are in the order of microbatches. Their results are
// broadcast to all ranks in that order.
void require_order(const Config& config, const Schedule& schedule, ActionKind kind, int stage, const char* what) {
  int last = -1;
  for (const Action& action : schedule.rows[static_cast<size_t>(schedule.stage_owner[static_cast<size_t>(stage)])]) {
    const bool same = action.kind == kind || (kind == ActionKind::B && action.kind == ActionKind::I);
    if (!same || action.stage != stage) continue;
    if (action.microbatch < last) {
      const std::string where = config.locate("parallelism.pipeline_parallel_schedule");
      throw ConfigError(fmt::format("{}: {} stands behind that of microbatch {}, and {} go to all ranks in the order "
                                    "of microbatches where {}; put them in it, or set that to \"none\"",
                                    where, to_string(action), last, what, config.locate(kKey)));
    }
    last = action.microbatch;
  }
}

}  // namespace

bool shards_vocabulary(const Config& config) {
  const std::string& how = config.parallelism.vocabulary_parallel;
  return how != "none" && how != "redistribution";
}

std::string vocabulary_order_of(const Config& config, const Mesh& mesh) {
  const auto& p = config.parallelism;
  if (p.vocabulary_parallel == "none") return "";
  require(config, kKey, mesh.axis_size(kPipeline) > 1, "there is one pipeline rank, and nothing to balance",
          "\"none\"");
  if (!shards_vocabulary(config)) {
    const std::string layers = "parallelism.pipeline_parallel_layers";
    const bool by_cost = p.pipeline_parallel_layers.empty() || p.pipeline_parallel_layers == std::vector<int64_t>{-1};
    require(config, layers, by_cost, config.locate(kKey) + " cuts layers by their cost", "[]");
    return "";
  }
  if (p.vocabulary_parallel != "interlaced") return p.vocabulary_parallel;
  require(config, "parallelism.pipeline_parallel_schedule", p.pipeline_parallel_schedule == "1f1b",
          config.locate(kKey) + " is an order of 1F1B's passes", "\"1f1b\"");
  return "algorithm_1";
}

const VocabularyAlgorithm* algorithm_of(const Sharding& sharding) {
  return sharding.vocabulary.empty() ? nullptr : &vocabulary_algorithm(sharding.vocabulary);
}

int count_extra_warmup_forwards(const Config& config, int stages_per_rank) {
  if (!shards_vocabulary(config)) return 0;
  return vocabulary_algorithm(config.parallelism.vocabulary_parallel).later(stages_per_rank);
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
