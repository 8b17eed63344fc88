// The plan of a pipeline that shards the vocabulary: the rows that ranks hold, legal and refused settings, and the
// comparison with other placements.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "advice/advised_plan.h"
#include "advice/explain.h"
#include "advice/plan_json.h"
#include "advice/vocabulary_choices.h"
#include "base/errors.h"
#include "parallel/pipeline/plan.h"
#include "plan/plan.h"
#include "schedule/barriers.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::vocabulary_plan_test {
namespace {

using Words = std::vector<std::string>;

// Embedding and head cost about as much as six layers.
Plan plan_of(int ranks, const std::string& how, const Words& more = {}) {
  Words keys = {"model.num_hidden_layers=8",       "model.hidden_size=128",
                "model.intermediate_size=256",     "model.vocab_size=8001",
                "training.seq_len=64",             "training.global_batch_size=16",
                "training.local_batch_size=1",     fmt::format("run.ranks={}", ranks),
                "data.path=text.txt",              "parallelism.vocabulary_parallel=" + how};
  if (ranks > 1) keys.push_back(fmt::format("parallelism.pipeline_parallel_degree={}", ranks));
  keys.insert(keys.end(), more.begin(), more.end());
  const Config config = parse_config("", "run.toml", keys);
  check_with_advice(config);
  return advised_plan(config,
                      {.ranks = config.run.ranks > 0 ? static_cast<int>(config.run.ranks) : 1, .vocab_size = 257});
}

std::string refusal(int ranks, const std::string& how, const Words& more = {}) {
  return message_of<ConfigError>([&] { plan_of(ranks, how, more); });
}

const std::string p = "parallelism.";

TEST(VocabularyPlan, EveryRankHasItsRows) {
  for (const bool tied : {false, true}) {
    const Plan plan = plan_of(4, "algorithm_2", {fmt::format("model.tie_word_embeddings={}", tied)});
    EXPECT_TRUE(plan.tied_pairs().empty());
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      const auto role = plan.parameters[i].role;
      const bool cut = role == ParameterRole::embedding || role == ParameterRole::head;
      int64_t end = 0, holders = 0;
      for (int rank = 0; rank < 4; ++rank) {
        const ParameterInfo held = plan.parameters_of(rank)[i];
        if (held.shard_size() == 0) continue;
        ++holders;
        if (!cut) continue;
        EXPECT_EQ(held.held[0].first, end);
        end = held.held[0].second;
      }
      EXPECT_EQ(holders, cut ? 4 : 1) << plan.parameters[i].name;
      EXPECT_EQ(end, cut ? 8001 : 0);
    }
  }
}

// With a tensor mesh on each pipeline rank, its columns shard the vocabulary rows of the pipeline rank, and its rows
// shard their width. Each element is held once per depth coordinate.
TEST(VocabularyPlan, MeshesHaveTheirPlacesRows) {
  for (const char* mesh : {"[2,3,1]", "[1,2,2]", "[3,1,1]"}) {
    const Words keys = {p + "tensor_parallel_kind=2.5d",   p + "tensor_parallel_mesh=" + mesh,
                        p + "pipeline_parallel_degree=-1", p + "data_parallel_degree=1",
                        "run.ranks=12",                    "training.global_batch_size=24",
                        "model.num_attention_heads=12",    "model.num_key_value_heads=6",
                        "model.hidden_size=96"};
    const Plan plan = plan_of(1, "algorithm_2", keys), whole = plan_of(1, "none", keys);
    const int positions = plan.mesh.axis_size("pipeline");
    std::vector<int> holders(8001 * 96);
    for (int rank = 0; rank < 12; ++rank) {
      const ParameterInfo held = plan.parameters_of(rank)[0];
      const Range rows = plan.vocabulary_rows(rank), place = shard(8001, positions, plan.pipeline_rank(rank));
      EXPECT_EQ(held.held[0], std::pair(rows.begin, rows.end)) << mesh;
      EXPECT_GE(rows.begin, place.begin) << mesh;
      EXPECT_LE(rows.end, place.end) << mesh;
      for (int64_t row = held.held[0].first; row < held.held[0].second; ++row) {
        for (int64_t c = held.held[1].first; c < held.held[1].second; ++c) ++holders[static_cast<size_t>(row * 96 + c)];
      }
      // Elements of the embedding that the rank of pipeline rank 0 holds if the vocabulary is not sharded.
      const int64_t of_table = whole.parameters_of(whole.mesh.rank_at(rank, "pipeline", 0))[0].shard_size();
      EXPECT_NEAR(static_cast<double>(held.shard_size()) * positions / static_cast<double>(of_table), 1, 1e-2) << mesh;
    }
    EXPECT_EQ(std::ranges::count(holders, plan.tensor.depth), std::ssize(holders)) << mesh;
  }
}

// Hidden size 3072, 32 layers.
const Words kLarge = {"model.hidden_size=3072", "model.num_attention_heads=24", "model.num_key_value_heads=24",
                      "model.intermediate_size=12288", "model.num_hidden_layers=32", "model.vocab_size=256000"};

Words large(const Words& more) {
  Words words = kLarge;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

template <class T>
double spread(const std::vector<T>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return static_cast<double>(*most) / static_cast<double>(*least);
}

// Check 13 of vocabulary parallelism: 8 pipeline ranks, hidden size 3072, a vocabulary of 256,000.
TEST(VocabularyPlan, BalancesParameters) {
  const auto elements = [&](const Plan& plan, bool of_vocabulary) {
    std::vector<int64_t> sums;
    for (int rank = 0; rank < 8; ++rank) {
      int64_t& sum = sums.emplace_back(0);
      for (const ParameterInfo& parameter : plan.parameters_of(rank)) {
        const bool rows = parameter.role == ParameterRole::embedding || parameter.role == ParameterRole::head;
        if (rows || !of_vocabulary) sum += parameter.shard_size();
      }
    }
    return sums;
  };
  const Plan cut = plan_of(8, "algorithm_2", kLarge), whole = plan_of(8, "none", kLarge);
  for (const int64_t rows : elements(cut, true)) EXPECT_EQ(rows, 196608000);
  const auto all = elements(cut, false), before = elements(whole, false);
  EXPECT_EQ(*std::max_element(all.begin(), all.end()) - *std::min_element(all.begin(), all.end()), 3072);  // last norm
  EXPECT_EQ(elements(whole, true)[0], 786432000);
  EXPECT_EQ(elements(whole, true)[7], 786432000);
  EXPECT_GT(before[7], 2 * before[3]);
}

TEST(VocabularyPlan, BalancesCompute) {
  const auto ratio = [](const Plan& plan) { return spread(plan.timeline.busy); };
  EXPECT_GT(ratio(plan_of(4, "none")), 3);
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (const char* how : {"naive", "algorithm_1", "algorithm_2"}) {
      const Plan plan = plan_of(4, how, {p + "pipeline_parallel_schedule=" + std::string(schedule.name)});
      EXPECT_LT(ratio(plan), 1 + 1e-9) << how << ", " << schedule.name;
      const VocabularyKinds passes = vocabulary_kinds(plan.schedule);
      EXPECT_TRUE(passes.input);
      EXPECT_EQ(passes.output.size(), how == std::string("naive") ? 3u : 2u);
      // The total work equals that with an unsharded vocabulary.
      double all = 0;
      for (const double busy : plan.timeline.busy) all += busy;
      const Plan whole = plan_of(4, "none");
      double want = 0;
      for (const double busy : whole.timeline.busy) want += busy;
      EXPECT_NEAR(all / want, 1, 1e-9) << how << ", " << schedule.name;
    }
  }
}

TEST(VocabularyPlan, VHalfIsBalancedInBoth) {
  const auto spreads = [](const char* how, int vocabulary) {
    const Plan plan = plan_of(8, how, large({p + "pipeline_parallel_schedule=v_half",
                                             fmt::format("model.vocab_size={}", vocabulary)}));
    std::vector<int64_t> parameters;
    for (int rank = 0; rank < 8; ++rank) {
      int64_t& sum = parameters.emplace_back(0);
      for (const ParameterInfo& parameter : plan.parameters_of(rank)) sum += parameter.shard_size();
    }
    return std::pair(spread(plan.timeline.busy), spread(parameters));
  };
  for (const int vocabulary : {32000, 64000, 128000, 256000}) {
    for (const char* how : {"algorithm_1", "algorithm_2"}) {
      const auto [compute, parameters] = spreads(how, vocabulary);
      EXPECT_LT(compute, 1.02) << how << " " << vocabulary;
      EXPECT_LT(parameters, 1.02) << how << " " << vocabulary;
    }
    const auto [compute, parameters] = spreads("none", vocabulary);
    EXPECT_GT(compute, 1.1) << vocabulary;
    EXPECT_GT(parameters, 1.1) << vocabulary;
  }
}

// Check 14 of vocabulary parallelism: 8 pipeline ranks, hidden size 3072, 2,048 tokens, a vocabulary of 32,000 to
// 256,000.
TEST(VocabularyPlan, MemoryGrowsByTheRowsOfARank) {
  constexpr double kGiB = 1 << 30;
  constexpr int64_t kRows = 256000 - 32000, kWidth = 3072, kTokens = 2048;
  struct Case {
    const char* dtype;
    int64_t parameter_bytes, exponential_bytes;  // master, gradient, two moments, and a working copy where it differs
  };
  for (const Case& c : {Case{"float32", 16, 4}, Case{"bfloat16", 18, 2}}) {
    const auto memory = [&](const char* how, int vocabulary) {
      const Plan plan = plan_of(8, how, large({fmt::format("model.vocab_size={}", vocabulary), "training.seq_len=2048",
                                               "model.max_position_embeddings=2048",
                                               fmt::format("training.dtype={}", c.dtype)}));
      std::vector<int64_t> totals;
      for (int rank = 0; rank < 8; ++rank) totals.push_back(plan.memory_of(rank).total());
      return totals;
    };
    const auto growth = [&](const char* how) {
      std::vector<int64_t> grown = memory(how, 256000);
      const std::vector<int64_t> before = memory(how, 32000);
      for (size_t rank = 0; rank < grown.size(); ++rank) grown[rank] -= before[rank];
      return grown;
    };
    const int64_t table = kRows * kWidth * c.parameter_bytes;
    const std::vector<int64_t> whole = growth("none"), cut = growth("algorithm_2");
    EXPECT_EQ(whole[0], table) << c.dtype;
    EXPECT_EQ(whole[3], 0) << c.dtype;
    EXPECT_GE(whole[7], table) << c.dtype;
    const double most = static_cast<double>(whole[0]) / kGiB;
    EXPECT_TRUE(most > 10.25 && most < 11.6) << c.dtype << " " << most;
    // The rank's rows of both tables and one microbatch's exponentials; in bfloat16 also a chunk's float32 values. If
    // the rank's peak was elsewhere before, the growth is smaller, by at most one residual stream.
    const int64_t share = 2 * table / 8 + kTokens * kRows / 8 * c.exponential_bytes, stream = kTokens * kWidth * 4;
    for (size_t rank = 0; rank < cut.size(); ++rank) {
      EXPECT_GE(cut[rank], share - stream) << c.dtype << " " << rank;
      EXPECT_LT(static_cast<double>(cut[rank]) / kGiB, 3.2) << c.dtype << " " << rank;
    }
    if (c.exponential_bytes == 4) {
      EXPECT_EQ(cut[0], share);
    }
  }
}

// With both capped logits and label smoothing, the slopes of the cap are multiplied separately: five products in place
// of three.
TEST(VocabularyPlan, CountsWhatSmoothingOfCappedLogitsMultiplies) {
  const auto busy = [](const char* how, const Words& loss) { return plan_of(4, how, loss).timeline.busy[0]; };
  const std::string capped = "model.final_logit_softcapping=30", smoothed = "training.label_smoothing=0.1";
  for (const char* how : {"naive", "algorithm_1", "algorithm_2"}) {
    const double plain = busy(how, {});
    for (const Words& one : {Words{capped}, Words{smoothed}, Words{"training.z_loss=1e-4"}})
      EXPECT_EQ(busy(how, one), plain) << how;
    EXPECT_GT(busy(how, {capped, smoothed}), 1.05 * plain) << how;
  }
}

TEST(VocabularyPlan, RefusesWhatCannotBe) {
  EXPECT_EQ(refusal(1, "algorithm_2"), "");  // no effect on 1 rank
  EXPECT_EQ(refusal(1, "algorithm_2", {p + "data_parallel_degree=1", p + "pipeline_parallel_degree=-1"}), "");
  EXPECT_TRUE(says(refusal(4, "interlaced", {p + "pipeline_parallel_schedule=zb_h1"}),
                   {"pipeline_parallel_schedule = \"zb_h1\"", "must be \"1f1b\" with", "set it to \"1f1b\""}));
  EXPECT_TRUE(says(refusal(4, "redistribution", {p + "pipeline_parallel_layers=2,2,2,2"}),
                   {"pipeline_parallel_layers = [2, 2, 2, 2]", "must be [] with", "set it to []"}));
  EXPECT_EQ(refusal(4, "redistribution", {p + "pipeline_parallel_layers=-1"}), "");
}

TEST(VocabularyPlan, AFilesOrderIsLookedAt) {
  const TempFolder folder;
  const auto of_file = [&](const std::string& csv) {
    return refusal(2, "algorithm_2", {p + "pipeline_parallel_schedule=" + folder.write("own.csv", csv),
                                      "training.global_batch_size=2"});
  };
  EXPECT_EQ(of_file("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"), "");
  EXPECT_TRUE(says(of_file("0F1,0F0,0B0,0B1\n1F1,1F0,1B0,1B1\n"),
                   {"1F0 must come before microbatch 1", "last stage's outputs"}));
  EXPECT_TRUE(says(of_file("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"),
                   {"0B0 must come before microbatch 1", "first stage's gradients"}));
}

TEST(VocabularyChoices, AreThePlansOfTheOthers) {
  const Plan plan = plan_of(4, "algorithm_1");
  const std::vector<VocabularyChoice> choices = vocabulary_choices(plan);
  ASSERT_EQ(choices.size(), 6u);
  const auto named = [&](const std::string& name) {
    return *std::ranges::find(choices, name, &VocabularyChoice::name);
  };
  for (const VocabularyChoice& choice : choices) {
    EXPECT_EQ(choice.chosen, choice.name == "algorithm_1");
    const Plan other = plan_of(4, choice.name);
    EXPECT_EQ(choice.step, other.timeline.makespan) << choice.name;
    EXPECT_EQ(choice.memory_bytes, other.largest_memory_bytes()) << choice.name;
  }
  EXPECT_LT(named("redistribution").step, named("none").step);
  EXPECT_LT(named("algorithm_2").step, 0.7 * named("redistribution").step);
  EXPECT_LT(named("algorithm_2").memory_bytes, named("none").memory_bytes);
  EXPECT_EQ(recommended(choices, plan)->name, "algorithm_2");
  // If the vocabulary is small, extra warm-up microbatches gain nothing.
  const Plan small = plan_of(4, "none", {"model.vocab_size=300", "model.num_hidden_layers=16"});
  EXPECT_NE(recommended(vocabulary_choices(small), small)->name, "naive");
  const std::string text = explain(plan, Sections::all());
  EXPECT_TRUE(says(text, {"placements of the vocabulary layers on 4 pipeline ranks", "as planned", "recommended",
                          "1/4 of embedding and head", "output layer, sharded over the pipeline"}));
  const auto json = nlohmann::json::parse(plan_json(plan, Sections::all()));
  EXPECT_EQ(json["vocabulary_choices"].size(), 6u);
  for (const auto& choice : json["vocabulary_choices"]) {
    EXPECT_EQ(choice["recommended"], choice["vocabulary_parallel"] == "algorithm_2");
  }
  EXPECT_TRUE(vocabulary_choices(plan_of(1, "none")).empty());
}

}  // namespace
}  // namespace orthant::vocabulary_plan_test
