// Computes what a run needs of cores, sequences and disk, and compares it with what the machine has.
#include "advice/run_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "config/from_config.h"
#include "config/hf_config.h"
#include "config/hf_family.h"
#include "config/parallelism_check.h"

namespace orthant {

namespace fs = std::filesystem;

int64_t checkpoint_bytes(const Plan& plan) {
  const int weight = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  int64_t bytes = 0;
  for (const ParameterInfo& parameter : plan.parameters) {
    if (!parameter.copy_of.empty()) continue;
    const int64_t state = state_bytes(plan.config.optimizer, parameter, master);
    bytes += parameter.size() * (weight + state + (weight < master ? master : 0));
  }
  return bytes;
}

std::optional<int64_t> free_disk_bytes(const std::string& folder) {
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  while (!error && !fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  const fs::space_info space = fs::space(at, error);
  if (error) return {};
  return static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
}

std::string cores_warning(int local_ranks, int threads_per_rank, int cores) {
  if (local_ranks > cores) {
    return fmt::format(
        "{} ranks share {}, which makes steps slower: start at most {} on this machine (run.ranks), or use "
        "more machines",
        local_ranks, counted(cores, "core"), cores);
  }
  if (local_ranks * threads_per_rank <= cores) return "";
  return fmt::format("{} of {} share {}, which makes steps slower: set run.threads_per_rank to at most {}",
                     counted(local_ranks, "rank"), counted(threads_per_rank, "thread"), counted(cores, "core"),
                     cores / local_ranks);
}

std::string idle_ranks_warning(const Plan& plan) {
  int idle = 0;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) idle += plan.data_shard(rank).sequences.size() == 0 ? 1 : 0;
  if (idle == 0) return "";
  return fmt::format(
      "{} of {} {} no sequence: {} must be at least the number of data shards, {}; set it to at least {}, or "
      "use fewer ranks",
      idle, counted(plan.mesh.size(), "rank"), idle == 1 ? "gets" : "get",
      plan.config.locate("training.global_batch_size"),
      plan.data_shards.size(), plan.data_shards.size());
}

std::string gpus_warning(const Plan& plan) {
  if (!uses_nccl(plan.config) || plan.mesh.size() == 1) return "";
  return "Orthant has not been tested on several GPUs; compare this layout with one device first, by orthant verify";
}

std::string empty_ranks_warning(const Plan& plan) {
  if (!plan.vocabulary.empty()) return "";
  std::set<int> working;
  for (const Stage& stage : plan.stages) {
    if (stage.layers.size() > 0 || stage.first || stage.last) working.insert(stage.owner);
  }
  const int ranks = plan.mesh.axis_size(kPipeline), empty = ranks - static_cast<int>(working.size());
  if (empty == 0) return "";
  return fmt::format("{} of {} {} no layer: lower parallelism.pipeline_parallel_degree to {}, or change "
                     "parallelism.pipeline_parallel_layers",
                     empty, counted(ranks, "pipeline rank"), empty == 1 ? "has" : "have", working.size());
}

std::string family_warning(const Plan& plan) {
  const std::string_view family = family_of(plan.architecture).model_type;
  if (plan.architecture.architecture == family || plan.architecture.architecture == Architecture().architecture) {
    return "";
  }
  return fmt::format(
      "{} names a family without such models, so checkpoints are written as \"{}\"{}: leave out the keys of [model] "
      "that differ from that family's, or set model.architecture to \"{}\"",
      plan.config.locate("model.architecture"), family, family == "orthant" ? ", which transformers does not read" : "",
      family);
}

std::string tokenizer_warning(const Plan& plan) {
  const std::string& tokenizer = plan.config.data.tokenizer;
  if (family_of(plan.architecture).model_type != "qwen2" || tokenizer.ends_with(".json")) return "";
  return fmt::format(
      "AutoTokenizer of transformers 5 reads the tokenizer of every qwen2 checkpoint with Qwen's own rules, which give "
      "other ids than {}; load it with PreTrainedTokenizerFast, or set data.tokenizer to the tokenizer.json of a Qwen",
      plan.config.locate("data.tokenizer"));
}

std::vector<std::string> model_from_warnings(const Plan& plan) {
  const std::string& from = plan.config.model.from;
  if (from.empty()) return {};
  std::vector<std::string> warnings = {unknown_keys_warning(read_hf_config(from), from + "/config.json")};
  if (plan.config.training.seed_weights) {
    warnings.push_back(fmt::format(
        "{} gives the sizes and the tokenizer only, and the seed gives the weights; to continue the model, set "
        "training.seed_weights to false",
        plan.config.locate("model.from")));
  }
  return warnings;
}

std::string idle_settings_warning(const Plan& plan) { return join(idle_settings(plan.given, plan.mesh), "; "); }

std::string disk_warning(const Plan& plan, std::optional<int64_t> free_bytes) {
  const int64_t needed = checkpoint_bytes(plan);
  if (!free_bytes || *free_bytes >= needed) return "";
  return fmt::format(
      "a checkpoint takes {}, but the disk of {} has {} free: free some space, or set job.dump_folder to a "
      "folder on a larger disk",
      format_bytes(static_cast<double>(needed)), plan.config.job.dump_folder,
      format_bytes(static_cast<double>(*free_bytes)));
}

}  // namespace orthant
