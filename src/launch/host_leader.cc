#include "launch/host_leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/failure_record.h"

namespace orthant {
namespace {

// A heartbeat is the leader's rank, the number of ranks on the host (0: unknown), a number that changes, and the
// leader's activity, or this text after all ranks of the host have ended their run.
constexpr const char* kLeft = "left";

int64_t number_in(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

void Heartbeat::see(int64_t beat, double elapsed_s) {
  unchanged_s_ = beat == beat_ ? unchanged_s_ + elapsed_s : 0;
  beat_ = beat;
}

std::string SilenceWarning::change(bool is_silent, const std::function<std::string(bool is_silent)>& describe) {
  return std::exchange(is_silent_, is_silent) == is_silent ? "" : describe(is_silent);
}

std::string readable_activity(const std::string& posted) {
  constexpr size_t kMostBytes = 300;
  return escape_for_terminal(posted, kMostBytes);
}

std::string during(const std::string& activity) {
  return activity.empty() ? "" : fmt::format(" (last reported activity: {})", activity);
}

HostLeader::HostLeader(const Store& store, std::shared_ptr<HostBoard> board, std::vector<int> hosts, int rank,
                       const HeartbeatLimits& limits)
    : store_(store),
      board_(std::move(board)),
      ring_(std::move(hosts)),
      rank_(rank),
      limits_(limits),
      since_beat_s_(limits.period_s) {}

Answer HostLeader::inquire(double elapsed_s) {
  if (!connection_) connection_ = store_.clone();
  if (auto posted = find_failure(connection_)) return {.posted = std::move(posted)};
  return !board_ || ring_.size() < 2 ? Answer() : look_at_hosts(elapsed_s);
}

void HostLeader::leave(const Store& store, const HostBoard& board) {
  store.set(HostBoard::heartbeat_key(board.host()), kLeft);
}

void HostLeader::beat() {
  const int position = board_->find(rank_);
  connection_.set(HostBoard::heartbeat_key(board_->host()),
                  fmt::format("{}\n{}\n{}\n{}", rank_, board_->num_ranks(), board_->heartbeat(position),
                              board_->activity(position)));
}

// The host before this one that has not left, and those between them, where a later Watch may begin; all others while a
// rank of this host is suspicious.
std::vector<int> HostLeader::watched_hosts() const {
  std::vector<int> watched;
  const size_t position = static_cast<size_t>(std::ranges::find(ring_, board_->host()) - ring_.begin());
  for (size_t distance = 1; distance < ring_.size(); ++distance) {
    const int host = ring_[(position + ring_.size() - distance) % ring_.size()];
    const auto known = hosts_.find(host);
    watched.push_back(host);
    const bool has_left = known != hosts_.end() && known->second.left;
    if (!has_left && !board_->is_suspicious()) break;
  }
  return watched;
}

Answer HostLeader::look_at_hosts(double elapsed_s) {
  since_beat_s_ += elapsed_s;
  if (since_beat_s_ >= limits_.period_s) beat(), since_beat_s_ = 0;
  std::vector<int> watched = watched_hosts();
  // A request for a key that does not exist would wait.
  for (const int host : watched) {
    Host& known = hosts_[host];
    if (!known.has_posted && !(known.has_posted = connection_.has(HostBoard::heartbeat_key(host))))
      known.heartbeat.see(0, elapsed_s);
  }
  std::vector<std::string> keys;
  for (const int host : watched) {
    if (hosts_[host].has_posted) keys.push_back(HostBoard::heartbeat_key(host));
  }
  const auto posted = keys.empty() ? std::vector<std::string>() : connection_.get_all(keys);
  auto next = posted.begin();
  Answer answer;
  for (const int host : watched) {
    if (hosts_[host].has_posted) read(host, *next++, elapsed_s);
    if (answer.problem.empty()) answer.problem = describe_failure(hosts_[host]);
    if (std::string warning = warning_of(hosts_[host]); !warning.empty()) answer.warnings.push_back(std::move(warning));
  }
  return answer;
}

void HostLeader::read(int host, const std::string& posted, double elapsed_s) {
  Host& known = hosts_[host];
  known.left = posted == kLeft;
  const auto lines = split(posted, '\n');
  if (known.left || lines.size() < 4) return;
  const int64_t leader = number_in(lines[0]), num_ranks = number_in(lines[1]);
  known.name = num_ranks == 1 ? fmt::format("rank {}", leader)
               : num_ranks == 0
                   ? fmt::format("the host of rank {}", leader)
                   : fmt::format("the host of rank {} and {}", leader, counted(num_ranks - 1, "other rank"));
  known.activity = lines[3];
  known.heartbeat.see(number_in(lines[2]), elapsed_s);
}

std::string HostLeader::describe_failure(const Host& host) const {
  const double timeout_s = board_->is_suspicious() ? std::min(limits_.timeout_s, limits_.suspected_timeout_s)
                                                   : std::max(limits_.timeout_s, kMissedBeats * limits_.period_s);
  if (host.left || host.heartbeat.unchanged_s() < timeout_s) return "";
  return fmt::format("{} has sent no heartbeat for {:.0f} s{}", host.name, host.heartbeat.unchanged_s(),
                     during(readable_activity(host.activity)));
}

std::string HostLeader::warning_of(Host& host) const {
  const double unchanged_s = host.heartbeat.unchanged_s();
  const bool is_silent = !host.left && unchanged_s >= std::max(limits_.warn_after_s, kMissedBeats * limits_.period_s);
  return host.warning.change(is_silent && describe_failure(host).empty(), [&](bool silent) {
    if (!silent) return host.name + " sends heartbeats again";
    return fmt::format(
        "{} has sent no heartbeat for {:.1f} s: it may be frozen or cut off{}. The run stops after {:g} s "
        "of silence",
        host.name, unchanged_s, during(readable_activity(host.activity)), limits_.timeout_s);
  });
}

}  // namespace orthant
