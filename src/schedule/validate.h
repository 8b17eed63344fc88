// validate(): whether a Schedule does every microbatch's work exactly once, in an order that cannot hang. Asked for:
//   - each stage stands on its owner only; each microbatch has F once, and B, or I and W, once, after F (W after I)
//   - with any SEND or RECV in it: one SEND and one RECV for each result that crosses ranks and no others, the SEND
//     after what makes it, the RECV before what reads it, in one order on both sides of each pair of ranks
//   - with any of S, Z, T and TW: every rank has S Z T, S T or S TW, all the same, for each microbatch; with any of E
//     and EB: both; each kind in increasing microbatch, as what feeds their broadcasts (barriers.h)
//   - UNSHARD and RESHARD of a stage alternate, and where a stage has any, it computes only in between
//   - with any REDUCE: every stage has buckets 0, 1, ... once each (or one REDUCE for all) after all that adds to its
//     gradients
//   - with any SETTLE or STEP: every rank has one of each, STEP at its end; before SETTLE it writes no gradient and has
//     the one end of no message whose other end comes after the other rank's SETTLE
//   - carried out in the order of the rows it ends, even where every SEND and RECV waits for its partner (progress.h);
//     otherwise: which ranks wait at which Action for what
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// At most so many stages times microbatches has a schedule: what is known of each stands in tables.
inline constexpr int64_t kMostStageMicrobatches = int64_t{1} << 22;

/// Words for the place of an Action, or of a row where the index is negative: "rank 2, Action 7", "line 3, cell 8".
using PlaceName = std::function<std::string(int rank, int index)>;

/// What is wrong, a hundred problems at most, each with the Action and its place, by default its rank and index in the
/// row, counted from 0; empty if nothing. `buckets`: number of gradient buckets by stage, where known; then REDUCE is
/// asked for exactly those.
std::vector<std::string> problems(const Schedule& schedule, int microbatches, const std::vector<int>& buckets = {},
                                  const PlaceName& place = {});

/// LogicError with all problems, if there are any.
void validate(const Schedule& schedule, int microbatches, const std::vector<int>& buckets = {});

}  // namespace orthant
