// The program: argv to a command, errors to one line and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "comm/launch.h"
#include "comm/store.h"

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
  int operator()(const orthant::GenerateArguments& arguments) const { return orthant::generate(arguments); }
  int operator()(const orthant::ReportArguments& arguments) const { return orthant::report(arguments); }
  int operator()(const orthant::DoctorArguments& arguments) const { return orthant::doctor(arguments); }
};

int fail(const std::string& type, const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  orthant::write_error_file(orthant::process_environment, type, message);
  return code;
}

// What a shell may have left in a state that would turn an error into silence, or a log into a data file.
void make_streams_safe() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // A closed stream's number would go to the next file that is opened, and what is printed would land there.
    if (fcntl(descriptor, F_GETFD) == -1 && open("/dev/null", O_RDWR) == -1) std::_Exit(orthant::kFailed);
  }
  std::signal(SIGPIPE, SIG_IGN);  // `| head` must not kill a rank
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, which says which file
}

// What was asked for must have been written.
int flushed(int code) {
  if (code != orthant::kDone || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  return errno == EPIPE ? code : fail("Error", "standard output cannot be written; is the disk full?", orthant::kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  make_streams_safe();
  try {
    orthant::Command command = orthant::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
    if (auto* arguments = std::get_if<orthant::TrainArguments>(&command)) arguments->command.assign(argv, argv + argc);
    return flushed(std::visit(Run(), command));
  } catch (const orthant::UsageError& error) {
    return fail("UsageError", error.what(), orthant::kUsage);
  } catch (const std::exception& error) {
    return fail("Error", orthant::brief(error), orthant::kFailed);
  }
}
