// Other programs run to their end: text in, text out. Used for sentencepiece and gzip, which are not linked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct ProgramResult {
  int exit_code = 0;  ///< 128 + signal if a signal ended it
  std::string output, errors;
};

/// Runs a program found on PATH with the given standard input, in the given folder (empty: ours), and waits for it.
/// Input and output go through files in memory, so no pipe can fill up. Throws ConfigError if there is no such program:
/// the message ends with the hint.
ProgramResult run_program(const std::vector<std::string>& arguments, std::string_view input,
                          const std::string& directory, const std::string& hint);

/// Starts a program whose input is one open file and whose output and errors are others; returns its process id. The
/// program is killed when the thread that started it ends, with or without the process. Throws as run_program does.
int start_program(const std::vector<std::string>& arguments, int input, int output, int errors,
                  const std::string& directory, const std::string& hint);
/// Waits for it; the exit code as in ProgramResult.
int wait_for_program(int pid);

/// A file in memory, closed on exec and when it goes out of scope.
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
