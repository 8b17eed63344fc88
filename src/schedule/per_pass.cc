#include "schedule/per_pass.h"

namespace orthant {

using enum ActionKind;

bool is_passed_on(const Action& action) { return action.kind == F || action.kind == B || action.kind == I; }

Action source_of(const Action& pass) { return {pass.kind, pass.stage + (pass.kind == F ? -1 : 1), pass.microbatch}; }
Action reader_of(const Action& pass) { return {pass.kind, pass.stage + (pass.kind == F ? 1 : -1), pass.microbatch}; }

Action recv_of(const Action& pass) { return {pass.kind == F ? RECV_F : RECV_B, pass.stage, pass.microbatch}; }
Action send_of(const Action& pass) { return {pass.kind == F ? SEND_F : SEND_B, pass.stage, pass.microbatch}; }

}  // namespace orthant
