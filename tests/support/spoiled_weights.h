// The reports of a run's ranks after a test has changed some weights, for instance to infinity.
#pragma once

#include "runtime/session.h"
#include "tests/support/tiny_run.h"

#include <functional>
#include <string>
#include <vector>

namespace orthant {

/// The tensor that each of two ranks finds not finite, and the rank that finds the first in the order of the stages.
struct Seen {
  std::vector<std::string> what;
  int first = -1;
};

/// Runs one step of two ranks with these keys, after `spoil` has changed the weights.
inline Seen seen(const std::vector<std::string>& keys, const std::function<void(Weights&)>& spoil) {
  const TinyRun run({"training.dtype=float32", "model.num_hidden_layers=4"});
  const Plan plan = run.plan(2, keys);
  Seen found{.what = std::vector<std::string>(2)};
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    spoil(session.weights());
    session.gradients(1, {});
    const auto [what, first] = session.find_first_not_finite(1);
    found.what[static_cast<size_t>(rank)] = what;
    if (first) found.first = rank;
  });
  return found;
}

/// Sets every element of a parameter. Does nothing on a rank that does not hold it.
inline void fill(Weights& weights, const std::string& name, double value) {
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].name == name) weights.master(p).fill_(value);
  }
}

}  // namespace orthant
