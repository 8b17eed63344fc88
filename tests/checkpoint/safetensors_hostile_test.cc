// Hostile safetensors files: a table of headers with one false statement each, and 20,000 random mutations of a good
// file. Each must be refused by name, or be valid.
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::safetensors_hostile_test {
namespace {

std::string little_endian(uint64_t number) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &number, 8);
  return text;
}

std::string with_header(const std::string& header, std::size_t data_bytes) {
  return little_endian(header.size()) + header + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), "f");
}

// A header with one tensor "a" of these JSON values.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

struct Lie {
  std::string file;
  std::string message;  // a part of the expected message
};

TEST(HostileSafetensors, GoodOnesAreRead) {
  EXPECT_TRUE(parse(with_header("{}", 0)).tensors.empty());
  EXPECT_TRUE(parse(with_header("{}    \n", 0)).tensors.empty());
  EXPECT_EQ(parse(with_header(tensor("\"F32\"", "[]", "[0,4]"), 4)).tensors.size(), 1u);
  EXPECT_EQ(parse(with_header(tensor("\"F32\"", "[0]", "[0,0]"), 0)).tensors.size(), 1u);
  EXPECT_EQ(parse(with_header(tensor("\"F4\"", "[2]", "[0,1]"), 1)).tensors.size(), 1u);
  EXPECT_EQ(parse(with_header(R"({"__metadata__":{"a":"b"}})", 0)).metadata.at("a"), "b");
  EXPECT_EQ(parse(with_header(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                              R"("a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})",
                              3))
                .tensors[0]
                .name,
            "a");
  EXPECT_EQ(parse(with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                              R"("b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                              0))
                .tensors.size(),
            2u);
}

std::vector<Lie> lies_of_the_envelope() {
  return {
      {"", "too short"},
      {"1234567", "too short"},
      {little_endian(0), "expected {"},
      {little_endian(100), "a header of 100 bytes, expected at most 0"},
      {little_endian(100'000'001) + std::string(100, ' '), "a header of 100000001 bytes"},
      {little_endian(~uint64_t{0}) + "{}", "a header of 18446744073709551615 bytes"},
      {little_endian(~uint64_t{7}) + "{}", "expected at most 2"},
      {with_header(" {}", 0), "offset 8: expected {"},
      {with_header("[]", 0), "offset 8: expected {"},
      {with_header("\xef\xbb\xbf{}", 0), "offset 8: expected {"},
      {with_header("{", 0), "not valid JSON"},
      {with_header("{}x", 0), "not valid JSON"},
      {with_header("{}{}", 0), "not valid JSON"},
      {with_header(std::string("{}\0x", 4), 0), "offset 10: a zero byte"},
      {with_header("{\"\xff\":1}", 0), "not valid JSON"},
      {with_header("{\"a\":1,}", 0), "a number"},
      {with_header("{}", 1), "data follows the last tensor"},
  };
}

std::vector<Lie> lies_of_the_header() {
  const std::string good = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  return {
      {with_header(R"({"a":)" + good + R"(,"a":)" + good + "}", 1), "the same name for the second time"},
      {with_header(R"({"a":1})", 0), "a number at \"a\""},
      {with_header(R"({"a":null})", 0), "null"},
      {with_header(R"({"a":{}})", 0), "without all of"},
      {with_header(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "without all of"},
      {with_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "field for the second"},
      {with_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), "an unknown field"},
      {with_header(R"({"__metadata__":{"a":1}})", 0), "a number at \"__metadata__\", field \"a\""},
      {with_header(R"({"__metadata__":{"a":{}}})", 0), "an object"},
      {with_header(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "the same key"},
      {with_header(R"({"__metadata__":{},"__metadata__":{}})", 0), "the same name"},
      {with_header(R"({"__metadata__":"a"})", 0), "a string"},
      {with_header(std::string(100'000, '[').insert(0, R"({"a":)"), 0), "an array"},
      {with_header(tensor("\"F33\"", "[1]", "[0,4]"), 4), "the dtype \"F33\""},
      {with_header(tensor("\"f32\"", "[1]", "[0,4]"), 4), "the dtype \"f32\""},
      {with_header(tensor("32", "[1]", "[0,4]"), 4), "a number"},
      {with_header(tensor("[]", "[1]", "[0,4]"), 4), "an array"},
      {with_header(tensor("\"F32\"", "1", "[0,4]"), 4), "a number"},
      {with_header(tensor("\"F32\"", "[-1]", "[0,4]"), 4), "the number -1"},
      {with_header(tensor("\"F32\"", "[1.0]", "[0,4]"), 4), "the number 1.0"},
      {with_header(tensor("\"F32\"", "[\"1\"]", "[0,4]"), 4), "a string"},
      {with_header(tensor("\"F32\"", "[[1]]", "[0,4]"), 4), "an array"},
      {with_header(tensor("\"F32\"", "[true]", "[0,4]"), 4), "a boolean"},
      {with_header(tensor("\"F32\"", "[18446744073709551616]", "[0,4]"), 4), "the number 18446744073709551616"},
      {with_header(tensor("\"F32\"", "[9223372036854775808]", "[0,4]"), 4), "the number 9223372036854775808"},
      {with_header(tensor("\"F32\"", "[9223372036854775807]", "[0,4]"), 4), "more than 2^63 bits"},
      {with_header(tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0), "more than 2^63 bits"},
      {with_header(tensor("\"F4\"", "[1]", "[0,1]"), 1), "4 bits do not fill whole bytes"},
      {with_header(tensor("\"F32\"", "[1]", "[0]"), 4), "1 data_offsets"},
      {with_header(tensor("\"F32\"", "[1]", "[0,4,8]"), 4), "a number"},
      {with_header(tensor("\"F32\"", "[1]", "[4,0]"), 4), "data_offsets [4, 0], expected 4 bytes"},
      {with_header(tensor("\"F32\"", "[2]", "[0,4]"), 4), "expected 8 bytes for its dtype F32"},
      {with_header(tensor("\"F32\"", "[1]", "[1,5]"), 5), "a gap between tensors"},
      {with_header(tensor("\"F32\"", "[1]", "[0,4]"), 3), "it was truncated"},
      {with_header(tensor("\"F32\"", "[1]", "[0,4]"), 5), "data follows"},
      {with_header(tensor("\"U8\"", "[0]", "[9223372036854775807,9223372036854775807]"), 0), "a gap"},
      {with_header(R"({"a":)" + good + R"(,"b":)" + good + "}", 1), "tensors overlap"},
      {with_header(R"({"a":)" + good + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3), "a gap"},
  };
}

TEST(HostileSafetensors, EveryLieIsNamed) {
  for (const auto& table : {lies_of_the_envelope(), lies_of_the_header()}) {
    for (const Lie& lie : table) {
      const std::string message = message_of<DataError>([&] { parse(lie.file); });
      expect_pieces(message, {"f: ", lie.message});
      EXPECT_LT(message.size(), 1000u);
    }
  }
}

TEST(HostileSafetensors, AHugeHeaderCostsTimeInProportion) {
  // With 200,000 names, a reader of quadratic cost would take minutes.
  std::string header = "{";
  for (int i = 0; i < 200'000; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i);
  }
  EXPECT_EQ(parse(with_header(header + "}", 0)).tensors.size(), 200'000u);
}

// Reads every byte of every tensor, so that a view beyond the mapping would crash.
uint64_t sum_all(const SafetensorsFile& file) {
  uint64_t sum = 0;
  for (const TensorInfo& info : file.tensors()) {
    for (const std::byte byte : file.bytes(info.name)) sum += static_cast<uint64_t>(byte);
  }
  return sum;
}

// Checks an accepted header: all its tensors lie within the file.
void expect_within(const SafetensorsHeader& header, int64_t file_bytes) {
  for (const TensorInfo& info : header.tensors) {
    ASSERT_LE(0, info.begin);
    ASSERT_LE(info.begin, info.end);
    ASSERT_LE(header.data_begin + info.end, file_bytes);
  }
}

std::string good_file(const TempFolder& dir) {
  Tensors tensors;
  tensors.add("model.embed_tokens.weight", Dtype::f32, {7, 3}, 1);
  tensors.add("model.norm.weight", Dtype::bf16, {3}, 2);
  tensors.add("ids", Dtype::i64, {2, 1, 2}, 3);
  tensors.add("empty", Dtype::f16, {0, 4}, 4);
  tensors.add("scalar", Dtype::f64, {}, 5);
  write_safetensors(dir / "good", tensors.views);
  return slurp(dir / "good");
}

void mutate(std::string& file, std::mt19937_64& generator) {
  static const std::string alphabet = "{}[]\",:0123456789-.eE \\ntu/FBUI\xff\x80";
  const std::size_t header_end = std::min<std::size_t>(file.size(), 520);
  const std::size_t at = generator() % std::max<std::size_t>(1, generator() % 4 == 0 ? file.size() : header_end);
  switch (generator() % 6) {
    case 0:
      if (!file.empty()) file[at] = static_cast<char>(generator());
      break;
    case 1:
      if (!file.empty()) file[at] = alphabet[generator() % alphabet.size()];
      break;
    case 2:
      file.insert(std::min(at, file.size()), 1, alphabet[generator() % alphabet.size()]);
      break;
    case 3:
      if (!file.empty()) file.erase(at, 1 + generator() % 8);
      break;
    case 4:
      file.resize(generator() % (file.size() + 20));
      break;
    case 5:
      if (!file.empty()) file.insert(at, file.substr(generator() % file.size(), generator() % 40));
      break;
  }
}

TEST(HostileSafetensors, MutationsAreRefusedOrValid) {
  TempFolder dir;
  const std::string good = good_file(dir);
  const std::size_t data_bytes = 7 * 3 * 4 + 3 * 2 + 4 * 8 + 8;
  ASSERT_EQ(little_endian(good.size() - 8 - data_bytes), good.substr(0, 8));
  std::mt19937_64 generator(2024);
  int refused = 0, valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = good;
    for (uint64_t i = 1 + generator() % 3; i > 0; --i) mutate(file, generator);
    // With a corrected header length, a mutation gets further into the parser.
    if (generator() % 2 == 0 && file.size() > 8 + data_bytes)
      file.replace(0, 8, little_endian(file.size() - 8 - data_bytes));
    try {
      expect_within(parse(file), static_cast<int64_t>(file.size()));
      ++valid;
    } catch (const DataError&) {
      ++refused;
    }
    if (round % 50 != 0) continue;  // opening a file parses in the same way, and is slow
    spill(dir / "mutant", file);
    try {
      sum_all(SafetensorsFile(dir / "mutant"));
    } catch (const DataError&) {
    }
  }
  EXPECT_EQ(refused + valid, 20'000);
  EXPECT_GT(refused, 5'000);
  EXPECT_GT(valid, 200) << "flips within the data, and other harmless ones";
}

}  // namespace
}  // namespace orthant::safetensors_hostile_test
