// Text helpers of reports and messages: numbers with units, plurals, edit distance, joining and splitting.
#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace orthant::text_test {
namespace {

TEST(Counted, OneHasNoPlural) {
  EXPECT_EQ(counted(1, "document"), "1 document");
  EXPECT_EQ(counted(0, "document"), "0 documents");
  EXPECT_EQ(counted(1234, "token"), "1,234 tokens");
}

using Words = std::vector<std::string>;

TEST(Text, BytesInPowersOf1024) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
}

TEST(Text, CountsInPowersOf1000) {
  EXPECT_EQ(format_count(789), "789");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(45600), "45.6k");
  EXPECT_EQ(format_count(1234567), "1.23M");
}

TEST(Text, SecondsAsPeopleSayThem) {
  EXPECT_EQ(format_seconds(0.045), "45 ms");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(185), "3m 05s");
  EXPECT_EQ(format_seconds(3720), "1h 02m");
  EXPECT_EQ(format_seconds(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Text, SecondsWithFourDigits) {
  EXPECT_EQ(precise_seconds(1234.6), "1235 s");
  EXPECT_EQ(precise_seconds(18.6), "18.60 s");
  EXPECT_EQ(precise_seconds(0.99996), "1.000 s");
  EXPECT_EQ(precise_seconds(0.9999), "999.9 ms");
  EXPECT_EQ(precise_seconds(0.0123), "12.30 ms");
  EXPECT_EQ(precise_seconds(1.2e-5), "12.00 us");
  EXPECT_EQ(precise_seconds(0), "0.000 s");
}

TEST(Text, WordsAreQuotedForAShell) {
  EXPECT_EQ(shell_quoted({"a b", "it's", "", "x=[1,2]", "plain-1.2/x"}), "'a b' 'it'\\''s' '' 'x=[1,2]' plain-1.2/x");
}

TEST(Text, DigitsInThrees) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

TEST(Text, EditDistanceCountsASwapAsOne) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1);
}

TEST(Text, NearestWordIsNearEnoughOrNone) {
  const Words keys = {"steps", "seq_len", "seed"};
  EXPECT_EQ(nearest("step", keys), "steps");
  EXPECT_EQ(nearest("stpes", keys), "steps");
  EXPECT_EQ(nearest("learning_rate", keys), std::nullopt);
}

TEST(Text, JoiningAndCutting) {
  EXPECT_EQ(join_or(Words{"1"}), "1");
  EXPECT_EQ(join_or(Words{"1", "2", "4"}), "1, 2 or 4");
  EXPECT_EQ(split("a,,b", ','), (Words{"a", "", "b"}));
  EXPECT_EQ(split("", ','), Words{""});
  EXPECT_EQ(trim(" \t a b\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

}  // namespace
}  // namespace orthant::text_test
