// Published schedules with planted errors: validate() refuses exactly the schedules that deadlock or compute wrongly,
// and names a single error. The oracle is a machine of the tests that carries out the rows (tests/schedule/machine.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "schedule/passes.h"
#include "schedule/progress.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/schedule/machine.h"
#include "tests/schedule/mutations.h"

namespace orthant::validator_test {
namespace {

struct Sample {
  std::string name;
  Schedule schedule;
  int microbatches;
  std::vector<int> buckets;  // gradient buckets by stage: 0
};

/// Schedules of the table in small sizes, one in four without messages.
std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (int p : {1, 2, 3, 4, 5})
    for (int m : {1, 2, 3, 5, 7})
      for (auto& [name, schedule] : every_schedule(p, m)) {
        const std::vector<int> buckets(schedule.stage_owner.size(), 0);
        out.push_back({name, out.size() % 4 == 0 ? schedule : add_messages(schedule), m, buckets});
      }
  return out;
}

// A validation run uses only the forwards of a schedule. select_forwards() keeps all of them and no backward, and the
// remaining rows terminate.
TEST(Forwards, OfEveryScheduleTerminate) {
  for (const Sample& sample : samples()) {
    Schedule forwards = sample.schedule;
    size_t computed = 0;
    for (auto& row : forwards.rows) {
      row = select_forwards(row);
      computed += static_cast<size_t>(std::ranges::count(row, ActionKind::F, &Action::kind));
      EXPECT_EQ(std::ranges::count_if(row, [](const Action& a) { return in_flight_change(a) < 0; }), 0) << sample.name;
    }
    EXPECT_EQ(computed, forwards.stage_owner.size() * static_cast<size_t>(sample.microbatches)) << sample.name;
    EXPECT_TRUE(stops(forwards).empty()) << sample.name;
  }
}

std::vector<std::string> problems_of(const Schedule& schedule, const Sample& sample) {
  return problems(schedule, sample.microbatches);
}

TEST(Validator, TheMachineCarriesOutEverySchedule) {
  for (const Sample& s : samples()) {
    EXPECT_EQ(problems_of(s.schedule, s), std::vector<std::string>{}) << s.name;
    EXPECT_TRUE(Machine(s.schedule, s.microbatches, s.buckets).works()) << s.name << "\n" << to_csv(s.schedule);
  }
}

// validate() and the machine agree on 10,000 schedules with one or two random errors.
TEST(Validator, AgreesWithTheMachineOnTenThousandMutations) {
  Random random(71);
  const std::vector<Sample> all = samples();
  std::map<bool, int> counts;
  for (int round = 0; round < 10000; ++round) {
    const Sample& sample = all[static_cast<size_t>(random.below(static_cast<int>(all.size())))];
    Mutant mutation = mutated(random, sample.schedule);
    if (random.below(4) == 0) mutation = mutated(random, mutation.schedule);
    bool counts_nothing = false;  // tests/schedule/validate_test.cc has UNSHARD, RESHARD and REDUCE
    for (const auto& row : mutation.schedule.rows)
      for (const Action& action : row) counts_nothing |= facts(action.kind).stream == Stream::collective;
    if (counts_nothing) {
      --round;
      continue;
    }
    const bool works = Machine(mutation.schedule, sample.microbatches, sample.buckets).works();
    const std::vector<std::string> found = problems_of(mutation.schedule, sample);
    ASSERT_EQ(found.empty(), works) << sample.name << ", " << mutation.what << "\n"
                                    << to_csv(mutation.schedule) << (found.empty() ? "" : found[0]);
    ++counts[works];
  }
  EXPECT_GT(counts[true], 200);
  EXPECT_GT(counts[false], 8000);
}

// The messages name an Action that was dropped, doubled or swapped. Swaps that still work are skipped.
TEST(Validator, NamesTheActionThatWasDroppedDoubledOrSwapped) {
  Random random(72);
  std::map<std::string, int> refused;
  for (const Sample& sample : samples())
    for (size_t rank = 0; rank < sample.schedule.rows.size(); ++rank)
      for (const std::string what : {"dropped", "doubled", "swapped"}) {
        Schedule schedule = sample.schedule;
        auto& row = schedule.rows[rank];
        const int n = static_cast<int>(row.size()), at = random.below(n), other = random.below(n);
        const Action action = row[static_cast<size_t>(at)], second = row[static_cast<size_t>(other)];
        if (what == "dropped") row.erase(row.begin() + at);
        if (what == "doubled") row.insert(row.begin() + other, action);
        if (what == "swapped") std::swap(row[static_cast<size_t>(at)], row[static_cast<size_t>(other)]);
        const std::vector<std::string> found = problems_of(schedule, sample);
        if (what == "swapped" && Machine(schedule, sample.microbatches, sample.buckets).works()) continue;
        const bool named = std::any_of(found.begin(), found.end(), [&](const std::string& problem) {
          return problem.find(to_string(action)) != std::string::npos ||
                 (what == "swapped" && problem.find(to_string(second)) != std::string::npos);
        });
        ASSERT_TRUE(named) << sample.name << ", " << what << " " << to_string(action) << "\n"
                           << to_csv(schedule) << (found.empty() ? "" : found[0]);
        ++refused[what];
      }
  for (const auto& [what, count] : refused) EXPECT_GT(count, 400) << what;
  EXPECT_EQ(refused.size(), 3u);
}

}  // namespace
}  // namespace orthant::validator_test
