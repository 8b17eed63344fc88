// The state of every rank while a run makes no progress, and the picture of who waits for whom. A hang is easy to
// explain once it is known which rank all others wait for, directly or through others, or which ranks wait for each
// other in a cycle.
//
// Example: of four data ranks, ranks 1 to 3 wait in all_reduce number 5 over data, and rank 0 has started only four.
// Therefore they wait for rank 0. In the same way, a receive of message 5 waits for the sender only if that has started
// fewer than five sends. Otherwise the message is on its way, and the waiting rank is itself a root.
//
// Growth with P ranks: O(P) time and memory; the picture has at most kMostLines lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"

namespace orthant {

/// A message that a rank waits for: the rank of the other side, the direction, and the number of the message among
/// those of this direction between the two ranks over the group, from 1.
struct AwaitedMessage {
  int peer = 0;
  bool receive = false;
  int64_t number = 0;
  bool operator==(const AwaitedMessage&) const = default;
};

/// Operations over one group that a rank has started so far: collectives, and messages by rank of the other side.
struct StartedCounts {
  int64_t collectives = 0;
  std::map<int, int64_t> sends = {}, receives = {};
  bool operator==(const StartedCounts&) const = default;
};

/// The state of one rank.
struct RankStatus {
  int rank = 0;
  /// Time since the rank last made progress, in seconds.
  double stalled_s = 0;
  /// The activity that the rank last reported, such as "2F5, action 7 of 12 of step 41"; may be empty.
  std::string activity;

  /// The operation that the rank waits for, such as "all_reduce"; empty if it waits for none.
  std::string operation;
  /// Name of its group: axes joined by "+", and after "@" or "#" its device or channel.
  std::string group;
  int64_t bytes = 0;
  /// Number of a collective in its group, from 1. It is 0 for other operations, which consist of `messages`.
  int64_t number = 0;
  std::vector<AwaitedMessage> messages;
  std::map<std::string, StartedCounts> started;  // by group

  bool waits() const { return !operation.empty(); }
  bool operator==(const RankStatus&) const = default;
};

/// The text in which a rank posts its status.
std::string to_text(const RankStatus& status);
/// Parses the text of to_text() in a run of num_ranks ranks. Returns nothing for any other text, because any program
/// that reaches the store can write there. The texts of the result are safe to print.
std::optional<RankStatus> parse_rank_status(std::string_view text, int num_ranks);

/// Largest number of lines of a picture.
inline constexpr size_t kMostLines = 18;

/// Describes who waits for whom, in sentences. `statuses` has one entry for each rank, in order of rank. Empty if no
/// rank waits. Ranks in the same state share a line. The first line names the root: the ranks that the others wait for,
/// or the cycle.
std::string describe_waiting(const Mesh& mesh, const std::vector<RankStatus>& statuses);

}  // namespace orthant
