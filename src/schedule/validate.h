// validate() checks that a schedule does the work of every microbatch exactly once, in an order without deadlock:
//   - Actions of a stage are on its owner only. Each stage has, for each microbatch, one F, and after it either one B
//     or one I and then one W.
//   - If there is any SEND or RECV: each result that crosses ranks has one SEND and one RECV, and there are no others.
//     The SEND comes after the pass that makes the result, the RECV before the pass that reads it. Between two ranks,
//     messages are sent and received in the same order.
//   - If there is any S, Z, T or TW: all ranks have the same sequence S Z T, S T or S TW for each microbatch. If there
//     is any E or EB: all ranks have both. Each kind, and the passes that feed its broadcasts (barriers.h), must be in
//     increasing order of microbatches.
//   - UNSHARD and RESHARD of a stage alternate. A stage that has any computes only between the two.
//   - If there is any REDUCE: every stage has buckets 0, 1, ... once each, or one REDUCE for all of them, after all
//     Actions that add to its gradients.
//   - If there is any FINALIZE or STEP: every rank has one of each, and STEP is the last Action of its row. Before
//     FINALIZE a rank writes no gradients. The two ends of a message are both before FINALIZE or both after it.
//   - The rows terminate even if every SEND and RECV is a rendezvous (progress.h). If they do not, the report says
//     which ranks wait at which Action for which other Action.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// Maximum of stages times microbatches in a schedule, since tables have an entry for each pair.
inline constexpr int64_t kMostStageMicrobatches = int64_t{1} << 22;

/// Describes the position of an Action, or of a row if the index is negative: "rank 2, Action 7", "line 3, cell 8".
using PositionName = std::function<std::string(int rank, int index)>;

/// Returns the problems of the schedule, at most 100, each with the Action and its position; empty if it is valid. By
/// default the position is the rank and the index in the row, both counted from 0. `buckets` is the number of gradient
/// buckets by stage; if given, there must be exactly one REDUCE for each of them.
std::vector<std::string> problems(const Schedule& schedule, int microbatches, const std::vector<int>& buckets = {},
                                  const PositionName& position = {});

/// Throws LogicError with all problems, if there are any.
void validate(const Schedule& schedule, int microbatches, const std::vector<int>& buckets = {});

}  // namespace orthant
