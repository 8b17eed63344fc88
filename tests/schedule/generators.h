// Schedules for tests: random legal orders, and a pass that adds UNSHARD and RESHARD. Published schedules and messages
// come from the production code.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "parallel/pipeline/gpipe_plan.h"
#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "parallel/pipeline/stages_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"
#include "schedule/barriers.h"
#include "schedule/passes.h"
#include "schedule/schedule.h"
#include "tests/support/random.h"

namespace orthant {

/// Assigns the stages to random ranks, at least one stage to each rank.
inline Schedule random_owners(Random& random, int ranks, int stages) {
  Schedule out = round_robin_stages(ranks, 1);
  for (int stage = ranks; stage < stages; ++stage) out.stage_owner.push_back(random.below(ranks));
  for (int stage = stages; stage-- > 1;) {
    const int other = random.below(stage + 1);
    std::swap(out.stage_owner[static_cast<size_t>(stage)], out.stage_owner[static_cast<size_t>(other)]);
  }
  return out;
}

/// A random legal order: stages on random ranks; each backward is B, or is split into I and W, at random.
inline Schedule random_schedule(Random& random, int ranks, int stages, int microbatches) {
  Schedule out = random_owners(random, ranks, stages);
  std::vector<Action> ready;
  for (int m = 0; m < microbatches; ++m) ready.push_back({ActionKind::F, 0, m});
  while (!ready.empty()) {
    const size_t pick = static_cast<size_t>(random.below(static_cast<int>(ready.size())));
    const Action action = ready[pick];
    ready.erase(ready.begin() + static_cast<int>(pick));
    out.rows[static_cast<size_t>(out.stage_owner[static_cast<size_t>(action.stage)])].push_back(action);
    const auto backward = [&](int stage) {
      ready.push_back({random.below(2) == 0 ? ActionKind::B : ActionKind::I, stage, action.microbatch});
    };
    if (action.kind == ActionKind::F) {
      if (action.stage + 1 < stages)
        ready.push_back({ActionKind::F, action.stage + 1, action.microbatch});
      else
        backward(action.stage);
    } else if (action.kind != ActionKind::W) {
      if (action.kind == ActionKind::I) ready.push_back({ActionKind::W, action.stage, action.microbatch});
      if (action.stage > 0) backward(action.stage - 1);
    }
  }
  return out;
}

/// A random legal order with the vocabulary layers sharded over the ranks. All ranks read a broadcast at the same point
/// of the global order. The passes that feed a broadcast are in increasing order of microbatches.
inline Schedule random_cut_schedule(Random& random, int ranks, int stages, int microbatches,
                                    const VocabularyKinds& cut) {
  using enum ActionKind;
  Schedule out = random_owners(random, ranks, stages);
  const std::vector<int> first = first_stages(out);
  std::vector<Action> left;
  for (int m = 0; m < microbatches; ++m) {
    for (int stage = 0; stage < stages; ++stage) {
      const bool whole = random.below(2) == 0;
      left.push_back({F, stage, m});
      left.push_back({whole ? B : I, stage, m});
      if (!whole) left.push_back({W, stage, m});
    }
    for (const ActionKind kind : cut.output)
      for (const int stage : first)
        if (kind != S || stage == first[0]) left.push_back({kind, stage, m});  // S is drawn once for all ranks
    for (const int stage : first) {
      if (cut.input) left.push_back({E, stage, m});
      if (cut.input && stage == first[0]) left.push_back({EB, stage, m});
    }
  }
  std::set<Action> done;
  const auto did = [&](ActionKind kind, int stage, int m) {
    return m < 0 || done.contains({kind, stage, m}) || (kind == B && done.contains({I, stage, m}));
  };
  const auto all_did = [&](ActionKind kind, int m) {
    return std::all_of(first.begin(), first.end(), [&](int stage) { return did(kind, stage, m); });
  };
  const int last = stages - 1;
  const bool output = !cut.output.empty();
  const auto ready = [&](const Action& action) {
    const auto [kind, stage, m] = action;
    switch (kind) {
      case F:
        return (stage > 0 ? did(F, stage - 1, m) : !cut.input || all_did(E, m)) &&
               (stage < last || !output || did(F, last, m - 1));
      case B:
      case I:
        return did(F, stage, m) && (stage == last ? !output || all_did(cut.output.back() == T ? T : S, m)
                                                  : did(B, stage + 1, m)) &&
               (stage > 0 || !cut.input || did(B, 0, m - 1));
      case W: return did(I, stage, m);
      case S: return did(F, last, m) && all_did(S, m - 1);
      case Z:
      case TW: return all_did(S, m) && did(kind, stage, m - 1);
      case T: return all_did(cut.output.size() == 3 ? Z : S, m) && did(T, stage, m - 1);
      case E: return did(E, stage, m - 1);
      default: return did(B, 0, m) && all_did(E, m) && all_did(EB, m - 1);
    }
  };
  while (!left.empty()) {
    size_t pick = static_cast<size_t>(random.below(static_cast<int>(left.size())));
    while (!ready(left[pick])) pick = (pick + 1) % left.size();
    const Action action = left[pick];
    left.erase(left.begin() + static_cast<int>(pick));
    const bool together = action.kind == S || action.kind == EB;
    for (const int stage : together ? first : std::vector<int>{action.stage}) {
      out.rows[static_cast<size_t>(out.stage_owner[static_cast<size_t>(stage)])].push_back(
          {action.kind, stage, action.microbatch});
      done.insert({action.kind, stage, action.microbatch});
    }
  }
  return out;
}

/// All ways to shard the vocabulary layers: the three orders of the output layer, each with and without a sharded input
/// layer, and the input layer alone.
inline std::vector<VocabularyKinds> every_cut() {
  using enum ActionKind;
  std::vector<VocabularyKinds> out;
  for (const bool input : {true, false})
    for (const std::vector<ActionKind>& output :
         {std::vector<ActionKind>{S, Z, T}, std::vector<ActionKind>{S, T}, std::vector<ActionKind>{S, TW}})
      out.push_back({output, input});
  out.push_back({{}, true});
  return out;
}

/// A pass that gathers each stage's weights before its first computation and frees them after its last.
inline Schedule with_weights(Schedule schedule) {
  for (auto& row : schedule.rows) {
    std::vector<Action> gathered;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto computes = [&](const Action& other) {
        return other.stage == row[i].stage && facts(other.kind).stream == Stream::compute;
      };
      const auto here = row.begin() + static_cast<int>(i);
      if (computes(*here) && std::none_of(row.begin(), here, computes))
        gathered.push_back({ActionKind::UNSHARD, row[i].stage, -1});
      gathered.push_back(row[i]);
      if (computes(*here) && std::none_of(here + 1, row.end(), computes))
        gathered.push_back({ActionKind::RESHARD, row[i].stage, -1});
    }
    row = std::move(gathered);
  }
  return schedule;
}

}  // namespace orthant
