// Saves checkpoints of a running Session. Every rank writes its own files; rank 0 completes the checkpoint.
//
//   begin      rank 0 creates the temporary directory                        roll call
//   rounds     the ranks collect tensors on the ranks that write them, which then write        roll call between rounds
//   complete   each rank states its files; rank 0 adds the manifest and the directory's name    roll call
//
// The ranks wait for disks only in roll calls at their store, which have no time limit, and never in a message. With
// checkpoint.async_mode = "async" there is one round: the tensors are copied, training goes on, and another thread
// writes. The manifest names the step that the copies belong to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/save_plan.h"
#include "runtime/save_parts.h"
#include "runtime/session.h"
#include "runtime/train_state.h"
#include "runtime/training_data.h"

namespace orthant {

class SnapshotSaver {
 public:
  /// All must outlive it.
  SnapshotSaver(const Plan& plan, const TrainingData& data, Session& session, const SaveLimits& limits = {});
  /// Ends a save in progress without a checkpoint, if wait() has not ended it.
  ~SnapshotSaver();

  /// Saves DUMP/checkpoints/step-NNNNNN: weights with Hugging Face's names and shapes, masters if their dtype differs,
  /// optimizer state, tokenizer, and the effective run file. First waits for the save before. In the background, only
  /// the copies are made when it returns. Once the checkpoint is complete, removes the oldest ones beyond
  /// checkpoint.keep_latest_k, unless `keeps_old`. All ranks must call it together.
  void save(const TrainState& state, bool keeps_old = false);
  /// Waits for the save in progress. Throws its error: on rank 0 DataError if files could not be written, on other
  /// ranks CommError once rank 0 has reported.
  void wait();
  /// Throws the error of a save that has ended.
  void throw_if_failed();
  /// The newest complete checkpoint of this run; empty if there is none.
  const std::string& last_saved() const { return last_saved_; }

 private:
  /// A save in progress.
  struct Save;
  CheckpointContent content_of(const TrainState& state) const;
  void carry_out(Save& save);
  void write(Save& save) const;
  std::vector<TensorBytes> headers_of(const SavedFile& file) const;
  void complete(Save& save, const std::vector<std::string>& of_ranks) const;

  const Plan& plan_;
  const TrainingData& data_;
  Session& session_;
  const bool in_background_;
  const SavePlan files_;
  PartCollector collector_;
  std::unique_ptr<Save> save_;
  std::string last_saved_;
};

}  // namespace orthant
