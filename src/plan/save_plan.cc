#include "plan/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "config/from_config.h"
#include "model/optimizer_plan.h"

namespace orthant {
namespace {

// The rank's elements of the bucket's chunk, counted in its shard of the parameter.
Range owned_part(const Mesh& mesh, const ParameterShard& held, size_t parameter, const GradientBucket& bucket,
                 int rank) {
  const Range chunk = bucket.chunk(mesh.group_index(rank, bucket.axes));
  const int64_t begin = held.flat.parameter_offsets[parameter], size = held.sizes[parameter];
  return {std::clamp<int64_t>(chunk.begin - begin, 0, size), std::clamp<int64_t>(chunk.end - begin, 0, size)};
}

std::string numbered(const std::string& stem, size_t number, size_t count) {
  return count == 1 ? stem + ".safetensors" : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number + 1, count);
}

// Divides the elements of all parameters among writers.
class Writers {
 public:
  Writers(const ParameterPlacement& plan, int64_t writer_bytes) : ranks_(plan.mesh.size()) {
    const int master = master_bytes(plan.config), element = dtype_bytes(plan.config.training.dtype);
    int64_t bytes = 0;
    for (const ParameterInfo& parameter : plan.parameters) {
      if (!parameter.copy_of.empty()) continue;
      elements_ += parameter.size();
      bytes += parameter.size() * (element + (element == master ? 0 : master)) +
               parameter.size() * state_bytes(plan.config.optimizer, parameter, master);
    }
    writers_ = std::clamp<int64_t>(bytes / writer_bytes, 1, ranks_);
  }

  /// The rank that writes the next parameters, which have this many elements together.
  int next(int64_t elements) {
    const int64_t middle = before_ + elements / 2;
    before_ += elements;
    const auto writer = static_cast<int64_t>(static_cast<double>(middle) / static_cast<double>(elements_) *
                                             static_cast<double>(writers_));
    return static_cast<int>(std::min(writer, writers_ - 1) * ranks_ / writers_);
  }

 private:
  const int64_t ranks_;
  int64_t elements_ = 0, before_ = 0, writers_ = 1;
};

// Sorts as the format does within one dtype.
void sort_by_name(std::vector<SavedFile>& files) {
  for (SavedFile& file : files) {
    std::ranges::sort(file.tensors, {}, [](const SavedTensor& tensor) { return tensor.stored.name; });
  }
}

// The number of times that a writer holds a tensor of its round, in addition to the rank's own state: 0 if it writes
// from the state itself, and 2 if parts arrive in buffers. These are shards that are not contiguous in the unsharded
// tensor, tensors that files store transposed, and tensors of a GPU.
int copies_of_tensors(const ParameterPlacement& plan, bool in_one_round) {
  const auto shards = [&](size_t first_dim) {
    return std::ranges::any_of(plan.layouts, [&](const Layout& layout) {
      return std::ranges::any_of(layout.split.begin() + static_cast<int64_t>(std::min(first_dim, layout.split.size())),
                                 layout.split.end(), [](const auto& axes) { return !axes.empty(); });
    });
  };
  bool transposes = false, joins = false;
  for (const HfTensor& tensor : hf_tensors(family_of(plan.architecture), plan.parameters)) {
    transposes |= tensor.transposed;
    joins |= tensor.parameters.size() > 1;
  }
  if (transposes || shards(1) || plan.config.run.device == "cuda") return 2;
  const bool has_all = !joins && !shards(0) && !plan.shards_optimizer() && plan.mesh.axis_size(kPipeline) == 1;
  return has_all && !in_one_round ? 0 : 1;
}

// Numbers the rounds: each writer collects at most `limit` bytes in one.
void number_rounds(SavePlan& plan, int64_t limit) {
  std::map<int, std::pair<int, int64_t>> filled;  // by writer: its last round, and the bytes of that
  for (SavedFile& file : plan.files) {
    auto& [round, bytes] = filled[file.writer];
    for (SavedTensor& tensor : file.tensors) {
      if (bytes > 0 && bytes + tensor.bytes > limit) ++round, bytes = 0;
      bytes += tensor.bytes;
      tensor.round = round;
      plan.largest_round_bytes = std::max(plan.largest_round_bytes, bytes);
      plan.rounds = std::max(plan.rounds, round + 1);
    }
  }
  plan.writers = static_cast<int>(filled.size());
}

}  // namespace

SavePlan plan_files(const ParameterPlacement& plan, const SaveLimits& limits) {
  const int element = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  const OptimizerSpec optimizer = optimizer_spec(plan.config.optimizer);
  std::vector<SavedFile> weights, states;
  int64_t file_bytes = 0;
  Writers writers(plan, limits.writer_bytes);
  for (HfTensor& tensor : hf_tensors(family_of(plan.architecture), plan.parameters)) {
    const int64_t elements = volume(tensor.shape), bytes = elements * element;
    const int writer = writers.next(elements);
    const bool is_new = weights.empty() || weights.back().writer != writer;
    if (is_new || file_bytes + bytes > limits.file_bytes) {
      weights.push_back({.writer = writer});
      file_bytes = 0;
    }
    if (states.empty() || states.back().writer != writer) states.push_back({.writer = writer});
    file_bytes += bytes;
    for (const size_t p : tensor.parameters) {
      const ParameterInfo& parameter = plan.parameters[p];
      const auto add = [&](const std::string& prefix, SavedKind kind, size_t state) {
        const HfTensor stored{.name = prefix + "." + parameter.name, .shape = parameter.shape, .parameters = {p}};
        states.back().tensors.push_back({stored, kind, state, parameter.size() * master});
      };
      for (size_t i = 0; i < optimizer.state.size(); ++i) {
        if (optimizer.state[i].has(parameter)) add(optimizer.state[i].name, SavedKind::state, i);
      }
      if (element != master) add("master", SavedKind::masters, 0);
    }
    weights.back().tensors.push_back({std::move(tensor), SavedKind::values, 0, bytes});
  }
  std::erase_if(states, [](const SavedFile& file) { return file.tensors.empty(); });
  for (size_t i = 0; i < weights.size(); ++i) weights[i].name = numbered("model", i, weights.size());
  for (size_t i = 0; i < states.size(); ++i) states[i].name = numbered("orthant/optimizer", i, states.size());
  SavePlan files{.files = std::move(weights)};
  std::ranges::move(states, std::back_inserter(files.files));
  sort_by_name(files.files);
  const bool in_one_round = plan.config.checkpoint.async_mode == "async";
  number_rounds(files, in_one_round ? std::numeric_limits<int64_t>::max() : limits.round_bytes);
  files.memory_bytes = copies_of_tensors(plan, in_one_round) * files.largest_round_bytes;
  return files;
}

SaveRoutes::SaveRoutes(const ParameterPlacement& plan) : plan_(plan), shards_(plan), buckets_(plan.parameters.size()) {
  const FlatLayout flat = flat_layout(plan.parameters);
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    for (const int weight : plan.buckets[bucket].weights) {
      const auto [first, end] = flat.members[static_cast<size_t>(weight)];
      std::fill(buckets_.begin() + static_cast<int64_t>(first), buckets_.begin() + static_cast<int64_t>(end), bucket);
    }
  }
}

bool SaveRoutes::only_owned(SavedKind kind) const {
  return kind == SavedKind::values ? plan_.shards_weights() : plan_.shards_optimizer();
}

// The axes along which ranks keep different elements of the parameter. Along the pipeline, only one stage has it, or
// all have different rows.
Axes SaveRoutes::dividing_axes(SavedKind kind, size_t parameter) const {
  Axes axes;
  for (const auto& of_dim : plan_.layouts[parameter].split) axes.insert(axes.end(), of_dim.begin(), of_dim.end());
  if (only_owned(kind)) {
    const Axes& chunks = plan_.buckets[buckets_[parameter]].axes;
    axes.insert(axes.end(), chunks.begin(), chunks.end());
  }
  return axes;
}

std::vector<SavedPart> SaveRoutes::parts_for(int writer, SavedKind kind, size_t parameter) const {
  const Mesh& mesh = plan_.mesh;
  const int first =
      plan_.on_every_stage(parameter) ? writer : mesh.rank_at(writer, kPipeline, plan_.owner_of(parameter));
  std::vector<SavedPart> parts;
  for (const int rank : mesh.group(first, dividing_axes(kind, parameter))) {
    const ParameterShard& held = shards_.of(rank);
    Range elements = {0, held.sizes[parameter]};
    if (only_owned(kind)) elements = owned_part(mesh, held, parameter, held.buckets[buckets_[parameter]], rank);
    if (elements.size() == 0) continue;
    parts.push_back(
        {rank, local_ranges(mesh, plan_.layouts[parameter], plan_.parameters[parameter].shape, rank), elements});
  }
  return parts;
}

bool SaveRoutes::has_part_for(int writer, SavedKind kind, size_t parameter, int rank) const {
  if (!plan_.holds(rank, parameter)) return false;
  const Axes dividing = dividing_axes(kind, parameter);
  return std::ranges::all_of(plan_.mesh.axes, [&](const Axis& axis) {
    const bool divides = std::ranges::find(dividing, axis.name) != dividing.end();
    return divides || axis.name == kPipeline ||
           plan_.mesh.coord(rank, axis.name) == plan_.mesh.coord(writer, axis.name);
  });
}

}  // namespace orthant
