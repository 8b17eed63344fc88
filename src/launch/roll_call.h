// A roll call: all ranks of a run meet at their store, and each learns the same answer.
//
// Growth with P ranks: four store requests per rank, and two more whenever a wait is repeated: after 0.5 s, then at
// intervals that double up to 8 s. If rank 0 summarizes, it reads P texts with two more, and removes long ones with one
// each. Only after a wait in vain does rank 0 ask for each rank, to name the missing ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/store.h"

namespace orthant {

/// Thrown if ranks have not come in time.
struct MissingRanks : CommError {
  using CommError::CommError;
};

struct RollCall {
  Store store;  // under a prefix that only this call uses
  int rank = 0;
  int world_size = 1;
  double timeout_s = 0;
  /// Called whenever the wait is repeated. It throws if the run has failed meanwhile.
  std::function<void()> check;
  /// Parts of the message "rank 3 of 8 did not connect within 60 s; start all ranks".
  std::string missed = "connect to the " + store.name();
  std::string way_out = "start all ranks, check that they reach this address, or increase run.timeout_s";
};

/// Posts this rank's text and returns the answer of the call once all ranks have posted theirs. The answer is what rank
/// 0 computes from the texts of all ranks, in order of rank; empty if `summarize` is. All ranks must agree whether it
/// is. Throws MissingRanks after timeout_s.
std::string call_roll(const RollCall& call, const std::string& text = "",
                      const std::function<std::string(const std::vector<std::string>& texts)>& summarize = nullptr);

/// Waits for the text that rank `from` posts under a key of call.store. Throws MissingRanks after timeout_s.
std::string await_text(const RollCall& call, const std::string& key, int from);

/// Ends a call for all ranks with this answer before all have come. The first answer holds.
void end_roll_call(const Store& store, const std::string& answer);

}  // namespace orthant
