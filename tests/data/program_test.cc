#include "data/program.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "data/hash.h"
#include "tests/data/temp_folder.h"

namespace orthant {
namespace {

TEST(RunProgram, MegabytesGoInAndOutWithoutBlocking) {
  std::string text;
  for (int i = 0; i < 1000000; ++i) text += static_cast<char>(i * 31 >> 3);
  text += text + text;
  const ProgramResult result = run_program({"cat"}, text, "", "");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.output == text);
}

TEST(RunProgram, TellsExitCodeErrorsAndFolder) {
  test::TempFolder folder;
  const ProgramResult result = run_program({"sh", "-c", "pwd; echo oops >&2; exit 7"}, "", folder.path(), "");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, folder.path() + "\n");
  EXPECT_EQ(result.errors, "oops\n");
  EXPECT_EQ(run_program({"sh", "-c", "kill -9 $$"}, "", "", "").exit_code, 128 + 9);
  EXPECT_EQ(run_program({"true"}, std::string(1 << 20, 'x'), "", "").exit_code, 0);  // Does not read its input.
}

TEST(RunProgram, AMissingProgramIsNamedWithTheHint) {
  const std::string message = test::message_of<ConfigError>(
      [] { run_program({"no-such-program-here"}, "", "", "install it: apt-get install it"); });
  EXPECT_NE(message.find("no-such-program-here"), std::string::npos);
  EXPECT_NE(message.find("apt-get install it"), std::string::npos);
}

TEST(Hasher, DoesNotDependOnHowTheStreamIsCut) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  Hasher whole;
  whole.add(text);
  for (size_t cut = 0; cut <= text.size(); ++cut)
    for (size_t second = cut; second <= text.size(); second += 5) {
      Hasher parts;
      parts.add(text.substr(0, cut));
      parts.add(text.substr(cut, second - cut));
      parts.add(text.substr(second));
      EXPECT_EQ(parts.digest(), whole.digest());
    }
  EXPECT_EQ(whole.digest(), 14735199710327270226u);  // Names of cached files rely on it.
  Hasher zero, zeros;
  zero.add(std::string(1, '\0'));
  zeros.add(std::string(2, '\0'));
  EXPECT_NE(zero.digest(), zeros.digest());
  Hasher ab, a;
  ab.add_field("ab"), ab.add_field("c");
  a.add_field("a"), a.add_field("bc");
  EXPECT_NE(ab.digest(), a.digest());
}

}  // namespace
}  // namespace orthant
