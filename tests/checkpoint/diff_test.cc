// Differences of checkpoints: each kind alone is reported, and nothing else. Equality by hashes reads no tensor.
#include "checkpoint/diff.h"

#include "checkpoint/hf_directory.h"
#include "checkpoint/manifest.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::diff_test {
namespace {

namespace fs = std::filesystem;

std::string save(const TempFolder& dir, const std::string& name, const Sample& sample) {
  return save_checkpoint(dir / name, 1, sample, 0);
}

// Writes the weights as a Hugging Face directory, which has no manifest.
std::string export_weights(const TempFolder& dir, const std::string& name, const Sample& sample) {
  fs::create_directories(dir / name);
  write_hf_directory(dir / name, sample.content.hf_config, sample.weights.views);
  return dir / name;
}

std::vector<std::string> names_of(const std::vector<TensorDifference>& tensors) {
  std::vector<std::string> names;
  for (const TensorDifference& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST(Diff, EqualByHashes) {
  TempFolder dir;
  Sample shards(1);
  shards.weight_files = 2;
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", shards);
  const CheckpointDiff diff = diff_checkpoints(a, b);
  EXPECT_TRUE(diff.equal());
  EXPECT_EQ(diff.num_tensors, 4);
  EXPECT_FALSE(diff.read_tensors);
  EXPECT_TRUE(diff.settings.empty());
}

// A flipped bit is not seen, because the hashes in the manifests are equal.
TEST(Diff, EqualHashesReadNoTensor) {
  TempFolder dir;
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", Sample(1));
  std::string bytes = slurp(b + "/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spill(b + "/model.safetensors", bytes);
  EXPECT_TRUE(diff_checkpoints(a, b).equal());
}

TEST(Diff, NamesTheTensorsThatDiffer) {
  TempFolder dir;
  Sample other(1);
  auto* numbers = reinterpret_cast<float*>(other.weights.storage[1].data());  // of model.norm.weight
  for (int i = 0; i < 8; ++i) numbers[i] = 2;
  Sample one(1);
  auto* ours = reinterpret_cast<float*>(one.weights.storage[1].data());
  for (int i = 0; i < 8; ++i) ours[i] = i < 6 ? 2 : 2.5f + static_cast<float>(i);
  const std::string a = save(dir, "a", one), b = save(dir, "b", other);
  const CheckpointDiff diff = diff_checkpoints(a, b);
  EXPECT_FALSE(diff.equal());
  ASSERT_EQ(names_of(diff.tensors), (std::vector<std::string>{"model.norm.weight"}));
  ASSERT_TRUE(diff.tensors[0].elements);
  EXPECT_EQ(diff.tensors[0].elements->num_elements, 8);
  EXPECT_EQ(diff.tensors[0].elements->num_different, 2);
  EXPECT_EQ(diff.tensors[0].elements->largest, 7.5);
  EXPECT_TRUE(diff.forms.empty() && diff.only_a.empty() && diff.only_b.empty() && diff.state.empty());
  EXPECT_FALSE(diff_checkpoints(a, b, {.max_read = 0}).tensors[0].elements) << "no tensor may be read";
}

TEST(Diff, AllTensorsOfAnotherSeed) {
  TempFolder dir;
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", Sample(2));
  const CheckpointDiff diff = diff_checkpoints(a, b, {.max_read = 2});
  EXPECT_EQ(names_of(diff.tensors),
            (std::vector<std::string>{"exp_avg.model.embed_tokens.weight", "exp_avg.model.norm.weight",
                                      "model.embed_tokens.weight", "model.norm.weight"}));
  EXPECT_TRUE(diff.tensors[1].elements);
  EXPECT_FALSE(diff.tensors[2].elements);
  ASSERT_EQ(diff.state.size(), 1u);
  EXPECT_EQ(diff.state[0].field, "step");
  EXPECT_EQ(diff.state[0].a, "1");
  EXPECT_EQ(diff.state[0].b, "2");
  EXPECT_EQ(diff.settings, (std::vector<std::string>{"orthant/config.toml"}));
}

TEST(Diff, ShapesAndMissingTensors) {
  TempFolder dir;
  Sample wide(1, 7);
  wide.optimizer.views.pop_back();
  wide.optimizer.views.push_back({.name = "other", .dtype = Dtype::f32, .shape = {0}});
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", wide);
  const CheckpointDiff diff = diff_checkpoints(a, b);
  EXPECT_TRUE(diff.tensors.empty());
  ASSERT_EQ(diff.forms.size(), 2u);
  EXPECT_EQ(diff.forms[1].name, "model.embed_tokens.weight");
  EXPECT_EQ(diff.forms[1].shape_a, (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(diff.forms[1].shape_b, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(diff.only_a, (std::vector<std::string>{"exp_avg.model.norm.weight"}));
  EXPECT_EQ(diff.only_b, (std::vector<std::string>{"other"}));
  EXPECT_EQ(diff.settings, (std::vector<std::string>{"config.json"})) << "its vocab_size";
}

TEST(Diff, StateAloneIsADifference) {
  TempFolder dir;
  Sample moved(1), elsewhere(1);
  moved.content.state_json = R"({"step":1,"next_sample":5})";
  elsewhere.content.state_json = R"({"step":1,"mesh":"[2, 2]"})";
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", moved), c = save(dir, "c", elsewhere);
  const CheckpointDiff diff = diff_checkpoints(a, b);
  EXPECT_FALSE(diff.equal());
  ASSERT_EQ(diff.state.size(), 1u);
  EXPECT_EQ(diff.state[0].field, "next_sample");
  EXPECT_EQ(diff.state[0].a, "none");
  EXPECT_EQ(diff.state[0].b, "5");
  EXPECT_TRUE(diff_checkpoints(a, b, {.weights_only = true}).equal());
  EXPECT_TRUE(diff_checkpoints(a, c).equal()) << "the layout is no part of the state";
}

TEST(Diff, WeightsOnly) {
  TempFolder dir;
  Sample other(1);
  other.optimizer.storage[0][0] ^= std::byte{1};
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", other);
  EXPECT_EQ(names_of(diff_checkpoints(a, b).tensors), (std::vector<std::string>{"exp_avg.model.embed_tokens.weight"}));
  const CheckpointDiff weights = diff_checkpoints(a, b, {.weights_only = true});
  EXPECT_TRUE(weights.equal());
  EXPECT_EQ(weights.num_tensors, 2);
}

TEST(Diff, HuggingFaceDirectories) {
  TempFolder dir;
  const std::string a = save(dir, "a", Sample(1)), same = export_weights(dir, "same", Sample(1)),
                    other = export_weights(dir, "other", Sample(2));
  const CheckpointDiff equal = diff_checkpoints(a, same, {.weights_only = true});
  EXPECT_TRUE(equal.equal());
  EXPECT_TRUE(equal.read_tensors);
  EXPECT_EQ(diff_checkpoints(a, same).only_a.size(), 2u) << "the optimizer's tensors";
  EXPECT_EQ(diff_checkpoints(same, other).tensors.size(), 2u);
  EXPECT_TRUE(diff_checkpoints(same, same).equal());
}

TEST(Diff, VersionOneIsHashedFromItsFiles) {
  TempFolder dir;
  const std::string v1 = ORTHANT_SOURCE_DIR "/tests/checkpoint/fixtures/v1/step-000002";
  const CheckpointDiff diff = diff_checkpoints(v1, v1);
  EXPECT_TRUE(diff.equal());
  EXPECT_TRUE(diff.read_tensors);
  EXPECT_GT(diff.num_tensors, 10);
}

TEST(Diff, WhatIsNoModelIsRefused) {
  TempFolder dir;
  const std::string a = save(dir, "a", Sample(1)), b = save(dir, "b", Sample(2));
  expect_pieces(message_of<DataError>([&] { diff_checkpoints(a, dir.path()); }), {"has no weights"});
  fs::remove(b + "/orthant/optimizer.safetensors");
  expect_pieces(message_of<DataError>([&] { diff_checkpoints(a, b); }), {"optimizer.safetensors", "No such file"});
  const std::string c = save(dir, "c", Sample(3));
  std::string text = slurp(c + "/orthant/manifest.json");
  spill(c + "/orthant/manifest.json", text.replace(text.find("\"version\": 2"), 12, "\"version\": 9"));
  expect_pieces(message_of<NewerFormat>([&] { diff_checkpoints(a, c); }), {"newer Orthant (format 9"});
}

}  // namespace
}  // namespace orthant::diff_test
