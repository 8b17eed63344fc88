// Saving and opening checkpoints: round trips, how many are kept, and that damage is named and never loaded. Negative
// control: a checkpoint of another seed differs.
#include "checkpoint/checkpoint.h"

#include <map>
#include <set>
#include <sstream>

#include "checkpoint/manifest.h"
#include "checkpoint/tensor_hash.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::checkpoint_test {
namespace {

namespace fs = std::filesystem;

TEST(Checkpoint, RoundTrips) {
  TempFolder dir(true);
  Sample sample(1);
  sample.content.write_extra_files = [](const std::string& directory) {
    spill(directory + "/tokenizer.model", "pieces");
    fs::create_directories(directory + "/orthant/deep");
    spill(directory + "/orthant/deep/extra.bin", "x");
  };
  const std::string saved = save_checkpoint(dir.path(), 100, sample, 2);
  EXPECT_EQ(saved, dir / "step-000100");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-000100");
  EXPECT_EQ(slurp(saved + "/tokenizer.model"), "pieces");
  for (const std::string& directory : {saved, dir / "latest"}) {
    const LoadedCheckpoint loaded = open_checkpoint(directory);
    EXPECT_EQ(loaded.directory, fs::canonical(saved));
    EXPECT_EQ(loaded.step, 100);
    HfConfig written = sample.content.hf_config;
    written.generation_config = generation_config_json(written);
    EXPECT_EQ(loaded.hf_config, written);
    EXPECT_EQ(loaded.state_json, sample.content.state_json);
    EXPECT_EQ(loaded.config_toml, sample.content.config_toml);
    EXPECT_TRUE(sample.holds(loaded));
    EXPECT_FALSE(Sample(2).holds(loaded)) << "the control";
  }
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000100"}));
  const auto manifest = parse_manifest(slurp(saved + "/" + kManifestFile), "m");
  std::vector<std::string> names;
  for (const auto& [name, digest] : manifest.files) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                      "orthant/config.toml", "orthant/deep/extra.bin", "orthant/optimizer.safetensors",
                                      "orthant/state.json", "tokenizer.model"}));
}

TEST(Checkpoint, ManifestHasTheHashOfEveryTensor) {
  TempFolder dir;
  const Sample sample(1);
  const std::string saved = save_checkpoint(dir.path(), 1, sample, 0);
  const Manifest manifest = parse_manifest(slurp(saved + "/" + kManifestFile), "m");
  EXPECT_EQ(manifest.tensors.size(), 4u);
  for (const auto& [tensors, file] : {std::pair{&sample.weights, "model.safetensors"},
                                      std::pair{&sample.optimizer, "orthant/optimizer.safetensors"}}) {
    for (const TensorBytes& tensor : tensors->views) {
      EXPECT_EQ(manifest.tensors.at(tensor.name),
                (ManifestTensor{tensor.dtype, tensor.shape, file, tensor_xxh3(tensor.bytes)}));
    }
  }
  Sample shards(1);
  shards.weight_files = 2;
  const Manifest in_shards =
      parse_manifest(slurp(save_checkpoint(dir.path(), 2, shards, 0) + "/" + kManifestFile), "m");
  for (const auto& [name, tensor] : manifest.tensors) EXPECT_EQ(in_shards.tensors.at(name).xxh3, tensor.xxh3) << name;
  EXPECT_NE(in_shards.tensors.at("model.norm.weight").file, "model.safetensors");
}

TEST(Checkpoint, ReadsVersionOne) {
  const std::string v1 = ORTHANT_SOURCE_DIR "/tests/checkpoint/fixtures/v1/step-000002";
  const LoadedCheckpoint loaded = open_checkpoint(v1);
  EXPECT_TRUE(parse_manifest(slurp(v1 + "/" + kManifestFile), "m").tensors.empty());
  EXPECT_EQ(loaded.step, 2);
  EXPECT_EQ(loaded.hf_config.model.hidden_size, 8);
  EXPECT_NE(loaded.state_json.find("\"next_sample\": 4"), std::string::npos);
  EXPECT_NE(loaded.config_toml.find("hidden_size = 8"), std::string::npos);
  const std::vector<std::string> names = loaded.weights.names();
  EXPECT_EQ(loaded.optimizer.names().size(), 2 * names.size()) << "AdamW has two state tensors for each weight";
  for (const std::string& name : names) {
    for (const char* state : {"exp_avg.", "exp_avg_sq."}) {
      EXPECT_EQ(loaded.optimizer.tensor(state + name).shape, loaded.weights.tensor(name).shape);
    }
  }
  EXPECT_EQ(loaded.weights.tensor("model.norm.weight").shape, (std::vector<int64_t>{8}));
  TensorHasher all;
  for (const std::string& name : names) all.add(loaded.weights.bytes(name));
  for (const std::string& name : loaded.optimizer.names()) all.add(loaded.optimizer.bytes(name));
  EXPECT_EQ(all.finish(), 0xa0e259feb0270859) << "the bytes of all tensors when the fixture was saved";
}

TEST(Checkpoint, WeightsMayBeInShards) {
  TempFolder dir;
  Sample sample(1);
  sample.weight_files = 2;
  const std::string saved = save_checkpoint(dir.path(), 1, sample, 0);
  EXPECT_TRUE(fs::exists(saved + "/model.safetensors.index.json"));
  EXPECT_TRUE(sample.holds(open_checkpoint(saved)));
}

TEST(Checkpoint, ReadsOnlyWhatTheManifestLists) {
  TempFolder dir;
  Sample sample(1), other(2);
  const std::string saved = save_checkpoint(dir.path(), 1, sample, 0);
  write_safetensors(saved + "/model-00001-of-00001.safetensors", other.weights.views);
  spill(saved + "/notes.txt", "mine");
  EXPECT_TRUE(sample.holds(open_checkpoint(saved)));
}

// The files of tensors in the directory that this process has mapped.
std::set<std::string> mapped_files(const std::string& directory) {
  std::set<std::string> mapped;
  std::istringstream maps(slurp("/proc/self/maps"));
  for (std::string line; std::getline(maps, line);) {
    const size_t begin = line.find(directory);
    if (begin != std::string::npos && line.ends_with(".safetensors")) mapped.insert(line.substr(begin));
  }
  return mapped;
}

TEST(Checkpoint, OpensAFileWhenOneOfItsTensorsIsUsed) {
  TempFolder dir;
  Sample sample(1);
  sample.weight_files = 2;
  const std::string saved = save_checkpoint(dir.path(), 1, sample, 0), norm = "model.norm.weight";
  const LoadedCheckpoint loaded = open_checkpoint(saved);
  EXPECT_EQ(loaded.weights.names().size(), 2u);
  EXPECT_EQ(loaded.weights.entry(norm).shape, (std::vector<int64_t>{8}));
  EXPECT_EQ(mapped_files(dir.path()), std::set<std::string>{});
  (void)loaded.weights.tensor(norm);
  EXPECT_EQ(mapped_files(dir.path()), std::set<std::string>{loaded.weights.entry(norm).path});
  // The control: a manifest of version 1 does not say which tensors are in a file, so that all are opened.
  const std::string v1 = ORTHANT_SOURCE_DIR "/tests/checkpoint/fixtures/v1/step-000002";
  const LoadedCheckpoint older = open_checkpoint(v1);
  EXPECT_EQ(mapped_files(v1).size(), 2u);
}

// A file that was replaced by a sound one of equal size is found, if this process uses its tensors.
TEST(Checkpoint, RefusesTensorsThatTheManifestDoesNotList) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0), norm = "model.norm.weight";
  Tensors other;
  other.add("model.embed_tokens.weight", Dtype::f32, {8, 6}, 1);
  other.add(norm, Dtype::f32, {8}, 2);
  write_safetensors(saved + "/model.safetensors", other.views);
  const LoadedCheckpoint loaded = open_checkpoint(saved, kNoFiles);
  EXPECT_NO_THROW((void)loaded.weights.tensor(norm));
  expect_pieces(message_of<DataError>([&] { (void)loaded.weights.tensor("model.embed_tokens.weight"); }),
                {saved + "/model.safetensors", "not the one that the manifest lists"});
}

// Each process checks the sizes and checksums of its share of the files.
TEST(Checkpoint, ProcessesDivideTheFiles) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0);
  spill(saved + "/orthant/optimizer.safetensors", slurp(saved + "/orthant/optimizer.safetensors") + "x");
  int failures = 0;
  for (const int64_t rank : {0, 1, 2}) {
    try {
      open_checkpoint(saved, {rank, 3});
    } catch (const DataError& error) {
      ++failures;
      expect_pieces(error.what(), {"/orthant/optimizer.safetensors: offset "});
    }
  }
  EXPECT_EQ(failures, 1);
}

TEST(Checkpoint, KeepsTheNewest) {
  TempFolder dir;
  for (int64_t step = 10; step <= 50; step += 10) save_checkpoint(dir.path(), step, Sample(step), 2);
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000040", "step-000050"}));
  save_checkpoint(dir.path(), 60, Sample(60), 0);
  EXPECT_EQ(members(dir.path()).size(), 4u) << "0 keeps all";
  save_checkpoint(dir.path(), 70, Sample(70), 1);
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000070"}));
  save_checkpoint(dir.path(), 1'000'000'000, Sample(8), 0);
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-1000000000");
}

TEST(Checkpoint, StepsOfAnAbandonedRunAreRemovedFirst) {
  TempFolder dir;
  for (const int64_t step : {10, 20, 30, 40}) save_checkpoint(dir.path(), step, Sample(step), 0);
  // The user resumed from step 10: the newest is now step 15, and steps 20 to 40 belong to an abandoned run.
  save_checkpoint(dir.path(), 15, Sample(15), 3);
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000010", "step-000015", "step-000040"}));
  EXPECT_EQ(find_latest(dir.path()), dir / "step-000015");
}

TEST(Checkpoint, ReplacesTheSameStep) {
  TempFolder dir(true);
  save_checkpoint(dir.path(), 5, Sample(1), 1);
  const LoadedCheckpoint before = open_checkpoint(dir / "latest");
  ASSERT_TRUE(Sample(1).holds(before));  // opens all files
  save_checkpoint(dir.path(), 5, Sample(2), 1);
  EXPECT_TRUE(Sample(2).holds(open_checkpoint(dir / "step-000005")));
  EXPECT_TRUE(Sample(1).holds(before)) << "open files keep their bytes";
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000005"}));
}

TEST(Checkpoint, LeavesOtherFilesAlone) {
  TempFolder dir;
  for (const char* name : {"step-1", "step-abc", "step-0000100", "notes", "step-000010.bak"})
    fs::create_directory(dir / name);
  for (const int64_t step : {1, 2, 3}) save_checkpoint(dir.path(), step, Sample(step), 1);
  EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "notes", "step-000003", "step-000010.bak",
                                                         "step-0000100", "step-1", "step-abc"}));
}

TEST(Checkpoint, RefusesOurOwnMistakes) {
  TempFolder dir;
  Sample sample(1);
  EXPECT_THROW(save_checkpoint(dir.path(), -1, sample, 0), LogicError);
  sample.content.state_json = "[]";
  EXPECT_THROW(save_checkpoint(dir.path(), 1, sample, 0), LogicError);
  sample = Sample(1);
  sample.content.write_extra_files = [](const std::string& directory) {
    fs::create_symlink("/etc/passwd", directory + "/l");
  };
  EXPECT_THROW(save_checkpoint(dir.path(), 1, sample, 0), DataError);
  sample.content.write_extra_files = [](const std::string&) { throw ConfigError("tokenizer"); };
  EXPECT_EQ(message_of<ConfigError>([&] { save_checkpoint(dir.path(), 1, sample, 0); }), "tokenizer");
  sample = Sample(1);
  sample.optimizer.views.push_back(sample.weights.views.front());
  EXPECT_THROW(save_checkpoint(dir.path(), 1, sample, 0), LogicError) << "a name of two tensors";
  EXPECT_TRUE(members(dir.path()).empty());
  EXPECT_EQ(find_latest(dir.path()), std::nullopt);
}

// Every file is damaged in turn, in every way. The message names the file and the remedy.
TEST(Checkpoint, DamageIsNamedAndNothingLoads) {
  TempFolder dir;
  save_checkpoint(dir.path(), 1, Sample(1), 0);
  const std::string saved = save_checkpoint(dir.path(), 2, Sample(2), 0);
  for (const auto& entry : fs::recursive_directory_iterator(saved)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path(), good = slurp(path);
    std::string flipped = good;
    flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
    const std::map<std::string, std::string> damages{
        {"flipped", flipped}, {"cut", good.substr(0, good.size() - 2)}, {"longer", good + " x"}, {"empty", ""}};
    for (const auto& [kind, damage] : damages) {
      spill(path, damage);
      expect_pieces(message_of<DataError>([&] { open_checkpoint(saved); }),
                    {path.substr(saved.size() - 11), fs::canonical(dir / "step-000001"), "move ", "resume again"});
    }
    fs::remove(path);
    expect_pieces(message_of<DataError>([&] { open_checkpoint(saved); }),
                  {path.substr(saved.size() - 11), "step-000001"});
    EXPECT_EQ(find_latest(dir.path()), saved) << "damage is reported by open_checkpoint, not stepped over";
    spill(path, good);
    EXPECT_TRUE(Sample(2).holds(open_checkpoint(saved)));
  }
}

// Only the name of the folder says which step a user means. A name that states no step is free.
TEST(Checkpoint, AFolderNamedAsAnotherStepIsRefused) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 5, Sample(5), 0);
  fs::rename(saved, dir / "step-000020");
  expect_pieces(message_of<DataError>([&] { open_checkpoint(dir / "step-000020"); }),
                {"step-000020: holds the checkpoint of step 5", "must be step-000005"});
  fs::rename(dir / "step-000020", dir / "best");
  EXPECT_TRUE(Sample(5).holds(open_checkpoint(dir / "best")));
}

TEST(Checkpoint, DamagedLatestIsReplacedByTheNewestComplete) {
  TempFolder dir;
  EXPECT_EQ(replace_damaged_latest(dir.path()), std::nullopt) << "there is none";
  const std::string first = save_checkpoint(dir.path(), 1, Sample(1), 0);
  const std::string saved = save_checkpoint(dir.path(), 2, Sample(2), 0);
  EXPECT_EQ(replace_damaged_latest(dir.path()), std::nullopt);
  EXPECT_EQ(find_latest(dir.path()), saved);
  std::string bytes = slurp(saved + "/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spill(saved + "/model.safetensors", bytes);
  expect_pieces(replace_damaged_latest(dir.path()).value(), {"step-000002/model.safetensors"});
  EXPECT_EQ(find_latest(dir.path()), first);
  fs::remove(first + "/model.safetensors");
  expect_pieces(message_of<DataError>([&] { replace_damaged_latest(dir.path()); }), {"step-000001/model.safetensors"});
}

TEST(Checkpoint, ANewerFormatIsNotCalledDamage) {
  TempFolder dir;
  save_checkpoint(dir.path(), 1, Sample(1), 0);
  const std::string saved = save_checkpoint(dir.path(), 2, Sample(2), 0);
  std::string text = slurp(saved + "/orthant/manifest.json");
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 7");
  spill(saved + "/orthant/manifest.json", text);
  const std::string message = message_of<DataError>([&] { open_checkpoint(saved); });
  expect_pieces(message, {"step-000002", "newer Orthant (format 7, this program reads up to 2)", "use that version"});
  EXPECT_EQ(message.find("move"), std::string::npos) << message;
}

TEST(Checkpoint, WhatTheFileSystemRefusesIsExplained) {
  TempFolder dir;
  spill(dir / "file", "");
  expect_pieces(message_of<DataError>([&] { find_latest(dir / "file"); }), {"/file: ", "has the name of a folder"});
  fs::create_symlink("loop", dir / "loop");
  expect_pieces(message_of<DataError>([&] { find_latest(dir / "loop"); }), {"/loop: ", "points to itself"});
  expect_pieces(message_of<DataError>([&] { read_hf_config(dir / "loop"); }), {"/loop: ", "points to itself"});
  const std::string saved = save_checkpoint(dir / "c", 1, Sample(1), 0);
  fs::remove(dir / "c/latest");
  fs::create_directory(dir / "c/latest");
  EXPECT_EQ(find_latest(dir / "c"), saved) << "a folder in its place leads nowhere";
  expect_pieces(message_of<DataError>([&] { save_checkpoint(dir / "c", 2, Sample(2), 0); }),
                {"/c/latest: ", "move the folder", "step-000002 is complete"});
}

// The error of a failed save names the earlier checkpoints, unless the folder cannot be read.
TEST(Checkpoint, AFailedSaveNamesTheEarlierOnes) {
  TempFolder dir;
  const auto error_in = [](const std::string& folder) {
    return std::string(NewCheckpoint(folder, 7).abandon("disk full").what());
  };
  const std::string start = "saving the checkpoint of step 7: disk full";
  EXPECT_EQ(error_in(dir / "new"), start + "; no earlier checkpoint exists");
  const std::string saved = save_checkpoint(dir.path(), 5, Sample(1), 0);
  EXPECT_EQ(error_in(dir.path()), start + "; the last checkpoint, " + saved + ", is unchanged");
  fs::remove(dir / "latest");
  EXPECT_EQ(error_in(dir.path()), start + "; the earlier checkpoints are unchanged");
  spill(dir / "file", "");
  EXPECT_EQ(error_in(dir / "file"), start);
}

TEST(Checkpoint, SizesAloneDoNotReadTheBytes) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0);
  std::string bytes = slurp(saved + "/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spill(saved + "/model.safetensors", bytes);
  EXPECT_NO_THROW(open_checkpoint(saved, kNoFiles));
  expect_pieces(message_of<DataError>([&] { open_checkpoint(saved); }),
                {"its folder has no other complete checkpoint"});
  spill(saved + "/model.safetensors", bytes + "x");
  EXPECT_THROW(open_checkpoint(saved, kNoFiles), DataError);
}

TEST(Checkpoint, ForeignDirectoriesAreRefused) {
  TempFolder dir;
  expect_pieces(message_of<DataError>([&] { open_checkpoint(dir / "none"); }), {"none", "no such checkpoint"});
  expect_pieces(message_of<DataError>([&] { open_checkpoint(dir.path()); }),
                {"manifest.json: missing", "not a complete checkpoint"});
  spill(dir / "file", "");
  EXPECT_THROW(open_checkpoint(dir / "file"), DataError);
}

}  // namespace
}  // namespace orthant::checkpoint_test
