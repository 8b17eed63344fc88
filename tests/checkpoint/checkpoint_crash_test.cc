// A process killed at any moment, and a disk that fills up at any byte: the previous checkpoint stays complete and is
// found. Negative control: with enough space, the save succeeds.
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::checkpoint_crash_test {
namespace {

namespace fs = std::filesystem;

void copy_tree(const fs::path& from, const fs::path& to) { fs::copy(from, to, fs::copy_options::recursive); }

// Checks the state after a crash: the latest checkpoint is found and complete, and the next save removes all remains
// of the crash.
void expect_recovers(const TempFolder& dir, int64_t latest_seed, int64_t next_step) {
  const auto latest = find_latest(dir.path());
  ASSERT_TRUE(latest);
  EXPECT_TRUE(Sample(latest_seed).holds(open_checkpoint(*latest))) << *latest;
  save_checkpoint(dir.path(), next_step, Sample(77), 0);
  for (const std::string& name : members(dir.path())) EXPECT_NE(name.front(), '.') << name;
  EXPECT_EQ(find_latest(dir.path()), dir / step_name(next_step));
  EXPECT_TRUE(Sample(77).holds(open_checkpoint(dir / "latest")));
}

TEST(CheckpointCrash, WhileFilesAreWritten) {
  // A kill after each file of the temporary directory, in the order in which they are written.
  TempFolder source;
  const std::string whole = save_checkpoint(source.path(), 20, Sample(20), 0);
  const std::vector<std::string> order{
      "config.json",        "generation_config.json", "model.safetensors",    "orthant/optimizer.safetensors",
      "orthant/state.json", "orthant/config.toml",    "orthant/manifest.json"};
  for (std::size_t written = 0; written <= order.size(); ++written) {
    TempFolder dir;
    save_checkpoint(dir.path(), 10, Sample(10), 0);
    const fs::path temporary = make_temporary(dir.path(), 20);
    fs::create_directory(temporary / "orthant");
    for (std::size_t i = 0; i < written; ++i) fs::copy_file(fs::path(whole) / order[i], temporary / order[i]);
    spill(temporary / ".model.safetensors.tmp", "half");
    expect_recovers(dir, 10, written % 2 == 0 ? 20 : 30);
    EXPECT_TRUE(Sample(10).holds(open_checkpoint(dir / "step-000010")));
  }
}

TEST(CheckpointCrash, BetweenTheRenameAndLatest) {
  TempFolder dir;
  save_checkpoint(dir.path(), 10, Sample(10), 0);
  copy_tree(dir / "step-000010", make_temporary(dir.path(), 20));
  move_into_place(dir.path(), 20);
  spill(dir / ".tmp-latest", "");
  EXPECT_EQ(find_latest(dir.path()), dir / "step-000010");
  expect_recovers(dir, 10, 30);
}

TEST(CheckpointCrash, WhileTheSameStepIsReplaced) {
  // If the file system cannot exchange two names, there are two moments for a crash: the old checkpoint is moved aside
  // before the new one is in place, or after.
  for (const bool new_in_place : {false, true}) {
    TempFolder dir;
    save_checkpoint(dir.path(), 10, Sample(10), 0);
    fs::rename(dir / "step-000010", dir / ".old-step-000010");
    if (new_in_place) {
      TempFolder other;
      copy_tree(save_checkpoint(other.path(), 10, Sample(11), 0), dir / "step-000010");
    } else {
      fs::create_directory(dir / ".tmp-step-000010");
    }
    expect_recovers(dir, new_in_place ? 11 : 10, 20);
    EXPECT_TRUE(Sample(new_in_place ? 11 : 10).holds(open_checkpoint(dir / "step-000010")));
  }
}

TEST(CheckpointCrash, ReplacingWorksWithAndWithoutExchange) {
  for (const bool exchange : {true, false}) {
    TempFolder dir, other;
    save_checkpoint(dir.path(), 10, Sample(1), 0);
    const fs::path temporary = make_temporary(dir.path(), 10);
    fs::remove(temporary);
    copy_tree(save_checkpoint(other.path(), 10, Sample(2), 0), temporary);
    move_into_place(dir.path(), 10, exchange);
    EXPECT_TRUE(Sample(2).holds(open_checkpoint(dir / "latest")));
    EXPECT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000010"}));
  }
}

TEST(CheckpointCrash, WhileAnOldOneIsRemoved) {
  TempFolder dir;
  save_checkpoint(dir.path(), 10, Sample(10), 0);
  save_checkpoint(dir.path(), 20, Sample(20), 0);
  fs::rename(dir / "step-000010", dir / ".tmp-removed-step-000010");
  fs::remove(dir / ".tmp-removed-step-000010/config.json");
  expect_recovers(dir, 20, 30);
}

TEST(CheckpointCrash, WithoutLatestTheNewestCompleteOneIsFound) {
  TempFolder dir;
  for (const int64_t step : {10, 20, 30}) save_checkpoint(dir.path(), step, Sample(step), 0);
  fs::remove_all(dir / "step-000030");
  EXPECT_EQ(find_latest(dir.path()), dir / "step-000020") << "latest leads nowhere";
  fs::remove(dir / "latest");
  EXPECT_EQ(find_latest(dir.path()), dir / "step-000020");
  spill(dir / "step-000020/config.json", "{}");
  EXPECT_EQ(find_latest(dir.path()), dir / "step-000010");
  fs::remove(dir / "step-000010/orthant/manifest.json");
  expect_pieces(
      message_of<DataError>([&] { find_latest(dir.path()); }),
      {"no checkpoint in this folder is complete", "step-000020/config.json", "step-000010/orthant/manifest.json"});
  fs::create_symlink("../elsewhere", dir / "latest");
  EXPECT_THROW(find_latest(dir.path()), DataError) << "latest leads to members only";
  EXPECT_EQ(find_latest(dir / "none"), std::nullopt);
}

TEST(CheckpointCrash, AFullDiskLeavesThePreviousOne) {
  TempFolder dir;
  save_checkpoint(dir.path(), 10, Sample(10), 1);
  const auto before = members(dir.path());
  const Sample big(20, 4000);  // 128,000 bytes of weights, and as many of optimizer state
  for (const rlim_t limit : {0, 1, 100, 1000, 5000, 100'000, 128'000}) {
    for (const int64_t step : {10, 20}) {
      FileSizeLimit full(limit);
      expect_pieces(
          message_of<DataError>([&] { save_checkpoint(dir.path(), step, big, 1); }),
          {fmt::format("saving the checkpoint of step {}", step), "File too large", "step-000010, is unchanged"});
    }
    EXPECT_EQ(members(dir.path()), before) << "limit " << limit;
    EXPECT_TRUE(Sample(10).holds(open_checkpoint(*find_latest(dir.path()))));
  }
  save_checkpoint(dir.path(), 20, big, 1);  // negative control: with enough space it is saved
  EXPECT_TRUE(big.holds(open_checkpoint(dir / "latest")));
}

TEST(CheckpointCrash, ADirectoryThatCannotBeWritten) {
  TempFolder dir;
  spill(dir / "file", "");
  expect_pieces(message_of<DataError>([&] { save_checkpoint(dir / "file/checkpoints", 1, Sample(1), 0); }),
                {"saving the checkpoint of step 1", "Not a directory", "no earlier checkpoint"});
  // The name `latest` is taken by a folder: the new checkpoint is complete, and the message names the obstacle.
  fs::create_directories(dir / "c/latest/x");
  expect_pieces(message_of<DataError>([&] { save_checkpoint(dir / "c", 1, Sample(1), 0); }),
                {"step-000001 is complete, but `latest`"});
  EXPECT_TRUE(Sample(1).holds(open_checkpoint(*find_latest(dir / "c"))));
}

}  // namespace
}  // namespace orthant::checkpoint_crash_test
