// Waits for a key of a store in pieces, between which the caller looks for failures.
#include "launch/wait.h"

#include "base/errors.h"

namespace orthant {

std::optional<std::string> await_key(const Store& store, const std::string& key, const KeyWait& wait) {
  constexpr double kFirstPiece_s = 0.5, kShortest_s = 0.001;
  RunningTime running(2 * wait.longest_piece_s);
  for (double longest_s = std::min(kFirstPiece_s, wait.longest_piece_s);;
       longest_s = std::min(2 * longest_s, wait.longest_piece_s)) {
    const double left_s = wait.timeout_s - running.seconds(), piece_s = std::clamp(left_s, kShortest_s, longest_s);
    const auto asked = Clock::now();
    try {
      return store.get(key, piece_s);
    } catch (const ForgedValue&) {
      throw;
    } catch (const CommError&) {
      const bool is_over = left_s <= 0 || (wait.is_over && wait.is_over());
      const bool has_waited = seconds_since(asked) >= piece_s;
      if (has_waited && !is_over) continue;
      const bool exists = store.has(key);  // throws if the store is gone
      if (is_over && !exists) return std::nullopt;
    }
  }
}

}  // namespace orthant
