// The record in the store that a run has failed, and why. It ends the run on all hosts.
#pragma once

#include <optional>
#include <string>

#include "base/errors.h"
#include "launch/store.h"

namespace orthant {

/// Another rank has failed and has reported why: the rank that catches this error ends without a message of its own.
struct PeerFailed : CommError {
  PeerFailed() : CommError("another rank has failed") {}
};

/// Posts the record that stops a run. `store` must be the run's own. True for the first caller, who must report to the
/// user.
bool post_failure(const Store& store, const std::string& message);
/// Whether a failure has been posted.
bool has_failed(const Store& store);
/// The message of the posted failure, safe to print; empty if the run has not failed, which costs one request.
std::optional<std::string> find_failure(const Store& store);

}  // namespace orthant
