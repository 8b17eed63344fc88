// Rows of forwards alone with sharded weights (ZeRO 3): validation, sampled text, and the search for the first tensor
// that is not finite. They give the results of the same mesh without sharded states.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/sample.h"
#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/sharded_runs.h"

namespace orthant::zero_forwards_test {
namespace {

struct Layout {
  std::string name;
  int ranks;
  Words keys;
};

std::vector<Layout> layouts() {
  const std::string two = "parallelism.data_parallel_degree=2", tied = "model.tie_word_embeddings=true",
                    four_layers = "model.num_hidden_layers=4";
  return {{"data 2", 2, {}},
          {"data 3, tied", 3, {tied}},
          {"data 2, 1f1b", 4, pipeline("1f1b", 2, {two})},
          {"data 2, zb_v, tied, both on one rank", 4, pipeline("zb_v", 2, {two, tied, four_layers})},
          {"data 2, tensor 2", 4, one_dimension(2, {two}).keys},
          {"data 2, gpipe, tied on two ranks", 4, pipeline("gpipe", 2, {two, tied})},
          {"data 2, algorithm_2", 4, cut("algorithm_2", "1f1b", 2, {two})},
          {"data 2, ring 2", 4, {kWithRing, two}}};
}

using Spoil = std::function<void(Session& session, int rank)>;
using Write = std::string (*)(Session&, const Plan&, const TrainingData&, Comm&);

/// The results of one rank: validation before the first step and after two steps, and the text written then.
struct Results {
  Session::Validation before, after;
  std::string text;
};

std::vector<Results> results_of(const TinyRun& run, const Plan& plan, const Spoil& spoil = {},
                                Write write = sample_text) {
  std::vector<Results> ranks(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    if (spoil) spoil(session, rank);
    Results& results = ranks[static_cast<size_t>(rank)];
    const auto validate = [&] {
      return session.validate(run.data().validation[0].samples, 50, run.data().bytes_of_token);
    };
    results.before = validate();
    for (const int64_t step : {1, 2}) session.update(step, session.gradients(step, {}));
    results.after = validate();
    const bool takes_part = plan.shards_weights() || plan.replica_leader(rank) == rank || write == filled_text;
    if (takes_part) results.text = write(session, plan, run.data(), comm);
  });
  return ranks;
}

void expect_stage_0(const TinyRun& run, const Layout& layout, const Words& stage, Write write = sample_text) {
  const std::string what = fmt::format("{}, {}", layout.name, fmt::join(stage, " "));
  const Plan plan = run.plan(layout.ranks, with(layout.keys, stage));
  const Results want = results_of(run, run.plan(layout.ranks, layout.keys), {}, write)[0];
  EXPECT_GT(want.text.size(), 30u) << what;
  EXPECT_GT(want.before.nats, want.after.nats) << what << ": the steps have not changed the weights";
  for (const Results& have : results_of(run, plan, {}, write)) {
    EXPECT_EQ(have.before.nats, want.before.nats) << what;
    // Copies of the states add gradients in another order.
    EXPECT_LE(relative_error(have.after.nats, want.after.nats), has_the_order_of_stage_0(plan) ? 0 : 1e-12) << what;
    EXPECT_EQ(have.after.labels, want.after.labels) << what;
    EXPECT_EQ(have.after.bytes, want.after.bytes) << what;
    const bool takes_part = plan.shards_weights() || write == filled_text;
    EXPECT_TRUE(have.text == want.text || (!takes_part && have.text.empty())) << what;
  }
}

const std::string kOneMicrobatch = "training.local_batch_size=8";

SWEEP_TEST(ZeroForwards, ValidateAndSampleAsStageZeroDoes) {
  const TinyRun run({"training.dtype=float64", kOneMicrobatch, kBatch[0], "model.max_position_embeddings=48"});
  for (const Layout& layout : sweep.of(layouts(), 4)) {
    for (const auto& [name, stage] : kStages2And3) expect_stage_0(run, layout, stage);
  }
}

TEST(ZeroForwards, ValidateAndSampleWithCopiesAsStageZeroDoes) {
  const TinyRun run({"training.dtype=float64", kOneMicrobatch, kBatch[0], "model.max_position_embeddings=48"});
  for (const auto& [name, stage] : kStages2And3) {
    expect_stage_0(run, {"data 4 in two copies", 4, {}}, with(stage, {kTwoCopies}));
  }
}

TEST(ZeroForwards, FillMaskedWordsAsStageZeroDoes) {
  const TinyRun run({"training.dtype=float64", kOneMicrobatch, kBatch[0], "model.objective=masked"});
  for (const auto& [name, stage] : kStages2And3) expect_stage_0(run, {"data 2", 2, {}}, stage, filled_text);
}

// The control: one rank's shard of the head changes validation and text on all ranks.
TEST(ZeroForwards, AWrongShardIsSeen) {
  const TinyRun run({"training.dtype=float64", kOneMicrobatch, kBatch[0], "model.max_position_embeddings=48"});
  for (const auto& [name, stage] : kStages2And3) {
    const Plan plan = run.plan(2, stage);
    if (!plan.shards_weights()) continue;
    const auto right = results_of(run, plan);
    const auto wrong = results_of(run, plan, [](Session& session, int rank) {
      const Weights& weights = session.weights();
      const auto& all = weights.parameters();
      const auto head = std::ranges::find(all, "lm_head.weight", &ParameterInfo::name) - all.begin();
      if (rank == 1) weights.owned_value(static_cast<size_t>(head)).mul_(2);
    });
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_GT(relative_error(wrong[rank].before.nats, right[rank].before.nats), kSeenInALoss) << name;
      EXPECT_GT(relative_error(wrong[rank].after.nats, right[rank].after.nats), kSeenInALoss) << name;
      EXPECT_NE(wrong[rank].text, right[rank].text) << name;
    }
  }
}

/// The name that the first rank in the order of computation reports, after one step and a change by `spoil` before it.
std::string first_not_finite(const TinyRun& run, const Plan& plan, const Spoil& spoil) {
  std::string name;
  int named_by = 0;
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    spoil(session, rank);
    session.gradients(1, {});
    const Session::NotFinite found = session.find_first_not_finite(1);
    if (found.first) name = found.what, ++named_by;
  });
  EXPECT_EQ(named_by, 1);
  return name;
}

/// Sets the elements of a parameter that this rank keeps.
void fill(Session& session, const std::string& name, double value) {
  const Weights& weights = session.weights();
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].name != name) continue;
    (weights.has_all_masters() ? weights.master(p) : weights.owned_master(p)).fill_(value);
  }
}

/// Sets the first element of a parameter to NaN on each rank that keeps it.
void spoil_first_element(Session& session, const std::string& name) {
  const Weights& weights = session.weights();
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].name != name || weights.parameters()[p].shard_size() == 0) continue;
    if (weights.has_all_masters()) {
      weights.master(p).flatten()[0] = std::nan("");
    } else if (const auto& part = weights.owned().part(p); part.begin == 0 && part.count > 0) {
      weights.owned_master(p)[0] = std::nan("");
    }
  }
}

/// Sets the gradient of a weight to NaN on one rank.
void spoil_gradient(Session& session, const std::string& name) {
  Weights& weights = session.weights();
  if (!weights.contains(name)) return;
  const int spoiled = weights[name].index;
  weights.on_gradient = [spoiled, inner = weights.on_gradient](const Weight& weight) {
    if (weight.index == spoiled) at::Tensor(weight.gradient).fill_(std::nan(""));
    inner(weight);
  };
}

// Each case has the name that every stage of ZeRO must report. The last is the control: without a wrong tensor there
// is no name.
TEST(ZeroForwards, NameTheFirstTensorThatIsNotFiniteAsStageZeroDoes) {
  const std::string block = "model.layers.1.", up = block + "mlp.up_proj.weight", gate = block + "mlp.gate_proj.weight",
                    down = block + "mlp.down_proj.weight";
  struct Case {
    std::string name;
    Spoil spoil;
  };
  const std::vector<Case> cases = {
      {"the output of swiglu", [&](Session& s, int) { fill(s, up, 1e30), fill(s, gate, 1e30); }},
      {"the loss", [](Session& s, int) { fill(s, "lm_head.weight", 1e38), fill(s, "model.norm.weight", 1e3); }},
      {"the weight " + up, [&](Session& s, int) { spoil_first_element(s, up); }},
      {"the gradient of " + down, [&](Session& s, int rank) { if (rank >= 2) spoil_gradient(s, down); }},
      {"", [](Session&, int) {}}};
  const TinyRun run({"training.dtype=float32", "training.local_batch_size=2"});
  const std::vector<Layout> few = {{"data 3", 3, {}},
                                   {"data 2, 1f1b", 4, pipeline("1f1b", 2, {"parallelism.data_parallel_degree=2"})}};
  for (const Layout& layout : few) {
    std::vector<std::pair<std::string, Words>> stages = kStages2And3;
    stages.push_back({"stage 0", {}});
    for (const auto& [stage, settings] : stages) {
      const Plan plan = run.plan(layout.ranks, with(layout.keys, settings));
      for (const Case& each : cases) {
        EXPECT_EQ(first_not_finite(run, plan, each.spoil), each.name) << layout.name << ", " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::zero_forwards_test
