#include "parallel/vocabulary/plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "base/errors.h"
#include "schedule/barriers.h"

namespace orthant {
namespace {

using enum ActionKind;

constexpr std::array<ActionKind, 3> kNaive = {S, Z, T};
constexpr std::array<ActionKind, 2> kTwoBarriers = {S, T};
constexpr std::array<ActionKind, 2> kOneBarrier = {S, TW};

const std::array<VocabularyAlgorithm, 3> kAlgorithms = {{
    {"naive", kNaive, 3},
    {"algorithm_1", kTwoBarriers, 2},
    {"algorithm_2", kOneBarrier, 1},
}};

/// A vocabulary pass of one microbatch, and the time at which every rank runs it.
struct PassTime {
  double at_s;
  int microbatch;
  ActionKind kind;

  /// At equal times the earlier microbatch comes first; S comes before T of the same microbatch.
  bool operator<(const PassTime& other) const {
    return std::tie(at_s, microbatch, kind) < std::tie(other.at_s, other.microbatch, other.kind);
  }
};

/// By microbatch: when the schedule makes the tensors that the vocabulary layers read, and when it reads their results.
struct Times {
  std::vector<double> output_from_s, output_until_s;  // ends of the last stage's F, starts of its B or I
  std::vector<double> input_until_s, input_from_s;    // starts of the first stage's F, ends of its B or I
  double microbatch_s = 0;                            // work of one microbatch on the busiest rank

  Times(const Timeline& timeline, int last_stage, int microbatches) {
    const auto count = static_cast<size_t>(microbatches);
    for (auto* each : {&output_from_s, &output_until_s, &input_until_s, &input_from_s}) each->resize(count);
    for (const Span& span : timeline.spans) {
      const auto [kind, stage, microbatch] = span.action;
      const auto m = static_cast<size_t>(microbatch);
      const bool backward = kind == B || kind == I;
      if (kind == F && stage == last_stage) output_from_s[m] = span.end;
      if (backward && stage == last_stage) output_until_s[m] = span.start;
      if (kind == F && stage == 0) input_until_s[m] = span.start;
      if (backward && stage == 0) input_from_s[m] = span.end;
    }
    microbatch_s = *std::max_element(timeline.busy.begin(), timeline.busy.end()) / microbatches;
  }
};

/// Lowers times until none exceeds that of a later microbatch, so that all ranks run the pass in increasing order.
void make_nondecreasing(std::vector<double>& at_s) {
  for (size_t m = at_s.size(); m-- > 1;) at_s[m - 1] = std::min(at_s[m - 1], at_s[m]);
}

void add(std::vector<PassTime>& out, ActionKind kind, const std::vector<double>& at_s) {
  for (size_t m = 0; m < at_s.size(); ++m) out.push_back({at_s[m], static_cast<int>(m), kind});
}

std::vector<PassTime> output_passes(const Times& times, const VocabularyAlgorithm& algorithm) {
  const size_t microbatches = times.output_from_s.size();
  std::vector<PassTime> out;
  // Passes up to the one that the last stage's backward waits for: evenly spread over the available time.
  const bool last_is_free = algorithm.early();
  const size_t waited_for = algorithm.passes.size() - (last_is_free ? 1 : 0);
  std::vector<double> at_s(microbatches);
  for (size_t pass = 0; pass < waited_for; ++pass) {
    const double share = static_cast<double>(pass + 1) / static_cast<double>(waited_for + 1);
    for (size_t m = 0; m < microbatches; ++m)
      at_s[m] = times.output_from_s[m] + share * (times.output_until_s[m] - times.output_from_s[m]);
    make_nondecreasing(at_s);
    add(out, algorithm.passes[pass], at_s);
  }
  if (last_is_free) {  // with the next S, so that the softmax of one microbatch is kept at a time
    at_s.erase(at_s.begin());
    at_s.push_back((microbatches > 1 ? at_s.back() : times.output_until_s.back()) + times.microbatch_s);
    add(out, TW, at_s);
  }
  return out;
}

std::vector<double> lookup_times(const Times& times) {
  std::vector<double> at_s = times.input_until_s;
  for (double& seconds : at_s) seconds -= times.microbatch_s;
  make_nondecreasing(at_s);
  return at_s;
}

std::vector<PassTime> input_passes(const Times& times) {
  std::vector<PassTime> out;
  add(out, E, lookup_times(times));
  std::vector<double> at_s = times.input_from_s;
  for (double& seconds : at_s) seconds += times.microbatch_s;
  add(out, EB, at_s);
  return out;
}

void require_increasing(const std::vector<double>& sent_s) {
  ORTHANT_CHECK(std::is_sorted(sent_s.begin(), sent_s.end()), "broadcasts do not go up in microbatches");
}

Times times_of(const Schedule& schedule, const Timeline& timeline) {
  return Times(timeline, stage_count(schedule) - 1, microbatch_count(schedule));
}

/// Inserts the passes `all` into every row, each before the first Action whose midpoint in time is later.
Schedule insert_passes(const Schedule& schedule, const Timeline& timeline, std::vector<PassTime> all) {
  std::sort(all.begin(), all.end());
  Schedule out{.rows = std::vector<std::vector<Action>>(schedule.rows.size()), .stage_owner = schedule.stage_owner};
  const std::vector<int> first_stage = first_stages(schedule);
  std::vector<size_t> next(schedule.rows.size(), 0);  // index into `all`, by rank
  const auto add_until = [&](size_t rank, double at_s) {
    for (; next[rank] < all.size() && all[next[rank]].at_s < at_s; ++next[rank])
      out.rows[rank].push_back({all[next[rank]].kind, first_stage[rank], all[next[rank]].microbatch});
  };
  for (const Span& span : timeline.spans) {
    const auto rank = static_cast<size_t>(span.rank);
    ORTHANT_CHECK(span.stream == Stream::compute, to_string(span.action));
    add_until(rank, (span.start + span.end) / 2);
    out.rows[rank].push_back(span.action);
  }
  for (size_t rank = 0; rank < next.size(); ++rank) add_until(rank, std::numeric_limits<double>::infinity());
  return out;
}

/// Number of passes of the first stage that stand before an S in the row of the first stage's rank.
struct PassCounts {
  int forwards = 0, backwards = 0;
};
std::vector<PassCounts> counts_before_each_S(const Schedule& schedule) {
  std::vector<PassCounts> counts_before_S;
  PassCounts now;
  for (const Action& action : schedule.rows[static_cast<size_t>(schedule.stage_owner[0])]) {
    if (action.kind == S) counts_before_S.push_back(now);
    if (action.stage != 0) continue;
    now.forwards += action.kind == F;
    now.backwards += action.kind == B || action.kind == I;
  }
  return counts_before_S;
}

/// Makes every duration positive. With zero durations, the order of times could differ from that of the Actions.
Durations with_positive_durations(Durations durations) {
  double most = 0;
  const auto each = [&](auto change) {
    for (double& seconds : durations.times) change(seconds);
    for (auto& stage : durations.stage_times)
      for (double& seconds : stage) change(seconds);
  };
  each([&](double& seconds) { most = std::max(most, seconds); });
  each([&](double& seconds) { seconds = std::max(seconds, most > 0 ? 1e-6 * most : 1); });
  return durations;
}

}  // namespace

std::span<const VocabularyAlgorithm> vocabulary_algorithms() { return kAlgorithms; }

const VocabularyAlgorithm& vocabulary_algorithm(std::string_view name) {
  for (const VocabularyAlgorithm& each : kAlgorithms)
    if (each.name == name) return each;
  throw LogicError(fmt::format("no order of the output layer has the name {}", name));
}

Schedule add_vocabulary(const Schedule& schedule, const VocabularyAlgorithm& algorithm, const Durations& durations,
                        bool input) {
  for (const auto& row : schedule.rows)
    for (const Action& action : row) ORTHANT_CHECK(!is_vocabulary(action), to_string(action));
  const Timeline timeline = simulate(schedule, with_positive_durations(durations));
  const Times times = times_of(schedule, timeline);
  require_increasing(times.output_from_s);
  std::vector<PassTime> all = output_passes(times, algorithm);
  if (input) {
    require_increasing(times.input_from_s);
    for (const PassTime& one : input_passes(times)) all.push_back(one);
  }
  return insert_passes(schedule, timeline, std::move(all));
}

Schedule add_input_layer(const Schedule& schedule, const Durations& durations) {
  const Timeline timeline = simulate(schedule, with_positive_durations(durations));
  const Times times = times_of(schedule, timeline);
  require_increasing(times.input_from_s);
  const std::vector<double> lookup_s = lookup_times(times);
  const std::vector<PassCounts> counts_before_S = counts_before_each_S(schedule);
  const auto microbatches = static_cast<int>(lookup_s.size());
  Schedule out{.rows = std::vector<std::vector<Action>>(schedule.rows.size()), .stage_owner = schedule.stage_owner};
  const std::vector<int> first_stage = first_stages(schedule);
  std::vector<size_t> next_S(out.rows.size(), 0);
  std::vector<int> lookups(out.rows.size(), 0), gradients(out.rows.size(), 0);
  const auto add_until = [&](size_t rank, ActionKind kind, int end) {
    int& next = (kind == E ? lookups : gradients)[rank];
    for (; next < end; ++next) out.rows[rank].push_back({kind, first_stage[rank], next});
  };
  for (const Span& span : timeline.spans) {
    const auto rank = static_cast<size_t>(span.rank);
    const auto due = std::ranges::lower_bound(lookup_s, (span.start + span.end) / 2) - lookup_s.begin();
    add_until(rank, E, static_cast<int>(due));
    if (span.action.kind == S) {
      const size_t now = next_S[rank]++;
      add_until(rank, E, counts_before_S[now].forwards);
      add_until(rank, EB, now > 0 ? counts_before_S[now - 1].backwards : 0);
    }
    out.rows[rank].push_back(span.action);
  }
  for (size_t rank = 0; rank < out.rows.size(); ++rank) {
    add_until(rank, E, microbatches);
    add_until(rank, EB, microbatches);
  }
  return out;
}

}  // namespace orthant
