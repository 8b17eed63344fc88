// Posts and collects the statuses of ranks, and decides whether the run hangs.
#include "comm/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"
#include "launch/background.h"

namespace orthant {
namespace {

constexpr const char* kTickets = "hang/tickets";  // number of ranks that have an entry
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

// The state of the requests. Only the thread of the latest ones uses it.
struct HangWatch::Requests {
  const Mesh mesh;
  const Store store;
  int64_t ticket = 0;  // number of this rank's entry in the store; 0 before its first

  // Posts an entry, an empty one to retract the last. Then looks for the picture, if rank 0 asks for it.
  Answer carry_out(const std::string& entry, bool posts, bool looks) {
    try {
      const Store own = store.clone();
      if (posts && ticket == 0) ticket = own.add(kTickets, 1);
      if (posts) own.set(entry_key(ticket), entry);
      if (!looks) return {};
      const std::vector<RankStatus> statuses = read_statuses(own, mesh.size());
      return {.picture = std::ssize(statuses) == mesh.size() ? describe_waiting(mesh, statuses) : ""};
    } catch (const CommError&) {  // the watch reports a store that does not answer
      return {.failed = true};
    }
  }
};

HangWatch::HangWatch(const Mesh& mesh, int rank, const Store& store, HangOptions options)
    : rank_(rank),
      options_(std::move(options)),
      report_after_s_(options_.stall_s),
      requests_(std::make_shared<Requests>(Requests{mesh, store})) {}

void HangWatch::tick(double elapsed_s) {
  constexpr double kBetweenLooks_s = 1;
  stalled_s_ += elapsed_s;
  if (answer_.valid()) {
    if (!is_ready(answer_)) return;
    const Answer answer = answer_.get();
    if (answer.failed) is_posted_ = false;
    if (!answer.picture.empty() && options_.progress() == progress_) {
      reported_ = true;
      options_.report(fmt::format("no rank has made progress for {:g} s. {}", report_after_s_, answer.picture));
    }
  }
  bool looks = false;
  if (const int64_t now = options_.progress(); now != progress_) {
    progress_ = now;
    if (std::exchange(reported_, false)) {
      report_after_s_ *= 2;
      options_.report(fmt::format("the ranks make progress again, after {:.0f} s", stalled_s_));
    }
    if (!entry_.empty()) entry_.clear(), is_posted_ = false;
    stalled_s_ = next_look_s_ = next_post_s_ = 0;
  } else if (stalled_s_ >= options_.stall_s) {
    looks = rank_ == 0 && !reported_ && stalled_s_ >= std::max(report_after_s_, next_look_s_);
    if (looks) next_look_s_ = stalled_s_ + std::min(kBetweenLooks_s, options_.stall_s / 5);
    if (stalled_s_ >= next_post_s_) {
      RankStatus status = options_.status();
      status.stalled_s = stalled_s_;
      entry_ = to_text(status);
      is_posted_ = false;
      next_post_s_ = 2 * stalled_s_;
    }
  }
  const bool posts = !std::exchange(is_posted_, true);
  if (!posts && !looks) return;
  answer_ = run_in_background([requests = requests_, entry = entry_, posts, looks] {
    return requests->carry_out(entry, posts, looks);
  });
}

std::string read_picture(const Store& store, const Mesh& mesh) {
  std::vector<RankStatus> statuses = read_statuses(store, mesh.size());
  if (std::ranges::none_of(statuses, &RankStatus::waits)) return "";
  for (const int rank : missing_ranks(statuses, mesh.size())) statuses.push_back({.rank = rank});
  std::ranges::sort(statuses, {}, &RankStatus::rank);
  return describe_waiting(mesh, statuses);
}

}  // namespace orthant
