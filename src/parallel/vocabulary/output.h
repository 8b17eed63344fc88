// The output layer and its loss over a vocabulary whose rows are sharded over pipeline ranks. Yeung, Qi, Lin and Wan
// 2024, arXiv 2411.05288: naive (three barriers), algorithm 1 (two) and algorithm 2 (one).
//
// The softmax over some rows differs from the full softmax only by a factor of each token. Such a factor can be applied
// after the product with W as well as before. So a rank can multiply without the other ranks' logits, and three numbers
// a token (four with smoothing) are all that is gathered. No rank holds full logits. plan.h has a worked example.
//
// Messages for a microbatch of N tokens: x as a broadcast, N C; statistics as an all-gather, (p-1) 3 N; the gradient of
// x as a reduce, N C; layers_plan.h has them in bytes. Work of a rank: three products of 2 N C V/p, in any order.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "comm/comm.h"
#include "parallel/vocabulary/output_shard.h"

namespace orthant {

struct OutputPlan {
  std::string_view algorithm;  // naive, algorithm_1 or algorithm_2
  VocabularySlice slice;
  Axes axes;     // of the ranks that shard the vocabulary
  int root = 0;  // position of the rank with the last stage
  SliceMesh mesh = {};  // of the ranks that together hold one position's slice; `slice` is then this rank's part
};

/// One rank's end. The functions below start collectives early and wait for each where its result is read. Each kind of
/// collective has a channel of its own (Comm::channel()), on which microbatches must be in increasing order. Algorithm
/// 2's sum starts in the background as soon as all statistics have arrived, while the rank computes. Calls for one
/// microbatch: broadcast_input, S, Z in the naive order, T; at the root also take_input_gradient, after S (algorithm 2)
/// or after T.
class OutputLayer {
 public:
  /// Comm and head, [rows, C], must outlive it.
  OutputLayer(Comm& comm, OutputPlan plan, const Weight& head);

  /// Starts the broadcast of x [N, C], or with a mesh of this rank's shard of [B, T, C]. At the root x is the output of
  /// the last stage, on other ranks memory for it. Call it early there too, because ranks pass x on to each other.
  void broadcast_input(int microbatch, at::Tensor x_NC, OutputTokens tokens, OutputLoss loss = {});
  /// Waits for x; starts the all-gather of statistics. Algorithm 2 then computes its products for the gradient of x;
  /// their sum starts when the statistics have arrived.
  void S(int microbatch);
  /// Naive order: waits for the maxima of all ranks, and starts the all-gather of the other statistics.
  void Z(int microbatch);
  /// T, or TW of algorithm 2: waits for all statistics and adds the weight's gradient. T also starts the sum of the
  /// gradient of x.
  void T(int microbatch);

  /// Wait for the data that S, Z, T and the last stage's backward read, so that a caller can measure the wait.
  void wait_for_input(int microbatch) { live(microbatch).input_arrives.wait(); }
  void wait_for_maxima(int microbatch) { live(microbatch).statistics_arrive.wait(); }
  void wait_for_softmax(int microbatch);
  void wait_for_input_gradient(int microbatch);

  /// Instead of S: waits for x, and returns the capped logits [N,V] of the tokens that have a label. They are gathered
  /// over the ranks that shard the vocabulary. The last call for the microbatch.
  at::Tensor logits(int microbatch);

  /// At the root: waits for the gradient of x. It has one row a token: [N, C], or this rank's shard of it.
  at::Tensor take_input_gradient(int microbatch);
  /// Begins a step: clears the losses.
  void begin() { losses_.clear(); }
  /// Waits for all collectives. Returns the sum of the losses since begin(), the same bits on all ranks.
  at::Tensor finish();

 private:
  struct Live {
    Work input_arrives;
    at::Tensor x, own, all;  // statistics: this rank's, and all ranks'
    OutputTokens tokens;
    OutputLoss loss;
    std::optional<OutputShard> shard;
    Work statistics_arrive;
    at::Tensor maximum;  // naive order: over all ranks
    std::once_flag combined;
    std::exception_ptr failure;
    FullSoftmax softmax;
    at::Tensor dx;
    Work dx_arrives;
    bool done = false;

    /// Computes the losses and, for algorithm 2, this rank's summand of the gradient of x from all statistics. Runs
    /// once, on the rank's thread or the thread that drives its messages, whichever comes first. It must not use the
    /// layer, which may no longer exist.
    void combine(int64_t vocabulary);
  };
  Live& live(int microbatch);
  void gather(Live& live, Comm& channel, at::Tensor own);
  void sweep();
  bool at_root() const;

  Comm& comm_;
  const OutputPlan plan_;
  const bool naive_, early_;  // early: S computes the gradient of x (algorithm 2)
  const Weight& head_;
  Comm inputs_, statistics_, exponentials_, gradients_;  // channels
  std::map<int, std::shared_ptr<Live>> live_;
  std::map<int, at::Tensor> losses_;  // by microbatch: the sum of its losses
};

}  // namespace orthant
