// MappedFile maps regular files only. If a mapped file is shortened, the process ends with an error that names it. Any
// other SIGBUS keeps its default action.
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::mapped_file_test {
namespace {

TEST(MappedFile, RefusesWhatIsNoFile) {
  TempFolder folder;
  const auto refusal = [&](const std::string& path) { return message_of<DataError>([&] { MappedFile file(path); }); };
  EXPECT_TRUE(says(refusal(folder / "none"), {"none", "No such file"}));
  EXPECT_TRUE(says(refusal(folder.path()), {"not a regular file"}));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(says(refusal(folder / "pipe"), {"not a regular file"}));
  EXPECT_TRUE(MappedFile(folder.write("empty", "")).bytes().empty());
}

TEST(MappedFile, AFileShortenedUnderOurHandsIsNamed) {
  TempFolder folder;
  const std::string path = folder.write("long", std::string(100000, 'x')), other = folder.write("other", "whole");
  const auto touch = [](const MappedFile& file) { return static_cast<char>(file.bytes().back()); };
  EXPECT_EXIT(
      {
        const MappedFile before(other);
        const MappedFile file(path);
        const MappedFile moved(MappedFile(folder / "other"));
        if (::truncate(path.c_str(), 10) != 0) ::_exit(7);
        ::_exit(touch(file));
      },
      testing::ExitedWithCode(kFailed), "error: [^ ]*/long: the file was shortened while it was being read");
}

TEST(MappedFile, AnotherBusErrorEndsTheProcessAsEver) {
  TempFolder folder;
  const std::string path = folder.write("a", "x");
  EXPECT_EXIT(
      {
        { const MappedFile file(path); }
        std::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace orthant::mapped_file_test
