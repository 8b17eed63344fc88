// Runs before their data are opened: the facts that planning needs, and models of Hugging Face.
#include "library/run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "advice/advised_plan.h"
#include "advice/fit.h"
#include "base/errors.h"
#include "config/from_config.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::run_test {
namespace {

class Run : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) { return folder_.write(name, text); }
  const TempFolder folder_;
};

TEST_F(Run, PlanningTrainsNoTokenizer) {
  Config config;
  config.job.dump_folder = folder_ / "run";
  config.data.path = {write("text.txt", "a few words\n")};
  config.data.tokenizer = "train:8000";
  EXPECT_EQ(facts_before_data(config, 3).vocab_size, 8000);
  EXPECT_EQ(facts_before_data(config, 3).ranks, 3);
  config.data.tokenizer = "byte";
  EXPECT_EQ(facts_before_data(config, 1).vocab_size, 257);
  EXPECT_EQ(facts_before_data(config, 1).hardware, nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  config.data.path = {"nowhere.txt"};
  EXPECT_TRUE(says(message_of<ConfigError>([&] { facts_before_data(config, 1); }), {"data.path", "nowhere.txt"}));
}

// If training did not know the hardware, it would choose the mesh by bytes, and a plan by time.
TEST_F(Run, TrainingChoosesTheMeshOfThePlan) {
  Config config;
  config.model.hidden_size = 256;
  config.model.num_attention_heads = config.model.num_key_value_heads = 64;
  config.training.global_batch_size = config.training.local_batch_size = 64;
  config.data.path = {write("text.txt", "a few words\n")};
  config.data.tokenizer = "byte";
  config.run.ranks = 64;
  config.run.hardware = "h100-8x";
  config.parallelism.tensor_parallel_kind = "auto";
  config.parallelism.tensor_parallel_degree = 64;
  const auto [completed, facts] = run_to_plan(config);
  const Plan planned = advised_plan(completed, facts), trained = advised_plan(completed, facts_before_data(config, 64));
  EXPECT_EQ(trained.mesh, planned.mesh);
  EXPECT_NE(advised_plan(completed, {.ranks = 64, .vocab_size = facts.vocab_size}).mesh, planned.mesh);
}

TEST_F(Run, AVocabularySizeLetsAPlanDoWithoutData) {
  Config config;
  config.data.path = {"nowhere.txt"};
  config.data.tokenizer = "nowhere.model";
  config.model.vocab_size = 32000;
  config.run.ranks = 3;
  EXPECT_EQ(facts_without_data(config, 3).vocab_size, 32000);
  EXPECT_EQ(facts_without_data(config, 3).ranks, 3);
  config.model.objective = "masked";  // the mask token is one of them
  EXPECT_EQ(facts_without_data(config, 3).vocab_size, 31999);
  EXPECT_EQ(make_architecture(config, 31999).vocab_size, 32000);
  config.model.objective = "causal";
  // The size of these tokenizers is known without data.
  config.data.tokenizer = "byte";
  EXPECT_EQ(facts_without_data(config, 3).vocab_size, 257);
  config.data.tokenizer = "train:300";
  EXPECT_EQ(facts_without_data(config, 3).vocab_size, 300);
  config.model.vocab_size = 0;
  EXPECT_TRUE(says(message_of<ConfigError>([&] { facts_without_data(config, 1); }), {"data.path", "nowhere.txt"}));
}

// A model of Hugging Face is planned from its config.json, for CUDA devices.
TEST_F(Run, AModelOfHuggingFaceIsPlannedFromItsFile) {
  const std::string file = write("config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
  std::string hf = file;
  std::vector<std::string> overrides;
  const auto load = [&] { return model_to_plan(hf, overrides).config; };
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load(); }), {"--ranks 8"}));
  overrides = {"run.ranks=8"};
  Config config = load();
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(config.locate("model.vocab_size"), "model.vocab_size = 500 (" + file + ")");
  EXPECT_EQ(config.run.device, "cuda");
  EXPECT_EQ(config.training.dtype, "bfloat16");
  EXPECT_EQ(config.run.ranks, 8);
  EXPECT_EQ(config.training.seq_len, 512);
  EXPECT_EQ(config.training.global_batch_size, 8);
  hf = folder_ / "";
  overrides = {"run.ranks=8",          "training.dtype=float32",      "optimizer.offload=true",
               "training.seq_len=128", "training.local_batch_size=2", "training.global_batch_size=32"};
  config = load();
  EXPECT_EQ(config.training.dtype, "float32");
  EXPECT_EQ(config.training.seq_len, 128);
  EXPECT_EQ(config.training.global_batch_size, 32);
  overrides = {"run.ranks=8", "training.seq_len=1024"};
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load(); }),
                   {"training.seq_len = 1024 (command line) must be at most model.max_position_embeddings = 512"}));
  overrides = {"run.ranks=8", "model.from=" + (folder_ / "")};
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load(); }), {"model.from", "--hf"}));
  // Sizes on the command line take the place of the model's, to plan a variant of it.
  overrides = {"run.ranks=8", "model.num_hidden_layers=5", "model.max_position_embeddings=2048",
               "training.seq_len=2048"};
  config = load();
  EXPECT_EQ(config.model.num_hidden_layers, 5);
  EXPECT_EQ(config.training.seq_len, 2048);
  EXPECT_EQ(config.model.hidden_size, 64);
  hf = write("config.json", R"({"model_type": "mamba"})");
  EXPECT_TRUE(says(message_of<DataError>([&] { load(); }), {"mamba"}));
}

// The drawing says how much memory tensors may take: of the device, or by the user's limit.
TEST_F(Run, ADrawingHasTheLimitOfMemory) {
  const std::string file = write("config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
  const auto draw = [&](std::vector<std::string> words) {
    words.emplace_back("run.ranks=2");
    const auto [config, facts] = model_to_plan(file, words);
    return make_plan(config, facts);
  };
  const Plan plan = draw({});
  const double gib = 1.5 * static_cast<double>(plan.largest_memory_bytes()) / 0x1p30;
  const std::string limited = planned_svg(draw({fmt::format("run.memory_gib_per_rank={}", gib)}));
  EXPECT_TRUE(says(limited, {"Planned step: ", "the limit is "})) << limited;
  Plan small = plan;
  Hardware hardware = *plan.facts.hardware;
  hardware.device.memory_bytes -= (1 + hardware.process_memory.allocator_slack_share) *
                                  static_cast<double>(*most_tensor_bytes(plan) - 3 * plan.largest_memory_bytes() / 2);
  small.facts.hardware = std::make_shared<const Hardware>(hardware);
  EXPECT_TRUE(says(planned_svg(small), {"a device has room for "}));
}

}  // namespace
}  // namespace orthant::run_test
