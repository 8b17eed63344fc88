// Schedule: each pipeline rank's Actions in the order in which it does them, and which rank owns which stage. A value:
// generators make it, Passes change it, validate() judges it, simulate() times it, the runtime reads one row of it.
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

/// One more than the largest stage, and microbatch, of any Action that counts one.
int stage_count(const Schedule& schedule);
int microbatch_count(const Schedule& schedule);

/// Rank and index of the first Action in the order of the rows that it is true of; -1 and -1 where there is none.
std::pair<int, int> first_place(const Schedule& schedule, const std::function<bool(const Action&)>& is);

/// A Pass: after its row each rank reduces the gradients of its stages, bucket by bucket, in the order in which
/// backward completes them: the last of the model first. buckets: how many, by stage.
Schedule with_reductions(Schedule schedule, const std::vector<int>& buckets);

/// Whether it may write gradients: a backward, what makes one beside it, or the loss, which makes the head's.
bool writes_gradients(const Schedule& schedule, const Action& action);

/// Of a row, forwards and their messages in their order, and the vocabulary's up to the loss: what is left when nothing
/// is learned. Rows that end, end so too: no forward waits for a backward.
std::vector<Action> forwards_of(const std::vector<Action>& row);

/// PyTorch pipelining's form: one line a rank, one Action a cell.
std::string to_csv(const Schedule& schedule);
/// Of its computations through stages alone, what PyTorch's pipelining loads: it adds messages and reductions itself.
std::string to_pytorch_csv(const Schedule& schedule);
/// Reads it back, and what PyTorch writes: an empty cell is idle time and is dropped; "(0F1;7B2)OVERLAP_F_B" counts as
/// its parts in their order. A stage belongs to the first rank on which it stands. DataError names line and cell.
/// `cells`, where given, is told the cell of each Action by rank and index, counted from 1.
Schedule parse_csv(std::string_view text, std::vector<std::vector<int>>* cells = nullptr);

/// For a terminal: one line a rank, one column a unit of time when every computation takes one; "." is idle. Where the
/// order cannot be carried out, one column an Action.
std::string grid(const Schedule& schedule);

}  // namespace orthant
