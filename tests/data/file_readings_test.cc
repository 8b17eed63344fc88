// FileReadings: each file is read once, and again only if it has changed.
#include "data/file_readings.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "base/hash.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant {
namespace {

TEST(FileReadings, TakeResultsOfAnotherProcess) {
  TempFolder folder;
  const std::string text = folder.write("text.txt", "two lines\n<|endoftext|>\n");
  const std::string tokens = folder.write("tokens", "abc");
  const TextFormat plain, lines{.documents = DocumentFormat::kJsonl, .key = "body"};
  FileReadings first;
  const TextFile scanned = first.scan(text, plain);
  EXPECT_EQ(scanned.hash, scan_text(text).hash);
  EXPECT_EQ(first.checksum(tokens), xxh3("abc"));
  EXPECT_EQ(first.checksum(tokens), xxh3("abc"));
  EXPECT_EQ(first.num_read(), 2);

  FileReadings second = FileReadings::from_json(first.to_json());
  const TextFile known = second.scan(text, plain);
  EXPECT_EQ(known.hash, scanned.hash);
  EXPECT_EQ(known.bytes, scanned.bytes);
  EXPECT_TRUE(known.has_separators);
  EXPECT_EQ(second.checksum(tokens), xxh3("abc"));
  EXPECT_EQ(second.num_read(), 0);
  second.checksum(text);  // of its bytes: another result than its scan
  EXPECT_EQ(second.num_read(), 1);
  EXPECT_NE(second.scan(text, lines).hash, scanned.hash);
  EXPECT_EQ(second.num_read(), 2);
}

TEST(FileReadings, ReadChangedFilesAgain) {
  TempFolder folder;
  const std::string path = folder.write("tokens", "abc");
  FileReadings readings;
  readings.checksum(path);
  std::filesystem::rename(folder.write("other", "abd"), path);  // as long as before
  EXPECT_EQ(readings.checksum(path), xxh3("abd"));
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::min() + std::chrono::hours(1));
  EXPECT_EQ(readings.checksum(path), xxh3("abd"));
  EXPECT_EQ(readings.num_read(), 3);
}

TEST(FileReadings, DamagedJsonIsNamed) {
  for (const char* text : {"", "{", "[[1]]", R"([["bytes a", [1, 2, 3], [1, 2, true]]])", R"([["a", 1, 2]])", "3"}) {
    EXPECT_THROW(FileReadings::from_json(text), DataError) << text;
  }
}

}  // namespace
}  // namespace orthant
