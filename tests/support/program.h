// Runs a program from a test, with its output in a file. Waiting has a time limit that only a hang reaches.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace orthant {

/// Path of the running test program.
inline std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

class Program {
 public:
  Program(std::vector<std::string> argv, const std::map<std::string, std::string>& more_environment) {
    static int count = 0;
    output_ = std::filesystem::temp_directory_path() /
              ("orthant-test-" + std::to_string(getpid()) + "-" + std::to_string(count++) + ".log");
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    for (const auto& [name, value] : more_environment) environment.push_back(name + "=" + value);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> out;
      for (auto& text : texts) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    const int error =
        posix_spawn(&pid_, argv[0].c_str(), &files, nullptr, pointers(argv).data(), pointers(environment).data());
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) throw std::runtime_error("cannot start " + argv[0]);
  }
  ~Program() {
    if (!ended_) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    std::filesystem::remove(output_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const {
    std::ifstream file(output_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// Waits until the output contains the text. Returns false after limit_s, or if the program ends without the text.
  bool prints(const std::string& text, double limit_s = 100) {
    return poll(limit_s, [&] { return output().find(text) != std::string::npos || has_ended(); }) &&
           output().find(text) != std::string::npos;
  }
  /// Returns the exit code, 1000 + the signal that killed the program, or -1 if it still runs after limit_s.
  int exit_code(double limit_s = 100) {
    if (!poll(limit_s, [&] { return has_ended(); })) return -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 1000 + WTERMSIG(status_);
  }

  template <typename Condition>
  static bool poll(double limit_s, const Condition& condition) {
    for (int i = 0; i < limit_s * 50; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return condition();
  }

 private:
  bool has_ended() { return ended_ = ended_ || waitpid(pid_, &status_, WNOHANG) == pid_; }

  std::filesystem::path output_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace orthant
