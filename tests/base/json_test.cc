// parse_json() refuses input that lenient parsers accept, and names the offset. ORTHANT_CHECK reports its condition and
// values.
#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/errors.h"

namespace orthant::json_test {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "file.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Json, ReadsWhatIsWellFormed) {
  const auto json = parse_json(R"({"b": [1, 2.5, "x"], "a": {"b": null}, "big": 18446744073709551615})", "file.json");
  EXPECT_EQ(json.begin().key(), "b") << "the order of keys is kept";
  EXPECT_EQ(json.at("b").size(), 3u);
  EXPECT_EQ(json.at("big").get<uint64_t>(), 18446744073709551615u);
}

TEST(Json, RefusesWhatParsersLetPass) {
  EXPECT_EQ(error_of(R"({"a": 1, "a": 2})"), "file.json: duplicate key \"a\"");
  EXPECT_EQ(error_of(R"({"a": {"b": 1, "b": 2}})"), "file.json: duplicate key \"b\"");
  EXPECT_EQ(error_of(R"({"a": {"b": 1}, "b": 2})"), "accepted") << "equal keys of two objects are no duplicates";
  EXPECT_EQ(error_of("[18446744073709551616]"), "file.json: integer 18446744073709551616 does not fit 64 bits");
  EXPECT_EQ(parse_json("[18446744073709551616]", "file.json", LargeIntegers::kToFloat)[0].get<double>(), 0x1p64);
  EXPECT_EQ(error_of(std::string(65, '[') + std::string(65, ']')), "file.json: JSON is nested deeper than 64 levels");
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(error_of(std::string("{}\0{", 4)),
            "file.json: offset 2: JSON must not contain a zero byte; write \\u0000 inside a text");
  EXPECT_EQ(error_of(R"({"a\u0000": 1, "a": 2})"), "accepted") << "keys with an escaped zero are complete";
}

TEST(Json, SaysWhereTheSyntaxBreaks) {
  EXPECT_NE(error_of("{\"a\": }").find("file.json: offset 7"), std::string::npos) << error_of("{\"a\": }");
  EXPECT_EQ(error_of(""), "file.json: is empty, but must be JSON");
  EXPECT_EQ(error_of("{\"a\": 1"), "file.json: offset 8: the JSON ends too early");
  EXPECT_NE(error_of("{} x").find("file.json: offset"), std::string::npos);
}

TEST(Check, ThrowsConditionAndValues) {
  const int ranks = 3;
  try {
    ORTHANT_CHECK(ranks == 4, ranks, "four");
    FAIL();
  } catch (const LogicError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("ranks == 4 [3, four]"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(ORTHANT_CHECK(ranks == 3));
}

}  // namespace
}  // namespace orthant::json_test
