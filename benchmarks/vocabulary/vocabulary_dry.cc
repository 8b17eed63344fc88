// Carries out the plans of one model over many pipeline ranks, for every placement of its vocabulary, with sleeps in
// place of computations. The interpreter, the messages and the barriers of the vocabulary are the real ones, on small
// tensors, and there may be more ranks than cores. Prints one JSON object per plan; benchmarks/vocabulary/dry.py makes
// a table and a figure.
//
//   vocabulary_dry --ranks 8 --microbatches 32 --vocabularies 32768,262144 --layer-ms 8 --repeats 3
//
// A pass sleeps in proportion to its FLOPs, such that forward and backward of one layer together take --layer-ms
// milliseconds. The input layer has almost no FLOPs: it takes the time of its messages and of the lookup of 64 tokens.
#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/clock.h"
#include "benchmarks/nap.h"
#include "benchmarks/ranks.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "runtime/step_timeline.h"
#include "runtime/vocabulary_stages.h"
#include "schedule/bubbles.h"
#include "schedule/send_completions.h"

namespace orthant {
namespace {

// Sizes of the messages, which replace the model's: kTokens * kWidth float32 numbers are 64 KiB.
constexpr int64_t kTokens = 64, kWidth = 256, kRowsOfRank = 16;
// A small model that provides an embedding and a head with one rank's rows.
Architecture of_rows() {
  return {.hidden_size = kWidth, .intermediate_size = 8, .num_hidden_layers = 1, .num_attention_heads = 1,
          .num_key_value_heads = 1, .head_dim = 8, .vocab_size = kRowsOfRank, .max_position_embeddings = kTokens};
}

struct Placement {
  const char *name, *schedule, *vocabulary;
};
constexpr Placement kPlacements[] = {
    {"1f1b", "1f1b", "none"},
    {"redistribution", "1f1b", "redistribution"},
    {"interlaced", "1f1b", "interlaced"},
    {"naive", "1f1b", "naive"},
    {"algorithm_1", "1f1b", "algorithm_1"},
    {"algorithm_2", "1f1b", "algorithm_2"},
    {"v_half", "v_half", "none"},
    {"v_half + algorithm_1", "v_half", "algorithm_1"},
    {"v_half + algorithm_2", "v_half", "algorithm_2"},
};

/// Returns the plan of a placement. Its layers have 12 h^2 weights, as GPT's do.
Plan plan_of(const Settings& settings, const Placement& placement, int64_t vocabulary) {
  const auto given = [&](const char* key, const char* name) { return fmt::format("{}={}", key, settings.text(name)); };
  const std::vector<std::string> keys = {
      "data.path=none.txt", "training.dtype=bfloat16", "training.local_batch_size=1",
      given("run.ranks", "ranks"), given("parallelism.pipeline_parallel_degree", "ranks"),
      given("model.num_hidden_layers", "layers"), given("model.hidden_size", "hidden-size"),
      fmt::format("model.intermediate_size={}", 8 * settings.integers("hidden-size")[0] / 3),
      given("model.num_attention_heads", "heads"), given("model.num_key_value_heads", "heads"),
      given("model.max_position_embeddings", "seq-len"), given("training.seq_len", "seq-len"),
      given("training.global_batch_size", "microbatches"), fmt::format("model.vocab_size={}", vocabulary),
      fmt::format("parallelism.pipeline_parallel_schedule={}", placement.schedule),
      fmt::format("parallelism.vocabulary_parallel={}", placement.vocabulary)};
  const Config config = parse_config("", "run.toml", keys);
  check_config(config);
  return make_plan(config, {.ranks = static_cast<int>(config.run.ranks), .vocab_size = vocabulary});
}

/// Carries out one rank's row of a plan, with sleeps in place of the computations of its stages.
class DryStages {
 public:
  DryStages(Comm& comm, const Plan& plan, const Nap& nap)
      : plan_(plan),
        durations_(estimate_durations(plan, plan.stages)),
        nap_(nap),
        rows_(parameter_table(of_rows()), at::kFloat),
        model_(of_rows(), rows_, fused_primitives(), {}),
        comm_(comm),
        executor_(table(), work(), comm) {
    if (plan.vocabulary.empty()) return;
    const int position = comm.position(kOverPipeline);
    const VocabularyEnds ends{.algorithm = plan.vocabulary,
                              .slice = {.rows = {position * kRowsOfRank, (position + 1) * kRowsOfRank},
                                        .vocabulary = comm.group_size(kOverPipeline) * kRowsOfRank},
                              .first = plan.stages.front().owner,
                              .last = plan.stages.back().owner,
                              .width = kWidth};
    vocabulary_ = std::make_unique<VocabularyStages>(comm, ends, model_);
  }

  /// Carries out a step in which one unit of the plan's durations is a sleep of unit_s seconds.
  MeasuredStep run(double unit_s) {
    unit_s_ = unit_s;
    comm_.barrier(all_axes(comm_.mesh())).wait();
    if (vocabulary_) vocabulary_->begin(microbatches(), [](int) { return batch(); }, {});
    executor_.run(plan_.row(comm_.rank()), {});
    if (vocabulary_) vocabulary_->finish();
    return gather_timeline(comm_, plan_.schedule, 1, executor_.intervals());
  }

 private:
  static std::vector<int64_t> shape() { return {1, kTokens, kWidth}; }
  static at::Tensor message(bool any) { return any ? at::zeros(shape()) : at::Tensor(); }
  static Microbatch batch() {
    const at::Tensor tokens = at::zeros({1, kTokens}, at::kLong);
    return {.tokens_BT = tokens, .labels_BT = tokens};
  }

  StageTable table() const {
    return {.owners = plan_.schedule.stage_owner,
            .send_completions = send_completions(plan_.schedule),
            .stream_shape = [](int) { return shape(); },
            .stream = at::kFloat};
  }
  std::vector<int> microbatches() const {
    std::vector<int> all(static_cast<size_t>(microbatch_count(plan_.schedule)));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const Stage& stage(const Action& action) const { return plan_.stages[static_cast<size_t>(action.stage)]; }
  void rest(const Action& action, double less_s = 0) const { nap_(durations_.of(action) * unit_s_ - less_s); }

  StageWork work() {
    StageWork work{.forward = [this](const Action& action, const at::Tensor&) { return forward(action); },
                   .backward = [this](const Action& action, const at::Tensor&) { return backward(action); },
                   .weight_gradients = [this](const Action& action) { rest(action); },
                   .reduce = [](const Action&) {}};
    work.vocabulary = [this](const Action& action) { vocabulary(action); };
    work.wait_for = [this](const Action& action) {
      const bool at_end = action.kind == ActionKind::F ? stage(action).first : stage(action).last;
      if (vocabulary_ && (at_end || is_vocabulary(action))) vocabulary_->wait_for(action);
    };
    return work;
  }

  at::Tensor forward(const Action& action) {
    if (vocabulary_ && stage(action).first) vocabulary_->embedding(action.microbatch, shape());
    rest(action);
    if (vocabulary_ && stage(action).last) vocabulary_->broadcast_output(action.microbatch, message(true));
    return message(!stage(action).last);
  }

  at::Tensor backward(const Action& action) {
    if (vocabulary_ && stage(action).last) vocabulary_->output_gradient(action.microbatch, shape());
    rest(action);
    if (vocabulary_ && stage(action).first) vocabulary_->broadcast_embedding_gradient(action.microbatch, message(true));
    return message(!stage(action).first);
  }

  // Carries out a vocabulary Action on the small tensors. The sleep is shorter by the time that this took previously.
  void vocabulary(const Action& action) {
    double& took_s = took_s_[action.kind];
    rest(action, took_s);
    const auto start = Clock::now();
    vocabulary_->carry_out(action);
    took_s = seconds_since(start);
  }

  const Plan& plan_;
  const Durations durations_;
  const Nap& nap_;
  double unit_s_ = 0;
  Weights rows_;
  const Transformer model_;
  Comm& comm_;
  std::unique_ptr<VocabularyStages> vocabulary_;
  std::map<ActionKind, double> took_s_;
  Executor executor_;
};

/// Returns the largest value divided by the smallest.
double spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *most / *least;
}

std::vector<double> parameters_of_ranks(const Plan& plan) {
  std::vector<double> elements;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    double& sum = elements.emplace_back(0);
    for (const ParameterInfo& parameter : plan.parameters_of(rank)) sum += static_cast<double>(parameter.shard_size());
  }
  return elements;
}

/// Returns the seconds of one unit of the plan's durations, such that a layer takes layer_s. It uses the first stage,
/// which never has the head.
double unit_of(const Plan& plan, double layer_s) {
  const Durations durations = estimate_durations(plan, plan.stages);
  const double units = durations.of({ActionKind::F, 0, 0}) + durations.of({ActionKind::B, 0, 0});
  ORTHANT_CHECK(units > 0, units);
  return layer_s * static_cast<double>(plan.stages[0].layers.size()) / units;
}

void measure(const Settings& settings, Comm& comm, const Plan& plan, const char* placement, const Nap& nap) {
  const double unit_s = unit_of(plan, settings.number("layer-ms") / 1000);
  std::vector<double> steps_s, bubbles_s, spreads;
  DryStages stages(comm, plan, nap);
  stages.run(0);  // warms up
  for (int i = 0; i < settings.number("repeats"); ++i) {
    const Timeline timeline = stages.run(unit_s).timeline;
    if (comm.rank() > 0) continue;
    steps_s.push_back(timeline.makespan);
    bubbles_s.push_back(max_rank_bubble(timeline));
    spreads.push_back(spread(timeline.busy));
  }
  if (comm.rank() > 0) return;
  const double units = std::accumulate(plan.timeline.busy.begin(), plan.timeline.busy.end(), 0.0);
  const nlohmann::ordered_json out = {{"ranks", plan.mesh.size()},
                                      {"vocabulary", plan.architecture.vocab_size},
                                      {"placement", placement},
                                      {"step_s", quantile(steps_s, 0.5)},
                                      {"simulated_s", plan.timeline.makespan * unit_s},
                                      {"balanced_s", units * unit_s / plan.mesh.size()},
                                      {"own_bubble_s", quantile(bubbles_s, 0.5)},
                                      {"compute_spread", quantile(spreads, 0.5)},
                                      {"planned_compute_spread", spread(plan.timeline.busy)},
                                      {"parameter_spread", spread(parameters_of_ranks(plan))},
                                      {"memory_bytes", plan.largest_memory_bytes()}};
  fmt::print("{}\n", out.dump());
  std::fflush(stdout);
}

void measure_all(const Settings& settings, Comm& comm) {
  const Nap nap;
  const std::string wanted = "," + settings.text("placements") + ",";
  for (const int64_t vocabulary : settings.integers("vocabularies")) {
    for (const Placement& placement : kPlacements) {
      if (wanted != ",all," && wanted.find(fmt::format(",{},", placement.name)) == std::string::npos) continue;
      measure(settings, comm, plan_of(settings, placement, vocabulary), placement.name, nap);
    }
  }
}

int run(int argc, char** argv) {
  const Settings settings(argc, argv,
                          {{"ranks", "8"}, {"transport", "auto"}, {"microbatches", "32"}, {"layers", "32"},
                           {"hidden-size", "3072"}, {"heads", "24"}, {"seq-len", "2048"}, {"layer-ms", "8"},
                           {"vocabularies", "32768,65536,131072,262144"}, {"placements", "all"}, {"repeats", "3"}});
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure_all(settings, comm); },
                          [](const Launch& launch) { return Mesh({{"pipeline", launch.world_size}}); });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
