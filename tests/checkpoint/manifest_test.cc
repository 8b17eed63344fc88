// The manifest of a checkpoint: it is read back, every changed character is detected, and wrong entries are named.
#include "checkpoint/manifest.h"

#include "tests/checkpoint/fixtures.h"

namespace orthant::manifest_test {
namespace {

Manifest sample() {
  return {.step = 100,
          .files = {{"config.json", {.bytes = 3, .block_xxh3 = {xxh3("abc")}}},
                    {"orthant/empty", {}},
                    {"big", {.bytes = kDigestBlockBytes + 1, .block_xxh3 = {1, ~uint64_t{0}}}}}};
}

TEST(Manifest, RoundTrips) { EXPECT_EQ(parse_manifest(manifest_json(sample()), "m"), sample()); }

TEST(Manifest, AnyChangedCharacterIsSeen) {
  const std::string good = manifest_json(sample());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char other : {'0', '7', 'f', '"', ' ', ','}) {
      std::string changed = good;
      changed[i] = other;
      try {
        EXPECT_EQ(parse_manifest(changed, "m"), sample()) << "at " << i;  // only white space, or the same character
      } catch (const DataError&) {
      }
    }
  }
  // Every byte except the final newline is needed.
  for (std::size_t length = 0; length + 1 < good.size(); ++length) {
    EXPECT_THROW(parse_manifest(good.substr(0, length), "m"), DataError) << length;
  }
}

// Parses the manifest with `piece` replaced by `by` and its own checksum corrected. Returns the error.
std::string lie(const std::string& piece, const std::string& by) {
  std::string text = manifest_json(sample());
  text.replace(text.find(piece), piece.size(), by);
  const std::string message = message_of<DataError>([&] { parse_manifest(text, "m"); });
  const auto at = message.find("its checksum is ");
  if (at == std::string::npos) return message;
  const auto own = text.find("manifest_xxh3\": \"") + 17;
  text.replace(own, 16, message.substr(at + 16, 16));
  return message_of<DataError>([&] { parse_manifest(text, "m"); });
}

TEST(Manifest, FalseEntriesAreNamed) {
  expect_pieces(lie("\"step\": 100", "\"step\": -1"), {"m: step", "integer from 0"});
  expect_pieces(lie("\"config.json\"", "\"../config.json\""), {"is outside the checkpoint"});
  expect_pieces(lie("\"config.json\"", "\"/config.json\""), {"is outside the checkpoint"});
  expect_pieces(lie("\"bytes\": 3", "\"bytes\": 4194305"), {"config.json", "expected 2 checksums"});
  expect_pieces(lie("78af5f94892f3950", "78af5f94892f395"), {"16 hexadecimal digits"});
  expect_pieces(lie("78af5f94892f3950", "78af5f94892f395g"), {"16 hexadecimal digits"});
  expect_pieces(lie("\"version\": 1", "\"version\": 0"), {"version 0", "reads version 1"});
  expect_pieces(lie("orthant-checkpoint", "other"), {"expected an object with format"});
}

TEST(Manifest, ANewerFormatIsNoDamage) {
  std::string text = manifest_json(sample());
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  expect_pieces(message_of<NewerFormat>([&] { parse_manifest(text, "m"); }),
                {"m: written by a newer Orthant (format 2, this program reads up to 1)"});
}

TEST(CheckFiles, SaysWhereAFileIsDamaged) {
  TempFolder dir;
  std::string text(static_cast<std::size_t>(2 * kDigestBlockBytes + 100), 'a');
  Manifest manifest{.step = 1, .files = {{"f", write_file(dir / "f", text)}, {"g", write_file(dir / "g", "small")}}};
  EXPECT_NO_THROW(check_files(dir.path(), manifest, true));
  text[static_cast<std::size_t>(kDigestBlockBytes) + 5] = 'b';
  spill(dir / "f", text);
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest, true); }),
                {dir / "f", "between offset 4194304 and 8388608", "XXH3", "expected"});
  EXPECT_NO_THROW(check_files(dir.path(), manifest, false)) << "sizes alone do not see it";
  spill(dir / "f", text.substr(0, 1000));
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest, false); }),
                {dir / "f", "offset 1000: the file has 1000 bytes, expected 8388708"});
  std::filesystem::remove(dir / "f");
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest, false); }), {dir / "f", "No such file"});
}

}  // namespace
}  // namespace orthant::manifest_test
