// The program: runs the command of argv, and turns errors into one line and an exit code.
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "app/command_line.h"
#include "app/openmp_wait.h"
#include "app/streams.h"
#include "base/file_errors.h"
#include "comm/vector_math.h"
#include "launch/launch.h"
#include "launch/store.h"

namespace {

struct Run {
  int operator()(const orthant::PrintText& print) const {
    std::fputs(print.text.c_str(), stdout);
    return orthant::kDone;
  }
  int operator()(const orthant::TrainArguments& arguments) const { return orthant::train(arguments); }
  int operator()(const orthant::PlanArguments& arguments) const { return orthant::plan(arguments); }
  int operator()(const orthant::VerifyArguments& arguments) const { return orthant::verify(arguments); }
  int operator()(const orthant::TokenizeArguments& arguments) const { return orthant::tokenize(arguments); }
  int operator()(const orthant::ConvertArguments& arguments) const { return orthant::convert(arguments); }
  int operator()(const orthant::CheckpointArguments& arguments) const { return orthant::checkpoint(arguments); }
  int operator()(const orthant::GenerateArguments& arguments) const { return orthant::generate(arguments); }
  int operator()(const orthant::ReportArguments& arguments) const { return orthant::report(arguments); }
  int operator()(const orthant::CompareArguments& arguments) const { return orthant::compare(arguments); }
  int operator()(const orthant::DoctorArguments& arguments) const { return orthant::doctor(arguments); }
  int operator()(const orthant::CalibrateArguments& arguments) const { return orthant::calibrate(arguments); }
  int operator()(const orthant::CompletionArguments& arguments) const { return orthant::completion(arguments); }
};

// True if the command computes with tensors on several threads.
bool computes(const orthant::Command& command) {
  return std::holds_alternative<orthant::TrainArguments>(command) ||
         std::holds_alternative<orthant::VerifyArguments>(command) ||
         std::holds_alternative<orthant::GenerateArguments>(command) ||
         std::holds_alternative<orthant::DoctorArguments>(command) ||
         std::holds_alternative<orthant::CalibrateArguments>(command);
}

[[noreturn]] void out_of_memory() {
  constexpr std::string_view kText =
      "error: out of memory: the system cannot provide more; use a machine with more memory, or smaller files\n";
  (void)!write(STDERR_FILENO, kText.data(), kText.size());
  _exit(orthant::kFailed);
}

void* allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) out_of_memory();
  return memory;
}

void* allocate_aligned(std::size_t bytes, std::size_t alignment) {
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) out_of_memory();
  return memory;
}

int fail(const std::string& type, const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  orthant::write_error_file(orthant::process_environment, type, message);
  return code;
}

}  // namespace

// The forms of mimalloc abort the process without a message if there is no memory left.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, static_cast<std::size_t>(alignment));
}

int main(int argc, char** argv) {
  prctl(PR_SET_NAME, "orthant");  // ss and top would show "exe", since ranks are started as /proc/self/exe
  orthant::make_streams_safe();
  orthant::resolve_vector_math();
  try {
    orthant::Command command = orthant::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
    if (computes(command)) orthant::limit_openmp_spinning(argv);
    if (auto* arguments = std::get_if<orthant::TrainArguments>(&command)) arguments->command.assign(argv, argv + argc);
    const int code = orthant::explained([&] { return std::visit(Run(), command); });
    if (code == orthant::kDone) orthant::require_printed();
    return code;
  } catch (const orthant::UsageError& error) {
    return fail("UsageError", error.what(), orthant::kUsage);
  } catch (const std::exception& error) {
    return fail("Error", orthant::brief(error), orthant::kFailed);
  }
}
