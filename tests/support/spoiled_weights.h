// What the ranks of a run say of weights that are not what they were.
#pragma once

#include "runtime/session.h"
#include "tests/support/tiny_run.h"

#include <functional>
#include <string>
#include <vector>

namespace orthant {

/// What each of two ranks finds not finite, and which of them it falls to to tell.
struct Seen {
  std::vector<std::string> what;
  int first = -1;
};

/// In a step of two ranks with these keys, where `spoil` has been at the weights.
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

/// Nothing where the parameter is not held.
inline void fill(Weights& weights, const std::string& name, double value) {
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].name == name) weights.master(p).fill_(value);
  }
}

}  // namespace orthant
