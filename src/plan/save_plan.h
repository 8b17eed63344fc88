// The files of a checkpoint: which rank writes which tensors, and from which ranks their parts come.
//
// A file holds unsharded tensors, so it does not depend on the layout. The tensors are divided among the writers in the
// order of the model, by elements. Writers are spread evenly over the ranks. If the pipeline is the
// outer axis, its ranks are blocks of consecutive ranks, and a writer mostly writes what ranks of its own stage hold.
// Small models have few writers.
//
// Growth with P ranks: a rank's plan takes O(tensors) time, and a writer's parts of a tensor take O(P).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/hf_tensors.h"
#include "plan/placement.h"

namespace orthant {

/// The kinds of tensors in a checkpoint: working values of parameters, state tensors of the optimizer, and masters.
enum class SavedKind { values, state, masters };

/// A tensor of a checkpoint.
struct SavedTensor {
  HfTensor stored;  // name and shape in the file, and parameters: one, unless these are working values
  SavedKind kind = SavedKind::values;
  size_t state = 0;  // number of the optimizer's state tensor
  int64_t bytes = 0;
  int round = 0;  // the ranks send their parts in this one
};

/// A file of a checkpoint.
struct SavedFile {
  std::string name;                  // "model.safetensors"
  int writer = 0;                    // rank
  std::vector<SavedTensor> tensors;  // in the order of their data
};

/// A contiguous part of a rank's shard of a parameter.
struct SavedPart {
  int rank = 0;
  std::vector<Range> shard;  // for each dim, what the rank holds of the unsharded parameter
  Range elements;            // of the shard in row-major order
};

struct SaveLimits {
  int64_t file_bytes = 5'000'000'000;        // of the weights in a file, as in transformers 4; one tensor may have more
  int64_t writer_bytes = int64_t{64} << 20;  // number of writers = bytes of the checkpoint / this
  int64_t round_bytes = int64_t{16} << 20;   // of the tensors of a writer in a round; one tensor may have more
};

/// The files of a checkpoint, in the same order on all ranks.
struct SavePlan {
  std::vector<SavedFile> files;
  int writers = 0;
  int rounds = 0;
  int64_t largest_round_bytes = 0;  // of one writer
  int64_t memory_bytes = 0;         // the most that a writer holds in addition to its state, while it saves
};

/// Plans the files. With checkpoint.async_mode = "async" there is one round: a writer collects all of its tensors
/// before it writes the first.
SavePlan plan_files(const ParameterPlacement& plan, const SaveLimits& limits = {});

/// Where the tensors of a checkpoint come from.
class SaveRoutes {
 public:
  /// The plan must outlive it. Takes O(P) time for P ranks.
  explicit SaveRoutes(const ParameterPlacement& plan);

  /// True if the ranks keep this kind of tensor for the owned elements of their shards only.
  bool only_owned(SavedKind kind) const;
  /// The parts that tile the unsharded parameter: the writer's own, if it has one, and those that other ranks send.
  std::vector<SavedPart> parts_for(int writer, SavedKind kind, size_t parameter) const;
  /// True if the rank has the writer's coordinates along the axes that do not divide the parameter. It then has a part
  /// for the writer, which may be empty.
  bool has_part_for(int writer, SavedKind kind, size_t parameter, int rank) const;

 private:
  Axes dividing_axes(SavedKind kind, size_t parameter) const;

  const ParameterPlacement& plan_;
  const ParameterShards shards_;
  std::vector<size_t> buckets_;  // by parameter: the bucket that holds its gradient
};

}  // namespace orthant
