// The list of checkpoints: of a run folder, of its folder of checkpoints, and of one; damaged ones, and leftovers.
#include "checkpoint/list.h"

#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::list_test {
namespace {

namespace fs = std::filesystem;

TEST(List, OfARun) {
  TempFolder dir;
  Sample sample(2);
  sample.content.state_json = R"({"step":2,"dtype":"float32","mesh":"[data 2]"})";
  save_checkpoint(dir / "checkpoints", 1, Sample(1), 0);
  const std::string saved = save_checkpoint(dir / "checkpoints", 2, sample, 0);
  for (const std::string& named : {dir.path(), dir / "checkpoints"}) {
    const CheckpointList list = list_checkpoints(named);
    EXPECT_EQ(list.directory, fs::canonical(dir / "checkpoints"));
    EXPECT_TRUE(list.has_latest);
    EXPECT_TRUE(list.leftovers.empty());
    ASSERT_EQ(list.checkpoints.size(), 2u);
    EXPECT_FALSE(list.checkpoints[0].is_latest);
    const ListedCheckpoint& second = list.checkpoints[1];
    EXPECT_EQ(second.name, "step-000002");
    EXPECT_EQ(second.step, 2);
    EXPECT_EQ(second.num_tensors, 4);
    EXPECT_EQ(second.dtype, "float32");
    EXPECT_EQ(second.mesh, "[data 2]");
    EXPECT_TRUE(second.is_latest);
    EXPECT_TRUE(second.is_complete()) << second.problem;
    EXPECT_LT(std::abs(*second.saved_unix_s - std::time(nullptr)), 3600);
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(saved)) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(second.bytes, bytes);
  }
  for (const std::string& one : {saved, dir / "checkpoints/latest"}) {
    const CheckpointList list = list_checkpoints(one);
    ASSERT_EQ(list.checkpoints.size(), 1u);
    EXPECT_EQ(list.checkpoints[0].name, "step-000002");
    EXPECT_EQ(list.checkpoints[0].step, 2);
    EXPECT_TRUE(list.checkpoints[0].is_latest);
  }
}

TEST(List, DamageAndLeftovers) {
  TempFolder dir;
  for (const int64_t step : {1, 2, 3}) save_checkpoint(dir.path(), step, Sample(step), 0);
  fs::resize_file(dir / "step-000001/model.safetensors", 20);
  fs::remove(dir / "step-000002/orthant/manifest.json");
  fs::create_directories(dir / ".tmp-step-000004");
  fs::create_directories(dir / ".old-step-000005");
  fs::create_directories(dir / "notes");
  fs::remove(dir / "latest");
  const CheckpointList list = list_checkpoints(dir.path());
  ASSERT_EQ(list.checkpoints.size(), 3u);
  expect_pieces(list.checkpoints[0].problem, {"model.safetensors: offset 20: the file has 20 bytes, expected"});
  expect_pieces(list.checkpoints[1].problem, {"manifest.json: missing"});
  EXPECT_EQ(list.checkpoints[1].step, 2) << "by its name";
  EXPECT_TRUE(list.checkpoints[2].is_complete());
  EXPECT_EQ(list.leftovers, (std::vector<std::string>{".old-step-000005", ".tmp-step-000004"}));
  EXPECT_FALSE(list.has_latest);
}

TEST(List, VersionOne) {
  const CheckpointList list = list_checkpoints(ORTHANT_SOURCE_DIR "/tests/checkpoint/fixtures/v1");
  ASSERT_EQ(list.checkpoints.size(), 1u);
  EXPECT_TRUE(list.checkpoints[0].is_complete()) << list.checkpoints[0].problem;
  EXPECT_GT(list.checkpoints[0].num_tensors, 10) << "counted in the files";
}

TEST(List, WrongDirectories) {
  TempFolder dir;
  spill(dir / "file", "");
  expect_pieces(message_of<DataError>([&] { list_checkpoints(dir / "none"); }), {"/none: No such file", "run folder"});
  expect_pieces(message_of<DataError>([&] { list_checkpoints(dir / "file"); }), {"/file: not a directory"});
  expect_pieces(message_of<DataError>([&] { list_checkpoints(dir.path()); }), {"there are no checkpoints"});
}

}  // namespace
}  // namespace orthant::list_test
