// OutputFile replaces a file only at commit(). Digests do not depend on how the bytes were written.
#include "checkpoint/files.h"

#include "base/mapped_file.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::files_test {
namespace {

TEST(OutputFile, LeavesNothingWithoutCommit) {
  TempFolder dir;
  {
    OutputFile file(dir / "a");
    file.write(std::string_view("half"));
    EXPECT_FALSE(std::filesystem::exists(dir / "a"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(OutputFile, KeepsTheOldFileUntilCommit) {
  TempFolder dir;
  spill(dir / "a", "old");
  OutputFile file(dir / "a");
  file.write(std::string_view("new"));
  EXPECT_EQ(slurp(dir / "a"), "old");
  const MappedFile mapped(dir / "a");
  file.commit();
  EXPECT_EQ(slurp(dir / "a"), "new");
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), "old", 3), 0) << "a mapping of the old file stays intact";
}

TEST(OutputFile, SaysWhereItCannotWrite) {
  expect_pieces(message_of<DataError>([] { OutputFile file("/no/such/place/a"); }),
                {"/no/such/place/", "No such file or directory"});
}

TEST(Digest, IsTheSameInMemoryAndOnDisk) {
  TempFolder dir;
  const FileDigest digest = write_file(dir / "a", "abc");
  EXPECT_EQ(digest, (FileDigest{.bytes = 3, .block_xxh3 = {xxh3("abc")}}));
  EXPECT_EQ(digest_file(dir / "a"), digest);
  EXPECT_EQ(write_file(dir / "b", ""), FileDigest{});
  EXPECT_EQ(digest_file(dir / "b"), FileDigest{});
}

TEST(Digest, DoesNotDependOnThePiecesWritten) {
  TempFolder dir;
  const auto bytes = random_bytes(static_cast<std::size_t>(2 * kDigestBlockBytes + 12345), 7);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::mt19937_64 generator(3);
  OutputFile file(dir / "a");
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t piece = std::min<std::size_t>(rest.size(), generator() % 3'000'000);
    file.write(rest.substr(0, piece));
    rest.remove_prefix(piece);
  }
  const FileDigest digest = file.commit();
  EXPECT_EQ(digest, digest_file(dir / "a"));
  ASSERT_EQ(digest.block_xxh3.size(), 3u);
  EXPECT_EQ(digest.block_xxh3[1], xxh3(text.substr(kDigestBlockBytes, kDigestBlockBytes)));
  EXPECT_EQ(digest.block_xxh3[2], xxh3(text.substr(2 * kDigestBlockBytes)));
  // If the last block is full, no empty block follows it.
  EXPECT_EQ(write_file(dir / "b", text.substr(0, 2 * kDigestBlockBytes)).block_xxh3.size(), 2u);
}

TEST(ReadFile, HasALimit) {
  TempFolder dir;
  spill(dir / "a", "12345");
  EXPECT_EQ(read_file(dir / "a", 5), "12345");
  expect_pieces(message_of<DataError>([&] { read_file(dir / "a", 4); }), {"5 bytes, expected at most 4"});
}

}  // namespace
}  // namespace orthant::files_test
