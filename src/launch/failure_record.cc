#include "launch/failure_record.h"

#include "base/terminal_text.h"

namespace orthant {
namespace {

constexpr const char* kClaim = "abort/claim";
constexpr const char* kRecord = "abort/record";

}  // namespace

bool post_failure(const Store& store, const std::string& message) {
  if (store.add(kClaim, 1) != 1) return false;
  store.set(kRecord, message);
  return true;
}

bool has_failed(const Store& store) { return store.has(kClaim); }

std::optional<std::string> find_failure(const Store& store) {
  constexpr double kThere_s = 1;
  if (!store.has(kRecord)) return std::nullopt;
  return escape_for_terminal(store.get(kRecord, kThere_s));  // any program that reaches the store can write there
}

}  // namespace orthant
