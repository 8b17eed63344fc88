// The pass that any schedule of several ranks goes through on its way to the runtime.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Adds a SEND and a RECV for each result that another rank reads. All ranks' rows are parts of one order in which both
/// ends of a message stand at the same place, so a step ends even where every SEND and every RECV waits for its
/// partner, and any ranks see their messages in one order. Barriers of the vocabulary layers are waited for. LogicError
/// where the rows cannot be carried out.
Schedule add_messages(const Schedule& schedule);

}  // namespace orthant
