// Compares the bytes that a rank sends in a step with the plan.
#pragma once

#include "comm/comm.h"
#include "plan/plan.h"

#include <string>

namespace orthant {

/// Planned calls and bytes that a rank sends in one step, by axes and collective, as Comm counts them.
TrafficTable planned_traffic_table(const Plan& plan, int rank);

/// Calls and bytes counted between two readings of Comm::traffic().
TrafficTable traffic_since(const TrafficTable& before, const TrafficTable& after);

/// "sends 64 bytes in 2 calls of all_reduce over data, but the plan states 32 bytes in 1 call"; empty if equal.
std::string traffic_difference(const TrafficTable& planned, const TrafficTable& sent);

}  // namespace orthant
