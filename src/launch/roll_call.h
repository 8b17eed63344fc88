// A roll call is a barrier over the store of a run: each rank posts a text, rank 0 may compute one answer from the
// texts of all ranks, and every rank receives it. With RollCall::members, only these ranks take part, and the first of
// them does what rank 0 does otherwise.
//
// Growth with P ranks: five store requests per rank, and two more whenever a wait is repeated: after 0.5 s, then at
// intervals that double up to 8 s. If rank 0 summarizes, it reads P texts with two more. Only if the wait times out
// does rank 0 ask for each rank, to name the missing ones.
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
  /// The ranks that take part; empty: all.
  std::vector<int> members = {};
  double timeout_s = 0;
  /// Called whenever the wait is repeated. It throws if the run has failed meanwhile.
  std::function<void()> check;
  /// Parts of the error "rank 3 of 8 did not MISSED within 60 s; WAY OUT".
  std::string missed = "connect to the " + store.name();
  std::string way_out = "start all ranks, check that they reach this address, or increase run.timeout_s";
  /// If set, called once with a warning that names the ranks for which the others have waited about 8 s.
  std::function<void(const std::string& warning)> warn = {};
};

/// Posts this rank's text and returns the answer of the call once all ranks have posted theirs. The answer is what
/// summarize() returns on rank 0 for the texts of all ranks, in order of rank. Either all ranks give `summarize` or
/// none does; without it, the answer is empty. Throws MissingRanks after timeout_s.
std::string call_roll(const RollCall& call, const std::string& text = "",
                      const std::function<std::string(const std::vector<std::string>& texts)>& summarize = nullptr);

/// Waits for the text that rank `from` posts under a key of call.store. Throws MissingRanks after timeout_s.
std::string await_text(const RollCall& call, const std::string& key, int from);

/// Ends a call for all ranks with this answer before all have come. The first answer holds.
void end_roll_call(const Store& store, const std::string& answer);

}  // namespace orthant
