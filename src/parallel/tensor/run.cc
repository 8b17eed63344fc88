#include "parallel/tensor/run.h"

#include <ATen/ATen.h>

#include "model/dropout.h"

namespace orthant {
namespace {

// The microbatch with the positions of the tokens in this rank's shard of the stream.
Microbatch part_of(const TensorMesh& mesh, const Microbatch& batch) {
  Microbatch part = batch;
  const int64_t all = batch.tokens_BT.size(1);
  const Range tokens = mesh.tokens(all);
  const at::Tensor positions = batch.sequence_positions_T.defined() ? batch.sequence_positions_T : at::arange(all);
  part.sequence_positions_T = positions.narrow(0, tokens.begin, tokens.size());
  part.positions_BT = batch.positions_BT.narrow(1, tokens.begin, tokens.size());
  return part;
}

AttentionShape shape_of_column(AttentionShape shape, int columns) {
  const AttentionHeads own = heads_of_column({shape.heads, shape.kv_heads, shape.head_dim}, columns);
  shape.heads = own.query;
  shape.kv_heads = own.key;
  return shape;
}

}  // namespace

Primitives tensor_primitives(Comm& comm, const TensorPlan& plan, std::vector<UnshardedWeight> unsharded_weights,
                             int64_t hidden_size, std::shared_ptr<const AttentionCore> core) {
  const auto mesh = std::make_shared<const TensorMesh>(comm, plan);
  const auto unsharded = [unsharded_weights = std::move(unsharded_weights)](const Weight& weight) {
    return unsharded_weights.at(static_cast<size_t>(weight.index));
  };
  Primitives primitives = fused_primitives(core);
  const auto slices = std::make_shared<const SliceMesh>(comm, plan, hidden_size);
  primitives.embedding = [slices, unsharded](const at::Tensor& tokens, const Weight& table) {
    return tensor_embedding(*slices, tokens, table, unsharded(table).out);
  };
  primitives.add_positions = [mesh, add = primitives.add_positions](const at::Tensor& x, const Microbatch& batch,
                                                                    const Weight& table) {
    return add(x, part_of(*mesh, batch), table);
  };
  if (plan.stream == StreamSharding::width && plan.columns > 1) {
    primitives.add_norm = [mesh, hidden_size](const std::string& function, const at::Tensor& input,
                                              const at::Tensor& residual, const Weight& gain, double eps) {
      return tensor_add_norm(*mesh, function, input, residual, gain, eps, hidden_size);
    };
  }
  primitives.linear = [mesh, unsharded](const at::Tensor& x, const Weight& weight) {
    return tensor_linear(*mesh, x, weight, unsharded(weight));
  };
  primitives.linear_backward = [mesh, unsharded](const at::Tensor& x, const Weight& weight, const at::Tensor& dy) {
    return tensor_linear_backward(*mesh, x, weight, unsharded(weight), dy);
  };
  primitives.local = [local = primitives.local, columns = plan.columns](const std::string& function,
                                                                        const at::Tensor& x, const Weight* weight,
                                                                        const AttentionShape& shape, double eps) {
    return local(function, x, weight, shape_of_column(shape, columns), eps);
  };
  primitives.attention = [core, columns = plan.columns](const at::Tensor& qkv, const Microbatch& batch,
                                                        const AttentionShape& shape) {
    return attention(*core, qkv, batch, shape_of_column(shape, columns));
  };
  primitives.dropout = [mesh, hidden_size](const at::Tensor& x, const Microbatch& batch, DropoutKey key) {
    if (key.probability == 0) return x;
    key.first_channel = mesh->channels(hidden_size).begin;
    key.width = hidden_size;
    return dropout_with_key(x, part_of(*mesh, batch), key);
  };
  primitives.cross_entropy = [mesh, unsharded](const at::Tensor& x, const Weight& head, const Microbatch& batch,
                                              const OutputLoss& loss) {
    return tensor_cross_entropy(*mesh, x, head, unsharded(head), batch, loss);
  };
  primitives.logits = [&comm, slices, unsharded](const at::Tensor& x, const Weight& head, const Microbatch& batch) {
    const at::Tensor rows = labeled_rows(slices->gather(x), batch.labels_BT);
    return slices->gather_logits(comm, matrix_product(rows, slices->gather_weight(head).t()), {}, unsharded(head).out);
  };
  return primitives;
}

}  // namespace orthant
