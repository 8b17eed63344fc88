// line_of_deep_key(): keys of up to 32 parts pass; dots of strings, comments and numbers do not count.
#include "base/toml_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace orthant::toml_depth_test {
namespace {

std::string key(int parts) {
  std::string text = "a";
  for (int i = 1; i < parts; ++i) text += ".a";
  return text;
}

TEST(TomlDepth, KeysAndHeadersHaveAtMost32Parts) {
  EXPECT_EQ(line_of_deep_key(key(32) + " = 1\n[" + key(32) + "]\n[[" + key(32) + "]]\nx = {" + key(32) + " = 1}"),
            std::nullopt);
  EXPECT_EQ(line_of_deep_key(key(33) + " = 1"), 1U);
  EXPECT_EQ(line_of_deep_key("b = 1\n[" + key(33) + "]"), 2U);
  EXPECT_EQ(line_of_deep_key("b = 1\n\n[[" + key(33) + "]]"), 3U);
  EXPECT_EQ(line_of_deep_key("b = {c = 1, " + key(33) + " = 1}"), 1U);
  EXPECT_EQ(line_of_deep_key(key(30'000) + " = 1"), 1U);
}

TEST(TomlDepth, QuotedPartsAndSpacesAreParts) {
  std::string quoted = "\"a\"", spaced = "a";
  for (int i = 1; i < 33; ++i) quoted += ".'a'", spaced += " . a";
  EXPECT_EQ(line_of_deep_key(quoted + " = 1"), 1U);
  EXPECT_EQ(line_of_deep_key(spaced + " = 1"), 1U);
}

TEST(TomlDepth, DotsOfStringsCommentsAndListsDoNotCount) {
  const std::string dots(100, '.');
  EXPECT_EQ(line_of_deep_key("a = \"" + dots + "\" # " + dots + "\nb = '" + dots + "'"), std::nullopt);
  EXPECT_EQ(line_of_deep_key("a = \"\\\"" + dots + "\""), std::nullopt);
  EXPECT_EQ(line_of_deep_key("a = \"\"\"\n" + dots + "\n\"\"\"\nb = '''" + dots + "\n'''"), std::nullopt);
  std::string list = "a = [0.1";
  for (int i = 0; i < 100; ++i) list += ", 0.1";
  EXPECT_EQ(line_of_deep_key(list + "]"), std::nullopt);
  EXPECT_EQ(line_of_deep_key("a = \"open\n" + key(33)), 2U);  // a string ends with its line
  EXPECT_EQ(line_of_deep_key("a = '''\n\n'''\n" + key(33)), 4U);
}

}  // namespace
}  // namespace orthant::toml_depth_test
