#include "launch/roll_call.h"

#include <algorithm>
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
constexpr size_t kMostKept = 1000;             // bytes of a text; the store of a long run must not keep longer ones
constexpr char kFound = '+', kMissing = '-';

std::string text_key(int rank) { return fmt::format("text/{}", rank); }

// Waits for a key. Empty after timeout_s.
std::optional<std::string> await(const RollCall& call, const std::string& key, double timeout_s) {
  constexpr double kFirstPiece_s = 0.5, kLongestPiece_s = 8;
  RunningTime running(2 * kLongestPiece_s);
  for (double longest_s = kFirstPiece_s;; longest_s = std::min(2 * longest_s, kLongestPiece_s)) {
    const double left_s = timeout_s - running.seconds(), piece_s = std::clamp(left_s, 0.001, longest_s);
    const auto asked = Clock::now();
    try {
      return call.store.get(key, piece_s);
    } catch (const ForgedValue&) {
      throw;
    } catch (const CommError&) {
      if (call.check) call.check();
      const bool waited = seconds_since(asked) >= piece_s;
      if (waited && left_s > 0) continue;
      const bool exists = call.store.has(key);  // throws if the store is gone
      if (left_s <= 0 && !exists) return std::nullopt;
    }
  }
}

// "ranks 1, 2 of 3", for those that have not come. Of many, the first ones.
std::string missing_ranks(const RollCall& call) {
  constexpr size_t kMostNamed = 8;
  std::vector<std::string> missing;
  for (int rank = 0; rank < call.world_size; ++rank) {
    if (!call.store.has(text_key(rank))) missing.push_back(fmt::format("{}", rank));
  }
  const size_t all = missing.size();
  missing.resize(std::min(all, kMostNamed));
  return fmt::format("{} {}{} of {}", all == 1 ? "rank" : "ranks", join(missing, ", "),
                     all > kMostNamed ? fmt::format(" and {} others", all - kMostNamed) : "", call.world_size);
}

[[noreturn]] void refuse(const RollCall& call, const std::string& ranks) {
  throw MissingRanks(fmt::format("rank {}: {} did not {} within {:g} s; {}", call.rank, ranks, call.missed,
                                 call.timeout_s, call.way_out));
}

}  // namespace

std::string await_text(const RollCall& call, const std::string& key, int from) {
  if (const auto text = await(call, key, call.timeout_s)) return *text;
  refuse(call, fmt::format("rank {} of {}", from, call.world_size));
}

void end_roll_call(const Store& store, const std::string& answer) { store.set_if_new(kAnswer, kFound + answer); }

std::string call_roll(const RollCall& call, const std::string& text,
                      const std::function<std::string(const std::vector<std::string>& texts)>& summarize) {
  if (call.world_size == 1) return summarize ? summarize({text}) : "";
  constexpr double kRankZeroFirst_s = 2;  // rank 0 knows which ranks are missing, and gets this time to say so
  call.store.set(text_key(call.rank), text);
  const bool is_last = call.store.add(kArrived, 1) == call.world_size;
  if (is_last && !summarize) end_roll_call(call.store, "");
  if (is_last && summarize) call.store.set(kComplete, "");

  const bool summarizes = summarize && call.rank == 0;
  const double patience_s = call.timeout_s + (call.rank == 0 ? 0 : kRankZeroFirst_s);
  std::optional<std::string> answer = await(call, summarizes ? kComplete : kAnswer, patience_s);
  if (answer && summarizes) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < call.world_size; ++rank) keys.push_back(text_key(rank));
    const std::vector<std::string> texts = call.store.get_all(keys);
    end_roll_call(call.store, summarize(texts));
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank].size() > kMostKept) call.store.remove(keys[rank]);
    }
    answer = call.store.get(kAnswer, kRankZeroFirst_s);
  }
  if (!answer && call.rank != 0) refuse(call, fmt::format("rank 0 of {}", call.world_size));
  if (!answer) answer = call.store.set_if_new(kAnswer, kMissing + missing_ranks(call));
  if (answer->starts_with(kMissing)) refuse(call, escape_for_terminal(answer->substr(1)));
  return answer->substr(std::min<size_t>(1, answer->size()));
}

}  // namespace orthant
