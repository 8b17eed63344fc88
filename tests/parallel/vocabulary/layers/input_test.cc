// The embedding with its rows sharded over thread ranks equals a lookup on one device, alone and tied to the output
// layer. The control shifts the slices.
#include "parallel/vocabulary/input.h"

#include "base/errors.h"
#include "tests/parallel/vocabulary/layers/output_layer.h"

namespace orthant::input_test {
namespace {

struct InputResult {
  at::Tensor x_NC, dw_VC;
  std::vector<TrafficTable> traffic = {};
};

// Runs two microbatches of the embedding, forward and backward. Even and odd ranks interleave them differently. `shift`
// is the control: ranks take their rows for those `shift` further on.
InputResult embed(const std::vector<Range>& slices, int root, const OutputInputs& in, const at::Tensor& tokens,
                  const at::Tensor& dx, at::ScalarType type = at::kDouble, int shift = 0) {
  const auto ranks = static_cast<int>(slices.size());
  const int64_t half = tokens.numel() / 2;
  InputResult result{.x_NC = at::empty_like(dx.to(type)), .traffic = std::vector<TrafficTable>(slices.size())};
  std::vector<at::Tensor> gradients(slices.size());
  run_ranks(ranks, [&](Rendezvous rendezvous, int rank) {
    const auto r = static_cast<size_t>(rank);
    Comm comm(Mesh({{"pipeline", ranks}}), rank, rendezvous);
    const Range rows = slices[r];
    const at::ScalarType master = type == at::kDouble ? at::kDouble : at::kFloat;
    const Weight weight{.value = in.w_VC.narrow(0, rows.begin, rows.size()).to(type, false, true).requires_grad_(),
                        .gradient = at::full({rows.size(), in.w_VC.size(1)}, NAN, master)};
    InputLayer layer(comm, {.slice = {.rows = {rows.begin + shift, rows.end + shift}, .vocabulary = in.vocabulary},
                            .axes = kOverPipeline, .root = root}, weight);
    const auto part = [&](const at::Tensor& t, int m) { return m == 0 ? t.slice(0, 0, half) : t.slice(0, half); };
    const auto take = [&](int m) {
      if (rank == root) part(result.x_NC, m).copy_(layer.take_embedding(m));
    };
    const auto back = [&](int m) {
      layer.broadcast_gradient(m, rank == root ? part(dx, m).to(type) : at::Tensor());
      layer.EB(m);
    };
    layer.E(0, part(tokens, 0));
    if (rank % 2 == 0) layer.E(1, part(tokens, 1));
    take(0);
    back(0);
    if (rank % 2 == 1) layer.E(1, part(tokens, 1));
    take(1);
    back(1);
    layer.finish();
    gradients[r] = weight.gradient;
    result.traffic[r] = comm.traffic();
  });
  result.dw_VC = at::cat(gradients);
  return result;
}

TEST(InputLayer, EqualsALookup) {
  const OutputInputs in = padded(output_inputs(40, 12, 103), 110);
  const at::Tensor tokens = (at::arange(41) * 31).remainder(103), dx = reference_values({41, 12}, 5);
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor want = in.w_VC.to(type).index_select(0, tokens);
    const at::Tensor sum = at::zeros({110, 12}, type == at::kDouble ? at::kDouble : at::kFloat);
    sum.index_add_(0, tokens, dx.to(type).to(sum.scalar_type()));
    for (const auto& slices : {even_slices(110, 1), even_slices(110, 3), even_slices(110, 4),
                               std::vector<Range>{{0, 50}, {50, 50}, {50, 103}, {103, 110}}}) {
      const InputResult have = embed(slices, static_cast<int>(slices.size()) - 1, in, tokens, dx, type);
      EXPECT_TRUE(have.x_NC.equal(want)) << slices.size();
      EXPECT_TRUE(have.dw_VC.equal(sum)) << slices.size();
    }
    EXPECT_FALSE(embed(even_slices(110, 4), 0, in, tokens, dx, type, 1).x_NC.equal(want)) << "slices shifted";
  }
}

TEST(InputLayer, SendsWhatThePlanSays) {
  const OutputInputs in = output_inputs(40, 12, 103);
  const at::Tensor tokens = (at::arange(40) * 31).remainder(103), dx = reference_values({40, 12}, 5);
  for (const int ranks : {1, 2, 4}) {
    const int root = ranks - 1;
    const InputResult have = embed(even_slices(103, ranks), root, in, tokens, dx, at::kBFloat16);
    for (int rank = 0; rank < ranks; ++rank) {
      TrafficTable want;
      const VocabularyShape shape{.tokens = 20, .stream = 20 * 12, .element_bytes = 2, .ranks = ranks, .root = root};
      for (const auto& one : input_traffic(shape, rank)) {
        want[{"pipeline", std::string(one.collective)}] = {2 * one.calls, 2 * one.bytes};
      }
      EXPECT_EQ(have.traffic[static_cast<size_t>(rank)], want) << rank << " of " << ranks;
    }
  }
}

TEST(InputLayer, RefusesTokensOutsideTheVocabulary) {
  const Weight weight{.value = at::ones({5, 2}), .gradient = at::ones({5, 2})};
  run_ranks(1, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 1}}), rank, rendezvous);
    InputLayer layer(comm, {.slice = {.rows = {0, 5}, .vocabulary = 5}, .axes = kOverPipeline}, weight);
    EXPECT_THROW(layer.E(0, at::tensor({1, 5}, at::kLong)), DataError);
    EXPECT_THROW(layer.E(0, at::tensor({-1, 4}, at::kLong)), DataError);
  });
}

// Both layers share one slice, and the loss is that of the embedding itself. The product of T and the rows of EB
// accumulate in one gradient buffer.
TEST(TiedLayers, EqualOneDevice) {
  const OutputInputs in = output_inputs(40, 12, 103);
  const at::Tensor tokens = (at::arange(40) * 31).remainder(103);
  const at::Tensor w = in.w_VC.clone().requires_grad_();
  const at::Tensor valid = in.labels_N.ne(kIgnoredLabel), z = w.index_select(0, tokens).matmul(w.t());
  const at::Tensor each = z.logsumexp(1) - z.gather(1, in.labels_N.clamp_min(0).unsqueeze(1)).squeeze(1);
  at::where(valid, each * in.weights_N, at::zeros_like(each)).sum().backward();
  for (const std::string& algorithm : kAlgorithms) {
    const auto slices = even_slices(103, 4);
    std::vector<at::Tensor> gradients(4);
    run_ranks(4, [&](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"pipeline", 4}}), rank, rendezvous);
      const Range rows = slices[static_cast<size_t>(rank)];
      const Weight weight{.value = in.w_VC.narrow(0, rows.begin, rows.size()).clone().requires_grad_(),
                          .gradient = at::full({rows.size(), 12}, NAN, at::kDouble)};
      const VocabularySlice slice{rows, 103};
      InputLayer input(comm, {.slice = slice, .axes = kOverPipeline, .root = 0}, weight);
      OutputLayer output(comm, {.algorithm = algorithm, .slice = slice, .axes = kOverPipeline, .root = 0}, weight);
      input.E(0, tokens);
      output.broadcast_input(0, rank == 0 ? input.take_embedding(0) : at::empty({40, 12}, at::kDouble),
                             {in.labels_N, in.weights_N});
      output.S(0);
      if (algorithm == "naive") output.Z(0);
      output.T(0);
      input.broadcast_gradient(0, rank == 0 ? output.take_input_gradient(0) : at::Tensor());
      input.EB(0);
      output.finish();
      input.finish();
      gradients[static_cast<size_t>(rank)] = weight.gradient;
    });
    EXPECT_LE(largest_error(at::cat(gradients), w.grad()), 1e-12) << algorithm;
  }
}

}  // namespace
}  // namespace orthant::input_test
