// Verification reads every byte: each damaged file is reported with its place, and each damaged tensor by its name.
#include "checkpoint/verify.h"

#include "checkpoint/hf_directory.h"
#include "checkpoint/manifest.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::verify_test {
namespace {

namespace fs = std::filesystem;

std::string all(const VerifiedCheckpoint& result) {
  std::string text;
  for (const std::string& problem : result.problems) text += problem + "\n";
  return text;
}

TEST(VerifyCheckpoint, CountsWhatItReads) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0);
  const VerifiedCheckpoint result = verify_checkpoint(saved);
  EXPECT_TRUE(result.ok()) << all(result);
  EXPECT_EQ(result.num_tensors, 4);
  int64_t files = 0, bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(saved)) {
    if (!entry.is_regular_file() || entry.path().filename() == "manifest.json") continue;
    ++files;
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(result.num_files, files);
  EXPECT_EQ(result.bytes, bytes);
}

// Every byte of every file is flipped in turn. A byte of a tensor also names the tensor.
TEST(VerifyCheckpoint, EveryFlippedByteIsSeen) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0);
  for (const auto& entry : fs::recursive_directory_iterator(saved)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path(), good = slurp(path);
    const std::size_t stride = path.ends_with(".safetensors") ? 1 : 41;
    for (std::size_t at = 0; at < good.size(); at += stride) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      spill(path, flipped);
      const VerifiedCheckpoint result = verify_checkpoint(saved);
      if (path.ends_with("manifest.json") && result.ok()) {
        EXPECT_EQ(parse_manifest(flipped, "m"), parse_manifest(good, "m")) << "only white space may change";
        continue;
      }
      ASSERT_FALSE(result.ok()) << path << " at " << at;
      expect_pieces(all(result), {path});
    }
    spill(path, good);
  }
  EXPECT_TRUE(verify_checkpoint(saved).ok());
}

TEST(VerifyCheckpoint, NamesTheTensorAndAllDamages) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0);
  std::string bytes = slurp(saved + "/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of the last tensor, model.norm.weight
  spill(saved + "/model.safetensors", bytes);
  spill(saved + "/config.json", slurp(saved + "/config.json") + " ");
  fs::remove(saved + "/orthant/optimizer.safetensors");
  const VerifiedCheckpoint result = verify_checkpoint(saved);
  ASSERT_EQ(result.problems.size(), 4u) << all(result);
  expect_pieces(result.problems[0], {"config.json: offset ", "expected"});
  expect_pieces(result.problems[1], {"model.safetensors: tensor \"model.norm.weight\": damaged: XXH3", "expected"});
  expect_pieces(result.problems[2], {"model.safetensors: damaged between offset 0 and ", "XXH3", "expected"});
  expect_pieces(result.problems[3], {"optimizer.safetensors: expected a file of", "No such file"});
}

// A manifest whose own entries disagree: the files are as it states, and the tensors are not.
TEST(VerifyCheckpoint, TensorsMustBeThoseOfTheManifest) {
  TempFolder dir;
  const std::string saved = save_checkpoint(dir.path(), 1, Sample(1), 0), path = saved + "/" + kManifestFile;
  const Manifest good = read_manifest(saved);
  const auto problem_of = [&](auto change) {
    Manifest changed = good;
    change(changed.tensors);
    write_file(path, manifest_json(changed));
    return all(verify_checkpoint(saved));
  };
  const char* name = "model.norm.weight";
  EXPECT_EQ(problem_of([](auto&) {}), "");
  expect_pieces(problem_of([&](auto& tensors) { tensors[name].xxh3 ^= 1; }), {name, "damaged: XXH3"});
  expect_pieces(problem_of([&](auto& tensors) { tensors[name].shape = {2, 4}; }),
                {name, "F32 [8], expected F32 [2, 4]"});
  expect_pieces(problem_of([&](auto& tensors) { tensors[name].dtype = Dtype::i32; }), {name, "expected I32 [8]"});
  expect_pieces(problem_of([&](auto& tensors) { tensors.erase(name); }), {name, "not in the manifest"});
  expect_pieces(problem_of([&](auto& tensors) { tensors["more\x1b"] = tensors[name]; }),
                {"\"more\\u001b\"", "missing"});
}

TEST(VerifyCheckpoint, ReadsVersionOne) {
  const VerifiedCheckpoint result = verify_checkpoint(ORTHANT_SOURCE_DIR "/tests/checkpoint/fixtures/v1/step-000002");
  EXPECT_TRUE(result.ok()) << all(result);
  EXPECT_GT(result.num_tensors, 10);
}

TEST(VerifyCheckpoint, DirectoriesWithoutChecksums) {
  TempFolder dir;
  EXPECT_THROW(verify_checkpoint(dir / "none"), DataError);
  fs::create_directories(dir / "hf");
  write_hf_directory(dir / "hf", HfConfig{}, Sample(1).weights.views);
  expect_pieces(all(verify_checkpoint(dir / "hf")), {"no checksums", "orthant checkpoint diff", "--weights"});
  const std::string saved = save_checkpoint(dir / "c", 1, Sample(1), 0), path = saved + "/" + kManifestFile;
  const std::string manifest = slurp(path);
  fs::remove(path);
  expect_pieces(all(verify_checkpoint(saved)), {"manifest.json: missing", "not a complete checkpoint"});
  std::string newer = manifest;
  spill(path, newer.replace(newer.find("\"version\": 2"), 12, "\"version\": 9"));
  expect_pieces(all(verify_checkpoint(saved)), {"newer Orthant (format 9, this program reads up to 2)"});
  spill(path, manifest.substr(0, 100));
  expect_pieces(all(verify_checkpoint(saved)), {"manifest.json: offset"});
}

}  // namespace
}  // namespace orthant::verify_test
