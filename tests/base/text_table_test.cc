// Alignment and line breaks of text tables.
#include "base/text_table.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace orthant::text_table_test {
namespace {

TEST(TextTable, AlignsNumbersToTheRight) {
  EXPECT_EQ(text_table({{"what", "calls", ""}, {"a sum", "12", "first"}, {"1", "3", ""}}),
            "  what   calls\n"
            "  a sum     12  first\n"
            "  1          3\n");
}

TEST(TextTable, ALongLastCellGoesOnBelow) {
  std::string remark = "word";
  for (int i = 0; i < 40; ++i) remark += " and more";
  const std::string table = text_table({{"first", "12", remark}, {"second", "3", "short"}});
  std::string words;
  const std::vector<std::string> lines = split(trim(table), '\n');
  ASSERT_GT(lines.size(), 4U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_LE(lines[i].size(), 120U) << lines[i];
    if (i > 0 && i + 1 < lines.size()) {
      EXPECT_EQ(lines[i].find_first_not_of(' '), lines[1].find_first_not_of(' ')) << table;
    }
    if (i + 1 < lines.size()) words += (i > 0 ? " " : "") + std::string(trim(lines[i]));
  }
  EXPECT_TRUE(words.ends_with(remark)) << table;
  EXPECT_EQ(lines[1].find_first_not_of(' '), lines.back().find("short")) << table;
}

// A remark in a row without numbers begins right after the first column and uses the rest of the line.
TEST(TextTable, ARemarkAloneHasTheWholeLine) {
  const std::string wide(40, 'x');
  const std::string table = text_table({{"what", "a", "b", ""},
                                        {"one", wide, wide, "fits"},
                                        {"two", "", "", "because"},
                                        {"three", "", "", wide + " " + wide + " " + wide}});
  EXPECT_EQ(table, "  what   a" + std::string(41, ' ') + "b\n" +        //
                       "  one    " + wide + "  " + wide + "  fits\n" +  //
                       "  two    because\n" +                           //
                       "  three  " + wide + " " + wide + "\n" + "         " + wide + "\n");
}

// A long name goes on in the lines below its row, beside the lines of the remark.
TEST(TextTable, WrapsLongNames) {
  const std::string name = "parallelism.data_parallel_degree=-1 parallelism.tensor_parallel_degree=2", remark(60, 'x');
  const std::string table =
      text_table({{"change", "step", ""}, {name, "12 s", remark + " " + remark}, {"x", "3 s", "y"}});
  EXPECT_EQ(table,
            "  change                                step\n"
            "  parallelism.data_parallel_degree=-1   12 s  " +
                remark +
                "\n"
                "    parallelism.tensor_parallel_degree=2      " +
                remark +
                "\n"
                "  x                                      3 s  y\n");
}

}  // namespace
}  // namespace orthant::text_table_test
