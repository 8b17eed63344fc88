// The output layer with the vocabulary sharded over thread ranks equals one device: loss and gradients, for all
// algorithms, options, paddings and sizes. The controls count padding or ignored labels, and shift the slices.
#include "tests/parallel/vocabulary/layers/output_layer.h"

#include <chrono>
#include <future>

namespace orthant::output_test {
namespace {

std::string name_of(const OutputCase& c) { return fmt::format("{} on {} ranks", c.algorithm, c.slices.size()); }

TEST(OutputLayer, EqualsOneDevice) {
  const OutputInputs in = output_inputs();
  const OutputResult want = one_device(in);
  for (const std::string& algorithm : kAlgorithms) {
    for (const int ranks : {1, 2, 4, 8}) {
      const OutputCase c{.algorithm = algorithm, .slices = even_slices(1003, ranks), .root = ranks - 1};
      EXPECT_LE(largest_error(over_ranks(c, in), want), 1e-13) << name_of(c);
    }
  }
}

TEST(OutputLayer, InLowerPrecision) {
  OutputInputs in = output_inputs();
  in.x_NC = in.x_NC.to(at::kBFloat16), in.w_VC = in.w_VC.to(at::kBFloat16);  // rounded for the oracle too
  const OutputResult want = one_device(in);
  for (const std::string& algorithm : kAlgorithms) {
    OutputCase c{.algorithm = algorithm, .slices = even_slices(1003, 4), .type = at::kFloat};
    for (const auto& loss : {OutputLoss{}, OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
      const OutputResult exact = one_device(in, loss);
      c.loss = loss;
      c.type = at::kFloat;
      OutputResult have = over_ranks(c, in);
      EXPECT_LE(relative_error(have.loss, exact.loss), 1e-5) << name_of(c);
      EXPECT_LE(relative_error(have.dx_NC, exact.dx_NC), 1e-5) << name_of(c);
      EXPECT_LE(relative_error(have.dw_VC, exact.dw_VC), 1e-5) << name_of(c);
      // Roundings to 8 bits with independent signs. The input's gradient has three: exponentials, summands of ranks,
      // and their sum. The weight's has two: exponentials, and x times factors.
      c.type = at::kBFloat16;
      have = over_ranks(c, in);
      EXPECT_EQ(have.dw_VC.scalar_type(), at::kFloat);
      EXPECT_LE(relative_error(have.loss, exact.loss), 1e-5) << name_of(c) << ": statistics are float32";
      EXPECT_LE(relative_error(have.dx_NC, exact.dx_NC), std::sqrt(3.0) / 256) << name_of(c);
      EXPECT_LE(relative_error(have.dw_VC, exact.dw_VC), std::sqrt(2.0) / 256) << name_of(c);
    }
  }
}

// Logits of thousands that are exact in float64 for any order of sums. Otherwise probabilities could not be compared.
OutputInputs huge_logits() {
  OutputInputs in = output_inputs();
  in.x_NC = in.x_NC.round() * 200, in.w_VC = (in.w_VC * 4).round() * 20;
  return in;
}

// Huge logits, labels that are all in the first slice, ranks without rows, ranks with padding only, and no valid label.
TEST(OutputLayer, StaysFinite) {
  const OutputInputs in = huge_logits();
  OutputInputs first_only = in, ignored = in;
  first_only.labels_N = at::where(in.labels_N.eq(kIgnoredLabel), in.labels_N, in.labels_N.remainder(100));
  ignored.labels_N = at::full_like(in.labels_N, kIgnoredLabel);
  const std::vector<Range> slices = {{0, 100}, {100, 900}, {900, 900}, {900, 1003}, {1003, 1040}};
  for (const std::string& algorithm : kAlgorithms) {
    const OutputCase c{.algorithm = algorithm, .slices = slices, .root = 2};
    for (const OutputInputs& some : {in, first_only}) {
      EXPECT_LE(largest_error(over_ranks(c, padded(some, 1040)), one_device(padded(some, 1040))), 1e-13) << name_of(c);
    }
    const OutputResult nothing = over_ranks(c, padded(ignored, 1040));
    EXPECT_EQ(nothing.loss, 0) << algorithm;
    EXPECT_TRUE(nothing.dx_NC.eq(0).all().item<bool>()) << algorithm;
    EXPECT_TRUE(nothing.dw_VC.eq(0).all().item<bool>()) << algorithm;
  }
}

TEST(OutputLayer, DoesNotDependOnPaddingOrRanks) {
  const OutputInputs in = output_inputs(64, 32, 1000);
  const OutputResult want = one_device(in);
  for (const std::string& algorithm : kAlgorithms) {
    for (const int64_t rows : {1000, 1008, 1024}) {
      for (const int ranks : {1, 3, 5}) {
        const OutputCase c{.algorithm = algorithm, .slices = even_slices(rows, ranks)};
        OutputResult have = over_ranks(c, padded(in, rows));
        for (const double loss : have.losses) EXPECT_EQ(loss, have.losses[0]) << "the same bits on all ranks";
        EXPECT_TRUE(have.dw_VC.narrow(0, 1000, rows - 1000).eq(0).all().item<bool>());
        have.dw_VC = have.dw_VC.narrow(0, 0, 1000);
        EXPECT_LE(largest_error(have, want), 1e-13) << name_of(c) << ", " << rows << " rows";
      }
    }
  }
}

TEST(OutputLayer, SmoothsCapsAndWeighs) {
  const OutputInputs in = output_inputs();
  for (const OutputLoss& loss :
       {OutputLoss{.smoothing = 0.1}, OutputLoss{.z_weight = 1e-3}, OutputLoss{.softcap = 3}, OutputLoss{.softcap = 30},
        OutputLoss{.softcap = 3, .smoothing = 0.1}, OutputLoss{.softcap = 30, .smoothing = 0.1, .z_weight = 1e-3},
        OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
    const OutputResult want = one_device(in, loss);
    EXPECT_GT(largest_error(one_device(in), want), 1e-6) << "the option does something";
    for (const std::string& algorithm : kAlgorithms) {
      const OutputCase c{.algorithm = algorithm, .slices = {{0, 400}, {400, 400}, {400, 1003}}, .loss = loss};
      EXPECT_LE(largest_error(over_ranks(c, in), want), 1e-12)
          << fmt::format("{}, cap {}, smoothing {}, z {}", algorithm, loss.softcap, loss.smoothing, loss.z_weight);
    }
  }
}

// The gradients equal difference quotients of the loss that the ranks themselves compute.
TEST(OutputLayer, IsTheSlopeOfItsOwnLoss) {
  const OutputCase c{.algorithm = "algorithm_2", .slices = even_slices(103, 3),
                     .loss = {.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}};
  const OutputInputs in = output_inputs(20, 12, 103);
  const OutputResult have = over_ranks(c, in);
  const double step = 1e-5;
  const auto slope = [&](at::Tensor OutputInputs::*of, int64_t i, int64_t j) {
    const auto at = [&](double by) {
      OutputInputs moved = in;
      (moved.*of = (in.*of).clone())[i][j].add_(by);
      return over_ranks(c, moved).loss;
    };
    return (at(step) - at(-step)) / (2 * step);
  };
  for (const auto& [i, j] : {std::pair<int64_t, int64_t>{1, 0}, {7, 11}, {19, 5}}) {
    EXPECT_NEAR(slope(&OutputInputs::x_NC, i, j), have.dx_NC[i][j].item<double>(), 1e-8);
    EXPECT_NEAR(slope(&OutputInputs::w_VC, i * 5, j), have.dw_VC[i * 5][j].item<double>(), 1e-8);
  }
}

// A rank can finish S of both microbatches before another rank starts its first S. Schedules rely on this. Rank 1 waits
// for a message that rank 0 sends only after its last S.
TEST(OutputLayer, SDoesNotWaitForOthersS) {
  const OutputInputs in = output_inputs();
  for (const std::string& algorithm : kAlgorithms) {
    run_ranks(2, [&](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous, {.timeout_s = 20});
      const Range rows = even_slices(in.vocabulary, 2)[static_cast<size_t>(rank)];
      const Weight head{.value = in.w_VC.narrow(0, rows.begin, rows.size()).to(at::kDouble),
                        .gradient = at::zeros({rows.size(), in.w_VC.size(1)}, at::kDouble)};
      OutputLayer layer(comm, {.algorithm = algorithm, .slice = {.rows = rows, .vocabulary = in.vocabulary},
                               .axes = kOverPipeline}, head);
      for (const int microbatch : {0, 1}) layer.broadcast_input(microbatch, in.x_NC.clone(), {.labels_N = in.labels_N});
      const at::Tensor told = at::zeros({1});
      if (rank == 1) comm.recv(told, kOverPipeline, 0).wait();
      for (const int microbatch : {0, 1}) layer.S(microbatch);
      if (rank == 0) comm.send(told, kOverPipeline, 1).wait();
      for (const int microbatch : {0, 1}) {
        if (algorithm == "naive") layer.Z(microbatch);
        layer.T(microbatch);
        if (rank == 0) layer.take_input_gradient(microbatch);
      }
      layer.finish();
    });
  }
}

// Ignored tokens may contain NaN, because they are padding; they add nothing to loss and gradients.
TEST(OutputLayer, IgnoredTokensMayBeNoNumbers) {
  const OutputInputs in = output_inputs();
  OutputInputs bad = in;
  bad.x_NC = in.x_NC.clone();
  bad.x_NC.slice(0, 0, in.x_NC.size(0), 5).fill_(NAN);
  for (const OutputLoss& loss : {OutputLoss{}, OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
    const OutputResult want = one_device(in, loss);
    for (const std::string& algorithm : kAlgorithms) {
      const OutputCase c{.algorithm = algorithm, .slices = even_slices(1003, 3), .loss = loss};
      EXPECT_LE(largest_error(over_ranks(c, bad), want), 1e-12) << name_of(c);
    }
  }
}

// Algorithm 2's sum of the input's gradient starts in the background as soon as the statistics have arrived. It
// completes although the other ranks make no further call.
TEST(OutputLayer, TheEarlySumStartsByItself) {
  const OutputInputs in = output_inputs();
  const OutputResult want = one_device(in);
  std::promise<void> taken;
  run_ranks(3, [&, over = taken.get_future().share()](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 3}}), rank, rendezvous, {.timeout_s = 60});
    const Range rows = even_slices(in.vocabulary, 3)[static_cast<size_t>(rank)];
    const Weight head{.value = in.w_VC.narrow(0, rows.begin, rows.size()).to(at::kDouble),
                      .gradient = at::zeros({rows.size(), in.w_VC.size(1)}, at::kDouble)};
    OutputLayer layer(comm, {.algorithm = "algorithm_2", .slice = {.rows = rows, .vocabulary = in.vocabulary},
                             .axes = kOverPipeline}, head);
    layer.broadcast_input(0, in.x_NC.clone(), {in.labels_N, in.weights_N, in.loss_scale});
    layer.S(0);
    if (rank == 0) {
      EXPECT_LE(relative_error(layer.take_input_gradient(0), want.dx_NC), 1e-13);
      taken.set_value();
    }
    EXPECT_EQ(over.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    layer.T(0);
    EXPECT_NEAR(layer.finish().item<double>(), want.loss, 1e-13 * std::abs(want.loss));
  });
}

// Messages in the background own the memory that they read. A rank may destroy its layer, for example because of an
// exception, while its messages are in flight.
TEST(OutputLayer, TheEarlySumOutlivesTheLayer) {
  const OutputInputs in = output_inputs();
  const OutputResult want = one_device(in);
  std::promise<void> dropped;
  run_ranks(2, [&, gone = dropped.get_future().share()](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous, {.timeout_s = 60});
    const Range rows = even_slices(in.vocabulary, 2)[static_cast<size_t>(rank)];
    const Weight head{.value = in.w_VC.narrow(0, rows.begin, rows.size()).clone(),
                      .gradient = at::zeros({rows.size(), in.w_VC.size(1)}, at::kDouble)};
    const OutputPlan plan{.algorithm = "algorithm_2", .slice = {.rows = rows, .vocabulary = in.vocabulary},
                          .axes = kOverPipeline};
    auto layer = std::make_unique<OutputLayer>(comm, plan, head);
    layer->broadcast_input(0, rank == 0 ? in.x_NC.clone() : at::empty_like(in.x_NC),
                           {in.labels_N, in.weights_N, in.loss_scale});
    if (rank == 0) gone.wait();  // rank 1 has no statistics yet
    layer->S(0);
    if (rank == 1) {
      layer.reset();
      return dropped.set_value();
    }
    EXPECT_LE(relative_error(layer->take_input_gradient(0), want.dx_NC), 1e-13);
    layer->T(0);
    EXPECT_NEAR(layer->finish().item<double>(), want.loss, 1e-13 * std::abs(want.loss));
  });
}

// The controls: errors that the checks above must detect.
TEST(OutputLayerControls, DetectsErrors) {
  const OutputInputs in = output_inputs();
  OutputInputs counted = in;
  counted.labels_N = in.labels_N.clamp_min(0);
  OutputInputs with_padding = padded(in, 1040);
  with_padding.vocabulary = 1040;
  for (const std::string& algorithm : kAlgorithms) {
    OutputCase c{.algorithm = algorithm, .slices = even_slices(1040, 4)};
    const OutputResult want = one_device(padded(in, 1040));
    const auto seen = [&](const OutputInputs& some) { return relative_error(over_ranks(c, some).dx_NC, want.dx_NC); };
    EXPECT_LE(seen(padded(in, 1040)), 1e-13);
    EXPECT_GT(seen(with_padding), kSeenInAGradient) << "padding counted";
    EXPECT_GT(seen(padded(counted, 1040)), kSeenInAGradient) << "ignored labels counted";
    c.shift = 1;
    EXPECT_GT(seen(padded(in, 1040)), kSeenInAGradient) << "slices shifted";
  }
}

}  // namespace
}  // namespace orthant::output_test
