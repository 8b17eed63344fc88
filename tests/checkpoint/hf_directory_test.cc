// Directories in the Hugging Face format: shards of weights, the index, paths that lead out of the directory, and
// comparison with the tensors that a model needs.
#include "checkpoint/hf_directory.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::hf_directory_test {
namespace {

namespace fs = std::filesystem;

Tensors model_tensors() {
  Tensors tensors;
  tensors.add("model.embed_tokens.weight", Dtype::f32, {10, 4}, 1);  // 160 bytes
  tensors.add("model.layers.0.a", Dtype::f32, {4, 4}, 2);            // 64
  tensors.add("model.layers.0.b", Dtype::f32, {4, 4}, 3);            // 64
  tensors.add("model.norm.weight", Dtype::f32, {4}, 4);              // 16
  return tensors;
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

void expect_same(const TensorSet& set, const Tensors& tensors) {
  ASSERT_EQ(set.names().size(), tensors.views.size());
  for (const TensorBytes& want : tensors.views) {
    const TensorBytes have = set.tensor(want.name);
    EXPECT_EQ(have.shape, want.shape);
    EXPECT_EQ(have.dtype, want.dtype);
    EXPECT_TRUE(same_bytes(have.bytes, want.bytes)) << want.name;
  }
}

TEST(HfDirectory, OneFile) {
  TempFolder dir;
  const Tensors tensors = model_tensors();
  const auto written = write_hf_directory(dir.path(), HfConfig{}, tensors.views);
  EXPECT_EQ(names_in(dir.path()),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
  ASSERT_EQ(written.size(), 3u);
  for (const auto& [name, file] : written) EXPECT_EQ(digest_file(dir / name), file.digest) << name;
  EXPECT_EQ(written.at("model.safetensors").tensors.size(), tensors.views.size());
  EXPECT_TRUE(written.at("config.json").tensors.empty());
  expect_same(open_hf_weights(dir.path()), tensors);
  EXPECT_EQ(read_hf_config(dir.path()).model.hidden_size, 4096);
}

TEST(HfDirectory, ShardsAreFilledInOrder) {
  TempFolder dir;
  const Tensors tensors = model_tensors();
  write_hf_directory(dir.path(), HfConfig{}, tensors.views, 128);
  const auto index = parse_json(slurp(dir / "model.safetensors.index.json"), "");
  EXPECT_EQ(index["metadata"]["total_size"], 160 + 64 + 64 + 16);
  EXPECT_EQ(index["metadata"]["total_parameters"], 40 + 16 + 16 + 4);
  // With a limit of 128 bytes, the tensor of 160 gets a file of its own, two of 64 fill the second, and 16 remain.
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["model.layers.0.a"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["model.layers.0.b"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["model.norm.weight"], "model-00003-of-00003.safetensors");
  expect_same(open_hf_weights(dir.path()), tensors);
  // A limit of one byte less than the total starts a second file; a limit equal to the total does not.
  TempFolder exact, less;
  write_hf_directory(exact.path(), HfConfig{}, tensors.views, 304);
  write_hf_directory(less.path(), HfConfig{}, tensors.views, 303);
  EXPECT_TRUE(fs::exists(exact / "model.safetensors"));
  EXPECT_TRUE(fs::exists(less / "model-00002-of-00002.safetensors"));
}

TEST(HfDirectory, ANewExportRemovesTheWeightsOfTheOldOne) {
  TempFolder dir;
  const Tensors tensors = model_tensors();
  spill(dir / "README.md", "mine");
  spill(dir / "model-card.safetensors", "mine");
  for (const int64_t limit : {int64_t{64}, int64_t{128}, kShardLimitBytes, int64_t{128}}) {
    write_hf_directory(dir.path(), HfConfig{}, tensors.views, limit);
    expect_same(open_hf_weights(dir.path()), tensors);
  }
  EXPECT_EQ(names_in(dir.path()),
            (std::set<std::string>{"README.md", "config.json", "generation_config.json", "model-card.safetensors",
                                   "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
}

TEST(HfDirectory, SaysThatThereAreNoWeights) {
  TempFolder dir;
  expect_pieces(message_of<DataError>([&] { open_hf_weights(dir.path()); }),
                {dir.path(), "model.safetensors or model.safetensors.index.json"});
}

// A directory with several files of weights, whose index can be rewritten.
struct Sharded {
  TempFolder dir;
  Tensors tensors = model_tensors();
  nlohmann::ordered_json index;
  Sharded() {
    write_hf_directory(dir.path(), HfConfig{}, tensors.views, 128);
    index = parse_json(slurp(dir / "model.safetensors.index.json"), "");
  }
  std::string refusal() {
    spill(dir / "model.safetensors.index.json", index.dump());
    return message_of<DataError>([&] { open_hf_weights(dir.path()); });
  }
};

TEST(HfIndex, RefusesPathsThatLeadOut) {
  Sharded sharded;
  auto& file = sharded.index["weight_map"]["model.norm.weight"];
  for (const std::string& path : {std::string("../x.safetensors"), std::string("/etc/passwd"), std::string("a/../../x"),
                                  std::string(".."), std::string(), std::string("a\0b", 3)}) {
    file = path;
    expect_pieces(sharded.refusal(), {"index.json", "is outside the directory"});
  }
  TempFolder outside;
  fs::copy_file(sharded.dir / "model-00003-of-00003.safetensors", outside / "x.safetensors");
  fs::create_symlink(outside / "x.safetensors", sharded.dir / "link.safetensors");
  file = "link.safetensors";
  expect_pieces(sharded.refusal(), {"link.safetensors", "this link points out", outside.path()});
  fs::create_directory_symlink(outside.path(), sharded.dir / "sub");
  file = "sub/x.safetensors";
  expect_pieces(sharded.refusal(), {"this link points out"});
  // Negative control: a link within the directory is accepted.
  fs::remove(sharded.dir / "link.safetensors");
  fs::create_symlink("model-00003-of-00003.safetensors", sharded.dir / "link.safetensors");
  file = "link.safetensors";
  spill(sharded.dir / "model.safetensors.index.json", sharded.index.dump());
  expect_same(open_hf_weights(sharded.dir.path()), sharded.tensors);
}

TEST(HfIndex, FollowsTheLinksOfAHubCache) {
  TempFolder cache;
  const Tensors tensors = model_tensors();
  const fs::path snapshot = cache / "snapshots/abc", blobs = cache / "blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  write_hf_directory(blobs, HfConfig{}, tensors.views, 128);
  for (const std::string& name : names_in(blobs)) fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  expect_same(open_hf_weights(snapshot), tensors);
}

TEST(HfIndex, RefusesAnIndexThatDoesNotFit) {
  {
    Sharded sharded;
    fs::remove(sharded.dir / "model-00002-of-00003.safetensors");
    expect_pieces(sharded.refusal(), {"model-00002-of-00003.safetensors", "missing"});
  }
  {
    Sharded sharded;  // the tensor is in another file than the index says
    sharded.index["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors";
    expect_pieces(sharded.refusal(), {"model-00001-of-00003.safetensors", "tensor \"model.norm.weight\" is missing"});
  }
  {
    Sharded sharded;  // a tensor that the index omits
    sharded.index["weight_map"].erase("model.layers.0.b");
    expect_pieces(sharded.refusal(), {"tensor \"model.layers.0.b\" is not in", "index.json"});
  }
  {
    Sharded sharded;  // the same tensor in two files
    Tensors twice = model_tensors();
    write_safetensors(sharded.dir / "more.safetensors", std::span(twice.views).first(1));
    sharded.index["weight_map"]["another"] = "more.safetensors";
    expect_pieces(sharded.refusal(), {"tensor \"model.embed_tokens.weight\" is also in"});
  }
  for (const char* text : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"f","a":"f"}})", ""}) {
    Sharded sharded;
    spill(sharded.dir / "model.safetensors.index.json", text);
    expect_pieces(message_of<DataError>([&] { open_hf_weights(sharded.dir.path()); }),
                  {"model.safetensors.index.json"});
  }
}

TEST(CompareTensors, ListsAllDifferences) {
  TempFolder dir;
  const Tensors tensors = model_tensors();
  write_hf_directory(dir.path(), HfConfig{}, tensors.views);
  const TensorSet have = open_hf_weights(dir.path());
  const std::vector<ExpectedTensor> good{{"model.embed_tokens.weight", {10, 4}},
                                         {"model.layers.0.a", {4, 4}},
                                         {"model.layers.0.b", {4, 4}},
                                         {"model.norm.weight", {4}}};
  EXPECT_TRUE(compare_tensors(have, good).none());
  EXPECT_NO_THROW(check_tensors(have, good, "dir"));

  const std::vector<ExpectedTensor> other{
      {"z", {1}}, {"model.layers.0.a", {2, 8}}, {"model.norm.weight", {5}}, {"lm_head.weight", {10, 4}}};
  const TensorDifferences differences = compare_tensors(have, other);
  EXPECT_EQ(differences.missing, (std::vector<std::string>{"lm_head.weight", "z"}));
  EXPECT_EQ(differences.unexpected, (std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.b"}));
  EXPECT_EQ(differences.clashes, (std::vector<std::string>{"model.layers.0.a: shape [4, 4], expected [2, 8]",
                                                           "model.norm.weight: shape [4], expected [5]"}));
  expect_pieces(message_of<DataError>([&] { check_tensors(have, other, "dir"); }),
                {"dir: the tensors must be those that the sizes of the model", "shapes (2): model.layers.0.a",
                 "missing (2): lm_head.weight; z", "unexpected (2): "});
}

TEST(CompareTensors, LetsOptionalOnesBe) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::f32, {1});
  tensors.add("lm_head.weight", Dtype::f32, {1});
  tensors.add("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::f32, {1});
  write_hf_directory(dir.path(), HfConfig{}, tensors.views);
  const TensorSet have = open_hf_weights(dir.path());
  const std::vector<ExpectedTensor> want{{"a", {1}}};
  const std::vector<std::string> optional{"lm_head.weight"};
  EXPECT_TRUE(compare_tensors(have, want, optional).none());
  EXPECT_EQ(compare_tensors(have, want).unexpected, optional);
}

}  // namespace
}  // namespace orthant::hf_directory_test
