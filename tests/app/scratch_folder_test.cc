// A scratch folder removes what killed processes of this user have left, and nothing else.
#include "app/scratch_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace orthant::scratch_folder_test {
namespace {

namespace fs = std::filesystem;

class Scratch : public testing::Test {
 protected:
  Scratch() { fs::create_directories(parent_); }
  ~Scratch() override { fs::remove_all(parent_); }

  fs::path left_folder(const std::string& six_characters) const {
    const fs::path folder = parent_ / (".orthant-test." + six_characters);
    fs::create_directory(folder);
    std::ofstream(folder / "file") << "text";
    return folder;
  }

  const fs::path parent_ = fs::temp_directory_path() / fmt::format("orthant-scratch-{}", getpid());
};

TEST_F(Scratch, LeftFolderIsRemovedAndOneInUseIsKept) {
  const fs::path left = left_folder("abcdef");
  const ScratchFolder first(parent_ / ".orthant-test");
  EXPECT_FALSE(fs::exists(left));
  const ScratchFolder second(parent_ / ".orthant-test");
  EXPECT_TRUE(fs::exists(first.path()));
  EXPECT_NE(first.path(), second.path());
}

TEST_F(Scratch, SymbolicLinkIsKept) {
  const fs::path target = left_folder("target"), link = parent_ / ".orthant-test.abcdef";
  fs::rename(target, parent_ / "target");
  fs::create_directory_symlink(parent_ / "target", link);
  const ScratchFolder folder(parent_ / ".orthant-test");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(parent_ / "target/file"));
}

TEST_F(Scratch, FolderOfAnotherUserIsKept) {
  const fs::path left = left_folder("abcdef");
  if (chown(left.c_str(), 12345, getgid()) != 0) GTEST_SKIP() << "only root can give a folder to another user";
  const ScratchFolder folder(parent_ / ".orthant-test");
  EXPECT_TRUE(fs::exists(left / "file"));
}

}  // namespace
}  // namespace orthant::scratch_folder_test
