#include "schedule/posted_receives.h"

namespace orthant {

std::vector<PostedReceive> posted_receives(std::span<const Action> row) {
  std::vector<PostedReceive> receives;
  int computation = -1;  // index of the last one so far, since FINALIZE
  for (int i = 0; i < std::ssize(row); ++i) {
    const ActionKind kind = row[static_cast<size_t>(i)].kind;
    const Stream stream = facts(kind).stream;
    if (stream == Stream::compute) computation = kind == ActionKind::FINALIZE ? -1 : i;
    if (stream == Stream::receive) receives.push_back({i, computation >= 0 ? computation : i});
  }
  return receives;
}

}  // namespace orthant
