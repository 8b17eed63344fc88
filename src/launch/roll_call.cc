#include "launch/roll_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/wait.h"

namespace orthant {
namespace {

constexpr const char* kArrived = "arrived";    // the number of ranks that have posted their texts
constexpr const char* kComplete = "complete";  // exists once all have
constexpr const char* kAnswer = "answer";      // a letter, and the answer or the clause about missing ranks
constexpr char kFound = '+', kMissing = '-';

std::string text_key(int rank) { return fmt::format("text/{}", rank); }

// The ranks that take part, in order.
std::vector<int> ranks_of(const RollCall& call) {
  if (!call.members.empty()) return call.members;
  std::vector<int> all(static_cast<size_t>(call.world_size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int number_of_ranks(const RollCall& call) {
  return call.members.empty() ? call.world_size : static_cast<int>(call.members.size());
}

int first_rank(const RollCall& call) { return call.members.empty() ? 0 : call.members.front(); }
int second_rank(const RollCall& call) { return call.members.empty() ? 1 : call.members[1]; }

std::vector<int> missing_ranks(const RollCall& call) {
  std::vector<int> missing = ranks_of(call);
  std::erase_if(missing, [&](int rank) { return call.store.has(text_key(rank)); });
  return missing;
}

// "ranks 1, 2 of 3". Of many, the first ones.
std::string text_of(const std::vector<int>& ranks, const RollCall& call) {
  constexpr size_t kMostNamed = 8;
  const size_t named = std::min(ranks.size(), kMostNamed);
  return fmt::format("{} {}{} of {}", ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(named), ", "),
                     ranks.size() > named ? fmt::format(" and {} others", ranks.size() - named) : "", call.world_size);
}

// The first rank warns of ranks that are missing, and the second of the first, which may be missing or still compute
// the answer.
void warn_of_slow_ranks(const RollCall& call, double waited_s) {
  const int first = first_rank(call);
  const bool is_second = call.rank == second_rank(call);
  if (call.rank != first && !is_second) return;
  if (is_second && call.store.has(text_key(first)) && !call.store.has(kComplete)) return;
  const std::vector<int> missing = is_second ? std::vector{first} : missing_ranks(call);
  if (missing.empty() || call.store.has(kAnswer)) return;
  call.warn(fmt::format("the run has waited {:.0f} s for {} to {}", waited_s, text_of(missing, call), call.missed));
}

std::optional<std::string> await(const RollCall& call, const std::string& key, double timeout_s) {
  constexpr double kSlow_s = 7;  // the wait is repeated after 0.5, 1.5, 3.5 and 7.5 s
  const auto start = Clock::now();
  bool may_warn = call.warn != nullptr;
  return await_key(call.store, key, {.timeout_s = timeout_s, .is_over = [&] {
                                       if (call.check) call.check();
                                       if (may_warn && seconds_since(start) > kSlow_s) {
                                         may_warn = false;
                                         warn_of_slow_ranks(call, seconds_since(start));
                                       }
                                       return false;
                                     }});
}

[[noreturn]] void refuse(const RollCall& call, const std::string& ranks) {
  throw MissingRanks(fmt::format("rank {}: {} did not {} within {:g} s; {}", call.rank, ranks, call.missed,
                                 call.timeout_s, call.way_out));
}

}  // namespace

std::string await_text(const RollCall& call, const std::string& key, int from) {
  if (const auto text = await(call, key, call.timeout_s)) return *text;
  refuse(call, text_of({from}, call));
}

void end_roll_call(const Store& store, const std::string& answer) { store.set_if_new(kAnswer, kFound + answer); }

std::string call_roll(const RollCall& call, const std::string& text,
                      const std::function<std::string(const std::vector<std::string>& texts)>& summarize) {
  if (number_of_ranks(call) == 1) return summarize ? summarize({text}) : "";
  constexpr double kFirstRank_s = 2;  // the first rank knows which ranks are missing, and gets this time to say so
  const bool is_first = call.rank == first_rank(call);
  call.store.set(text_key(call.rank), text);
  const bool is_last = call.store.add(kArrived, 1) == number_of_ranks(call);
  if (is_last && !summarize) end_roll_call(call.store, "");
  if (is_last && summarize) call.store.set(kComplete, "");

  const bool summarizes = summarize && is_first;
  const double timeout_s = call.timeout_s + (is_first ? 0 : kFirstRank_s);
  std::optional<std::string> answer = await(call, summarizes ? kComplete : kAnswer, timeout_s);
  if (answer && summarizes) {
    std::vector<std::string> keys;
    for (const int rank : ranks_of(call)) keys.push_back(text_key(rank));
    const std::vector<std::string> texts = call.store.get_all(keys);
    answer = call.store.set_if_new(kAnswer, kFound + summarize(texts));
  }
  if (!answer && !is_first) refuse(call, text_of({first_rank(call)}, call));
  if (!answer) {
    const std::vector<int> missing = missing_ranks(call);  // empty if the last rank came meanwhile
    const std::string who =
        missing.empty() ? fmt::format("the last of {} ranks", number_of_ranks(call)) : text_of(missing, call);
    answer = call.store.set_if_new(kAnswer, kMissing + who);
  }
  if (answer->starts_with(kMissing)) refuse(call, escape_for_terminal(answer->substr(1)));
  call.store.remove(text_key(call.rank));  // no rank reads it any more, and the store of a long run must not grow
  return answer->substr(std::min<size_t>(1, answer->size()));
}

}  // namespace orthant
