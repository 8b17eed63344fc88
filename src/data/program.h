// Runs other programs to completion, with text as input and output. sentencepiece and gzip are run this way, because
// they are not linked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct ProgramResult {
  int exit_code = 0;  ///< 128 + signal number if a signal ended the program
  std::string output, errors;
};

/// Runs a program found on PATH with the given standard input, in the given folder (empty: the current one), and waits
/// for it. Input and output are files in memory, so no pipe can block. Throws ConfigError, which ends with the hint, if
/// the program cannot be run.
ProgramResult run_program(const std::vector<std::string>& arguments, std::string_view input,
                          const std::string& directory, const std::string& hint);

/// Starts a program with open files as standard input, output and error; returns its process id. The kernel kills the
/// program when the thread that started it ends, even if the process goes on. Throws as run_program() does.
int start_program(const std::vector<std::string>& arguments, int input, int output, int errors,
                  const std::string& directory, const std::string& hint);
/// Waits for the program; returns its exit code as in ProgramResult.
int wait_for_program(int pid);

/// A file in memory. It is closed on exec and by the destructor.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content = {});
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int descriptor() const { return descriptor_; }
  std::string content() const;

 private:
  int descriptor_;
};

}  // namespace orthant
