// Save and resume: equal in every bit with the same number of ranks, and within 1e-10 in float64 with another. The
// control loses the optimizer's second moments.
#include "runtime/snapshot.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "config/hf_family.h"
#include "runtime/resume_check.h"
#include "tests/support/save_checkpoint.h"
#include "tests/support/says.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/tiny_run.h"

namespace orthant::snapshot_test {
namespace {

std::string checkpoint_of(const Plan& plan, int64_t step) {
  return fmt::format("{}/checkpoints/step-{:06}", plan.config.job.dump_folder, step);
}

void expect_same_bits(const RankTrace& resumed, const RankTrace& whole) {
  EXPECT_TRUE(resumed.last().weights.equal(whole.last().weights));
  EXPECT_TRUE(resumed.values.equal(whole.values));
  EXPECT_TRUE(same_state(resumed.optimizer_state, whole.optimizer_state));
  const size_t done = whole.steps.size() - resumed.steps.size();
  for (size_t i = 0; i < resumed.steps.size(); ++i) {
    EXPECT_EQ(resumed.steps[i].loss, whole.steps[done + i].loss);
    EXPECT_EQ(resumed.steps[i].norm, whole.steps[done + i].norm);
    EXPECT_TRUE(resumed.steps[i].gradients.equal(whole.steps[done + i].gradients));
  }
}

class Dtypes : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Dtypes, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(Dtypes, SixStepsEqualThreeAndThreeMoreInEveryBit) {
  const TinyRun run({fmt::format("training.dtype={}", GetParam()), "model.dropout=0.1"});
  const Plan plan = run.plan(2);
  const auto whole = train_ranks(plan, run.data(), {.steps = 6});
  train_ranks(plan, run.data(), {.steps = 3, .save = true});
  const auto resumed = train_ranks(plan, run.data(), {.steps = 6, .resume_from = checkpoint_of(plan, 3)});
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(resumed[rank].steps.size(), 3u);
    expect_same_bits(resumed[rank], whole[rank]);
  }
}

// SGD has one state tensor for each parameter, or none: then the optimizer's file is empty in float32.
TEST(Resume, OfSgdEqualsTheWholeRun) {
  for (const char* momentum : {"0.9", "0"}) {
    const TinyRun run({"training.dtype=float32", "optimizer.name=sgd", fmt::format("optimizer.momentum={}", momentum)});
    const Plan plan = run.plan(2), other = run.plan(2, {kWithRing});
    const auto whole = train_ranks(plan, run.data(), {.steps = 6});
    train_ranks(plan, run.data(), {.steps = 3, .save = true});
    const Course rest{.steps = 6, .resume_from = checkpoint_of(plan, 3)};
    expect_same_bits(train_ranks(plan, run.data(), rest)[1], whole[1]);
    EXPECT_LT(relative_error(train_ranks(other, run.data(), rest)[1].last().weights, whole[1].last().weights), 1e-5);
  }
}

TEST(Resume, AtAnotherNumberOfRanksWithinTheFloat64Bound) {
  const TinyRun run;
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 6}).front();
  for (const auto& [before, after] : {std::pair{2, 1}, std::pair{1, 3}, std::pair{3, 2}}) {
    const Plan first = run.plan(before), second = run.plan(after);
    train_ranks(first, run.data(), {.steps = 3, .save = true});
    const auto resumed = train_ranks(second, run.data(), {.steps = 6, .resume_from = checkpoint_of(first, 3)}).front();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_LT(relative_error(resumed.steps[i].loss, whole.steps[3 + i].loss), 1e-10);
      const auto gradients = worst_parameter(second, resumed.steps[i].gradients, whole.steps[3 + i].gradients);
      EXPECT_LT(gradients.error, 1e-10) << gradients.name;
      const auto weights = worst_parameter(second, resumed.steps[i].weights, whole.steps[3 + i].weights);
      EXPECT_LT(weights.error, 1e-10) << weights.name;
    }
  }
}

TEST(Resume, WithoutTheMomentsWouldDiffer) {
  // The negative control of the tests above: a resumption without the optimizer's second moments differs.
  const TinyRun run;
  const Plan plan = run.plan(1);
  const auto whole = train_ranks(plan, run.data(), {.steps = 4}).front();
  train_ranks(plan, run.data(), {.steps = 3, .save = true});
  at::Tensor weights;
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    load_snapshot(checkpoint_of(plan, 3), plan, run.data(), session);
    session.optimizer().state().back().flat.zero_();
    session.update(4, session.gradients(4, {}));
    weights = session.weights().masters().clone();
  });
  EXPECT_GT(relative_error(weights, whole.last().weights), 1e-4);
}

TEST(Resume, RefusesWhatWouldChangeTheRun) {
  const TinyRun run;
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  auto message = [&](const std::vector<std::string>& overrides) {
    return message_of<ConfigError>([&] {
      train_ranks(run.plan(1, overrides), run.data(), {.steps = 2, .resume_from = checkpoint_of(plan, 1)});
    });
  };
  EXPECT_EQ(message({"optimizer.lr=0.001"}), "");  // may change
  EXPECT_TRUE(says(message({"optimizer.name=sgd"}),
                   {"optimizer.name = \"sgd\"", "the state tensors of the optimizer must be the same",
                    "has exp_avg and exp_avg_sq", "need momentum_buffer", "Set [optimizer] back"}));
  EXPECT_TRUE(says(message({"optimizer.name=sgd", "optimizer.momentum=0"}), {"these settings need none"}));
  EXPECT_TRUE(says(message({"training.seed=5"}), {"training.seed = 5", "1234"}));
  EXPECT_TRUE(says(message({"training.global_batch_size=8"}), {"training.global_batch_size = 8", "7"}));
  EXPECT_TRUE(says(message({"training.seq_len=8"}), {"training.seq_len = 8", "16", "other samples"}));
  EXPECT_TRUE(says(message({"training.dtype=float32"}), {"training.dtype", "float64", "another precision"}));
  EXPECT_TRUE(says(message({"model.num_hidden_layers=3"}), {"model.num_hidden_layers = 3", "which has 2"}));
  EXPECT_TRUE(says(message({"model.tie_word_embeddings=true"}), {"model.tie_word_embeddings", "false"}));
  EXPECT_TRUE(says(message({"model.attention_bias=true"}), {"model.attention_bias = true", "which has false"}));
  EXPECT_TRUE(says(message({"model.mlp_bias=true"}), {"model.mlp_bias = true", "which has false"}));
  EXPECT_TRUE(says(message({"model.qk_norm=true"}), {"model.qk_norm = true", "which has false"}));
  EXPECT_TRUE(says(message({"model.norm=layer_norm"}), {"model.norm = \"layer_norm\"", "which has \"rms_norm\""}));
  EXPECT_TRUE(says(message({"model.mlp=gelu"}), {"model.mlp = \"gelu\"", "which has \"swiglu\""}));
  EXPECT_TRUE(says(message({"model.rope_theta=500"}), {"model.rope_theta = 500", "which has 10000"}));
  EXPECT_TRUE(says(message({"model.sliding_window=4"}), {"model.sliding_window = 4", "which has 0"}));
  EXPECT_TRUE(says(message({"data.mask_documents=true"}),
                   {"data.mask_documents = true", "false", "attention would see other tokens"}));
}

// With another momentum, sgd keeps other state: the message names the momentum.
TEST(Resume, NamesTheMomentumThatDiffers) {
  const TinyRun run({"optimizer.name=sgd"});
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  const std::string message = message_of<ConfigError>([&] {
    train_ranks(run.plan(1, {"optimizer.momentum=0"}), run.data(), {.steps = 2, .resume_from = checkpoint_of(plan, 1)});
  });
  EXPECT_TRUE(says(message, {"optimizer.momentum = 0", "has momentum_buffer", "need none"}));
}

// A factor that the type of rope scaling does not use is not saved, and does not matter.
TEST(Resume, IgnoresRopeFactorsThatTheTypeDoesNotUse) {
  const TinyRun run({"model.rope_scaling_type=linear", "model.rope_scaling_low_freq_factor=2"});
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  EXPECT_NO_THROW(train_ranks(plan, run.data(), {.steps = 2, .resume_from = checkpoint_of(plan, 1)}));
}

// YaRN's default factor of rotated queries and keys is saved as a number.
TEST(Resume, AcceptsTheDefaultFactorOfYarn) {
  const std::vector<std::string> yarn = {"model.rope_scaling_type=yarn", "model.rope_scaling_factor=4",
                                         "model.rope_scaling_original_max_position_embeddings=8"};
  const TinyRun run(yarn);
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  EXPECT_EQ(read_hf_config(checkpoint_of(plan, 1)).model, plan.architecture);
  EXPECT_NO_THROW(train_ranks(plan, run.data(), {.steps = 2, .resume_from = checkpoint_of(plan, 1)}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] {
                     train_ranks(run.plan(1, {"model.rope_scaling_attention_factor=2"}), run.data(),
                                 {.steps = 2, .resume_from = checkpoint_of(plan, 1)});
                   }),
                   {"model.rope_scaling_attention_factor = 2", "which has 1.13"}));
}

// The longest sequence may change, unless each position has a learned vector.
TEST(Resume, KeepsTheNumberOfLearnedPositions) {
  for (const bool learned : {false, true}) {
    const TinyRun run({fmt::format("model.positions={}", learned ? "learned" : "rotary")});
    const Plan plan = run.plan(1);
    train_ranks(plan, run.data(), {.steps = 1, .save = true});
    const std::string message = message_of<ConfigError>([&] {
      train_ranks(run.plan(1, {"model.max_position_embeddings=48"}), run.data(),
                  {.steps = 2, .resume_from = checkpoint_of(plan, 1)});
    });
    if (learned) {
      EXPECT_TRUE(says(message, {"model.max_position_embeddings = 48", "which has"}));
    } else {
      EXPECT_EQ(message, "");
    }
  }
}

// The message of resuming the checkpoint with the data of another run file.
std::string resumed_with(const TinyRun& run, const std::string& checkpoint) {
  return message_of<Error>([&] { train_ranks(run.plan(1), run.data(), {.steps = 2, .resume_from = checkpoint}); });
}

TEST(Resume, NamesTheTokenizerBeforeWhatFollowsFromIt) {
  if (std::system("command -v spm_train >/dev/null 2>&1") != 0) GTEST_SKIP() << "spm_train is not on PATH";
  const TinyRun bytes, pieces({"data.tokenizer=train:290"});
  const Plan plan = bytes.plan(1);
  train_ranks(plan, bytes.data(), {.steps = 1, .save = true});
  EXPECT_TRUE(says(resumed_with(pieces, checkpoint_of(plan, 1)), {"data.tokenizer = ", "differs from the tokenizer"}));
}

TEST(Resume, NamesOtherTextBeforeTheTokenizerTrainedOnIt) {
  if (std::system("command -v spm_train >/dev/null 2>&1") != 0) GTEST_SKIP() << "spm_train is not on PATH";
  const TinyRun run({"data.tokenizer=train:290"});
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  const TempFolder folder;
  folder.write("other.txt", markov_text(8, 6000));
  const TinyRun other({"data.tokenizer=train:290", "data.path=" + (folder / "other.txt")});
  const std::string message = resumed_with(other, checkpoint_of(plan, 1));
  EXPECT_TRUE(says(message,
                   {"data.path = [\"" + (folder / "other.txt"), "a different text", run.folder() + "/text.txt"}));
  EXPECT_EQ(message.find("differs from the tokenizer"), std::string::npos) << message;
}

TEST(Resume, ComparesBeforeTheDataAreOpened) {
  const TinyRun run;
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  const LoadedCheckpoint checkpoint = open_checkpoint(checkpoint_of(plan, 1));
  const TempFolder folder;
  folder.write("other.txt", markov_text(8, 6000));
  const auto message = [&](const std::vector<std::string>& overrides, int64_t vocab_size = 257) {
    const Config config = parse_config(print_config(run.config()), "run.toml", overrides);
    return message_of<ConfigError>(
        [&] { check_resume_before_data(checkpoint, make_plan(config, {.ranks = 1, .vocab_size = vocab_size})); });
  };
  EXPECT_EQ(message({"training.steps=20"}), "");
  const std::string path = "data.path=" + (folder / "other.txt");
  EXPECT_TRUE(says(message({path, "data.tokenizer=train:290"}, 290), {"data.path = [", "a different text"}));
  EXPECT_TRUE(says(message({"data.tokenizer=train:290"}, 290), {"data.tokenizer = ", "differs from the tokenizer"}));
  EXPECT_TRUE(says(message({"model.hidden_size=48"}), {"model.hidden_size = 48", "which has 24"}));
  EXPECT_TRUE(says(message({"training.seed=5"}), {"training.seed = 5", "1234"}));
}

TEST(Resume, NamesOtherDataAsThat) {
  const TinyRun run, less({"data.validation=0.3"});
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  EXPECT_TRUE(says(resumed_with(less, checkpoint_of(plan, 1)),
                   {"data.path = ", "data.validation = ", "differs from the data of the checkpoint"}));
}

// The message of resuming from the checkpoint after `old` is replaced in its state.json.
std::string resumed_with_state(const TinyRun& run, const std::string& checkpoint, const std::string& old,
                               const std::string& text) {
  LoadedCheckpoint loaded = open_checkpoint(checkpoint);
  std::string state = loaded.state_json;
  state.replace(state.find(old), old.size(), text);
  CheckpointContent content{.hf_config = loaded.hf_config, .state_json = state, .config_toml = loaded.config_toml};
  CheckpointTensors tensors;
  for (const std::string& name : loaded.weights.names()) tensors.weights.push_back(loaded.weights.tensor(name));
  for (const std::string& name : loaded.optimizer.names()) tensors.optimizer.push_back(loaded.optimizer.tensor(name));
  TempFolder other;
  return resumed_with(run, save_checkpoint(other.path(), loaded.step, content, tensors, 0));
}

TEST(Resume, ACheckpointOfAnotherVersionIsNotTakenForOtherData) {
  const TinyRun run;
  const Plan plan = run.plan(1);
  train_ranks(plan, run.data(), {.steps = 1, .save = true});
  for (const std::string field : {"data_xxh3", "tokenizer_xxh3", "dtype", "tokens"}) {
    EXPECT_TRUE(says(resumed_with_state(run, checkpoint_of(plan, 1), "\"" + field, "\"_" + field),
                     {fmt::format("no field \"{}\"", field), "another version", "model.from"}));
  }
  EXPECT_TRUE(says(resumed_with_state(run, checkpoint_of(plan, 1), "\"step\": 1", "\"step\": 2"),
                   {"state.json: step is 2, but the manifest is of step 1"}));
}

TEST(Weights, FromACheckpointAloneAreTheRunsWeights) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2);
  const auto ranks = train_ranks(plan, run.data(), {.steps = 2, .save = true});
  Weights weights(plan.parameters, at::kFloat);
  load_weights(checkpoint_of(plan, 2), weights);
  EXPECT_TRUE(weights.masters().equal(ranks[1].last().weights));
}

// The form of stored weights is that of the directory's family, whatever model reads them.
TEST(Weights, OfGpt2AreReadByModelsThatItsClassCannotExpress) {
  const std::string kHeads = "model.num_key_value_heads=4";
  const TinyRun run({"training.dtype=float32", "model.architecture=gpt2", kHeads, "model.vocab_size=258"});
  const Plan plan = run.plan(2);
  const auto ranks = train_ranks(plan, run.data(), {.steps = 2, .save = true});
  EXPECT_EQ(read_hf_config(checkpoint_of(plan, 2)).model.architecture, "gpt2");
  for (const char* more : {"model.sliding_window=4", "model.objective=masked", "model.final_logit_softcapping=30",
                           "model.attn_logit_softcapping=50"}) {
    const TinyRun other({"training.dtype=float32", "model.architecture=gpt2", kHeads, "model.vocab_size=258", more});
    const Plan other_plan = other.plan(1);
    EXPECT_EQ(family_of(other_plan.architecture).model_type, "orthant");
    Weights weights(other_plan.parameters, at::kFloat);
    load_weights(checkpoint_of(plan, 2), weights);
    EXPECT_TRUE(weights.masters().equal(ranks[0].last().weights)) << more;
    train_ranks(other_plan, other.data(), {.steps = 1, .save = true});
    EXPECT_EQ(read_hf_config(checkpoint_of(other_plan, 1)).model.architecture, "orthant");
  }
}

}  // namespace
}  // namespace orthant::snapshot_test
