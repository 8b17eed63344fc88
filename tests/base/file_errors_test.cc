// explained() turns an error of the file system into a DataError with path, reason and remedy. It passes on results and
// all other errors unchanged.
#include "base/file_errors.h"

#include <gtest/gtest.h>

#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::file_errors_test {
namespace {

namespace fs = std::filesystem;

template <typename Call>
std::string refusal(Call&& call) {
  return message_of<DataError>([&] { explained(call); });
}

TEST(Explained, NamesPathReasonAndWayOut) {
  TempFolder folder;
  fs::create_symlink(folder / "loop", folder / "loop");
  folder.write("file", "");
  fs::create_directories(folder / "full/x");
  EXPECT_TRUE(
      says(refusal([&] { return fs::exists(folder / "loop"); }),
           {folder / "loop: ", "symbolic link", "points to itself"}));
  EXPECT_TRUE(
      says(refusal([&] { return fs::exists(folder / std::string(300, 'n')); }), {"nnn: ", "too long", "shorter"}));
  EXPECT_TRUE(says(refusal([&] { fs::directory_iterator(folder / "file"); }),
                   {"/file: Not a directory", "has the name of a folder"}));
  EXPECT_TRUE(says(refusal([&] { fs::rename(folder / "file", folder / "full"); }),
                   {"/full: ", "directory", "move the folder"}));
}

TEST(Explained, PassesOtherErrorsOn) {
  EXPECT_EQ(explained([] { return 7; }), 7);
  EXPECT_EQ(message_of<ConfigError>([] { explained([] { throw ConfigError("key"); }); }), "key");
}

}  // namespace
}  // namespace orthant::file_errors_test
