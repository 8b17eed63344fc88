// Reading text: the lines joined are the file, gzip is detected by content, and long texts are split at blank lines.
#include "data/text_file.h"

#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "data/program.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::text_file_test {
namespace {

std::string gzip(const std::string& text) { return run_program({"gzip", "-c"}, text, "", "").output; }

struct Piece {
  std::string text;
  bool ends_document;
  bool operator==(const Piece&) const = default;
};

std::vector<Piece> pieces(const std::string& path) {
  std::vector<Piece> out;
  for_each_piece(scan_text(path), [&](std::string&& text, bool ends) { out.push_back({std::move(text), ends}); });
  return out;
}

std::string lines_of(const std::string& path, size_t* longest = nullptr) {
  std::string joined;
  for_each_line(path, [&](std::string_view line) {
    EXPECT_FALSE(line.empty());
    EXPECT_TRUE(line.find('\n') >= line.size() - 1);
    if (longest) *longest = std::max(*longest, line.size());
    joined += line;
  });
  return joined;
}

TEST(TextFile, LinesJoinedAreTheFile) {
  TempFolder folder;
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    std::string text;
    const int length = static_cast<int>(random() % 300000);
    while (static_cast<int>(text.size()) < length) text += random() % 20 ? static_cast<char>(random()) : '\n';
    EXPECT_EQ(lines_of(folder.write("t", text)), text);
    if (round % 10 != 0) continue;
    EXPECT_EQ(lines_of(folder.write("t.gz", gzip(text))), text);
  }
}

TEST(TextFile, LongLinesAreCutBetweenCharacters) {
  TempFolder folder;
  std::string text = "a";
  while (text.size() < 200000) text += "\xe2\x82\xac";
  size_t longest = 0;
  EXPECT_EQ(lines_of(folder.write("t", text), &longest), text);
  EXPECT_LE(longest, 65536u);
  for_each_line(folder / "t", [](std::string_view line) { EXPECT_NE(static_cast<uint8_t>(line[0]) & 0xc0, 0x80); });
  const std::string rubbish(200000, '\x80');  // no character begins anywhere, but the line is still split
  EXPECT_EQ(lines_of(folder.write("t", rubbish)), rubbish);
}

TEST(TextFile, GzipIsTheSameText) {
  TempFolder folder;
  std::string text;
  for (int64_t i = 0; i < 50000; ++i) text += fmt::format("line {}\n", i * i);
  const TextFile plain = scan_text(folder.write("a.txt", text));
  const TextFile packed = scan_text(folder.write("b", gzip(text)));  // detected by content, not by name
  EXPECT_EQ(plain.hash, packed.hash);
  EXPECT_EQ(packed.bytes, static_cast<int64_t>(text.size()));
  text[text.size() / 2] ^= 1;
  EXPECT_NE(scan_text(folder.write("a.txt", text)).hash, plain.hash);
}

TEST(TextFile, DamagedGzipIsAnErrorThatNamesTheFile) {
  TempFolder folder;
  std::string packed = gzip(std::string(100000, 'x') + "end");
  const std::string cut = folder.write("cut.gz", packed.substr(0, packed.size() - 10));
  EXPECT_NE(message_of<DataError>([&] { scan_text(cut); }).find(cut + ": damaged gzip"), std::string::npos);
  packed[packed.size() - 6] ^= 1;  // in the checksum
  EXPECT_THROW(scan_text(folder.write("crc.gz", packed)), DataError);
  EXPECT_THROW(scan_text(folder / "missing"), ConfigError);
  EXPECT_THROW(scan_text(folder.path()), DataError);  // a directory can be opened, but not read
}

TEST(TextFile, ZstdIsTheSameText) {
  const TempFolder folder;
  const std::string text = "one\ntwo\n", packed = run_program({"zstd", "-c"}, text, "", "").output;
  EXPECT_EQ(scan_text(folder.write("a", packed)).hash, scan_text(folder.write("b", text)).hash);
  const std::string cut = folder.write("cut.zst", packed.substr(0, packed.size() - 4));
  EXPECT_NE(message_of<DataError>([&] { scan_text(cut); }).find(cut + ": damaged zstd"), std::string::npos);
}

TEST(TextFile, NamesOfCompressedFilesMustBeTrue) {
  const TempFolder folder;
  const std::string packed = run_program({"zstd", "-c"}, "one\n", "", "").output;
  const std::string skips = std::string("\x5a\x2a\x4d\x18\x04\0\0\0abcd", 12);  // a frame of other data
  EXPECT_EQ(scan_text(folder.write("a.zst", skips + packed)).bytes, 4);
  EXPECT_NE(message_of<DataError>([&] { scan_text(folder.write("b.zst", "text")); }).find("not a zstd file"),
            std::string::npos);
  EXPECT_THROW(scan_text(folder.write("c.gz", packed)), DataError);
}

std::vector<Piece> records(const std::string& path, const std::string& key) {
  std::vector<Piece> out;
  for_each_piece(scan_text(path, {.documents = DocumentFormat::kJsonl, .key = key}),
                 [&](std::string&& text, bool ends) { out.push_back({std::move(text), ends}); });
  return out;
}

TEST(TextFile, LinesOfJsonAreDocuments) {
  const TempFolder folder;
  const std::string longer(3 * kLongestLine, 'x');
  const std::string path = folder.write("a.jsonl",
                                        "{\"text\": \"one\\n<|endoftext|>\\ntwo\", \"n\": 1}\n\n"
                                        "{\"meta\": {\"text\": \"no\"}, \"text\": \"caf\\u00e9 \\ud83d\\ude00\"}\r\n"
                                        "{\"text\": \"  \", \"body\": [1, {\"text\": 2}]}\n{\"text\": \"" +
                                            longer + "\"}");
  EXPECT_EQ(records(path, "text"),
            (std::vector<Piece>{{"one\n<|endoftext|>\ntwo", true}, {"caf\u00e9 \U0001f600", true}, {longer, true}}));
  EXPECT_NE(scan_text(path, {.documents = DocumentFormat::kJsonl, .key = "text"}).hash,
            scan_text(path, {.documents = DocumentFormat::kJsonl, .key = "body"}).hash);
}

TEST(TextFile, DamagedLinesOfJsonAreNamed) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& line) {
    const std::string path = folder.write("b.jsonl", "{\"text\": \"fine\"}\n" + line + "\n");
    return message_of<DataError>([&] { records(path, "text"); });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find("b.jsonl: line 2 " + part), std::string::npos) << message;
  };
  expect(refusal("{\"text\": \"a"), "must be one valid JSON object, and is not at offset ");
  expect(refusal("{\"txt\": \"a\"}"), "has no key \"text\"; set data.text_key");
  expect(refusal("{\"text\": 3}"), "the value of \"text\" must be a text, and is a number");
  expect(refusal("{\"text\": [\"a\"]}"), "the value of \"text\" must be a text, and is an array");
  expect(refusal("{\"text\": \"a\", \"text\": \"b\"}"), "has the key \"text\" twice");
  expect(refusal("[\"a\"]"), "must be one JSON object");
  expect(refusal("\"a\""), "must be one JSON object");
  expect(refusal("{\"text\": \"\xff\"}"), "must be one valid JSON object, and is not at offset ");
  expect(refusal("{\"text\": \"a\"} {\"text\": \"b\"}"), "must be one valid JSON object, and is not at offset ");
  expect(refusal(std::string(100000, '[')), "must be one JSON object");
  expect(refusal("{\"a\": " + std::string(100000, '[')), "must be one valid JSON object, and is not at offset ");
}

TEST(TextFile, AReaderMayStopEarly) {
  TempFolder folder;
  const std::string path = folder.write("t.gz", gzip(std::string(3000000, '\n')));
  EXPECT_THROW(for_each_line(path, [](std::string_view) { throw std::runtime_error("enough"); }), std::runtime_error);
}

TEST(TextFile, SeparatorLinesEndDocuments) {
  TempFolder folder;
  const std::string text =
      "one\n\ntwo\n<|endoftext|>\n  <|endoftext|> \r\nthree <|endoftext|> four\n<|endoftext|>\n "
      "\n\n<|endoftext|>\nfive";
  EXPECT_EQ(pieces(folder.write("t", text)),
            (std::vector<Piece>{{"one\n\ntwo\n", true}, {"three <|endoftext|> four\n", true}, {"five", true}}));
  EXPECT_EQ(pieces(folder.write("t", "no separator: <|endoftext|>\nhere")),
            (std::vector<Piece>{{"no separator: <|endoftext|>\nhere", true}}));
  EXPECT_TRUE(pieces(folder.write("t", " \n\n\t\n")).empty());
}

TEST(TextFile, LongTextIsCutAtBlankLinesAndReadsOn) {
  TempFolder folder;
  std::mt19937 random(2);
  std::string text;
  while (text.size() < 300000) {
    for (int line = static_cast<int>(random() % 30); line >= 0; --line)
      text += std::string(random() % 70 + 1, 'w') + "\n";
    text += random() % 2 ? "\n" : "  \n\n";
  }
  const auto cut = pieces(folder.write("t", text));
  std::string joined;
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(cut[i].ends_document, i + 1 == cut.size());
    if (i + 1 < cut.size()) {
      EXPECT_GE(cut[i].text.size(), 16u << 10);
      EXPECT_LT(cut[i].text.size(), 20u << 10);
      EXPECT_TRUE(cut[i].text.ends_with("\n\n") || cut[i].text.ends_with("  \n"));
    }
    joined += cut[i].text;
  }
  EXPECT_EQ(joined, text);
  EXPECT_GT(cut.size(), 14u);

  std::string dense;
  for (int i = 0; i < 50000; ++i) dense += "no blank line\n";
  const auto forced = pieces(folder.write("t", dense));
  EXPECT_GT(forced.size(), 5u);
  for (const Piece& piece : forced) EXPECT_LT(piece.text.size(), 66u << 10);
}

}  // namespace
}  // namespace orthant::text_file_test
