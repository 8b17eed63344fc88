// A refusal offers all the settings that make the run legal, even if the run breaks several laws.
#include "advice/nearest_legal.h"

#include <gtest/gtest.h>

#include "advice/advised_plan.h"
#include "plan/plan.h"
#include "tests/support/ways_out.h"

namespace orthant::nearest_legal_test {
namespace {

using Words = std::vector<std::string>;

// The message with which check_with_advice() or advised_plan() refuses the settings; empty if they are legal.
std::string error_of(const Words& overrides, int ranks) {
  Words all = overrides;
  all.push_back(fmt::format("run.ranks={}", ranks));
  try {
    const Config config = parse_config("", "run.toml", all);
    check_with_advice(config);
    advised_plan(config, {.ranks = ranks, .vocab_size = 257});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const std::string kParallel = "parallelism.";

struct Broken {
  int ranks;
  Words settings;
  std::string ways;  // the end of the message
  std::vector<Words> offered;
};

TEST(NearestLegal, WaysOutAreCompleteWhereSeveralLawsAreBroken) {
  const std::string grid = kParallel + "tensor_parallel_kind=2d", mesh = kParallel + "tensor_parallel_mesh=2,2,1";
  const std::string degree = kParallel + "tensor_parallel_degree=", sequence = kParallel + "tensor_parallel_sequence=";
  const std::string masked = "model.objective=masked", summaries = "model.linformer_length=64";
  const std::string attention = kParallel + "context_parallel_attention=";
  const std::string placement = kParallel + "context_parallel_placement=";
  for (const Broken& broken : std::vector<Broken>{
           {4,
            {grid, mesh, degree + "2", sequence + "false"},
            "; set it to 1 and parallelism.tensor_parallel_sequence to true, or parallelism.tensor_parallel_kind to "
            "\"1d\" and "
            "parallelism.tensor_parallel_mesh to [1, 1, 1]",
            {{degree + "1", sequence + "true"}}},
           {2,
            {masked, summaries, kParallel + "context_parallel_ring=2"},
            "; set model.linformer_length to 0, or parallelism.context_parallel_ring to 1, or "
            "parallelism.context_parallel_attention to \"linformer\" and parallelism.context_parallel_placement to "
            "\"contiguous\"",
            {{attention + "linformer", placement + "contiguous"}}},
           {1,
            {masked, summaries, "data.mask_documents=true", "data.long_documents=cut"},
            "; set model.linformer_length to 0, or data.mask_documents to false and data.long_documents to "
            "\"refuse\"",
            {{"data.mask_documents=false", "data.long_documents=refuse"}}},
           {4,
            {kParallel + "pipeline_parallel_degree=4", kParallel + "pipeline_parallel_schedule=zb_v",
             kParallel + "vocabulary_parallel=interlaced"},
            "; set it to \"1f1b\", or parallelism.vocabulary_parallel to \"none\"",
            {{kParallel + "pipeline_parallel_schedule=1f1b"}}},
           {6,
            {kParallel + "data_parallel_degree=2", degree + "3", sequence + "false"},
            "; set it to 1 and parallelism.data_parallel_degree to 6, or parallelism.tensor_parallel_degree to 2 and "
            "parallelism.data_parallel_degree to 3",
            {{degree + "1", kParallel + "data_parallel_degree=6"},
             {degree + "2", kParallel + "data_parallel_degree=3"}}}}) {
    const std::string error = error_of(broken.settings, broken.ranks);
    EXPECT_TRUE(error.ends_with(broken.ways)) << error;
    for (const Words& offered : broken.offered) {
      Words changed = broken.settings;
      changed.insert(changed.end(), offered.begin(), offered.end());
      EXPECT_EQ(error_of(changed, broken.ranks), "") << broken.ways;
    }
  }
}

// A model of two layers, whose plans take a few MiB a rank.
const Words kSmall = {"model.num_hidden_layers=2", "model.hidden_size=32", "model.intermediate_size=64",
                      "training.global_batch_size=64", "training.local_batch_size=16", "training.seq_len=32"};

Words small_with(const Words& more) {
  Words words = kSmall;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The interlaced pipeline has an order of its own. No plan fits the limit of 10 KiB a rank, so every way out also
// raises it.
TEST(NearestLegal, WaysOutKeepToTheLimitOfMemory) {
  const Words two_orders = {kParallel + "pipeline_parallel_degree=4", kParallel + "pipeline_parallel_schedule=gpipe",
                            kParallel + "vocabulary_parallel=interlaced"};
  Words limited = small_with(two_orders);
  limited.push_back("run.memory_gib_per_rank=1e-5");
  const std::string error = error_of(limited, 4);
  const std::vector<Settings> ways = ways_out(error);
  EXPECT_GE(ways.size(), 2u) << error;
  for (const Settings& way : ways) {
    Words changed = limited;
    changed.insert(changed.end(), way.begin(), way.end());
    EXPECT_EQ(error_of(changed, 4), "") << error;
    EXPECT_TRUE(way.back().starts_with("run.memory_gib_per_rank=")) << error;
  }
  const std::string free = error_of(small_with(two_orders), 4);
  EXPECT_EQ(ways_out(free).size(), ways.size()) << free;
  EXPECT_EQ(free.find("memory_gib_per_rank"), std::string::npos) << free;
}

// An offered number of ranks names the degree that changes with it.
TEST(NearestLegal, AlternativesNameEverySettingThatTheyChange) {
  const Words data = {kParallel + "data_parallel_degree=4", "run.memory_gib_per_rank=0.0028"};
  const std::string error = error_of(small_with(data), 4);
  EXPECT_NE(error.find("run.ranks=8 parallelism.data_parallel_degree=-1"), std::string::npos) << error;
}

// The nearest degrees lead nowhere, a far one is legal.
TEST(NearestLegal, FarValuesAreOfferedToo) {
  const std::string degree = kParallel + "tensor_parallel_degree=", data = kParallel + "data_parallel_degree=";
  const Words heads = {"model.num_attention_heads=8", "model.num_key_value_heads=4", "model.hidden_size=64",
                       "training.global_batch_size=32", kParallel + "tensor_parallel_kind=auto"};
  for (const auto& [ranks, tensor] : {std::pair{60, 12}, {60, 15}, {60, 20}, {120, 20}, {120, 24}}) {
    Words words = heads;
    words.push_back(fmt::format("{}{}", degree, tensor));
    words.push_back(fmt::format("{}{}", data, ranks / tensor));
    const std::string error = error_of(words, ranks);
    EXPECT_NE(error.find("; set "), std::string::npos) << error;
  }
}

std::vector<Remedy> remedies_of(const Refusal& refusal, const std::function<void(const Config&)>& check) {
  return nearest_legal(parse_config("", "run.toml", {}), refusal, check);
}

TEST(NearestLegal, TakesTheNearestValuesThatWork) {
  const auto multiple_of_seven = [](const Config& other) {
    if (other.training.seq_len % 7 != 0) throw ConfigError("not a multiple of seven");
  };
  const Refusal refusal("training.seq_len = 256 must be a multiple of 7", {"training.seq_len"}, {7});
  const std::vector<Remedy> remedies = remedies_of(refusal, multiple_of_seven);
  EXPECT_EQ(remedies, (std::vector<Remedy>{{{"training.seq_len", "259"}}, {{"training.seq_len", "252"}}}));
  EXPECT_STREQ(with_remedies(refusal, remedies).what(),
               "training.seq_len = 256 must be a multiple of 7; set it to 259 or 252");
}

TEST(NearestLegal, OffersNothingIfNothingWorks) {
  const Refusal refusal("no run is legal", {"training.seq_len", "run.ranks"}, {4});
  const std::vector<Remedy> none = remedies_of(refusal, [](const Config&) { throw ConfigError("never"); });
  EXPECT_TRUE(none.empty());
  EXPECT_STREQ(with_remedies(refusal, none).what(), "no run is legal");
}

// Two laws that require opposite settings: the search for a way out terminates.
TEST(NearestLegal, LeavesLawsThatContradictEachOther) {
  const auto other_value = [](const Config& other) {
    throw Refusal("no", {"training.seq_len", "training.steps"}, {other.training.seq_len == 4 ? 3.0 : 4.0});
  };
  EXPECT_TRUE(remedies_of(Refusal("no", {"training.seq_len"}, {3}), other_value).empty());
}

// Sizes that a launcher or a model to continue fixes are not offered.
TEST(NearestLegal, LeavesWhatTheUserCannotChange) {
  Config config = parse_config("", "run.toml", {});
  config.origins["run.ranks"] = "launcher";
  config.origins["training.seq_len"] = "model/config.json";
  const Refusal refusal("no", {"run.ranks", "training.seq_len", "training.steps"}, {});
  const std::vector<Remedy> remedies = nearest_legal(config, refusal, [](const Config&) {});
  ASSERT_FALSE(remedies.empty());
  for (const Remedy& remedy : remedies) EXPECT_EQ(remedy[0].key, "training.steps");
}

TEST(NearestLegal, WritesWaysOfOneKeyTogether) {
  const Refusal refusal("training.steps = 3 (default) is refused", {"training.steps", "run.ranks"});
  const std::vector<Remedy> remedies = {{{"training.steps", "1"}},
                                        {{"training.steps", "2"}},
                                        {{"training.steps", "4"}, {"run.ranks", "3"}},
                                        {{"run.ranks", "5"}}};
  EXPECT_STREQ(with_remedies(refusal, remedies).what(),
               "training.steps = 3 (default) is refused; set it to 1 or 2, or training.steps to 4 and run.ranks to 3, "
               "or run.ranks to 5");
}

}  // namespace
}  // namespace orthant::nearest_legal_test
