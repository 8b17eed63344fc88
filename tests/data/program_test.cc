// run_program() starts external programs with input, output and a clear error. FolderLock removes temporary files of
// dead processes.
#include "data/program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/errors.h"
#include "data/folder_lock.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::program_test {
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
  TempFolder folder;
  const ProgramResult result = run_program({"sh", "-c", "pwd; echo oops >&2; exit 7"}, "", folder.path(), "");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, folder.path() + "\n");
  EXPECT_EQ(result.errors, "oops\n");
  EXPECT_EQ(run_program({"sh", "-c", "kill -9 $$"}, "", "", "").exit_code, 128 + 9);
  EXPECT_EQ(run_program({"true"}, std::string(1 << 20, 'x'), "", "").exit_code, 0);  // does not read its input
}

TEST(RunProgram, AMissingProgramIsNamedWithTheHint) {
  const std::string message = message_of<ConfigError>(
      [] { run_program({"no-such-program-here"}, "", "", "install it: apt-get install it"); });
  EXPECT_NE(message.find("no-such-program-here"), std::string::npos);
  EXPECT_NE(message.find("apt-get install it"), std::string::npos);
}

TEST(RunProgram, EndsWithTheProcessThatStartedIt) {
  TempFolder folder;
  const MemoryFile nothing;
  const pid_t starter = ::fork();
  if (starter == 0) {
    const int pid = start_program({"sleep", "100"}, nothing.descriptor(), 1, 2, "", "");
    spill(folder / "pid", std::to_string(pid));
    ::_exit(0);
  }
  ASSERT_EQ(wait_for_program(starter), 0);
  const int pid = std::stoi(slurp(folder / "pid"));
  const auto lives = [&] {  // init adopts an orphan, and may never reap it
    const std::string status = slurp(fmt::format("/proc/{}/stat", pid));
    return !status.empty() && status.find(") Z ") == std::string::npos;
  };
  for (int i = 0; i < 500 && lives(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(lives());
}

TEST(FolderLock, RemovesWhatDeadProcessesLeft) {
  TempFolder folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(wait_for_program(dead), 0);
  const std::string file = fmt::format("tokens.bin.tmp{}", dead), tree = fmt::format("x.tmp{}", dead);
  const std::vector<std::string> kept = {fmt::format("a.tmp{}", ::getpid()), fmt::format("b.tmp{}", ::getppid()),
                                         "tokens.tmp", "a.tmp12x", "b.tmp-1"};
  for (const std::string& name : kept) folder.write(name, "");
  folder.write(file, "");
  std::filesystem::create_directory(folder / tree);
  folder.write(tree + "/part", "");
  const FolderLock lock(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / file));
  EXPECT_FALSE(std::filesystem::exists(folder / tree));
  for (const std::string& name : kept) EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
}

}  // namespace
}  // namespace orthant::program_test
