// HangWatch: reports within 10 s that no rank of a run makes progress, and who waits for whom. A rank makes progress
// when its activity or the operation that it waits for changes. One without progress for stall_s posts its status in
// the store, and again whenever that time has doubled. Rank 0, if it makes no progress itself, collects the statuses.
// If all ranks have posted one and some rank waits, it reports the picture of waiting.h, once per hang. This is a
// warning, because a slow rank may go on, and each picture that the run survived doubles the time until the next one.
// The timeout of operations ends a run that hangs. The Watch reports ranks and hosts that do not answer. Waits for NCCL
// happen on the GPU and are not seen.
//
// Growth with P ranks: no store request while the ranks make progress. A hang of t seconds costs each rank O(log t)
// requests, and rank 0 O(P) each second until its report.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/waiting.h"
#include "launch/store.h"

namespace orthant {

struct HangOptions {
  /// A rank without progress for this long posts its status, in seconds.
  double stall_s = 5;
  /// Number of changes of this rank's activity, and its status. Both are called on the thread of tick().
  std::function<int64_t()> progress;
  std::function<RankStatus()> status;
  /// Receives the picture, and later the text that the ranks make progress again, on the thread of tick().
  std::function<void(const std::string& text)> report;
};

class HangWatch {
 public:
  /// `store` is that of the ranks of the mesh. Requests have a connection of their own.
  HangWatch(const Mesh& mesh, int rank, const Store& store, HangOptions options);

  /// Must be called every fraction of a second, by one thread. It does not wait for the store.
  void tick(double elapsed_s);

 private:
  struct Requests;
  struct Answer {
    bool failed = false;
    std::string picture;  // empty if there is none
  };

  const int rank_;
  const HangOptions options_;
  int64_t progress_ = -1;
  double stalled_s_ = 0;
  std::string entry_;          // of this rank, as the store should have it; empty while it makes progress
  bool is_posted_ = true;      // whether the store has it
  double next_post_s_ = 0;     // when the status is posted again
  double next_look_s_ = 0;     // of rank 0
  double report_after_s_ = 0;  // of rank 0; doubles after each picture that the run survived
  bool reported_ = false;      // the current hang
  /// Owned by the thread of the requests, too, which may outlive this object.
  std::shared_ptr<Requests> requests_;
  std::future<Answer> answer_;
};

/// The newest posted status of each rank of the mesh, in order of rank. Ranks that have posted none are left out.
std::vector<RankStatus> read_statuses(const Store& store, int num_ranks);
/// The picture for the error of an operation that has failed without a known cause. It also names the ranks that have
/// posted no status. Empty if no rank has posted that it waits.
std::string read_picture(const Store& store, const Mesh& mesh);

}  // namespace orthant
