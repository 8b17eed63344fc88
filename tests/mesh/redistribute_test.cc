// Simulated ranks carry out every plan of redistribute(). The tests check values and bytes, and that faults planted in
// a plan are detected.
#include "mesh/redistribute.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "tests/mesh/cases.h"

namespace orthant::redistribute_test {
namespace {

/// Whether carrying out the plan leaves the tensor in layout `to`. False if a step cannot be carried out.
bool works(const Case& c, const std::vector<Collective>& plan, const Array& tensor, uint64_t seed) {
  Random random(seed);
  Ranks ranks(c.mesh, c.from, tensor, random);
  try {
    for (const Collective& step : plan) ranks.carry_out(step);
  } catch (const std::exception&) {
    return false;
  }
  return ranks.hold(c.to, tensor);
}

TEST(Redistribute, EveryStepLeavesItsLayoutAndSendsItsBytes) {
  Random random(11);
  for (int round = 0; round < 2500; ++round) {
    const Case c = random_case(random);
    const std::vector<Collective> plan = redistribute(c.mesh, c.from, c.to, c.shape, kBytes);
    const Array tensor = random_array(random, c.shape);
    Ranks ranks(c.mesh, c.from, tensor, random);
    Layout before = c.from;
    // Steps and their intermediate layouts omit axes of size 1.
    for (const Collective& step : plan) {
      ASSERT_GT(c.mesh.axis_size(step.axis), 1);
      const auto is_single = [&](const auto& axis) { return c.mesh.axis_size(axis) == 1; };
      for (auto& cuts : before.split) std::erase_if(cuts, is_single);
      std::fill(ranks.sent.begin(), ranks.sent.end(), 0);
      ranks.carry_out(step);
      ASSERT_TRUE(ranks.hold(step.after, tensor)) << text(c, plan);
      int64_t busiest = 0;
      for (int rank = 0; rank < c.mesh.size(); ++rank) {
        const int64_t bytes = bytes_sent(c.mesh, step, before, c.shape, kBytes, rank);
        ASSERT_EQ(bytes, kBytes * ranks.sent[static_cast<size_t>(rank)]) << text(c, plan) << "\nrank " << rank;
        busiest = std::max(busiest, bytes);
      }
      ASSERT_EQ(busiest, max_bytes_sent(c.mesh, step, before, c.shape)) << text(c, plan);
      ASSERT_TRUE(communicates(step.kind) || busiest == 0);
      before = step.after;
    }
    ASSERT_TRUE(ranks.hold(c.to, tensor)) << text(c, plan);
    ASSERT_EQ(plan, redistribute(c.mesh, c.from, c.to, c.shape, kBytes));
  }
}

TEST(Redistribute, LongAxesAreCountedAtTheirBusiestRank) {
  Random random(12);
  for (int round = 0; round < 400; ++round) {
    const Mesh mesh({{"a", 2 + random.below(40)}, {"b", 1 + random.below(3)}});
    const std::vector<int64_t> shape = {random.below(130), random.below(130)};
    const Layout split = random.below(2) == 0 ? parse_layout("[S(b, a), -]") : parse_layout("[S(a), S(b)]");
    for (const char* target : {"[-, S(a)]", "[-, -]", "[S(b), -]", "[S(b), -] R(a)"}) {
      Layout before = split;
      for (const Collective& step : redistribute(mesh, split, parse_layout(target), shape, kBytes)) {
        int64_t busiest = 0;
        for (int rank = 0; rank < mesh.size(); ++rank)
          busiest = std::max(busiest, bytes_sent(mesh, step, before, shape, kBytes, rank));
        ASSERT_EQ(busiest, max_bytes_sent(mesh, step, before, shape)) << to_string(mesh) << to_string(step);
        before = step.after;
      }
    }
  }
}

TEST(Redistribute, RingKindsThatKeepTheLayoutSendTheirBytes) {
  Random random(13);
  for (int round = 0; round < 300; ++round) {
    const Case c = random_case(random);
    const Array tensor = random_array(random, c.shape);
    for (const CollectiveKind kind :
         {CollectiveKind::broadcast, CollectiveKind::reduce, CollectiveKind::reduce_in_chunks, CollectiveKind::shift}) {
      const Collective step = {.kind = kind, .axis = c.mesh.axes[0].name, .after = c.to};
      // Only over an axis that does not shard the tensor, so that all members hold arrays of one shape.
      if (axis_placement(c.from, step.axis).kind == AxisPlacementKind::S) continue;
      Ranks ranks(c.mesh, c.from, tensor, random);
      ranks.carry_out(step);
      for (int rank = 0; rank < c.mesh.size(); ++rank)
        ASSERT_EQ(bytes_sent(c.mesh, step, c.from, c.shape, kBytes, rank),
                  kBytes * ranks.sent[static_cast<size_t>(rank)]);
    }
  }
}

TEST(Redistribute, ReducesBeforeItGathersAndGoesThroughOtherDimsToChangeAnOrder) {
  using enum CollectiveKind;
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const std::vector<int64_t> shape = {8, 8};
  const auto plan = [&](const char* from, const char* to) {
    return kinds(redistribute(mesh, parse_layout(from), parse_layout(to), shape, kBytes));
  };
  EXPECT_EQ(plan("[S(a), -] P(b)", "[-, -]"), (std::vector{all_reduce, all_gather}));
  // [a, b] -> [b, a] on one dim: the inner axis must leave before the outer one can.
  const auto swapped = redistribute(mesh, parse_layout("[S(a, b), -]"), parse_layout("[S(b, a), -]"), shape, kBytes);
  ASSERT_GE(swapped.size(), 3u);
  EXPECT_EQ(swapped.front().axis, "b");
  EXPECT_EQ(swapped.back().axis, "a");
  EXPECT_EQ(plan("[-, -]", "[S(a), -]"), (std::vector{slice}));
  EXPECT_EQ(plan("[S(a), -]", "[-, -] P(a)"), (std::vector{pad}));
  EXPECT_EQ(plan("[-, -]", "[-, -] P(a)"), (std::vector{mask_replicas}));
}

// Negative controls: a plan with a step dropped, moved to another axis, or swapped with the next must not work.
TEST(Redistribute, FaultsInAPlanAreCaught) {
  Random random(18);
  int dropped = 0, swapped = 0, misdirected = 0;
  for (int round = 0; round < 500; ++round) {
    const Case c = random_case(random, true);
    const std::vector<Collective> plan = redistribute(c.mesh, c.from, c.to, c.shape, kBytes);
    const Array tensor = random_array(random, c.shape);
    const uint64_t seed = random.next();
    ASSERT_TRUE(works(c, plan, tensor, seed)) << text(c, plan);
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].kind == CollectiveKind::relabel) continue;
      std::vector<Collective> without = plan;
      without.erase(without.begin() + static_cast<int>(i));
      ASSERT_FALSE(works(c, without, tensor, seed)) << "without step " << i << text(c, plan);
      ++dropped;
      for (const Axis& axis : c.mesh.axes) {
        if (axis.name == plan[i].axis || axis.size == 1) continue;
        std::vector<Collective> wrong = plan;
        wrong[i].axis = axis.name;
        ASSERT_FALSE(works(c, wrong, tensor, seed)) << "step " << i << " over " << axis.name << text(c, plan);
        ++misdirected;
      }
      if (i + 1 == plan.size() || plan[i + 1].kind == CollectiveKind::relabel) continue;
      const auto touches = [](const Collective& step, int dim) {
        return dim >= 0 && (step.from_dim == dim || step.to_dim == dim);
      };
      if (plan[i].axis != plan[i + 1].axis && !touches(plan[i], plan[i + 1].from_dim) &&
          !touches(plan[i], plan[i + 1].to_dim))
        continue;  // independent steps may be exchanged
      std::vector<Collective> wrong = plan;
      std::swap(wrong[i], wrong[i + 1]);
      ASSERT_FALSE(works(c, wrong, tensor, seed)) << "steps " << i << " and the next swapped" << text(c, plan);
      ++swapped;
    }
  }
  EXPECT_GT(dropped, 300);
  EXPECT_GT(misdirected, 300);
  EXPECT_GT(swapped, 50);
}

TEST(Redistribute, SixAxesInReverseOrderStayAffordable) {
  const Mesh mesh({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}});
  const std::vector<int64_t> shape = {128, 64, 64};
  const Case c = {mesh, parse_layout("[S(a, b, c, d, e, f), -, -]"), parse_layout("[S(f, e, d, c, b, a), -, -]"),
                  shape};
  const auto plan = redistribute(mesh, c.from, c.to, shape, kBytes);
  EXPECT_FALSE(plan.empty());
  EXPECT_EQ(plan.back().after, c.to);
}

TEST(Redistribute, RefusesLayoutsThatDoNotFit) {
  const Mesh mesh({{"a", 2}});
  const std::vector<int64_t> shape = {4};
  const Layout good = parse_layout("[S(a)]");
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(b)]"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(a)] P(a)"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(a), -]"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, good, good, std::vector<int64_t>{-1}, kBytes), LogicError);
}

}  // namespace
}  // namespace orthant::redistribute_test
