// Setup of a run: values that model.from decides, data that does not suffice for the run, and ranks that open the data
// together.
#include "app/run_setup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "config/hf_config.h"
#include "data/folder_lock.h"
#include "launch/roll_call.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::run_setup_test {
namespace {

class RunSetup : public testing::Test {
 protected:
  RunSetup() { std::filesystem::create_directories(folder_ / "hf"); }

  std::string write(const std::string& name, const std::string& text) { return folder_.write(name, text); }
  const TempFolder folder_;
};

TEST_F(RunSetup, ModelFromIsNotContradicted) {
  HfConfig theirs;
  theirs.model.hidden_size = 64;
  theirs.model.intermediate_size = 96;
  theirs.model.num_hidden_layers = 2;
  theirs.model.num_attention_heads = theirs.model.num_key_value_heads = 4;
  theirs.model.head_dim = 16;
  theirs.model.vocab_size = 257;
  theirs.model.rms_norm_eps = 1e-6;
  write("hf/config.json", config_json(theirs));
  const std::string from = "model.from=" + (folder_ / "hf");
  const auto load = [&](const std::string& text, std::vector<std::string> overrides) {
    overrides.push_back(from);
    RunFileArguments arguments;
    arguments.run_file = write("run.toml", text);
    arguments.overrides = overrides;
    return load_run(arguments);
  };
  const Config taken = load("", {});
  EXPECT_EQ(taken.model.hidden_size, 64);
  EXPECT_EQ(taken.model.head_dim, 16);
  // The same value given twice, and zeros, which stand for derived values.
  EXPECT_EQ(load("[model]\nhidden_size = 64\nhead_dim = 0\nvocab_size = 0\nrms_norm_eps = 1e-6", {}), taken);
  EXPECT_EQ(load(print_config(taken), {}), taken);

  const std::string source = "(" + (folder_ / "hf/config.json") + ")";
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("[model]\nhidden_size = 128", {}); }),
                   {"model.hidden_size = 128 (", "run.toml:2), but model.hidden_size = 64 " + source, "leave it out"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("[model]\nhidden_size = 64", {"--model.num_hidden_layers=3"}); }),
                   {"model.num_hidden_layers = 3 (command line), but model.num_hidden_layers = 2 " + source}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("", {"model.tie_word_embeddings=true"}); }),
                   {"model.tie_word_embeddings = true (command line), but model.tie_word_embeddings = false"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("", {"model.mlp_bias=true"}); }),
                   {"model.mlp_bias = true (command line), but model.mlp_bias = false"}));
  theirs.model.attention_bias = true;
  write("hf/config.json", config_json(theirs));
  EXPECT_TRUE(load("", {}).model.attention_bias);
  EXPECT_FALSE(load("", {}).model.mlp_bias);
  theirs.model.attention_bias = false;
  // A masked model stays masked; a causal model may be trained further with the masked objective.
  EXPECT_EQ(taken.model.objective, "causal");
  EXPECT_EQ(load("", {"model.objective=masked"}).model.objective, "masked");
  theirs.model.objective = "masked";
  write("hf/config.json", config_json(theirs));
  EXPECT_EQ(load("", {}).model.objective, "masked");
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("", {"model.objective=causal"}); }),
                   {"model.objective = \"causal\" (command line), but model.objective = \"masked\" " + source}));
}

// A family stands for operations of the block. They reach the run file, and may not contradict it.
TEST_F(RunSetup, ModelFromTakesTheOperationsOfItsFamily) {
  const auto load = [&](const char* family, const char* more, std::vector<std::string> overrides) {
    write("hf/config.json",
          fmt::format("{{\"model_type\": \"{}\", {} \"vocab_size\": 257, \"hidden_size\": 64, "
                      "\"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                      "\"num_key_value_heads\": 2}}",
                      family, more));
    overrides.push_back("model.from=" + (folder_ / "hf"));
    RunFileArguments arguments;
    arguments.run_file = write("run.toml", "");
    arguments.overrides = overrides;
    return load_run(arguments).model;
  };
  const auto qwen = load("qwen3", "", {});
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_EQ(qwen.head_dim, 128);
  const auto starcoder = load("starcoder2", "\"sliding_window\": 32,", {});
  EXPECT_EQ(starcoder.norm, "layer_norm");
  EXPECT_EQ(starcoder.mlp, "gelu_tanh");
  EXPECT_TRUE(starcoder.attention_bias && starcoder.mlp_bias);
  EXPECT_EQ(starcoder.sliding_window, 32);
  const auto own = load("orthant", "\"norm\": \"layer_norm\", \"mlp\": \"gelu\", \"qk_norm\": true,", {});
  EXPECT_EQ(own.norm, "layer_norm");
  EXPECT_EQ(own.mlp, "gelu");
  EXPECT_TRUE(own.qk_norm);
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("starcoder2", "", {"model.mlp=gelu"}); }),
                   {"model.mlp = \"gelu\" (command line), but model.mlp = \"gelu_tanh\""}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { load("llama", "", {"model.qk_norm=true"}); }),
                   {"model.qk_norm = true (command line), but model.qk_norm = false"}));
  EXPECT_TRUE(says(message_of<DataError>([&] { load("llama", "\"max_position_embeddings\": 2147483647,", {}); }),
                   {"max_position_embeddings = 2147483647: must be 1 to 134217728", "config.json"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] {
                     load("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5},", {});
                   }),
                   {"model.rope_scaling_factor = 0.5", "config.json"}));
}

TEST_F(RunSetup, ValidationThatFindsNothingHeldOutIsRefused) {
  Config config;
  config.job.dump_folder = folder_ / "run";
  config.data.path = {write("one.txt", "a single line of a few words, and no more\n")};
  config.training.seq_len = 8;
  EXPECT_TRUE(says(message_of<ConfigError>([&] { open_run_data(config, {}); }),
                   {"data.validation = 0.05 (default) cannot hold a document out", "one.txt is a single document",
                    "validation.freq = 0"}));
  config.validation.freq = 0;
  EXPECT_EQ(message_of<ConfigError>([&] { EXPECT_TRUE(open_run_data(config, {}).validation.empty()); }), "");
  config.validation.freq = 5;
  config.data.path = {write("three.txt", "a first line of a few words\nand another one\nand the last\n")};
  EXPECT_EQ(message_of<ConfigError>([&] { EXPECT_FALSE(open_run_data(config, {}).validation.empty()); }), "");
}

TEST_F(RunSetup, MoreMemoryThanTheMachineHasIsRefusedWithTheKeys) {
  const Config config;
  EXPECT_EQ(message_of<ConfigError>([&] { require_memory({}, config); }), "");
  EXPECT_EQ(message_of<ConfigError>([&] { require_memory({.warning = "scarce"}, config); }), "");
  EXPECT_TRUE(
      says(message_of<ConfigError>([&] { require_memory({.warning = "too much", .exceeds_machine = true}, config); }),
           {"too much; lower run.ranks = 4 (default)", "training.local_batch_size = 4", "model.hidden_size = 256",
            "activation_checkpoint.mode"}));
}

// A lock delays rank 1. No rank returns from opening the data before the lock is released.
TEST_F(RunSetup, NoRankGoesOnBeforeAllHaveOpenedTheirData) {
  const std::string text = "a first line of a few words\nand another one\nand the last\n";
  const std::string file = write("text.txt", text);
  const std::string dumps[] = {folder_ / "run", folder_ / "held-up"};
  auto lock = std::make_unique<FolderLock>(dumps[1] + "/data");  // rank 1 waits for it
  std::atomic<bool> released = false;
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    released = true;
    lock.reset();
  });
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    Config config;
    config.job.dump_folder = dumps[rank];
    config.data.path = {file};
    config.training.seq_len = 8;
    const TrainingData data = open_training_data_together(config, rendezvous);
    EXPECT_TRUE(released) << "rank " << rank;
    EXPECT_EQ(data.train.num_tokens() + data.validation[0].samples.num_tokens(), static_cast<int64_t>(text.size()) + 1);
  });
  holder.join();
}

// The text, its tokens and their index are hashed once for all ranks of a host. A rank with other text is refused.
TEST_F(RunSetup, OneRankOfAHostReadsTheFiles) {
  const auto train_on = [&](int ranks, const std::function<std::string(int rank)>& text_of, bool is_launched = false) {
    std::atomic<int64_t> num_read = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      write(text_of(rank), "a first line of " + text_of(rank) + "\nand another one\n");
    }
    run_ranks(ranks, [&](Rendezvous rendezvous, int rank) {
      Config config;
      config.job.dump_folder = folder_ / fmt::format("run-of-{}", text_of(rank));
      config.data.path = {folder_ / text_of(rank)};
      config.training.seq_len = 8;
      if (is_launched && rank == 0) {
        FileReadings readings;
        open_run_data(config, {}, &readings);
        share_readings(rendezvous.store, readings);
      }
      try {
        num_read += open_training_data_together(config, rendezvous).num_files_read;
      } catch (const ConfigError&) {
        end_roll_call(rendezvous.store.under("data-open/0/opened"), "");  // lets rank 0 go on, which a Watch would end
        throw;
      }
    });
    return num_read.load();
  };
  const auto same = [](int) -> std::string { return "same.txt"; };
  train_on(1, same);  // tokenizes
  EXPECT_EQ(train_on(1, same), 3);
  EXPECT_EQ(train_on(4, same), 3);
  EXPECT_EQ(train_on(4, same, /*is_launched=*/true), 0);
  const auto others = [](int rank) { return fmt::format("{}.txt", rank); };
  const std::string message = message_of<ConfigError>([&] { train_on(2, others); });
  EXPECT_TRUE(says(message, {"rank 1 reads other data than rank 0", "data.path", "copy them"})) << message;
}

}  // namespace
}  // namespace orthant::run_setup_test
