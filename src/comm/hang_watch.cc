// Posts and collects the statuses of ranks, and decides whether the run hangs.
#include "comm/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "launch/watch.h"

namespace orthant {
namespace {

constexpr const char* kTickets = "hang/tickets";  // number of ranks that have an entry
constexpr double kBetweenLooks_s = 1;
std::string entry_key(int64_t ticket) { return fmt::format("hang/{}", ticket); }

// The ranks without a status. `statuses` must be in order of rank.
std::vector<int> missing_ranks(const std::vector<RankStatus>& statuses, int num_ranks) {
  std::vector<int> missing;
  for (int rank = 0; rank < num_ranks; ++rank)
    if (!std::ranges::binary_search(statuses, rank, {}, &RankStatus::rank)) missing.push_back(rank);
  return missing;
}

}  // namespace

std::vector<RankStatus> read_statuses(const Store& store, int num_ranks) {
  // A rank may have stopped between its ticket and its entry. Any program can write the counter.
  std::vector<std::string> keys;
  const int64_t tickets = std::clamp<int64_t>(store.add(kTickets, 0), 0, num_ranks);
  for (int64_t ticket = 1; ticket <= tickets; ++ticket)
    if (store.has(entry_key(ticket))) keys.push_back(entry_key(ticket));
  if (keys.empty()) return {};
  std::map<int, RankStatus> by_rank;
  for (const std::string& text : store.get_all(keys))
    if (auto status = parse_rank_status(text, num_ranks)) by_rank.insert_or_assign(status->rank, *std::move(status));
  std::vector<RankStatus> statuses;
  for (auto& [rank, status] : by_rank) statuses.push_back(std::move(status));
  return statuses;
}

HangWatch::HangWatch(Mesh mesh, int rank, HangOptions options)
    : mesh_(std::move(mesh)), rank_(rank), options_(std::move(options)), report_after_s_(options_.patience_s) {}

void HangWatch::tick(double elapsed_s, const Store& store) {
  if (const int64_t now = options_.progress(); now != progress_) {
    progress_ = now;
    if (next_post_s_ > 0) retract(store);
    still_s_ = next_look_s_ = 0;
    missing_.clear();
    return;
  }
  still_s_ += elapsed_s;
  if (still_s_ < options_.patience_s) return;
  if (still_s_ >= next_post_s_) post(store);
  if (rank_ == 0 && !reported_ && still_s_ >= std::max(report_after_s_, next_look_s_)) look(store);
}

void HangWatch::post(const Store& store) {
  if (ticket_ == 0) ticket_ = store.add(kTickets, 1);
  RankStatus status = options_.status();
  status.rank = rank_, status.still_s = still_s_;
  store.set(entry_key(ticket_), to_text(status));
  next_post_s_ = 2 * still_s_;
}

void HangWatch::retract(const Store& store) {
  store.set(entry_key(ticket_), "");
  next_post_s_ = 0;
  if (!std::exchange(reported_, false)) return;
  report_after_s_ *= 2;
  options_.report(fmt::format("the ranks make progress again, after {:.0f} s", still_s_));
}

void HangWatch::look(const Store& store) {
  next_look_s_ = still_s_ + std::min(kBetweenLooks_s, options_.answer_s / 2);
  std::vector<RankStatus> statuses = read_statuses(store, mesh_.size());
  if (!add_silent_ranks(store, statuses)) return;
  const std::string picture = describe_waiting(mesh_, statuses);
  if (picture.empty()) return;
  reported_ = true;
  options_.report(fmt::format("no rank has made progress for {:g} s. {}", options_.patience_s, picture));
}

bool HangWatch::add_silent_ranks(const Store& store, std::vector<RankStatus>& statuses) {
  std::vector<int> missing = missing_ranks(statuses, mesh_.size());
  if (missing.empty()) return true;
  if (!options_.heartbeats) return false;
  const std::vector<Heartbeat> read = read_heartbeats(store, missing);
  std::vector<std::string> heartbeats;
  for (const Heartbeat& heartbeat : read) heartbeats.push_back(heartbeat.number);
  if (missing != missing_ || heartbeats != heartbeats_) {
    missing_ = std::move(missing), heartbeats_ = std::move(heartbeats), heartbeats_at_s_ = still_s_;
    return false;
  }
  if (still_s_ - heartbeats_at_s_ < options_.answer_s) return false;
  for (size_t i = 0; i < missing.size(); ++i)
    statuses.push_back({.rank = missing[i], .activity = read[i].activity, .silent = true});
  std::ranges::sort(statuses, {}, &RankStatus::rank);
  return true;
}

double StoreSilence::measure(int64_t answered_periods) {
  constexpr double kLongestPause_s = 2;
  const bool answered = answered_periods != std::exchange(answered_, answered_periods);
  const auto now = Clock::now();
  const double pause_s = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  silent_s_ = answered ? 0 : silent_s_ + std::min(pause_s, kLongestPause_s);
  return silent_s_;
}

std::string read_picture(const Store& store, const Mesh& mesh, bool heartbeats) {
  std::vector<RankStatus> statuses = read_statuses(store, mesh.size());
  if (std::ranges::none_of(statuses, &RankStatus::waits)) return "";
  const std::vector<int> missing = missing_ranks(statuses, mesh.size());
  const std::vector<Heartbeat> read = heartbeats ? read_heartbeats(store, missing) : std::vector<Heartbeat>();
  for (size_t i = 0; i < missing.size(); ++i)
    statuses.push_back({.rank = missing[i], .activity = i < read.size() ? read[i].activity : ""});
  std::ranges::sort(statuses, {}, &RankStatus::rank);
  return describe_waiting(mesh, statuses);
}

}  // namespace orthant
