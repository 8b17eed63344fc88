// Text of a message's signature, for error messages.
#include <fmt/format.h>

#include <array>

#include "base/text.h"
#include "comm/message_signature.h"

namespace orthant {

std::string describe(MessageSignature signature, int64_t bytes) {
  constexpr std::array names = {"a send or exchange", "an all_reduce",        "a reduce_scatter", "an all_gather",
                                "an all_to_all",      "a broadcast",          "a reduce",         "a reduce_in_chunks",
                                "a barrier",          "an all_reduce_by_tree"};
  const auto kind = static_cast<size_t>(signature.kind);
  return fmt::format("{} of {} for {}{}{}", format_bytes(static_cast<double>(bytes)), c10::toString(signature.type),
                     kind < names.size() ? names[kind] : "an unknown operation",
                     signature.one_round ? " in one round" : "", signature.more ? " with more segments to follow" : "");
}

}  // namespace orthant
