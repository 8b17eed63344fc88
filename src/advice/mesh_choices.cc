#include "advice/mesh_choices.h"

#include "advice/candidates.h"
#include "advice/tensor_choices.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/tensor_check.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/tensor/volume_plan.h"

namespace orthant {
namespace {

constexpr int64_t kMostSequenceRanks = 64;
constexpr int64_t kMostLocalBatch = 8;

// The values to try of a key: its own if the user has set it.
std::vector<int64_t> choices(const Config& base, const std::string& key, std::vector<int64_t> all, int64_t own) {
  return base.is_set(key) && own != -1 ? std::vector{own} : all;
}

// Tensor meshes: one rank, kind 1d with and without sequence parallelism, and the others with several rows.
std::vector<TensorPlan> tensor_plans(const Config& base, const RunFacts& facts, bool beyond_hosts) {
  const auto& p = base.parallelism;
  const bool has_mesh = p.tensor_parallel_kind == "2d" || p.tensor_parallel_kind == "2.5d";
  if (has_mesh) {
    const auto [rows, columns, depth] = p.tensor_parallel_mesh;
    return {{.rows = static_cast<int>(rows), .columns = static_cast<int>(columns), .depth = static_cast<int>(depth)}};
  }
  std::vector<TensorPlan> plans;
  for (const int64_t ranks :
       choices(base, "parallelism.tensor_parallel_degree", divisors_of(facts.ranks), p.tensor_parallel_degree)) {
    const bool given = base.is_set("parallelism.tensor_parallel_degree");
    const bool is_in_host = ranks <= facts.hardware->device.per_host;
    if (!given && !is_in_host && !beyond_hosts) break;  // its messages are in every layer
    for (const TensorPlan& plan : tensor_arrangements(static_cast<int>(ranks))) {
      const bool is_1d = plan.stream != StreamSharding::width;
      if (!given && !is_in_host && !is_1d) continue;
      // With one row, columns are those of kind 1d with more messages, and the depth is data parallelism.
      if (!given && plan.stream == StreamSharding::width && plan.rows == 1) continue;
      if (ranks == 1 && plan.stream != StreamSharding::tokens) continue;
      // A degree that the user sets is one of kind 1d, unless the kind is "auto".
      const bool only_1d = p.tensor_parallel_kind == "1d" && (given || base.is_set("parallelism.tensor_parallel_kind"));
      if (only_1d && !is_1d) continue;
      const bool shards_tokens = plan.stream == StreamSharding::tokens;
      if (ranks > 1 && base.is_set("parallelism.tensor_parallel_sequence") &&
          (!is_1d || shards_tokens != p.tensor_parallel_sequence)) {
        continue;
      }
      plans.push_back(plan);
    }
  }
  return plans;
}

// The laws of meshes and batches, by arithmetic. Unless idle ranks are allowed, every rank must have work.
bool is_legal(const Config& base, const MeshChoice& mesh, bool allows_idle_ranks) {
  const auto& p = base.parallelism;
  const auto& batch = base.training;
  if (base.is_set("parallelism.data_parallel_degree") && p.data_parallel_degree != -1 &&
      p.data_parallel_degree != mesh.data) {
    return false;
  }
  const int64_t shards = mesh.data * mesh.tensor.rows * mesh.tensor.depth;
  if (shards > batch.global_batch_size && !allows_idle_ranks) return false;
  const int64_t sequences = (batch.global_batch_size + shards - 1) / shards;
  if (mesh.local_batch > sequences && !base.is_set("training.local_batch_size")) return false;
  if (mesh.pipeline > base.model.num_hidden_layers && !allows_idle_ranks) return false;
  const bool is_given =
      base.is_set("parallelism.context_parallel_ulysses") || base.is_set("parallelism.context_parallel_ring");
  if (!is_given && mesh.ulysses * mesh.ring > kMostSequenceRanks) return false;
  if (mesh.ulysses > base.model.num_attention_heads) return false;
  const SequencePlacement placement =
      mesh.ring == 1 ? SequencePlacement::contiguous : sequence_placement_of(p.context_parallel_placement);
  const auto heads = static_cast<int>(mesh.ulysses), ring = static_cast<int>(mesh.ring);
  if (pieces(placement, heads, ring) > batch.seq_len) return false;
  // Without sequence ranks between them, ranks of the depth and of the data axis do the same.
  const bool tensor_is_given =
      base.is_set("parallelism.tensor_parallel_degree") || base.is_set("parallelism.tensor_parallel_mesh");
  if (!tensor_is_given && mesh.tensor.depth > 1 && mesh.ulysses * mesh.ring == 1) return false;
  if (mesh.tensor.ranks() == 1) return true;
  return !find_tensor_refusal(base, mesh.tensor, {.ulysses = heads, .ring = ring, .placement = placement}, mesh.data);
}

}  // namespace

std::string MeshChoice::kind() const {
  std::vector<std::string> axes;
  const auto add = [&](int64_t size, const std::string& name) {
    if (size > 1) axes.push_back(name);
  };
  add(tensor.ranks(), "tensor"), add(ulysses * ring, "sequence"), add(data, "data"), add(pipeline, "pipeline");
  return join(axes, " + ");
}

std::vector<MeshChoice> mesh_choices(const Config& base, const RunFacts& facts, const MeshSpace& space) {
  std::vector<MeshChoice> found;
  const auto& p = base.parallelism;
  const auto all = divisors_of(facts.ranks);
  const auto pipelines = choices(base, "parallelism.pipeline_parallel_degree", all, p.pipeline_parallel_degree);
  const auto ulysses = choices(base, "parallelism.context_parallel_ulysses", all, p.context_parallel_ulysses);
  const auto rings = choices(base, "parallelism.context_parallel_ring", all, p.context_parallel_ring);
  std::vector<int64_t> batches;
  for (int64_t size = 1; size <= kMostLocalBatch; size *= 2) batches.push_back(size);
  batches = choices(base, "training.local_batch_size", batches, base.training.local_batch_size);
  for (const TensorPlan& tensor : tensor_plans(base, facts, space.beyond_hosts)) {
    for (const int64_t pipeline : pipelines) {
      for (const int64_t heads : ulysses) {
        for (const int64_t ring : rings) {
          const int64_t used = tensor.ranks() * pipeline * heads * ring;
          if (facts.ranks % used != 0) continue;
          for (const int64_t local_batch : batches) {
            const MeshChoice mesh{.tensor = tensor,
                                  .pipeline = pipeline,
                                  .ulysses = heads,
                                  .ring = ring,
                                  .data = facts.ranks / used,
                                  .local_batch = local_batch};
            if (is_legal(base, mesh, space.idle_ranks)) found.push_back(mesh);
          }
        }
      }
    }
  }
  return found;
}

Config with_mesh(const Config& base, const MeshChoice& mesh) {
  Config config = mesh.tensor.ranks() > 1 ? with_tensor_plan(base, mesh.tensor) : base;
  auto& p = config.parallelism;
  if (mesh.tensor.ranks() == 1) p.tensor_parallel_kind = "1d", p.tensor_parallel_degree = 1;
  p.context_parallel_ulysses = mesh.ulysses;
  p.context_parallel_ring = mesh.ring;
  p.data_parallel_degree = mesh.data;
  p.pipeline_parallel_degree = mesh.pipeline;
  config.training.local_batch_size = mesh.local_batch;
  return config;
}

}  // namespace orthant
