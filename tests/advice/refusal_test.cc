// A refusal offers all the settings that make the run legal, even if the run breaks several laws.
#include "config/refusal.h"

#include <gtest/gtest.h>

#include "advice/advised_plan.h"
#include "plan/plan.h"

namespace orthant::config_refusal_test {
namespace {

using Words = std::vector<std::string>;

// The message with which check_config() or advised_plan() refuses the settings; empty if they are legal.
std::string error_of(const Words& overrides, int ranks) {
  Words all = overrides;
  all.push_back(fmt::format("run.ranks={}", ranks));
  try {
    const Config config = parse_config("", "run.toml", all);
    check_config(config);
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

TEST(ConfigRefusal, WaysOutAreCompleteWhereSeveralLawsAreBroken) {
  const std::string grid = kParallel + "tensor_parallel_kind=2d", mesh = kParallel + "tensor_parallel_mesh=2,2,1";
  const std::string degree = kParallel + "tensor_parallel_degree=", sequence = kParallel + "tensor_parallel_sequence=";
  const std::string masked = "model.objective=masked", summaries = "model.linformer_length=64";
  const std::string attention = kParallel + "context_parallel_attention=";
  const std::string placement = kParallel + "context_parallel_placement=";
  for (const Broken& broken : std::vector<Broken>{
           {4,
            {grid, mesh, degree + "2", sequence + "false"},
            "; set it to 1 and parallelism.tensor_parallel_sequence to true",
            {{degree + "1", sequence + "true"}}},
           {1,
            {"model.attention_bias=true", "model.mlp_bias=true", "model.sliding_window=8"},
            "; set it to false and model.mlp_bias to false",
            {{"model.attention_bias=false", "model.mlp_bias=false"}}},
           {2,
            {masked, summaries, kParallel + "context_parallel_ring=2"},
            "; set it to \"linformer\" and parallelism.context_parallel_placement to \"contiguous\"",
            {{attention + "linformer", placement + "contiguous"}}},
           {1,
            {masked, summaries, "data.mask_documents=true", "data.long_documents=cut"},
            "; set it to false and data.long_documents to \"refuse\"",
            {{"data.mask_documents=false", "data.long_documents=refuse"}}},
           {4,
            {kParallel + "pipeline_parallel_degree=4", kParallel + "pipeline_parallel_schedule=zb_v"},
            "; set it to 2",
            {{kParallel + "pipeline_parallel_degree=2"}}},
           {6,
            {kParallel + "data_parallel_degree=2", degree + "3", sequence + "false"},
            "; set it to 1 and parallelism.tensor_parallel_sequence to true and parallelism.data_parallel_degree to 6",
            {{degree + "1", sequence + "true", kParallel + "data_parallel_degree=6"}}}}) {
    const std::string error = error_of(broken.settings, broken.ranks);
    EXPECT_TRUE(error.ends_with(broken.ways)) << error;
    for (const Words& offered : broken.offered) {
      Words changed = broken.settings;
      changed.insert(changed.end(), offered.begin(), offered.end());
      EXPECT_EQ(error_of(changed, broken.ranks), "") << broken.ways;
    }
  }
}

TEST(ConfigRefusal, WaysOutThatStayIllegalAreLeftOut) {
  const Config config = parse_config("", "run.toml", {});
  const Refusal refusal("training.seq_len", "it is odd", {{{"training.seq_len", "3"}}, {{"training.seq_len", "4"}}});
  EXPECT_STREQ(refusal.what(), "it is odd; set it to 3 or 4");
  const auto even = [](const Config& other) {
    if (other.training.seq_len % 2 != 0) throw ConfigError("odd");
  };
  EXPECT_STREQ(completed(refusal, config, even).what(), "it is odd; set it to 4");
  const auto never = [](const Config&) { throw ConfigError("never"); };
  EXPECT_STREQ(completed(refusal, config, never).what(), refusal.what());
}

// Two laws that require opposite settings: the search for a way out terminates.
TEST(ConfigRefusal, AWayOutDoesNotContradictItself) {
  const Config config = parse_config("", "run.toml", {});
  const auto other_value = [](const Config& other) {
    throw Refusal("training.seq_len", "no", {{{"training.seq_len", other.training.seq_len == 4 ? "3" : "4"}}});
  };
  const Refusal refusal("training.seq_len", "no", {{{"training.seq_len", "3"}}});
  EXPECT_STREQ(completed(refusal, config, other_value).what(), refusal.what());
}

TEST(ConfigRefusal, WaysOfOneKeyStandTogether) {
  const Refusal refusal("training.steps", "no",
                        {{{"training.steps", "1"}},
                         {{"training.steps", "2"}},
                         {{"training.steps", "4"}, {"run.ranks", "3"}},
                         {{"run.ranks", "5"}}});
  EXPECT_STREQ(refusal.what(), "no; set it to 1 or 2, or it to 4 and run.ranks to 3, or run.ranks to 5");
}

}  // namespace
}  // namespace orthant::config_refusal_test
