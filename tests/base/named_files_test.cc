// Names of sets: legal ones, and those made of paths.
#include "base/named_files.h"

#include <gtest/gtest.h>

namespace orthant::named_files_test {
namespace {

TEST(NamedFiles, NamesOfPathsAreLegalAndDifferent) {
  const std::vector<std::string> paths = {"data/web", "data web", "data-web-2", "books/*.txt", "../\u00fc", "***", "/"};
  const std::vector<std::string> names = set_names_of(paths);
  EXPECT_EQ(names,
            (std::vector<std::string>{"data-web", "data-web-2", "data-web-2-2", "books-.txt", "..-", "set", "set-2"}));
  for (size_t i = 0; i < paths.size(); ++i) EXPECT_TRUE(is_set_name(names[i])) << names[i];
  EXPECT_FALSE(is_set_name(paths[0]));
  EXPECT_FALSE(is_set_name("a\n"));
}

}  // namespace
}  // namespace orthant::named_files_test
