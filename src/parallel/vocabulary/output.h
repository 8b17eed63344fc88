// The output layer and its loss over a vocabulary whose rows are cut over the pipeline's ranks. Yeung, Qi, Lin and Wan
// 2024, arXiv 2411.05288: naive (three barriers), algorithm 1 (two) and algorithm 2 (one).
//
// A softmax over some of the rows is the whole one but for a factor of each token, and a factor of each token can be
// multiplied after the product with W as well as before. So a rank need not know the others' logits to multiply, and
// three numbers a token (four with smoothing) are all that is ever gathered. Logits are whole nowhere.
//
// Sends, a microbatch of N tokens: x as broadcast, N C; statistics as all-gather, (p-1) 3 N; the gradient of x as
// reduce, N C: layers_plan.h, to the byte. Work of a rank: three products of 2 N C V/p, in any order.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "comm/comm.h"
#include "parallel/vocabulary/share.h"

namespace orthant {

struct OutputPlan {
  std::string_view algorithm;  // naive, algorithm_1 or algorithm_2
  VocabularySlice slice;
  Axes axes;     // of the ranks that the vocabulary is cut over
  int root = 0;  // position of the one that has the last stage
  SliceMesh mesh = {};  // of the ranks that have the slice of one position together; `slice` is then this rank's
};

/// One rank's end. Everything is started where it says so and waited for where it is read; each kind of collective has
/// a lane of its own (comm.h), on which microbatches go up. Algorithm 2's sum starts by itself once all statistics are
/// here, while the rank computes. A rank's steps for one microbatch: share_input, S, in the naive order Z, T; at the
/// root take_input_gradient behind S (algorithm 2) or T.
class OutputLayer {
 public:
  /// Comm and head, [rows, C], must outlive it.
  OutputLayer(Comm& comm, OutputPlan plan, const Weight& head);

  /// Starts the broadcast. x [N, C], or with a mesh this rank's part of [B, T, C]: what the last stage made; elsewhere
  /// memory for it, the sooner the better: ranks pass it on.
  void share_input(int microbatch, at::Tensor x_NC, OutputTokens tokens, OutputLoss loss = {});
  /// Waits for x; starts the statistics' round. Algorithm 2 then multiplies for the gradient of x, and lets its sum
  /// follow the statistics.
  void S(int microbatch);
  /// The naive order's: waits for all maxima, and starts the round of the other statistics.
  void Z(int microbatch);
  /// Waits for all statistics and adds the weight's gradient; but for algorithm 2, starts the sum of that of x.
  void T(int microbatch);

  /// They return when there is what S, Z, T and the last stage's backward read: for who wants to know how long that is.
  void wait_for_input(int microbatch) { live(microbatch).input_arrives.wait(); }
  void wait_for_maxima(int microbatch) { live(microbatch).statistics_arrive.wait(); }
  void wait_for_softmax(int microbatch);
  void wait_for_input_gradient(int microbatch);

  /// At the root: waits for the gradient of x; flat, [N, C] or this rank's part of it.
  at::Tensor take_input_gradient(int microbatch);
  /// Of a step.
  void begin() { losses_.clear(); }
  /// Waits for what is under way; the sum of the losses since begin(), the same bits on all ranks.
  double finish();

 private:
  struct Live {
    Work input_arrives;
    at::Tensor x, own, all;  // statistics: this rank's, and all ranks'
    OutputTokens tokens;
    OutputLoss loss;
    std::optional<OutputShare> share;
    Work statistics_arrive;
    at::Tensor maximum;  // the naive order's
    std::once_flag combined;
    std::exception_ptr failure;
    WholeSoftmax whole;
    at::Tensor dx;
    Work dx_arrives;
    bool done = false;

    /// From statistics to losses, and to what is summed of an early product: by whoever comes first, this rank's thread
    /// or that of its messages. It knows nothing of the layer, which may be gone by then.
    void combine(int64_t vocabulary);
  };
  Live& live(int microbatch);
  void gather(Live& live, Comm& lane, at::Tensor own);
  void sweep();
  bool at_root() const;

  Comm& comm_;
  const OutputPlan plan_;
  const bool naive_, early_;  // early: the gradient of x before that of the weight
  const Weight& head_;
  Comm inputs_, statistics_, exponentials_, gradients_;  // lanes
  std::map<int, std::shared_ptr<Live>> live_;
  std::map<int, double> losses_;  // by microbatch
};

}  // namespace orthant
