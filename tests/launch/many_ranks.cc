#include "tests/launch/many_ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "launch/launch.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/roll_call.h"
#include "launch/spawn.h"
#include "launch/watch.h"
#include "tests/support/program.h"

namespace orthant {
namespace {

constexpr double kConnect_s = 300;

std::string part_setting(const char* name) { return process_environment(name).value_or(""); }
double clock_s() { return seconds_between(Clock::time_point(), Clock::now()); }

// One write, so that the lines of many ranks do not mix.
void print_line(const std::string& line) { (void)!write(STDOUT_FILENO, line.data(), line.size()); }

// A rank asks the store for the same as one of orthant train: it joins the run, compares the configuration, meets the
// others under a Watch, exchanges introductions, makes its steps, and leaves after all others have reached the end.
void play_rank() {
  const Launch launch = detect_launch(process_environment, parent_identity()).value();
  const int rank = launch.rank, ranks = launch.world_size;
  const std::string text = "seed = 7";
  Rendezvous rendezvous = connect(launch, kConnect_s, text);
  check_agreement(rendezvous, text, kConnect_s);
  if (part_setting("MANY_RANKS_BOARDS") == "no") rendezvous.board = nullptr;
  Watch watch(rendezvous.store, "comm/0", rank, ranks, kConnect_s,
              {.board = rendezvous.board, .on_failure = [](const std::string& message, bool must_report) {
                 if (must_report) print_line(fmt::format("error: {}\n", message));
                 _exit(kFailed);
               }});
  const auto count = [](const std::vector<std::string>& texts) { return fmt::format("{}", texts.size()); };
  const std::string met =
      call_roll(watch.roll_call(rendezvous.store.under("introductions"), kConnect_s), "here", count);
  ORTHANT_CHECK(met == fmt::format("{}", ranks), met, ranks);

  const double started_s = clock_s();
  const int64_t before = rendezvous.store.requests();
  const int steps = std::stoi(part_setting("MANY_RANKS_STEPS"));
  for (int step = 0; step < steps; ++step) {
    watch.set_activity(fmt::format("step {}", step));
    std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(part_setting("MANY_RANKS_STEP_S"))));
  }
  const int64_t of_steps = rendezvous.store.requests() - before;
  const double steps_s = clock_s() - started_s;
  call_roll(watch.roll_call(rendezvous.store.under("drained"), kConnect_s));
  watch.leave(true);
  print_line(fmt::format("rank {} {} {} {}\n", rendezvous.store.requests(), of_steps, started_s, steps_s));
}

std::string read_to_end(int fd) {
  std::string text;
  char piece[4096];
  for (ssize_t bytes = 0; (bytes = read(fd, piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(bytes));
  return text;
}

[[noreturn]] void become_rank(int stub, const std::string& environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  clearenv();
  for (size_t at = 0; at < environment.size(); at += std::strlen(environment.c_str() + at) + 1)
    putenv(const_cast<char*>(environment.c_str() + at));
  unsigned char code = 0;
  try {
    play_rank();
  } catch (const std::exception& error) {
    print_line(fmt::format("error: {}\n", error.what()));
    code = kFailed;
  }
  (void)!write(stub, &code, 1);
  _exit(code);
}

[[noreturn]] void play_fork_server(const std::string& path) {
  ORTHANT_CHECK(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}) == 1);
  std::signal(SIGCHLD, SIG_IGN);  // the kernel removes ended ranks
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ORTHANT_CHECK(path.size() < sizeof address.sun_path, path);
  std::strcpy(address.sun_path, path.c_str());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ORTHANT_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  ORTHANT_CHECK(listen(listener, SOMAXCONN) == 0);
  print_line("ready\n");
  for (;;) {
    const int stub = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (stub < 0) continue;
    const std::string environment = read_to_end(stub);
    const pid_t pid = fork();
    if (pid == 0) {
      close(listener);
      become_rank(stub, environment);
    }
    if (pid < 0) print_line(fmt::format("error: cannot fork a rank: {}\n", std::strerror(errno)));
    close(stub);
  }
}

[[noreturn]] void play_launcher() {
  std::optional<Store> store;
  SpawnOptions options{.threads_per_rank = 1};
  options.prepare = [&](const Store& of_ranks) { store = of_ranks; };
  const double start_s = clock_s();
  const int code = run_local_ranks({part_setting("MANY_RANKS_STUB"), part_setting("MANY_RANKS_SOCKET")},
                                   std::stoi(part_setting("MANY_RANKS_COUNT")), options);
  print_line(fmt::format("launcher {} {} {}\n", store->requests(), start_s, clock_s()));
  _exit(code);
}

}  // namespace

void play_many_ranks_part() {
  const std::string part = part_setting("MANY_RANKS_PART");
  if (part == "fork server") play_fork_server(part_setting("MANY_RANKS_SOCKET"));
  if (part == "launcher") play_launcher();
}

ManyRanksCounts run_many_ranks(const ManyRanksOptions& options, double limit_s) {
  const std::string socket = std::filesystem::temp_directory_path() / fmt::format("orthant-ranks-{}", getpid());
  std::filesystem::remove(socket);
  const std::map<std::string, std::string> settings = {{"MANY_RANKS_SOCKET", socket},
                                                       {"MANY_RANKS_STUB", options.stub_program},
                                                       {"MANY_RANKS_COUNT", fmt::format("{}", options.ranks)},
                                                       {"MANY_RANKS_STEPS", fmt::format("{}", options.steps)},
                                                       {"MANY_RANKS_STEP_S", fmt::format("{}", options.step_s)},
                                                       {"MANY_RANKS_BOARDS", options.boards ? "yes" : "no"}};
  const auto part = [&](const std::string& name) {
    auto own = settings;
    own["MANY_RANKS_PART"] = name;
    return own;
  };
  Program server({options.program}, part("fork server"));
  ManyRanksCounts counts;
  if (!server.prints("ready")) throw std::runtime_error("the fork server does not start: " + server.output());
  Program launcher({options.program}, part("launcher"));
  counts.exit_code = launcher.exit_code(limit_s);
  counts.output = server.output() + launcher.output();
  std::filesystem::remove(socket);
  std::istringstream lines(counts.output);
  double first_s = 0, last_s = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string who;
    int64_t requests = 0, of_steps = 0;
    double started_s = 0, seconds = 0;
    fields >> who >> requests;
    if (who == "rank" && fields >> of_steps >> started_s >> seconds) {
      ++counts.ranks;
      counts.step_requests += of_steps;
      counts.step_s += seconds / (options.ranks * options.steps);
      last_s = std::max(last_s, started_s);
    } else if (who == "launcher" && fields >> first_s >> seconds) {
      counts.total_s = seconds - first_s;
    } else {
      continue;
    }
    counts.requests += requests;
  }
  counts.start_s = last_s - first_s;
  return counts;
}

}  // namespace orthant
