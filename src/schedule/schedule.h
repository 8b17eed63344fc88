// Schedule: for each pipeline rank the ordered list of its Actions (its row), and the owner of each stage. It is a
// plain value: generators create it, passes transform it, validate() checks it, simulate() times it, and the runtime
// carries out one row of it. A pass is a function from Schedule to Schedule.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/action.h"

namespace orthant {

struct Schedule {
  std::vector<std::vector<Action>> rows;  // by pipeline rank
  std::vector<int> stage_owner;           // pipeline rank by stage

  bool operator==(const Schedule&) const = default;
};

/// Number of stages: the largest stage of any Action or owner, plus 1.
int stage_count(const Schedule& schedule);
/// Number of microbatches: the largest microbatch of any Action, plus 1.
int microbatch_count(const Schedule& schedule);

/// Rank and index of the first Action, in the order of the rows, for which `is` returns true; {-1, -1} if none.
std::pair<int, int> first_position(const Schedule& schedule, const std::function<bool(const Action&)>& is);

/// A pass that appends REDUCE Actions to each row, one per gradient bucket of its stages. `buckets` is the number of
/// buckets by stage. The order is that in which backward completes the buckets: the last of the model first.
Schedule add_reductions(Schedule schedule, const std::vector<int>& buckets);

/// Whether the Action may write gradients. Among forwards only F of the last stage does, because its loss writes the
/// gradient of the output layer. Also false for messages, FINALIZE, STEP, UNSHARD and RESHARD; true for all other
/// kinds.
bool writes_gradients(const Schedule& schedule, const Action& action);

/// The part of a row that runs without training: forwards, their messages, and E, S and Z, in the same order. If all
/// rows terminate, these parts terminate too, because forwards never wait for a backward.
std::vector<Action> select_forwards(const std::vector<Action>& row);

/// Writes the schedule in the CSV form of PyTorch's pipelining: one line per rank, one Action per cell.
std::string to_csv(const Schedule& schedule);
/// Writes only F, B, I and W, as PyTorch's pipelining loads them: it adds messages and reductions itself.
std::string to_pytorch_csv(const Schedule& schedule);
/// Parses the output of to_csv() and the files that PyTorch writes. Empty cells are idle time and are ignored.
/// "(0F1;7B2)OVERLAP_F_B" is read as its parts, in order. A stage belongs to the first rank whose line names it.
/// Throws DataError with line and cell for a cell that is not an Action, and if stages x microbatches is larger than
/// kMostStageMicrobatches, or than both 16384 and the number of Actions. If `cells` is given, it receives the cell
/// number of each Action, counted from 1, by rank and index.
Schedule parse_csv(std::string_view text, std::vector<std::vector<int>>* cells = nullptr);

/// Draws the schedule for a terminal: one line per rank, one column per unit of time, if every computation takes one
/// unit; "." is idle time. If the rows deadlock, a column is one Action instead.
std::string grid(const Schedule& schedule);

}  // namespace orthant
