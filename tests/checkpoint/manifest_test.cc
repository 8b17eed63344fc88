// The manifest of a checkpoint: it is read back, every changed character is detected, and wrong entries are named.
// Manifests of version 1, which have no tensors, are read too.
#include "checkpoint/manifest.h"

#include "tests/checkpoint/fixtures.h"

namespace orthant::manifest_test {
namespace {

Manifest sample() {
  return {.step = 100,
          .files = {{"config.json", {.bytes = 3, .block_xxh3 = {xxh3("abc")}}},
                    {"orthant/empty", {}},
                    {"big", {.bytes = kDigestBlockBytes + 1, .block_xxh3 = {1, ~uint64_t{0}}}}},
          .tensors = {{"w", {.dtype = Dtype::bf16, .shape = {2, 3}, .file = "big", .xxh3 = 7}},
                      {"scalar", {.dtype = Dtype::f64, .shape = {}, .file = "orthant/empty", .xxh3 = ~uint64_t{0}}}}};
}

// The text with the checksum of itself that it should have.
std::string with_own_checksum(std::string text) {
  const std::string message = message_of<DataError>([&] { parse_manifest(text, "m"); });
  const auto at = message.find("its checksum is ");
  if (at == std::string::npos) return text;
  return text.replace(text.find("manifest_xxh3\": \"") + 17, 16, message.substr(at + 16, 16));
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
  return message_of<DataError>([&] { parse_manifest(with_own_checksum(text), "m"); });
}

TEST(Manifest, FalseEntriesAreNamed) {
  expect_pieces(lie("\"step\": 100", "\"step\": -1"), {"m: step", "integer from 0"});
  expect_pieces(lie("\"config.json\"", "\"../config.json\""), {"is outside the checkpoint"});
  expect_pieces(lie("\"config.json\"", "\"/config.json\""), {"is outside the checkpoint"});
  expect_pieces(lie("\"bytes\": 3", "\"bytes\": 4194305"), {"config.json", "expected 2 checksums"});
  expect_pieces(lie("78af5f94892f3950", "78af5f94892f395"), {"16 hexadecimal digits"});
  expect_pieces(lie("78af5f94892f3950", "78af5f94892f395g"), {"16 hexadecimal digits"});
  expect_pieces(lie("\"version\": 2", "\"version\": 0"), {"version 0", "reads versions 1 to 2"});
  expect_pieces(lie("orthant-checkpoint", "other"), {"expected an object with format"});
}

TEST(Manifest, FalseTensorsAreNamed) {
  expect_pieces(lie("\"BF16\"", "\"B16\""), {"m: tensor \"w\": dtype", "such as F32"});
  expect_pieces(lie("\"BF16\"", "16"), {"m: tensor \"w\": dtype"});
  expect_pieces(lie("    2,", "    -2,"), {"tensor \"w\": shape", "integers from 0"});
  expect_pieces(lie("    2,", "    2.0,"), {"tensor \"w\": shape"});
  expect_pieces(lie("\"file\": \"big\"", "\"file\": \"other\""), {"tensor \"w\": file", "one of the manifest's files"});
  expect_pieces(lie("\"dtype\": \"BF16\"", "\"type\": \"BF16\""), {"tensor \"w\"", "field dtype"});
  expect_pieces(lie("\"xxh3\": \"0000000000000007\"", "\"xxh3\": 7"), {"tensor \"w\": xxh3", "16 hexadecimal digits"});
  expect_pieces(lie("\"w\": {", "\"w\": 1, \"v\": {"), {"tensor \"w\"", "expected a field"});
  expect_pieces(lie("\"tensors\": {", "\"others\": {"), {"tensors: expected an object"});
}

// A manifest of version 1 is one without tensors.
TEST(Manifest, VersionOneHasNoTensors) {
  std::string text = manifest_json(sample());
  const auto begin = text.find(",\n \"tensors\""), end = text.find(",\n \"manifest_xxh3\"");
  ASSERT_LT(begin, end);
  text.erase(begin, end - begin);
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 1");
  Manifest expected = sample();
  expected.tensors.clear();
  EXPECT_EQ(parse_manifest(with_own_checksum(text), "m"), expected);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  EXPECT_THROW(parse_manifest(with_own_checksum(text), "m"), DataError) << "version 2 must have them";
}

TEST(Manifest, ANameHasOneTensor) {
  const WrittenFile one{.digest = {}, .tensors = {{"a", {}}, {"b", {}}}}, other{.digest = {}, .tensors = {{"b", {}}}};
  Manifest manifest;
  add_file(manifest, "one", one);
  EXPECT_EQ(manifest.tensors.at("b").file, "one");
  expect_pieces(message_of<LogicError>([&] { add_file(manifest, "other", other); }), {"b, other, one"});
  expect_pieces(message_of<LogicError>([&] { add_file(manifest, "one", {}); }), {"one"});
}

TEST(Manifest, ANewerFormatIsNoDamage) {
  std::string text = manifest_json(sample());
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 3");
  expect_pieces(message_of<NewerFormat>([&] { parse_manifest(text, "m"); }),
                {"m: written by a newer Orthant (format 3, this program reads up to 2)"});
}

TEST(CheckFiles, SaysWhereAFileIsDamaged) {
  TempFolder dir;
  std::string text(static_cast<std::size_t>(2 * kDigestBlockBytes + 100), 'a');
  Manifest manifest{
      .step = 1, .files = {{"f", write_file(dir / "f", text)}, {"g", write_file(dir / "g", "small")}}, .tensors = {}};
  EXPECT_NO_THROW(check_files(dir.path(), manifest));
  text[static_cast<std::size_t>(kDigestBlockBytes) + 5] = 'b';
  spill(dir / "f", text);
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest); }),
                {dir / "f", "between offset 4194304 and 8388608", "XXH3", "expected"});
  EXPECT_NO_THROW(check_files(dir.path(), manifest, kNoFiles)) << "sizes alone do not see it";
  EXPECT_THROW(check_files(dir.path(), manifest, {0, 2}), DataError) << "the first of two ranks reads f";
  EXPECT_NO_THROW(check_files(dir.path(), manifest, {1, 2})) << "the second one reads g";
  spill(dir / "f", text.substr(0, 1000));
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest, kNoFiles); }),
                {dir / "f", "offset 1000: the file has 1000 bytes, expected 8388708"});
  std::filesystem::remove(dir / "f");
  expect_pieces(message_of<DataError>([&] { check_files(dir.path(), manifest, kNoFiles); }),
                {dir / "f", "No such file"});
}

}  // namespace
}  // namespace orthant::manifest_test
