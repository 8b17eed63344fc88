// Every schedule with vocabulary parallelism terminates under the strictest semantics of messages (rendezvous). A
// schedule in which a vocabulary pass is dropped, doubled or swapped is refused, and the message names the pass. The
// oracle is the machine of tests/schedule/machine.h, which carries out the rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/errors.h"
#include "schedule/barriers.h"
#include "schedule/passes.h"
#include "tests/parallel/vocabulary/cases.h"
#include "tests/schedule/generators.h"
#include "tests/schedule/machine.h"

namespace orthant::validity_test {
namespace {

using enum ActionKind;

/// The microbatches of the row's Actions of a kind on a stage, in order. B also matches I.
std::vector<int> order_of(const std::vector<Action>& row, ActionKind kind, int stage) {
  std::vector<int> out;
  for (const Action& action : row)
    if ((action.kind == kind || (kind == B && action.kind == I)) && action.stage == stage)
      out.push_back(action.microbatch);
  return out;
}

struct Case {
  std::string name;
  Schedule schedule;
  int microbatches;
  std::vector<ActionKind> kinds;  // vocabulary passes, which every rank has
};

/// Gives each stage the durations of 0 to 4 layers.
void make_unequal(Random& random, int stages, Durations& times) {
  for (int stage = 0; stage < stages; ++stage) {
    auto& own = times.stage_times.emplace_back(times.times);
    const int layers = random.below(4) == 0 ? 0 : 1 + random.below(4);
    for (const ActionKind kind : {F, B, I, W}) own[static_cast<size_t>(kind)] *= layers;
  }
}

/// A random schedule with messages, of up to `most_ranks` ranks, built for random durations, which `times` returns.
Case random_case(Random& random, int most_ranks, Durations& times) {
  const int p = 1 + random.below(most_ranks), m = 1 + random.below(3 * p + 2);
  const auto seconds = [&] { return random.below(12) == 0 ? 0.0 : 1 + random.below(20); };
  times = with_output(Durations::of(seconds(), seconds(), seconds()), seconds()).with(E, seconds()).with(EB, seconds());
  times.barrier_time = random.below(12);
  times.link_time = random.below(8);
  const auto algorithms = vocabulary_algorithms();
  const VocabularyAlgorithm& algorithm = algorithms[static_cast<size_t>(random.below(3))];
  const bool input = random.below(2) == 0;
  const int made = random.below(static_cast<int>(pipeline_schedules().size()) + 2);
  Case out{.name = "", .schedule = {}, .microbatches = m, .kinds = {algorithm.passes.begin(), algorithm.passes.end()}};
  if (input) out.kinds.insert(out.kinds.end(), {E, EB});
  if (made == 0 && algorithm.barriers < 3) {
    out.name = "closed form of " + std::string(algorithm.name);
    times = with_output(Durations::of(10, 10, 10), 1 + random.below(10)).with(E, 1).with(EB, 1);
    times.barrier_time = random.below(11);
    out.schedule = vocabulary_one_f_one_b(p, m, algorithm, times, input);
  } else if (made == 1) {
    out.name = "interlaced";
    out.kinds = {S, T};
    if (random.below(2) == 0) make_unequal(random, p, times);
    out.schedule = interlaced(p, m);
    if (input) out.kinds = {S, T, E, EB}, out.schedule = add_input_layer(out.schedule, times);
  } else {
    const PipelineSchedule& pipeline = pipeline_schedules()[static_cast<size_t>(std::max(0, made - 2))];
    const int stages = pipeline.any_stages ? 1 + random.below(4) : pipeline.stages_per_rank;
    const int extra_warmup_forwards = random.below(3) == 0 ? random.below(5) : algorithm.extra_warmup_forwards(stages);
    out.name = std::string(pipeline.name) + " with " + std::string(algorithm.name);
    if (random.below(4) == 0) make_unequal(random, p * stages, times);
    out.schedule = add_vocabulary(pipeline.make({p, stages, m, times, extra_warmup_forwards}), algorithm, times, input);
  }
  out.name += " of " + std::to_string(p) + " ranks, " + std::to_string(m) + " microbatches";
  out.schedule = add_messages(out.schedule);
  return out;
}

// On each communicator, all ranks run the collectives in increasing order of microbatches.
TEST(Validity, ThousandAtRandomEndAndEveryCommunicatorSeesOneOrder) {
  Random random(92);
  std::map<std::string, int> seen;
  for (int round = 0; round < 1000; ++round) {
    Durations times;
    const Case c = random_case(random, 12, times);
    ASSERT_EQ(problems(c.schedule, c.microbatches), std::vector<std::string>{}) << c.name << "\n" << to_csv(c.schedule);
    std::vector<int> increasing(static_cast<size_t>(c.microbatches));
    std::iota(increasing.begin(), increasing.end(), 0);
    const std::vector<int> first = first_stages(c.schedule);
    for (size_t rank = 0; rank < first.size(); ++rank)
      for (const ActionKind kind : c.kinds)
        ASSERT_EQ(order_of(c.schedule.rows[rank], kind, first[rank]), increasing) << c.name;
    const int last = stage_count(c.schedule) - 1;
    const auto row_of = [&](int stage) -> const std::vector<Action>& {
      return c.schedule.rows[static_cast<size_t>(c.schedule.stage_owner[static_cast<size_t>(stage)])];
    };
    ASSERT_EQ(order_of(row_of(last), F, last), increasing) << c.name;
    ASSERT_EQ(order_of(row_of(0), B, 0), increasing) << c.name;
    EXPECT_GE(simulate(c.schedule, times).makespan, 0) << c.name;
    EXPECT_EQ(parse_csv(to_csv(c.schedule)), c.schedule) << c.name;
    ++seen[c.name.substr(0, c.name.find(" of "))];
  }
  EXPECT_GE(seen.size(), 25u);
}

TEST(Validity, AnyOrderCanBeVocabularyParallel) {
  // Random schedules whose only law is that the last stage's forwards and the first stage's backwards, which broadcast,
  // come in increasing order of microbatches.
  Random random(96);
  for (int round = 0; round < 500; ++round) {
    const int p = 1 + random.below(4), m = 1 + random.below(5);
    Schedule plain = random_cut_schedule(random, p, p + random.below(3), m, {{S, T}, true});
    for (auto& row : plain.rows) std::erase_if(row, is_vocabulary);
    const Durations times = with_output(Durations::of(random.below(5), random.below(5), random.below(5)), 1);
    for (const VocabularyAlgorithm& each : vocabulary_algorithms())
      for (const bool input : {false, true}) {
        const Schedule schedule = add_vocabulary(plain, each, times, input);
        ASSERT_EQ(problems(add_messages(schedule), m), std::vector<std::string>{}) << each.name << to_csv(schedule);
      }
  }
}

TEST(Validity, TheMachineCarriesThemOut) {
  Random random(93);
  for (int round = 0; round < 400; ++round) {
    Durations times;
    const Case c = random_case(random, 5, times);
    const std::vector<int> none(c.schedule.stage_owner.size(), 0);
    EXPECT_TRUE(Machine(c.schedule, c.microbatches, none).works()) << c.name << "\n" << to_csv(c.schedule);
  }
}

TEST(Validity, NamesTheShareThatWasDroppedDoubledOrSwapped) {
  Random random(94);
  std::map<std::string, int> refused;
  for (int round = 0; round < 3000; ++round) {
    Durations times;
    const Case c = random_case(random, 4, times);
    // Without its only T or TW, a schedule does not show which of the two is missing.
    if (c.schedule.rows.size() == 1 && c.microbatches == 1) continue;
    Schedule schedule = c.schedule;
    auto& row = schedule.rows[static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())))];
    const int n = static_cast<int>(row.size()), other = random.below(n);
    int at = random.below(n);
    while (!is_vocabulary(row[static_cast<size_t>(at)])) at = (at + 1) % n;
    const Action action = row[static_cast<size_t>(at)], second = row[static_cast<size_t>(other)];
    const std::string what = round % 3 == 0 ? "dropped" : round % 3 == 1 ? "doubled" : "swapped";
    if (what == "dropped") row.erase(row.begin() + at);
    if (what == "doubled") row.insert(row.begin() + other, action);
    if (what == "swapped") std::swap(row[static_cast<size_t>(at)], row[static_cast<size_t>(other)]);
    const std::vector<int> none(schedule.stage_owner.size(), 0);
    const std::vector<std::string> found = problems(schedule, c.microbatches);
    const bool works = Machine(schedule, c.microbatches, none).works();
    ASSERT_EQ(found.empty(), works) << c.name << ", " << what << " " << to_string(action) << "\n" << to_csv(schedule);
    if (works) continue;
    const bool named = std::any_of(found.begin(), found.end(), [&](const std::string& problem) {
      return problem.find(to_string(action)) != std::string::npos ||
             (what == "swapped" && problem.find(to_string(second)) != std::string::npos);
    });
    ASSERT_TRUE(named) << c.name << ", " << what << " " << to_string(action) << "\n" << to_csv(schedule) << found[0];
    ++refused[what];
  }
  EXPECT_GT(refused["dropped"], 900);
  EXPECT_GT(refused["doubled"], 900);
  EXPECT_GT(refused["swapped"], 600);
}

// Refused: unknown algorithms, no microbatches, schedules that have vocabulary passes or messages already, and
// broadcasts out of order.
TEST(Validity, RefusesWhatIsNotForIt) {
  const Durations durations = with_output(Durations::of(1, 1, 1), 1);
  EXPECT_THROW(vocabulary_algorithm("algorithm_3"), LogicError);
  EXPECT_THROW(cut("1f1b", vocabulary_algorithm("naive"), 4, 0, durations), LogicError);
  EXPECT_THROW(vocabulary_one_f_one_b(4, 8, vocabulary_algorithm("naive"), durations), LogicError);
  const Schedule once = cut("1f1b", vocabulary_algorithm("naive"), 4, 8, durations);
  EXPECT_THROW(add_vocabulary(once, vocabulary_algorithm("naive"), durations), LogicError);
  EXPECT_THROW(add_vocabulary(add_messages(gpipe(2, 2)), vocabulary_algorithm("naive"), durations), LogicError);
  // Broadcasts must be in increasing order of microbatches.
  const Schedule down = parse_csv("0F1,0F0,0B1,0B0\n");
  EXPECT_THROW(add_vocabulary(down, vocabulary_algorithm("naive"), durations), LogicError);
  const Schedule back = parse_csv("0F0,0F1,0B1,0B0\n");
  EXPECT_THROW(add_vocabulary(back, vocabulary_algorithm("naive"), durations), LogicError);
  EXPECT_NO_THROW(add_vocabulary(back, vocabulary_algorithm("naive"), durations, false));
}

}  // namespace
}  // namespace orthant::validity_test
