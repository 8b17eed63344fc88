// validate() against a machine that carries out the rows: what it accepts ends with every result made once; whatever
// hangs, miscounts or mixes up messages is refused, and named.
#include "schedule/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "tests/schedule/generators.h"

namespace orthant {
namespace {

/// Ranks with first-in-first-out channels between them. Every rule is checked at the moment at which a real run would
/// fail by it; none is taken from validate().
class Machine {
 public:
  Machine(const Schedule& schedule, int microbatches, const std::vector<int>& buckets)
      : schedule_(schedule), microbatches_(microbatches), buckets_(buckets) {
    for (const auto& row : schedule.rows)
      for (const Action& action : row) {
        const Lane lane = facts(action.kind).lane;
        messages_ |= lane == Lane::send || lane == Lane::receive;
        if (action.kind == ActionKind::UNSHARD || action.kind == ActionKind::RESHARD) sharded_.insert(action.stage);
      }
  }

  /// Whether the step ends, and ends right.
  bool works() {
    std::vector<size_t> next(schedule_.rows.size(), 0);
    for (bool moved = true; moved && !broken_;) {
      moved = false;
      for (size_t rank = 0; rank < next.size(); ++rank)
        while (next[rank] < schedule_.rows[rank].size() && !broken_ &&
               act(static_cast<int>(rank), schedule_.rows[rank][next[rank]])) {
          ++next[rank];
          moved = true;
        }
    }
    for (size_t rank = 0; rank < next.size(); ++rank)
      if (next[rank] < schedule_.rows[rank].size()) return false;
    return !broken_ && complete();
  }

 private:
  using Tensor = std::tuple<bool, int, int>;  // activation or gradient, the stage that reads it, microbatch
  struct Channel {
    std::deque<Tensor> sent, asked;
  };

  int stages() const { return static_cast<int>(schedule_.stage_owner.size()); }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }
  bool fail() {
    broken_ = true;
    return true;
  }
  /// ThirdField; a second time is a failure.
  void once(const std::string& what) { broken_ |= !done_.insert(what).second; }

  bool act(int rank, const Action& action) {
    if (action.stage >= stages() || owner(action.stage) != rank) return fail();
    const KindFacts& kind = facts(action.kind);
    const bool in_range = action.microbatch >= 0 && action.microbatch < microbatches_;
    if (kind.counts == ThirdField::microbatch && !in_range) return fail();
    if (action.kind == ActionKind::UNSHARD) return whole_.insert(action.stage).second || fail();
    if (action.kind == ActionKind::RESHARD) return whole_.erase(action.stage) == 1 || fail();
    if (action.kind == ActionKind::REDUCE) return reduce(action);
    if (kind.lane != Lane::compute) return message(action);
    if (sharded_.contains(action.stage) && !whole_.contains(action.stage)) return fail();
    return compute(rank, action);
  }

  bool compute(int rank, const Action& action) {
    const int m = action.microbatch;
    if (action.kind == ActionKind::F) {
      if (action.stage > 0 && !here_.contains({true, action.stage, m})) return false;
      once(to_string(action));
      deliver(rank, {true, action.stage + 1, m});
      return true;
    }
    const auto name = [&](const char* kind) { return std::to_string(action.stage) + kind + std::to_string(m); };
    if (!done_.contains(name("F"))) return fail();  // nothing kept to go back through
    if (action.kind != ActionKind::W) {
      if (action.stage + 1 < stages() && !here_.contains({false, action.stage, m})) return false;
      once(name("input"));
      deliver(rank, {false, action.stage - 1, m});
    }
    if (action.kind == ActionKind::W && !split_.contains(name("input"))) return fail();
    if (action.kind == ActionKind::I) split_.insert(name("input"));
    if (action.kind != ActionKind::I) once(name("weight"));
    last_weight_[action.stage] += action.kind == ActionKind::I ? 0 : 1;
    return true;
  }

  /// A result of this rank; on the reader's side at once, where no message carries it.
  void deliver(int rank, Tensor tensor) {
    const int reader = std::get<1>(tensor);
    if (reader < 0 || reader >= stages()) return;
    made_.insert(tensor);
    if (owner(reader) == rank || !messages_) here_.insert(tensor);
  }

  bool message(const Action& action) {
    const bool forward = action.kind == ActionKind::SEND_F || action.kind == ActionKind::RECV_F;
    const bool sends = facts(action.kind).lane == Lane::send;
    const int step = forward ? 1 : -1;
    const int reader = sends ? action.stage + step : action.stage;
    const int maker = sends ? action.stage : action.stage - step;
    if (std::min(reader, maker) < 0 || std::max(reader, maker) >= stages()) return fail();
    if (owner(reader) == owner(maker)) return fail();
    const Tensor tensor{forward, reader, action.microbatch};
    once((sends ? "send " : "receive ") + to_string(action));
    Channel& channel = channels_[{owner(maker), owner(reader)}];
    if (sends && !made_.contains(tensor)) return fail();
    if (!sends) {
      const auto used = std::to_string(reader) + (forward ? "F" : "input") + std::to_string(action.microbatch);
      if (done_.contains(used)) return fail();
    }
    (sends ? channel.sent : channel.asked).push_back(tensor);
    while (!channel.sent.empty() && !channel.asked.empty()) {
      if (channel.sent.front() != channel.asked.front()) return fail();
      here_.insert(channel.sent.front());
      channel.sent.pop_front();
      channel.asked.pop_front();
    }
    return true;
  }

  bool reduce(const Action& action) {
    if (last_weight_[action.stage] != microbatches_) return fail();
    if (action.microbatch >= buckets_[static_cast<size_t>(action.stage)]) return fail();
    once(to_string(action));
    ++reduced_;
    return true;
  }

  bool complete() {
    for (const auto& [ranks, channel] : channels_)
      if (!channel.sent.empty() || !channel.asked.empty()) return false;
    int buckets = 0;
    for (int stage = 0; stage < stages(); ++stage) {
      buckets += buckets_[static_cast<size_t>(stage)];
      for (int m = 0; m < microbatches_; ++m)
        for (const char* kind : {"F", "input", "weight"})
          if (!done_.contains(std::to_string(stage) + kind + std::to_string(m))) return false;
    }
    return reduced_ == buckets;
  }

  const Schedule& schedule_;
  int microbatches_;
  const std::vector<int>& buckets_;
  bool messages_ = false, broken_ = false;
  int reduced_ = 0;
  std::set<int> sharded_, whole_;
  std::set<Tensor> here_, made_;
  std::set<std::string> done_, split_;
  std::map<int, int> last_weight_;
  std::map<std::pair<int, int>, Channel> channels_;
};

struct Case {
  Schedule schedule;
  int microbatches;
  std::vector<int> buckets;
};

Case random_case(Random& random) {
  const int ranks = 1 + random.below(4);
  const int stages = ranks + random.below(3);
  const int microbatches = 1 + random.below(4);
  Case out{random_schedule(random, ranks, stages, microbatches), microbatches, {}};
  if (random.below(2) == 0) out.schedule = with_messages(out.schedule);
  if (random.below(3) == 0) out.schedule = with_weights(out.schedule);
  for (int stage = 0; stage < stages; ++stage) out.buckets.push_back(1 + random.below(3));
  out.schedule = with_reductions(out.schedule, out.buckets);
  return out;
}

TEST(Validate, AcceptsWhatGeneratorsMake) {
  Random random(61);
  for (int round = 0; round < 500; ++round) {
    const Case c = random_case(random);
    EXPECT_EQ(problems(c.schedule, c.microbatches, c.buckets), std::vector<std::string>{}) << to_csv(c.schedule);
    EXPECT_TRUE(Machine(c.schedule, c.microbatches, c.buckets).works()) << to_csv(c.schedule);
  }
  for (int p : {1, 2, 5})
    for (int m : {1, 3, 9})
      for (const Schedule& schedule : {gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), with_messages(zb_h1(p, m))})
        EXPECT_NO_THROW(validate(schedule, m));
}

struct Mutation {
  Schedule schedule;
  std::string what;  // the Action that was touched
};

Mutation mutated(Random& random, Schedule schedule) {
  size_t rank = 0;
  do rank = static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())));
  while (schedule.rows[rank].empty());
  auto& row = schedule.rows[rank];
  const int n = static_cast<int>(row.size());
  const int at = random.below(n);
  Action& action = row[static_cast<size_t>(at)];
  const std::string what = to_string(action);
  switch (random.below(6)) {
    case 0:
      row.erase(row.begin() + at);
      return {schedule, "dropped " + what};
    case 1: {
      const Action copy = action;
      row.insert(row.begin() + random.below(n + 1), copy);
      return {schedule, "twice " + what};
    }
    case 2: {
      const int other = random.below(n);
      std::swap(row[static_cast<size_t>(at)], row[static_cast<size_t>(other)]);
      return {schedule, "swapped " + what};
    }
    case 3:
      action.kind = static_cast<ActionKind>(random.below(static_cast<int>(kActionKinds)));
      return {schedule, "kind of " + what};
    case 4:
      action.microbatch = random.below(5) - 1;
      return {schedule, "number of " + what};
    default: {
      const Action moved = action;
      row.erase(row.begin() + at);
      auto& other = schedule.rows[static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())))];
      other.insert(other.begin() + random.below(static_cast<int>(other.size()) + 1), moved);
      return {schedule, "moved " + what};
    }
  }
}

TEST(Validate, AcceptsAMutationExactlyIfItWorks) {
  Random random(62);
  std::map<bool, int> counts;
  for (int round = 0; round < 6000; ++round) {
    const Case c = random_case(random);
    Mutation mutation = mutated(random, c.schedule);
    if (random.below(4) == 0) mutation = mutated(random, mutation.schedule);
    // The machine takes buckets by number only; a REDUCE for the whole stage is another way to say it.
    bool whole_stage = false;
    for (const auto& row : mutation.schedule.rows)
      for (const Action& action : row) {
        const bool counts_nothing = facts(action.kind).counts == ThirdField::nothing;
        whole_stage |= action.kind == ActionKind::REDUCE && action.microbatch < 0;
        whole_stage |= counts_nothing && action.microbatch >= 0;
      }
    if (whole_stage) continue;
    const bool works = Machine(mutation.schedule, c.microbatches, c.buckets).works();
    const std::vector<std::string> found = problems(mutation.schedule, c.microbatches, c.buckets);
    ASSERT_EQ(found.empty(), works) << mutation.what << "\n"
                                    << to_csv(mutation.schedule) << (found.empty() ? "" : found[0]);
    ++counts[works];
  }
  EXPECT_GT(counts[true], 300);
  EXPECT_GT(counts[false], 3000);
}

TEST(Validate, NamesWhatWasDroppedOrDoubled) {
  Random random(63);
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random);
    Schedule schedule = c.schedule;
    auto& row = schedule.rows[static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())))];
    if (row.empty()) continue;
    const int at = random.below(static_cast<int>(row.size()));
    const Action action = row[static_cast<size_t>(at)];
    if (facts(action.kind).counts == ThirdField::nothing) continue;
    if (round % 2 == 0)
      row.erase(row.begin() + at);
    else
      row.insert(row.begin() + at, action);
    const std::vector<std::string> found = problems(schedule, c.microbatches, c.buckets);
    const bool named = std::any_of(found.begin(), found.end(), [&](const std::string& problem) {
      return problem.find(to_string(action)) != std::string::npos;
    });
    ASSERT_TRUE(named) << to_string(action) << "\n" << to_csv(schedule);
  }
}

std::string first_problem(const char* csv, int microbatches) {
  const std::vector<std::string> found = problems(parse_csv(csv), microbatches);
  return found.empty() ? "" : found[0];
}

TEST(Validate, SaysWhatIsWrong) {
  EXPECT_EQ(first_problem("0F0,0B0\n", 1), "");
  EXPECT_EQ(first_problem("0F0\n", 1), "0B0 is missing");
  EXPECT_EQ(first_problem("0B0,0F0\n", 1), "0B0 (rank 0, Action 0) comes before 0F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0,0B0\n", 1), "0B0 (rank 0, Action 2) stands twice, first as 0B0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0\n0F1,0B1\n", 2), "0F1 (rank 1, Action 0): stage 0 stands on rank 0");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n", 1), "0F1 (rank 0, Action 2): there are microbatches 0 to 0");
  EXPECT_EQ(first_problem("0F0,0I0\n", 1), "0W0 is missing beside 0I0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0,0W0\n", 1), "0B0 (rank 0, Action 1) beside 0W0 (rank 0, Action 2)");
  EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0\n1F0,1B0\n", 1), "1RECV_F0 is missing for 0SEND_F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0UNSHARD,0B0\n", 1), "0F0 (rank 0, Action 0): the weights are not gathered there");
  EXPECT_EQ(first_problem("0F0,0REDUCE_GRAD0,0B0\n", 1),
            "0REDUCE_GRAD0 (rank 0, Action 1) comes before 0B0 (rank 0, Action 2)");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD1\n", 1), "0REDUCE_GRAD0 is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", 1), "1REDUCE_GRAD is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n", 2),
            "deadlock: rank 0 waits at its Action 1, 0B0, for 1B0 of rank 1");
  EXPECT_EQ(first_problem("2F0,2B0\n", 1), "stage 0 belongs to no rank");
  EXPECT_NE(first_problem("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                          "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n", 2).find("takes the place of"),
            std::string::npos);
  EXPECT_THROW(validate(parse_csv("0F0\n"), 1), LogicError);
}

}  // namespace
}  // namespace orthant
