// Compares the calls of a rank in a step, and the bytes that it sends and receives, with its plan.
#pragma once

#include "comm/comm.h"
#include "plan/plan.h"

#include <string>

namespace orthant {

/// Calls and bytes that the plan expects of a rank in one step, by axes and collective, as Comm counts them.
TrafficTable planned_traffic_table(const Plan& plan, int rank);

/// Calls and bytes between two readings of Comm::traffic().
TrafficTable traffic_since(const TrafficTable& before, const TrafficTable& after);

/// Describes the first difference; empty if both are equal. For example: "sends 64 and receives 64 bytes in 2 calls of
/// all_reduce over data, but the plan states 32 and 32 bytes in 1 call".
std::string traffic_difference(const TrafficTable& planned, const TrafficTable& sent);

}  // namespace orthant
