// HangWatch: reports within 10 s that no rank of a run makes progress, and who waits for whom. A rank without progress
// for patience_s posts its status in the store, and again whenever that time has doubled. Rank 0, if it makes no
// progress itself, collects the statuses. If no rank makes progress and some rank waits, it reports the picture of
// waiting.h, once per hang. This is a warning, because a slow rank may go on; the timeout of operations ends a run that
// hangs.
//
// Growth with P ranks: no store request while the ranks make progress. A hang of t seconds costs each rank O(log t)
// requests, and rank 0 O(P) each second until its report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/waiting.h"
#include "launch/store.h"

namespace orthant {

struct HangOptions {
  /// A rank without progress for this long posts its status.
  double patience_s = 5;
  /// How long rank 0 then waits for the statuses of the other ranks. A rank whose heartbeat has not changed meanwhile
  /// is silent; one whose heartbeat has changed makes progress, and the run does not hang.
  double answer_s = 2;
  /// Number of changes of this rank's activity, and its status. Both are called on the thread of tick().
  std::function<int64_t()> progress;
  std::function<RankStatus()> status;
  /// False if ranks are threads. They have no heartbeats, and one that does not answer makes progress.
  bool heartbeats = true;
  /// Receives the picture, and later the text that the ranks make progress again.
  std::function<void(const std::string& text)> report;
};

class HangWatch {
 public:
  HangWatch(Mesh mesh, int rank, HangOptions options);

  /// Must be called every fraction of a second, by one thread. `store` is the same at each call. Throws CommError if it
  /// does not answer.
  void tick(double elapsed_s, const Store& store);

 private:
  void post(const Store& store);
  void retract(const Store& store);
  void look(const Store& store);
  /// Adds the silent ranks to the statuses. False if some rank makes progress, or if this is not known yet.
  bool add_silent_ranks(const Store& store, std::vector<RankStatus>& statuses);

  const Mesh mesh_;
  const int rank_;
  const HangOptions options_;
  int64_t progress_ = -1;
  double still_s_ = 0;
  int64_t ticket_ = 0;      // number of this rank's entry in the store; 0 before its first
  double next_post_s_ = 0;  // 0 unless the entry has a status

  // Rank 0 only.
  double report_after_s_;  // doubles after each picture that the run survived
  double next_look_s_ = 0;
  bool reported_ = false;                // the current hang
  std::vector<int> missing_;             // ranks without a status
  std::vector<std::string> heartbeats_;  // theirs, read at heartbeats_at_s_
  double heartbeats_at_s_ = 0;
};

/// Measures on a waiting rank's thread how long the store has not answered the rank's watch, whose own thread is then
/// blocked. It happens if the host that serves the store is frozen or cut off.
class StoreSilence {
 public:
  /// Returns the time in seconds since `answered_periods` of the watch last changed. A pause between two calls counts
  /// as at most 2 s, because this process may have been stopped.
  double measure(int64_t answered_periods);

 private:
  int64_t answered_ = -1;
  double silent_s_ = 0;
  Clock::time_point last_;
};

/// The newest posted status of each rank of the mesh, in order of rank. Ranks that have posted none are left out.
std::vector<RankStatus> read_statuses(const Store& store, int num_ranks);
/// The picture for the error of an operation that has failed without a known cause. A rank that has posted no status
/// makes progress. Empty if no rank has posted that it waits.
std::string read_picture(const Store& store, const Mesh& mesh, bool heartbeats);

}  // namespace orthant
