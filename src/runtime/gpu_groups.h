// Opens the groups of a run on GPUs before its first step.
#pragma once

#include "comm/comm.h"
#include "plan/plan.h"

namespace orthant {

/// Opens nccl_groups() of the plan. All ranks open them in the same order, so that none waits for another in a cycle.
/// Does nothing for a run on CPUs or with one rank.
void open_gpu_groups(const Plan& plan, Comm& comm);

}  // namespace orthant
