// Starts local ranks with posix_spawn, passes signals on to them, and reports the first one that fails.
#include "launch/spawn.h"

#include <fmt/format.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "base/errors.h"
#include "base/text.h"
#include "launch/address.h"
#include "launch/host_board.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/secret.h"
#include "launch/watch.h"

extern char** environ;

namespace orthant {
namespace {

// The signals that the launcher waits for instead of being interrupted by them. They are blocked before the store's
// thread starts, so that it inherits the mask. The destructor restores the mask.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&set_, number);
    for (const int number : {SIGHUP, SIGTSTP}) {
      if (!is_ignored(number)) sigaddset(&set_, number);  // nohup asks to survive SIGHUP
    }
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  const sigset_t& before() const { return before_; }
  const sigset_t& set() const { return set_; }
  /// Returns the signal that arrived within timeout_s, or 0.
  int next(double timeout_s) const {
    timespec time{};
    time.tv_sec = static_cast<time_t>(timeout_s);
    time.tv_nsec = static_cast<int64_t>((timeout_s - static_cast<double>(time.tv_sec)) * 1e9);
    const int number = sigtimedwait(&set_, nullptr, &time);
    return number > 0 ? number : 0;
  }

 private:
  static bool is_ignored(int number) {
    struct sigaction action {};
    return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }

  sigset_t set_{}, before_{};
};

struct Child {
  pid_t pid = 0;
  std::optional<int> status = {};                    // of waitpid; empty until the process has ended
  int stopped_by = 0;                                // the signal that has stopped it; 0 while it runs
  std::optional<Clock::time_point> stopped_at = {};  // while it is stopped
  bool is_reported = false;                          // as stopped
};

std::vector<std::string> rank_environment(int rank, int ranks, int port, const std::string& run_id,
                                          const std::string& secret, int threads) {
  const std::vector<std::pair<std::string, std::string>> ours = {{"RANK", fmt::format("{}", rank)},
                                                                 {"WORLD_SIZE", fmt::format("{}", ranks)},
                                                                 {"LOCAL_RANK", fmt::format("{}", rank)},
                                                                 {"LOCAL_WORLD_SIZE", fmt::format("{}", ranks)},
                                                                 {"GROUP_RANK", "0"},
                                                                 {"GROUP_WORLD_SIZE", "1"},
                                                                 {"MASTER_ADDR", loopback_address()},
                                                                 {"MASTER_PORT", fmt::format("{}", port)},
                                                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                                 {"TORCHELASTIC_RUN_ID", "orthant"},
                                                                 {kRunId, run_id},
                                                                 {kSecret, secret},
                                                                 {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                                 {"OMP_NUM_THREADS", fmt::format("{}", threads)},
                                                                 {"ORTHANT_PARENT_PID", fmt::format("{}", getpid())}};
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name == kSecretFile) continue;
    if (std::none_of(ours.begin(), ours.end(), [&](const auto& mine) { return mine.first == name; }))
      all.push_back(text);
  }
  for (const auto& [name, value] : ours) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Starts a rank in its own process group, so that Ctrl-C in a terminal reaches it only once, through the launcher. The
// rank inherits no blocked signals.
pid_t start(const std::string& program, std::vector<std::string> argv, std::vector<std::string> environment,
            const BlockedSignals& signals) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &signals.before());
  posix_spawnattr_setsigdefault(&attributes, &signals.set());
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.c_str(), nullptr, &attributes, pointers(argv).data(), pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw CommError(fmt::format("cannot start {} as a rank: {}", program, std::strerror(error)));
  return pid;
}

// Returns how the child ended, as the end of a sentence "rank 1 ...".
std::string describe(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  const char* hint = number == SIGKILL ? " (by a user, or by the kernel because memory ran out: see dmesg)" : "";
  return fmt::format("was killed by {}{}", signal_name(number), hint);
}

class Launcher {
 public:
  Launcher(const std::vector<std::string>& argv, int ranks, const SpawnOptions& options)
      : options_(options),
        server_(Store::serve(0, 60, ranks, Reach::kThisMachine)),
        run_id_(random_nonce()),
        secret_(random_secret()),
        store_(server_.under(run_prefix(fmt::format("orthant {}", run_id_))).authenticated(secret_)),
        board_(HostBoard::join(store_, ranks)) {
    const int threads =
        options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, available_cores() / ranks);
    if (options.prepare) options.prepare(store_);
    const std::string& program = options.program.empty() ? argv[0] : options.program;
    try {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto variables = rank_environment(rank, ranks, server_.port(), run_id_, secret_, threads);
        children_.push_back({.pid = start(program, argv, variables, signals_)});
      }
    } catch (...) {
      send(SIGKILL);
      while (running() > 0) reap(), signals_.next(0.05);
      throw;
    }
  }

  int run() {
    while (running() > 0) {
      const int number = signals_.next(0.2);
      if (number == SIGINT || number == SIGTERM) forward_signal(number);
      if ((number == SIGUSR1 || number == SIGHUP) && requested_ == 0) forward_signal(SIGTERM);
      if (number == SIGTSTP) suspend();
      reap();
      if (!failure_) warn_of_stopped();
      if (deadline_ && Clock::now() > *deadline_) send(SIGKILL);
    }
    return exit_code_;
  }

  /// The failure of the run; empty if there was none.
  const std::optional<RankFailure>& failure() const { return failure_; }
  bool stop_requested() const { return requested_ != 0; }
  void report_failure() const {
    if (failure_->reported) return;
    std::string text = failure_->message;
    if (const std::string advice = options_.advice ? options_.advice() : ""; !advice.empty()) text += "\n" + advice;
    if (options_.report) return options_.report(text);
    fmt::print(stderr, "error: {}\n", text);
  }

 private:
  int64_t running() const {
    return std::count_if(children_.begin(), children_.end(), [](const Child& child) { return !child.status; });
  }

  void send(int number) const {
    for (const Child& child : children_) {
      if (!child.status) kill(child.pid, number);
    }
  }

  // Ignores a repeated signal within 1 s. A terminal sends Ctrl-C to its whole process group, so a wrapper that passes
  // it on delivers it twice.
  void forward_signal(int number) {
    constexpr auto kSameRequest = std::chrono::seconds(1);
    if (number == requested_ && Clock::now() - requested_at_ < kSameRequest) return;
    send(requested_ == 0 ? number : SIGKILL);
    send(SIGCONT);  // a stopped rank could not handle the signal
    if (requested_ == 0) requested_ = number, requested_at_ = Clock::now();
    if (number == SIGINT) exit_code_ = kInterrupted;
  }

  // Stops the ranks and this process until the shell continues it. Ctrl-Z in a terminal reaches this process only,
  // because the ranks are in process groups of their own.
  void suspend() const {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGTSTP);
    send(SIGSTOP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);  // this process stops here
    pthread_sigmask(SIG_BLOCK, &own, nullptr);
    send(SIGCONT);
  }

  void reap() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (child.status || waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.pid) continue;
      if (WIFSTOPPED(status)) {
        child.stopped_by = WSTOPSIG(status), child.stopped_at = Clock::now();
        continue;
      }
      child.stopped_at.reset();
      if (std::exchange(child.is_reported, false) && !WIFSIGNALED(status))
        fmt::print(stderr, "warning: rank {} runs again\n", rank);
      if (WIFCONTINUED(status)) continue;
      child.status = status;
      // A rank that was interrupted directly, and not by the launcher, has informed the other ranks itself.
      const bool as_requested =
          (WIFEXITED(status) && WEXITSTATUS(status) == kInterrupted) ||
          (requested_ != 0 && WIFSIGNALED(status) && (WTERMSIG(status) == requested_ || WTERMSIG(status) == SIGKILL));
      if (status == 0 || failure_) continue;
      if (as_requested) {
        // The rank was interrupted before its first step, or SIGTERM killed it before it could handle the signal.
        if (exit_code_ == 0) exit_code_ = WIFEXITED(status) ? kInterrupted : kFailed;
        continue;
      }
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
      const auto number = static_cast<int>(rank);
      failure_ = {.rank = number,
                  .message = fmt::format("rank {} {}{}", rank, describe(status), last_activity(*board_, number)),
                  .exit_code = exit_code_};
      end_others();
      // A run of one rank has no store of its own; its rank reports all failures but a signal.
      const bool reports_itself = children_.size() == 1 && WIFEXITED(status);
      failure_->reported = !post_failure(store_, failure_->message) || reports_itself;
      board_->post_failure(failure_->message);  // most ranks look at the board only
      if (!options_.restart) report_failure();
    }
  }

  bool is_watched(size_t rank) const {
    const int position = board_->find(static_cast<int>(rank));
    return position >= 0 && board_->is_watched(position);
  }

  bool any_rank_watches() const {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (!children_[rank].status && !children_[rank].stopped_at && is_watched(rank)) return true;
    }
    return false;
  }

  // Where in the run a stopped rank is that no other rank watches.
  std::string stage_of(size_t rank) const {
    if (board_->find(static_cast<int>(rank)) < 0) return " before all are connected";
    const bool any_has_ended = running() < std::ssize(children_);
    return any_has_ended || !is_watched(rank) ? " after the last message between ranks" : ", and no other rank runs";
  }

  // Warns once of each rank that is stopped while no rank watches it. A watcher of a stopped rank ends the run with an
  // error. Ranks in the same stage of the run share a warning.
  void warn_of_stopped() {
    constexpr auto kPatience = std::chrono::seconds(2);
    const auto is_new = [](const Child& child) { return child.stopped_at && !child.is_reported; };
    if (std::ranges::none_of(children_, [&](const Child& child) {
          return is_new(child) && Clock::now() - *child.stopped_at >= kPatience;
        })) {
      return;
    }
    const bool any_watches = any_rank_watches();
    std::map<std::string, std::vector<size_t>> unwatched;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (is_new(children_[rank]) && (!any_watches || !is_watched(rank))) unwatched[stage_of(rank)].push_back(rank);
    }
    for (const auto& [stage, ranks] : unwatched) {
      std::vector<std::string> names, pids;
      for (const size_t rank : ranks) {
        Child& child = children_[rank];
        child.is_reported = true;
        names.push_back(fmt::format("rank {} (process {}, by {})", rank, child.pid, signal_name(child.stopped_by)));
        pids.push_back(fmt::format("{}", child.pid));
      }
      fmt::print(stderr,
                 "warning: the run waits for {}{}: {}. Continue with `kill -CONT {}`, or end the run with Ctrl-C\n",
                 counted(std::ssize(ranks), "stopped rank"), stage, join(names, ", "), join(pids, " "));
    }
  }

  // Kills the ranks that cannot react, because their processes are stopped. The others end when they see the failure
  // record, wherever they are blocked; the deadline kills them later.
  void end_others() {
    deadline_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options_.grace_s * 1000));
    for (const Child& child : children_) {
      // A stopped process cannot react.
      if (!child.status && process_state(process_identity(child.pid)) == ProcessState::stopped)
        kill(child.pid, SIGKILL);
    }
  }

  const SpawnOptions& options_;
  const BlockedSignals signals_;
  const Store server_;
  const std::string run_id_, secret_;
  const Store store_;
  const std::shared_ptr<HostBoard> board_;
  std::vector<Child> children_;
  int requested_ = 0;
  Clock::time_point requested_at_;
  int exit_code_ = 0;
  std::optional<RankFailure> failure_;
  std::optional<Clock::time_point> deadline_;
};

// Cores on which a process may run (0: this process), or 0 if the kernel does not say.
int cores_of_process(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(process, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

int cores_of_local_ranks(int local_ranks) {
  const int own = available_cores();
  constexpr const char* kRankOfABindingLauncher[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  const bool may_be_bound = std::ranges::any_of(
      kRankOfABindingLauncher, [](const char* variable) { return process_environment(variable).has_value(); });
  return may_be_bound && own < cores_of_process(getppid()) ? own * local_ranks : own;
}

int run_local_ranks(const std::vector<std::string>& argv, int ranks, const SpawnOptions& options) {
  ORTHANT_CHECK(ranks >= 1 && !argv.empty(), ranks);
  for (std::vector<std::string> line = argv;;) {
    Launcher launcher(line, ranks, options);
    const int code = launcher.run();
    if (!launcher.failure() || !options.restart) return code;
    line = launcher.stop_requested() ? std::vector<std::string>() : options.restart(*launcher.failure());
    if (!line.empty()) continue;
    launcher.report_failure();
    return code;
  }
}

}  // namespace orthant
