// Warnings about a run that is legal, but performs badly, fails on this machine, or writes files of another family.
// Causes are too few cores, ranks without sequences, a disk too small for a checkpoint, and a model that does not
// belong to the family in model.architecture. Each function costs O(ranks).
#pragma once

#include "plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// Bytes of one checkpoint's tensors: weights, optimizer state, and in bfloat16 the master weights. Each parameter is
/// stored once, in every layout.
int64_t checkpoint_bytes(const Plan& plan);

/// Bytes that this process may still write to the file system of the folder, or of its nearest existing parent; nullopt
/// if not known.
std::optional<int64_t> free_disk_bytes(const std::string& folder);

/// Each function returns one sentence with the numbers and the keys to change, or an empty string without a problem.
std::string cores_warning(int local_ranks, int threads_per_rank, int cores);
std::string idle_ranks_warning(const Plan& plan);
/// About a run over NCCL.
std::string gpus_warning(const Plan& plan);
std::string empty_ranks_warning(const Plan& plan);
std::string idle_settings_warning(const Plan& plan);
std::string family_warning(const Plan& plan);
/// The same, if transformers will read the tokenizer of the checkpoints by other rules than those in tokenizer.json.
std::string tokenizer_warning(const Plan& plan);
/// The same about model.from: keys of its config.json that are not read, and weights that the seed draws instead.
std::vector<std::string> model_from_warnings(const Plan& plan);
std::string disk_warning(const Plan& plan, std::optional<int64_t> free_bytes);

}  // namespace orthant
