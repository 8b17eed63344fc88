// The vocabulary layers over two pipeline ranks, each of which is a tensor mesh, equal one device and send the planned
// bytes. The control shifts the rows of every rank by one.
#include "parallel/tensor/slice_traffic_plan.h"
#include "parallel/vocabulary/input.h"
#include "tests/parallel/vocabulary/layers/output_layer.h"

namespace orthant::mesh_test {
namespace {

constexpr int64_t kSequences = 4, kTokens = 6, kWidth = 10;
constexpr int kPlaces = 2;

struct MeshCase {
  std::string algorithm = "algorithm_2";
  TensorPlan tensor;
  int64_t vocabulary = 103;
  OutputLoss loss = {};
  at::ScalarType type = at::kDouble;
  int shift = 0;  // the control: ranks take their rows for those `shift` further on

  std::string name() const {
    return fmt::format("{}, [{}, {}, {}], stream {}, {} rows, cap {}, smoothing {}", algorithm, tensor.rows,
                       tensor.columns, tensor.depth, static_cast<int>(tensor.stream), vocabulary, loss.softcap,
                       loss.smoothing);
  }
  Mesh mesh() const {
    return Mesh({{kColumn, tensor.columns}, {kRow, tensor.rows},
                 {kDepth, tensor.depth}, {"pipeline", kPlaces}});
  }
};

std::vector<TensorPlan> tensor_plans() {
  return {{.columns = 2, .stream = StreamSharding::tokens},
          {.columns = 2, .stream = StreamSharding::none},
          {.columns = 3},
          {.rows = 2},
          {.rows = 2, .columns = 2},
          {.columns = 2, .depth = 2}};
}

// The ranges of sequences, tokens, channels and vocabulary rows that a rank of the mesh holds.
struct Held {
  Held(const MeshCase& c, int rank) {
    const Mesh mesh = c.mesh();
    sequences = shard(kSequences, c.tensor.rows * c.tensor.depth, mesh.group_index(rank, std::vector<std::string>{
                                                                      kRow, kDepth}));
    const int column = mesh.coord(rank, kColumn), row = mesh.coord(rank, kRow);
    const Range place = shard(c.vocabulary, kPlaces, mesh.coord(rank, "pipeline"));
    const Range part = shard(place.size(), c.tensor.columns, column);
    rows = {place.begin + part.begin, place.begin + part.end};
    channels = shard(kWidth, c.tensor.rows, row);
    if (c.tensor.stream == StreamSharding::tokens) tokens = shard(kTokens, c.tensor.columns, column);
    if (c.tensor.stream == StreamSharding::width) width = shard(kWidth, c.tensor.columns, column);
  }
  at::Tensor of_stream(const at::Tensor& x_NC) const {
    const at::Tensor x = x_NC.view({kSequences, kTokens, kWidth}).slice(0, sequences.begin, sequences.end);
    return x.slice(1, tokens.begin, tokens.end).slice(2, width.begin, width.end).contiguous();
  }
  at::Tensor of_weight(const at::Tensor& w_VC) const {
    return w_VC.slice(0, rows.begin, rows.end).slice(1, channels.begin, channels.end).contiguous();
  }
  at::Tensor of_tokens(const at::Tensor& numbers_N) const {
    return numbers_N.view({kSequences, kTokens}).slice(0, sequences.begin, sequences.end).contiguous();
  }
  Range sequences, rows, channels, tokens = {0, kTokens}, width = {0, kWidth};
};

// The relative error of the loss, and the largest of any rank's shards of the gradients of x and of the table.
struct Errors {
  double loss = 0, input = 0, weight = 0;
  double worst() const { return std::max({loss, input, weight}); }
};

void expect_planned(const MeshCase& c, const Comm& comm, const Held& held) {
  const int64_t sequences = held.sequences.size();
  const int element = c.type == at::kDouble ? 8 : 2, wide = c.type == at::kDouble ? 8 : 4;
  const VocabularyAlgorithm& algorithm = vocabulary_algorithm(c.algorithm);
  const TensorShape shape{.sequences = sequences, .tokens = kTokens, .hidden = kWidth, .element_bytes = element,
                          .sum_bytes = wide};
  const TensorSlice slice{.rows = held.rows.size(), .early = algorithm.barriers == 1,
                          .statistics = c.loss.statistics(), .rounds = algorithm.barriers == 3 ? 2 : 1,
                          .smooths = c.loss.smoothing > 0};
  TrafficTable want;
  for (const auto& m : slice_traffic(c.tensor, shape, slice, comm.mesh(), comm.rank()).head) {
    want[{m.axis, m.collective}].calls += m.calls;
    want[{m.axis, m.collective}].bytes += m.bytes;
  }
  const VocabularyShape stream{.tokens = sequences * kTokens,
                               .stream = sequences * held.tokens.size() * held.width.size(),
                               .element_bytes = element, .ranks = kPlaces, .root = 1};
  for (const auto& m : output_traffic(algorithm, c.loss, stream, comm.position({"pipeline"}))) {
    want[{"pipeline", std::string(m.collective)}].calls += m.calls;
    want[{"pipeline", std::string(m.collective)}].bytes += m.bytes;
  }
  EXPECT_EQ(comm.traffic(), want) << c.name() << ", rank " << comm.rank();
}

Errors output_errors(const MeshCase& c, const OutputInputs& in) {
  const OutputResult want = one_device(in, c.loss);
  Errors errors;
  std::mutex mutex;
  std::vector<double> losses(static_cast<size_t>(c.mesh().size()));
  run_ranks(c.mesh().size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(c.mesh(), rank, rendezvous);
    const Held held(c, rank);
    const at::ScalarType master = c.type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor w = held.of_weight(in.w_VC);
    const Weight head{.value = w.to(c.type), .gradient = at::full(w.sizes(), NAN, master)};
    const Range rows{held.rows.begin + c.shift, held.rows.end + c.shift};
    OutputLayer layer(comm,
                      {.algorithm = c.algorithm,
                       .slice = {rows, c.vocabulary},
                       .axes = kOverPipeline,
                       .root = 1,
                       .mesh = {comm, c.tensor, kWidth}},
                      head);
    const at::Tensor x = held.of_stream(in.x_NC).to(c.type);
    const bool at_root = comm.position(kOverPipeline) == 1;
    layer.broadcast_input(0, at_root ? x : at::empty_like(x),
                          {.labels_N = held.of_tokens(in.labels_N).flatten(),
                           .weights_N = held.of_tokens(in.weights_N).flatten(),
                           .loss_scale = in.loss_scale},
                          c.loss);
    layer.S(0);
    if (c.algorithm == "naive") layer.Z(0);
    layer.T(0);
    at::Tensor dx;
    if (at_root) dx = layer.take_input_gradient(0).view(x.sizes());
    const double loss = layer.finish().item<double>();
    expect_planned(c, comm, held);
    // Rows and depth have other tokens, so the weight's gradient is a sum over both. The layer has summed it over rows.
    if (c.tensor.depth > 1) comm.all_reduce(head.gradient, {kDepth}).wait();
    const std::lock_guard lock(mutex);
    losses[static_cast<size_t>(rank)] = loss;
    if (at_root) errors.input = std::max(errors.input, relative_error(dx, held.of_stream(want.dx_NC)));
    if (head.gradient.numel() > 0) {
      errors.weight = std::max(errors.weight, relative_error(head.gradient, held.of_weight(want.dw_VC)));
    }
  });
  const double copies = c.tensor.columns * kPlaces;
  double sum = 0;
  for (const double loss : losses) sum += loss / copies;
  errors.loss = relative_error(sum, want.loss);
  return errors;
}

TEST(VocabularyLayersOnMeshes, OutputEqualsOneDevice) {
  for (const std::string& algorithm : kAlgorithms) {
    for (const TensorPlan& tensor : tensor_plans()) {
      for (const int64_t vocabulary : {103, 3}) {  // with 3 rows, some ranks have none
        const MeshCase c{.algorithm = algorithm, .tensor = tensor, .vocabulary = vocabulary};
        EXPECT_LE(output_errors(c, output_inputs(kSequences * kTokens, kWidth, vocabulary)).worst(), 1e-12) << c.name();
      }
    }
  }
}

TEST(VocabularyLayersOnMeshes, OutputSmoothsCapsAndWeighs) {
  const OutputInputs in = output_inputs(kSequences * kTokens, kWidth, 103);
  for (const std::string& algorithm : kAlgorithms) {
    for (const TensorPlan& tensor : {tensor_plans()[0], tensor_plans()[4]}) {
      for (const OutputLoss& loss :
           {OutputLoss{.smoothing = 0.1}, OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
        const MeshCase c{.algorithm = algorithm, .tensor = tensor, .loss = loss};
        EXPECT_LE(output_errors(c, in).worst(), 1e-12) << c.name();
      }
    }
  }
}

// Logits of thousands, whose exponentials overflow, are exact in float64.
TEST(VocabularyLayersOnMeshes, StayFinite) {
  OutputInputs in = output_inputs(kSequences * kTokens, kWidth, 103);
  in.x_NC = in.x_NC.round() * 200, in.w_VC = (in.w_VC * 4).round() * 20;
  for (const std::string& algorithm : kAlgorithms) {
    for (const TensorPlan& tensor : tensor_plans()) {
      const MeshCase c{.algorithm = algorithm, .tensor = tensor};
      EXPECT_LE(output_errors(c, in).worst(), 1e-12) << c.name();
    }
  }
}

TEST(VocabularyLayersOnMeshes, InLowerPrecision) {
  OutputInputs in = output_inputs(kSequences * kTokens, kWidth, 103);
  in.x_NC = in.x_NC.to(at::kBFloat16), in.w_VC = in.w_VC.to(at::kBFloat16);  // rounded for the oracle too
  for (const std::string& algorithm : kAlgorithms) {
    for (const TensorPlan& tensor : tensor_plans()) {
      const MeshCase c{.algorithm = algorithm, .tensor = tensor, .type = at::kBFloat16};
      const Errors errors = output_errors(c, in);
      EXPECT_LE(errors.loss, 1e-5) << c.name() << ": statistics are float32";
      // Roundings to 8 bits with independent signs. The input's gradient has five: exponentials, summands of columns,
      // their sum, summands of pipeline ranks, and their sum. The weight's has two: exponentials, and x times factors.
      EXPECT_LE(errors.input, std::sqrt(5.0) / 256) << c.name();
      EXPECT_LE(errors.weight, std::sqrt(2.0) / 256) << c.name();
    }
  }
}

TEST(VocabularyLayersOnMeshes, DetectsErrors) {
  const OutputInputs in = output_inputs(kSequences * kTokens, kWidth, 103);
  for (const std::string& algorithm : kAlgorithms) {
    for (const TensorPlan& tensor : tensor_plans()) {
      const MeshCase c{.algorithm = algorithm, .tensor = tensor, .shift = 1};
      const Errors errors = output_errors(c, in);
      EXPECT_GT(errors.input, kSeenInAGradient) << c.name();
      EXPECT_GT(errors.weight, kSeenInAGradient) << c.name();
    }
  }
}

TEST(VocabularyLayersOnMeshes, EmbeddingEqualsALookup) {
  for (const TensorPlan& tensor : tensor_plans()) {
    for (const int64_t vocabulary : {103, 3}) {
      for (const int shift : {0, 1}) {
        const MeshCase c{.tensor = tensor, .vocabulary = vocabulary, .shift = shift};
        const OutputInputs in = output_inputs(kSequences * kTokens, kWidth, vocabulary);
        const at::Tensor tokens = (at::arange(kSequences * kTokens) * 31).remainder(vocabulary);
        const at::Tensor dx_NC = reference_values({kSequences * kTokens, kWidth}, 5);
        const at::Tensor sum = at::zeros_like(in.w_VC).index_add_(0, tokens, dx_NC);
        std::vector<double> errors(static_cast<size_t>(c.mesh().size()));
        run_ranks(c.mesh().size(), [&](const Rendezvous& rendezvous, int rank) {
          Comm comm(c.mesh(), rank, rendezvous);
          const Held held(c, rank);
          const at::Tensor w = held.of_weight(in.w_VC);
          const Weight table{.value = w, .gradient = at::full_like(w, NAN)};
          const Range rows{held.rows.begin + shift, held.rows.end + shift};
          InputLayer layer(comm,
                           {.slice = {rows, vocabulary}, .axes = kOverPipeline, .root = 0,
                            .mesh = {comm, tensor, kWidth}},
                           table);
          const at::Tensor dx = held.of_stream(dx_NC);
          layer.E(0, held.of_tokens(tokens));
          double& error = errors[static_cast<size_t>(rank)];
          const bool at_root = comm.position(kOverPipeline) == 0;
          if (at_root) {
            const at::Tensor want = held.of_stream(in.w_VC.index_select(0, tokens));
            error = relative_error(layer.take_embedding(0).view(want.sizes()), want);
          }
          layer.broadcast_gradient(0, at_root ? dx : at::Tensor());
          layer.EB(0);
          layer.finish();
          if (tensor.depth > 1) comm.all_reduce(table.gradient, {kDepth}).wait();
          if (w.numel() > 0) error = std::max(error, relative_error(table.gradient, held.of_weight(sum)));
        });
        const double worst = *std::max_element(errors.begin(), errors.end());
        EXPECT_TRUE(shift == 0 ? worst <= 1e-13 : worst > kSeenInAGradient) << c.name() << ": " << worst;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::mesh_test
